"""OpenAI chat completions, the request half: a JSON body, checked field by field, as a ChatRequest.

This is the door: beyond it types are true. A field of the wrong type is a BadRequest that names it; null counts as
absent, as OpenAI's clients mean it. Cursor picks the shape of a body by the name of the model, so the history may come
as chat messages, as Anthropic blocks inside them (with `system` beside them), or as the items of the Responses API;
see chat_messages, anthropic_blocks, responses_items, and chat_tools for the tools.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import ChatRequest, Message, Parts
from deepseek_cursor_proxy.deepseek import images, model_names, rules
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.memo import Memo
from deepseek_cursor_proxy.protocols.request import anthropic_blocks, responses_items, thinking_mode, tools
from deepseek_cursor_proxy.protocols.request import messages as chat_messages
from deepseek_cursor_proxy.protocols.request.custom_tools import wrap_custom_calls
from deepseek_cursor_proxy.protocols.request.fields import Json, bad_field, optional, optional_name, optional_string
from deepseek_cursor_proxy.protocols.request.messages import History
from deepseek_cursor_proxy.protocols.request.tool_namespaces import QualifiedName

# Each is a call to pay for; more is rather a mistake than a wish.
_MOST_CHOICES = 8

# DeepSeek's longest answer; asking for more is refused.
_MOST_TOKENS = 393_216

# The characters DeepSeek is sure to take in a user_id; OpenAI's `user` may hold anything.
_USER_ID = re.compile(r"[a-zA-Z0-9_-]{1,512}")

# Of agents, which have the same one all day: 20 to 60 kB each.
_prompts: Memo[str, Message] = Memo(4 * 1024 * 1024, lambda text, message: message.memory)


def parse(body: Json, config: ProxyConfig) -> ChatRequest:
    """The canonical request for a body in any of the shapes clients send here."""
    asked = optional_name(body, "model") or config.upstream_model
    named = model_names.resolve(asked, config)
    on_beta = config.upstream_base_url.rstrip("/").endswith("/beta")
    listed = _listed(body)
    declared = responses_items.declared_tools(listed.values, listed.param) if listed.are_items else ()
    box = tools.read(body, declared, keep_strict=on_beta)
    history = _history(body, listed, box.upstream_names)
    known = {tool["function"]["name"] for tool in box.tools}
    messages = tuple([wrap_custom_calls(message, box.custom, known) for message in history.messages])
    if not on_beta and any(message.prefix for message in messages):
        # Refused anywhere but there.
        messages = tuple(message._replace(prefix=False) for message in messages)
        box.dropped.append("prefix")
    if rules.can_see_images(named.model):
        images.check(messages)
    wish = thinking_mode.read(body)
    thinks = config.thinking == "enabled" if named.thinking is None else named.thinking
    thinks = thinks if wish.thinks is None else wish.thinks
    conversation = _conversation(body)
    return ChatRequest(
        requested_model=asked,
        model=named.model,
        messages=messages,
        tools=tuple(box.tools),
        tool_choice=box.choice,
        stream=optional(body, "stream", bool, "true or false") or False,
        include_usage=_includes_usage(body),
        choices=_choices(body),
        thinking=thinks and not rules.is_forced(box.choice),
        # A word of a newer client is no reason to refuse the chat: it gets the effort it would get without.
        effort=rules.EFFORTS.get(wish.effort or "", rules.EFFORTS[named.effort or config.reasoning_effort]),
        params=_params(body),
        conversation=conversation,
        dropped=tuple(sorted({*_dropped(body), *wish.dropped, *box.dropped, *history.dropped})),
        custom_tools=frozenset(box.custom),
        namespaced={name: inner for inner, name in box.upstream_names.items()},
    )


# Plain fields: name, what it must be, and the words for that …


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_stop(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))


_Check = tuple[Callable[[Any], bool], str]


def _between(low: float, high: float) -> _Check:
    """DeepSeek's own bounds: what it would refuse is refused here, by the name of the field."""
    return lambda value: _is_number(value) and low <= value <= high, f"a number from {low:g} to {high:g}"


def _is_form(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") in ("text", "json_object", "json_schema")


_NUMBER: _Check = (_is_number, "a number")
_OBJECT: _Check = (lambda value: isinstance(value, dict), "an object")
_STRING: _Check = (lambda value: isinstance(value, str), "a string")

_FORWARDED: dict[str, _Check] = {
    "max_tokens": (lambda value: _is_count(value) and value > 0, "a whole number above 0"),
    "response_format": (_is_form, "an object of type text, json_object or json_schema"),
    "stop": (_is_stop, "a string or a list of strings"),
    "temperature": _between(0, 2),
    "top_p": _between(0, 1),
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "logprobs": (lambda value: isinstance(value, bool), "true or false"),
    "top_logprobs": (lambda value: _is_count(value) and value <= 20, "a whole number from 0 to 20"),
    "seed": (lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"),
    "logit_bias": _OBJECT,
    "user_id": _STRING,
}
_TRANSLATED = (
    "model messages stream stream_options tools tool_choice functions function_call max_completion_tokens user "
    "n input instructions system max_output_tokens text prompt_cache_key"
)
_PARAMS = frozenset({*_FORWARDED, "max_completion_tokens", "max_output_tokens", "text", "user"})
_UNDERSTOOD = frozenset({*_FORWARDED, *_TRANSLATED.split(), *thinking_mode.NAMES})
_NEVER_DROPPED = _UNDERSTOOD - {"input", "text", "user", "user_id"}


def _params(body: Json) -> dict[str, Any]:
    params: dict[str, Any] = {}
    if _PARAMS.isdisjoint(body):
        return params
    for name, (is_right, expected) in _FORWARDED.items():
        value = body.get(name)
        if value is not None:
            if not is_right(value):
                raise bad_field(name, expected)
            params[name] = value
    # DeepSeek ignores OpenAI's newer name for the limit, silently.
    for name in ("max_completion_tokens", "max_output_tokens"):
        limit = optional(body, name, int, "a whole number")
        if limit is not None and limit < 1:
            raise bad_field(name, "a whole number above 0")
        if limit is not None:
            params.setdefault("max_tokens", limit)
    if "max_tokens" in params:
        params["max_tokens"] = min(params["max_tokens"], _MOST_TOKENS)
    form = _text_format(body)
    if form is not None:
        params.setdefault("response_format", form)
    user = optional(body, "user", str, "a string")
    if not _USER_ID.fullmatch(params.get("user_id", "")):
        params.pop("user_id", None)
        if user is not None and _USER_ID.fullmatch(user):
            params["user_id"] = user
    return params


def _dropped(body: Json) -> tuple[str, ...]:
    """What of the body DeepSeek will not see: fields it has no word for, and values that mean nothing to it."""
    if _NEVER_DROPPED.issuperset(body):
        return ()
    dropped = [name for name in body if name not in _UNDERSTOOD]
    if _cursor_conversation(body) is not None:
        dropped.remove("metadata")
    if body.get("messages") and body.get("input") is not None:
        # Two histories in one body: the one this path is for wins.
        dropped.append("input")
    dropped += [f"text.{inner}" for inner in body.get("text") or {} if inner != "format"]
    dropped += [name for name in ("user", "user_id") if body.get(name) and not _USER_ID.fullmatch(body[name])]
    return tuple(dropped)


def _includes_usage(body: Json) -> bool:
    options = optional(body, "stream_options", dict, "an object") or {}
    wanted = optional(options, "include_usage", bool, "true or false", "stream_options.include_usage")
    return wanted is True


def _choices(body: Json) -> int:
    count = optional(body, "n", int, "a whole number")
    if count is not None and not 1 <= count <= _MOST_CHOICES:
        raise BadRequest(f"n = {str(count)[:20]}: ask for 1 to {_MOST_CHOICES} choices.", param="n")
    return count or 1


# The history, in whichever shape it comes …


class _Listed(NamedTuple):
    """The history as it came: a list, as a rule, of messages or of items."""

    values: Any
    param: str
    are_items: bool


def _listed(body: Json) -> _Listed:
    messages = body.get("messages")
    asks_in_items = body.get("input") is not None or body.get("instructions") is not None
    if messages in (None, []) and asks_in_items:
        return _Listed([] if body.get("input") is None else body["input"], "input", are_items=True)
    if not isinstance(messages, list):
        raise bad_field("messages", "a list")
    return _Listed(messages, "messages", are_items=any(map(responses_items.is_item, messages)))


def _history(body: Json, listed: _Listed, upstream_names: Mapping[QualifiedName, str]) -> History:
    """The messages of a body, behind the instructions that stand beside them."""
    if listed.are_items:
        found = responses_items.read(listed.values, listed.param, upstream_names)
    else:
        found = chat_messages.read(listed.values)
    if "instructions" in body or "system" in body:
        instructions = optional(body, "instructions", str, "a string")
        system = anthropic_blocks.read(body.get("system"), "system", "system").content
        leading = [_prompt(text) for text in (instructions, system) if text]
        found = History((*leading, *found.messages), found.dropped)
    if not found.messages:
        where = "messages" if body.get("input") is None else "input"
        raise BadRequest(f"{where} is empty; send at least one message.", param=where)
    return found


def _prompt(content: str | Parts) -> Message:
    """The very same for the same text: by that a history that begins with it is known again."""
    if not isinstance(content, str):
        return Message("system", content)
    known = _prompts.get(content)
    if known is None:
        known = Message("system", content)
        _prompts.keep(content, known)
    return known


def _conversation(body: Json) -> str | None:
    """The client's own name for the chat: Cursor's, else the key by which it wants to find its cache again."""
    return _cursor_conversation(body) or optional(body, "prompt_cache_key", str, "a string") or None


def _cursor_conversation(body: Json) -> str | None:
    metadata = optional(body, "metadata", dict, "an object")
    return None if metadata is None else optional_string(metadata, "cursorConversationId", "metadata")


def _text_format(body: Json) -> Json | None:
    """The Responses API's word for response_format; its schema is not nested once more."""
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
