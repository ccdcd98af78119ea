"""Parses a client's JSON body, field by field, into a ChatRequest. Beyond this point types are true.

A field of the wrong type raises a BadRequest that names it; null counts as absent, as in OpenAI's clients. Cursor picks
the shape of a body by the name of the model, so every endpoint accepts chat messages, Anthropic blocks in them (with a
`system` field), and items of the Responses API.

To add a request field that DeepSeek takes as it is: add it to _FORWARDED_FIELDS, and to _PARAMS in
features/web_search/responses_api.py if its Responses API has it. One that needs translation: add it to
_TRANSLATED_FIELDS and to conversation.ChatRequest, read it in `parse`, send it in `payload` of
deepseek/chat_api.py and of features/web_search/responses_api.py. A field in _RESPONSE_FIELDS of
features/responses/fields.py or in _IGNORED_FIELDS of features/messages/request.py never gets here: take it out of
that list.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any, NamedTuple

from deepseek_cursor_proxy.chat_memory import NO_CHAT, Chat
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import UNNAMED, ChatName, ChatRequest, Message
from deepseek_cursor_proxy.deepseek import hosts, images, model_names, model_resolver, rules
from deepseek_cursor_proxy.deepseek.server_tools import CHAT, RESPONSES
from deepseek_cursor_proxy.errors import BadRequest, ProxyError
from deepseek_cursor_proxy.json_codec import Json, bad_field, optional, optional_name, optional_string
from deepseek_cursor_proxy.protocols import input_items, tools
from deepseek_cursor_proxy.protocols import messages as chat_messages
from deepseek_cursor_proxy.protocols.messages import ParsedHistory

# Each is a paid upstream call; more is probably a mistake.
_MAX_CHOICES = 8
# DeepSeek's longest answer; it refuses a greater limit.
_MAX_TOKENS = 393_216
# The limit counts thinking and answer together. Below this one, as titles and other small jobs have it, thinking left
# no room for an answer (10 of 10 at 600), so it is off unless the client names it or an effort.
_SHORT = 1_000
# The characters that DeepSeek accepts in a user_id; OpenAI's `user` may hold anything.
_USER_ID = re.compile(r"[a-zA-Z0-9_-]{1,512}")


def parse(
    body: Json, config: ProxyConfig, memory: Chat = NO_CHAT, api: str = CHAT, name: ChatName = UNNAMED
) -> ChatRequest:
    """The canonical request for a body of any shape, sent to the endpoint of this API.

    An id of the chat in the body takes the place of that in its `name`.
    """
    requested_model = optional_name(body, "model") or config.upstream_model
    model = model_resolver.resolve(requested_model, config)
    items = _find_items(body, memory)
    tool_set = _read_tools(body, items, memory, config, api)
    messages, history_dropped = _read_history(body, items, tool_set, memory, config)
    options, params = read_thinking(body), _params(body)
    thinking = config.thinking == "enabled" if model.thinking is None else model.thinking
    if not (model.thinking or model.effort or options.effort) and params.get("max_tokens", _SHORT) < _SHORT:
        thinking = False
    thinking = thinking if options.thinking is None else options.thinking
    # An unknown effort, perhaps of a newer client, counts as none.
    effort = rules.EFFORTS.get(options.effort or "", rules.EFFORTS[model.effort or config.reasoning_effort])
    chat_id = _chat_id(body) if "metadata" in body or "prompt_cache_key" in body else None
    dropped = {*tool_set.dropped, *history_dropped, *_dropped(body), *options.dropped}
    # In the order of the fields: with names it takes three times as long.
    return ChatRequest(
        requested_model, _model_for(messages, model.model, config), messages, tool_set.functions, tool_set.choice,
        optional(body, "stream", bool, "true or false") or False,
        _include_usage(body) if "stream_options" in body else None, _choices(body) if "n" in body else 1,
        thinking and not rules.is_forced(tool_set.choice) and tool_set.server_choice is None, effort, params,
        ChatName(chat_id, name.client) if chat_id else name, tuple(sorted(dropped)),
        frozenset(tool_set.custom), tool_set.namespaces, tool_set.sent_names,
        api, tuple(tool_set.server), tool_set.server_choice,
        _cache_option(body) if "cache" in body or "nomyo" in body else None, frozenset(tool_set.nested),
    )  # fmt: skip


def _chat_id(body: Json) -> str | None:
    metadata = optional(body, "metadata", dict, "an object") or {}
    cursor_chat = optional_string(metadata, "cursorConversationId", "metadata")
    return cursor_chat or optional(body, "prompt_cache_key", str, "a string")


def _include_usage(body: Json) -> bool | None:
    options = optional(body, "stream_options", dict, "an object") or {}
    return optional(options, "include_usage", bool, "true or false", "stream_options.include_usage")


def _choices(body: Json) -> int:
    choices = optional(body, "n", int, "a whole number")
    if choices is not None and not 1 <= choices <= _MAX_CHOICES:
        raise BadRequest(f"n = {str(choices)[:20]}: ask for 1 to {_MAX_CHOICES} choices.", param="n")
    return choices or 1


def _cache_option(body: Json) -> bool | None:
    """Whether the response cache may answer: `"cache": true` or, as another router has it, inside `nomyo`."""
    cache = optional(body, "cache", bool, "true or false")
    if cache is None:
        nomyo = optional(body, "nomyo", dict, "an object") or {}
        cache = optional(nomyo, "cache", bool, "true or false", "nomyo.cache")
    return cache


@lru_cache(8)
def _has_beta(config: ProxyConfig) -> bool:
    """Whether an upstream may have DeepSeek's beta path."""
    tables = [(table.host, table.base_url) for table in config.upstreams.values()]
    upstreams = tables or [(config.upstream_host, config.upstream_base_url)]
    return any(hosts.beta_url(hosts.choose(host, url), url) is not None for host, url in upstreams)


# Plain fields: a check for each, and its words for the error …


# The exact types: a bool is an int, too.


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_stop(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(stop, str) for stop in value))


def _is_form(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") in ("text", "json_object", "json_schema")


# The bounds are DeepSeek's own, checked here because our error names the field.
_FORWARDED_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_tokens": (lambda value: type(value) is int and value > 0, "a whole number above 0"),
    "response_format": (_is_form, "an object of type text, json_object or json_schema"),
    "stop": (_is_stop, "a string or a list of strings"),
    "temperature": (lambda value: _is_number(value) and 0 <= value <= 2, "a number from 0 to 2"),
    "top_p": (lambda value: _is_number(value) and 0 <= value <= 1, "a number from 0 to 1"),
    "presence_penalty": (_is_number, "a number"),
    "frequency_penalty": (_is_number, "a number"),
    "logprobs": (lambda value: isinstance(value, bool), "true or false"),
    "top_logprobs": (lambda value: type(value) is int and 0 <= value <= 20, "a whole number from 0 to 20"),
    "seed": (lambda value: type(value) is int, "a whole number"),
    "logit_bias": (lambda value: isinstance(value, dict), "an object"),
    "user_id": (lambda value: isinstance(value, str), "a string"),
}
_TRANSLATED_FIELDS = (
    "model messages stream stream_options tools tool_choice functions function_call max_completion_tokens user "
    "n input instructions system max_output_tokens text prompt_cache_key cache nomyo"
)
THINKING_FIELDS = frozenset(
    {"thinking", "enable_thinking", "chat_template_kwargs", "extra_body", "reasoning", "reasoning_effort"}
)
_PARAMS = frozenset({*_FORWARDED_FIELDS, "max_completion_tokens", "max_output_tokens", "text", "user"})
_KNOWN_FIELDS = frozenset({*_FORWARDED_FIELDS, *_TRANSLATED_FIELDS.split(), *THINKING_FIELDS})
_NEVER_DROPPED = _KNOWN_FIELDS - {"input", "text", "user", "user_id"}


def _params(body: Json) -> dict[str, Any]:
    params: dict[str, Any] = {}
    if _PARAMS.isdisjoint(body):
        return params
    for name, (is_right, expected) in _FORWARDED_FIELDS.items():
        value = body.get(name)
        if value is not None:
            if not is_right(value):
                raise bad_field(name, expected)
            params[name] = value
    # DeepSeek silently ignores OpenAI's newer names for the limit.
    for name in ("max_completion_tokens", "max_output_tokens"):
        limit = optional(body, name, int, "a whole number")
        if limit is not None and limit < 1:
            raise bad_field(name, "a whole number above 0")
        if limit is not None:
            params.setdefault("max_tokens", limit)
    if "max_tokens" in params:
        params["max_tokens"] = min(params["max_tokens"], _MAX_TOKENS)
    if (form := _text_format(body) if "text" in body else None) is not None:
        params.setdefault("response_format", form)
    user = optional(body, "user", str, "a string")
    if not _USER_ID.fullmatch(params.get("user_id", "")):
        params.pop("user_id", None)
        if user is not None and _USER_ID.fullmatch(user):
            params["user_id"] = user
    return params


def _dropped(body: Json) -> list[str]:
    """The fields of the body that DeepSeek will not get."""
    if _NEVER_DROPPED.issuperset(body):
        return []
    dropped = [name for name in body if name not in _KNOWN_FIELDS]
    if (body.get("metadata") or {}).get("cursorConversationId") is not None:
        dropped.remove("metadata")
    if body.get("messages") and body.get("input") is not None:
        # Of two histories in one body, `messages` wins.
        dropped.append("input")
    dropped += [f"text.{inner}" for inner in body.get("text") or {} if inner != "format"]
    dropped += [name for name in ("user", "user_id") if body.get(name) and not _USER_ID.fullmatch(body[name])]
    return dropped


class _Items(NamedTuple):
    """The client's JSON of a history that is not of chat messages: a list of items, as a rule."""

    values: Any
    param: str


def _find_items(body: Json, memory: Chat) -> _Items | None:
    """The items of a body; None if it has chat messages."""
    messages, items = body.get("messages"), body.get("input")
    if messages in (None, []) and (items is not None or body.get("instructions") is not None):
        return _Items([] if items is None else items, "input")
    if not isinstance(messages, list):
        raise bad_field("messages", "a list")
    for message in messages[chat_messages.count_known(messages, memory) :]:
        # A chat message has a role, which no item needs.
        if isinstance(message, dict) and "role" not in message and input_items.is_item(message):
            return _Items(messages, "messages")
    return None


_without_tools = cache(tools.ToolSet)


def _read_tools(body: Json, items: _Items | None, memory: Chat, config: ProxyConfig, api: str) -> tools.ToolSet:
    declared = input_items.declared_tools(*items) if items is not None else ()
    if not declared and tools.FIELDS.isdisjoint(body):
        return _without_tools(api)
    return tools.read(body, declared, memory, keep_strict=_has_beta(config), server_api=api)


def _read_history(
    body: Json, items: _Items | None, tool_set: tools.ToolSet, memory: Chat, config: ProxyConfig
) -> ParsedHistory:
    """The messages of a body, after its `instructions` and `system`."""
    names = tool_set.call_names
    if items is not None:
        keeps = tool_set.server_api == RESPONSES
        history = input_items.read(*items, names, memory, keep_server_items=keeps)
    else:
        # DeepSeek's chat completions take what its tools left only together with the tools.
        is_read = bool(tool_set.server) or tool_set.server_api != CHAT
        history = chat_messages.read(body["messages"], memory, tool_set.server_api if is_read else None, names)
    messages = history.messages
    if "instructions" in body or "system" in body:
        instructions = optional(body, "instructions", str, "a string")
        system = chat_messages.read_blocks(body.get("system"), "system", "system").content
        messages = (*[Message("system", text) for text in (instructions, system) if text], *messages)
        history = ParsedHistory(messages, history.dropped)
    if not messages:
        where = "messages" if body.get("input") is None else "input"
        raise BadRequest(f"{where} is empty; send at least one message.", param=where)
    if True in [message.prefix for message in messages]:
        # Only DeepSeek's beta path accepts it, on the last message.
        misplaced = messages[:-1] if _has_beta(config) else messages
        if True in [message.prefix for message in misplaced]:
            messages = (*(message._replace(prefix=False) for message in misplaced), *messages[len(misplaced) :])
            history = ParsedHistory(messages, (*history.dropped, "prefix"))
    return history


def _model_for(messages: tuple[Message, ...], model: str, config: ProxyConfig) -> str:
    """The model that answers: one that sees pictures in place of one that does not, if these are to be answered so."""
    if model_names.can_see_images(model):
        images.check(messages)
        return model
    vision_model = model_names.vision_model(config) if config.pictures == "flash" else None
    if vision_model is None or not images.has_new_picture(messages):
        return model
    try:
        images.check(messages)
    except ProxyError:
        # More than it takes: the pictures are named, as without it.
        return model
    return vision_model


def _text_format(body: Json) -> Json | None:
    """The Responses API's `text.format` as response_format, in which the schema is nested once more."""
    text = optional(body, "text", dict, "an object") or {}
    form = optional(text, "format", dict, "an object", "text.format")
    if form is None:
        return None
    kind = optional_string(form, "type", "text.format")
    if kind is not None and not _is_form(form):
        raise bad_field("text.format.type", "text, json_object or json_schema")
    if kind == "json_schema":
        return {"type": kind, "json_schema": {name: value for name, value in form.items() if name != "type"}}
    return None if kind in (None, "text") else {"type": kind}


# Whether the model should think, and with which effort, in the fields of several hosts. The first that is present
# decides:
#
#     thinking                {"type": "enabled" | "disabled"}, DeepSeek's own; also true or false
#     enable_thinking         Qwen's hosts
#     chat_template_kwargs    thinking or enable_thinking, as vLLM and SGLang take them
#     extra_body              any of these in it, from clients that do not unpack it as OpenAI's SDK does
#     reasoning.enabled       OpenRouter's
#     an effort of "none"     reasoning_effort, or reasoning.effort
#
# Without any of them, or in an adaptive mode, the name of the model decides, then the limit of the answer (_SHORT),
# then the setting.

_THINKING_TYPES = {"enabled": True, "disabled": False}
_ADAPTIVE = ("adaptive", "auto")


class ThinkingOptions(NamedTuple):
    """The options of a request, None if absent; `effort` is in the client's words, `dropped` names unknown values."""

    thinking: bool | None = None
    effort: str | None = None
    dropped: tuple[str, ...] = ()


_NO_OPTIONS = ThinkingOptions()


def read_thinking(body: Json) -> ThinkingOptions:
    if THINKING_FIELDS.isdisjoint(body):
        return _NO_OPTIONS
    extra = optional(body, "extra_body", dict, "an object") or {}
    switches: list[bool | None] = []
    efforts: list[str | None] = []
    for source, at in ((body, ""), (extra, "extra_body.")):
        inside = f"{at}chat_template_kwargs"
        template = optional(source, "chat_template_kwargs", dict, "an object", inside) or {}
        switches += (_thinking_type(source, at), _flag(source, "enable_thinking", at))
        switches += (_flag(template, "thinking", f"{inside}."), _flag(template, "enable_thinking", f"{inside}."))
        efforts.append(optional(source, "reasoning_effort", str, "a string", f"{at}reasoning_effort"))
        reasoning = optional(source, "reasoning", dict, "an object", f"{at}reasoning") or {}
        efforts.append(optional_string(reasoning, "effort", f"{at}reasoning"))
        efforts.append(optional_string(template, "reasoning_effort", inside))
    switches.append(_flag(body.get("reasoning") or {}, "enabled", "reasoning."))
    thinking = next((switch for switch in switches if switch is not None), None)
    effort = next((effort for effort in efforts if effort is not None), None)
    if thinking is None and effort == "none":
        thinking = False
    return ThinkingOptions(thinking, effort, tuple(_unknown_options(body, extra, effort)))


def _thinking_type(source: Json, at: str) -> bool | None:
    thinking = source.get("thinking")
    if thinking is None or isinstance(thinking, bool):
        return thinking
    if not isinstance(thinking, dict):
        raise bad_field(f"{at}thinking", 'an object such as {"type": "disabled"}')
    return _THINKING_TYPES.get(optional_string(thinking, "type", f"{at}thinking") or "")


def _flag(source: Json, name: str, at: str) -> bool | None:
    return optional(source, name, bool, "true or false", at + name)


def _unknown_options(body: Json, extra: Json, effort: str | None) -> Iterator[str]:
    for name, known in (
        ("thinking", {"type"}),
        ("chat_template_kwargs", {"thinking", "enable_thinking", "reasoning_effort"}),
        ("extra_body", THINKING_FIELDS - {"extra_body"}),
        ("reasoning", {"effort", "enabled"}),
    ):
        inside = body.get(name)
        yield from (f"{name}.{inner}" for inner in inside if inner not in known) if isinstance(inside, dict) else ()
    for source in (body, extra):
        thinking = source.get("thinking")
        kind = thinking.get("type") if isinstance(thinking, dict) else None
        if kind is not None and kind not in _THINKING_TYPES and kind not in _ADAPTIVE:
            yield f"thinking.type {kind[:40]}"
    if effort is not None and effort != "none" and effort not in rules.EFFORTS:
        yield f"reasoning_effort {effort}"
