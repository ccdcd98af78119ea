"""OpenAI Responses: the options of a request, and the response object around its answer.

`chat_body` leaves the conversation to `protocols/request`. Here is the rest: which response a request continues, if its
response is stored, which forms of its reasoning the client wants. A Frame is the part of the response object that
is known before the answer; it is encoded once.

Ids lead back to where they come from: `resp_<suffix>` has the items `rs_<suffix>_0`, `msg_<suffix>_1`, …, so that a
reference to an item is found without an index of all of them.

Compaction replaces a history with the user's messages and a summary of the rest. The client keeps the item with the
summary; the proxy stores nothing of it.

    POST /v1/responses/compact, or `compaction_trigger` as the last input item     request a summary from the model
    {"type": "compaction", "encrypted_content": …}                                 the summary, sealed for its caller
    the same item as input                                                         a system message with the summary
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from deepseek_cursor_proxy.chat_memory import NO_CHAT, Chat
from deepseek_cursor_proxy.conversation import is_blank
from deepseek_cursor_proxy.deepseek.error_messages import OVERFLOW, is_overflow_message
from deepseek_cursor_proxy.deepseek.usage import count_of
from deepseek_cursor_proxy.errors import BadRequest, ProxyError, UpstreamFailed
from deepseek_cursor_proxy.features.encryption import Opener, Sealer, unseal_each
from deepseek_cursor_proxy.json_codec import (
    Json,
    as_list,
    as_object,
    bad_field,
    encode_json,
    object_at,
    optional,
    optional_name,
    optional_string,
    too_long,
)
from deepseek_cursor_proxy.redaction import safe_text

COMPACTION = "compaction"
_TRIGGER = "compaction_trigger"
_QUESTION = (
    "Summarize this conversation so that it can be continued without its earlier messages. State the goal and the "
    "instructions that still hold, the decisions and their reasons, what was done and found (files, commands, results "
    "that matter), where things stand now, and what comes next. Repeat names, paths, ids, numbers and code that are "
    "still needed word for word. The user's own messages are kept, so do not repeat them. Write nothing but the "
    "summary, in the language of the conversation, and call no tools."
)
_PREFACE = "The conversation up to here was replaced by this summary of it:\n\n"
# Fields of the body for the summary request: with the same tools and effort DeepSeek has the prompt in its cache.
_SUMMARY_FIELDS = ("model", "instructions", "tools", "reasoning", "stream", "prompt_cache_key", "user")

_SEALED = "reasoning.encrypted_content"
_LOGPROBS = "message.output_text.logprobs"
# OpenAI's own bounds; every event with the object in it repeats all of it.
_MOST_METADATA, _LONGEST_METADATA_NAME, _LONGEST_METADATA = 16, 64, 512

# Fields of the response, not of the conversation; DeepSeek does not get them.
_RESPONSE_NAMES = (
    "store background previous_response_id include metadata parallel_tool_calls max_tool_calls truncation "
    "service_tier safety_identifier client_metadata prompt_cache_retention stream_options top_logprobs n"
)
_RESPONSE_FIELDS = frozenset(_RESPONSE_NAMES.split())
# Fields that are refused: without them the request would mean something else.
_IMPOSSIBLE = {
    "conversation": "conversation is kept by OpenAI's own servers only; chain responses with previous_response_id.",
    "prompt": "prompt names a template on OpenAI's own servers; send its text as instructions or input.",
    "messages": "messages belong to /v1/chat/completions; here the history is sent as input.",
}
# Fields of a response that repeat those of the request, with OpenAI's defaults.
_ECHOED: dict[str, Any] = {
    **dict.fromkeys(("instructions", "max_output_tokens", "max_tool_calls", "previous_response_id")),
    **dict.fromkeys(("prompt_cache_key", "safety_identifier", "user")),
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "temperature": 1.0,
    "top_logprobs": 0,
    "top_p": 1.0,
    "metadata": {},
    "parallel_tool_calls": True,
    "tool_choice": "auto",
}
# Fields that are the same in every response.
_FIXED: dict[str, Any] = {
    **dict.fromkeys(("access_programs", "conversation", "moderation", "prompt", "prompt_cache_retention")),
    "billing": {"payer": "developer"},
    # DeepSeek has one tier, whatever a request asks for.
    "service_tier": "default",
    # A history that does not fit is refused, never cut.
    "truncation": "disabled",
}
# Fields that change with the answer, as long as they are not known.
_UNKNOWN: dict[str, Any] = {
    **dict.fromkeys(("completed_at", "error", "incomplete_details")),
    "output": [],
    "output_text": "",
    "usage": None,
}


@dataclass(frozen=True)
class ResponseOptions:
    """The options of a request for a response, other than its conversation."""

    # The input of this request alone; nothing inherited.
    items: tuple[Json, ...]
    store: bool = True
    background: bool = False
    stream: bool = False
    previous: str | None = None
    sealed: bool = False
    summary: str | None = None
    # The answer has to be JSON.
    json: bool = False
    logprobs: bool = False
    # The client wants a summary of the history in place of an answer.
    compacts: bool = False


def parse_options(body: Json) -> ResponseOptions:
    """The options of a body; BadRequest names the field that is wrong."""
    for name, why in _IMPOSSIBLE.items():
        if body.get(name) is not None:
            raise BadRequest(why, param=name)
    store = _flag(body, "store", otherwise=True)
    background = _flag(body, "background")
    if background and not store:
        raise BadRequest("background needs store: a response that is not kept cannot be asked for.", param="background")
    _check_metadata(body)
    # DeepSeek does not get these: clients read them in the response, and trust their types there.
    _flag(body, "parallel_tool_calls")
    optional(body, "max_tool_calls", int, "a whole number")
    optional(body, "top_logprobs", int, "a whole number from 0 to 20")
    for name in ("safety_identifier", "service_tier", "prompt_cache_key", "user"):
        optional_name(body, name)
    include = optional(body, "include", list, "a list of strings") or []
    reasoning = optional(body, "reasoning", dict, "an object") or {}
    text = optional(body, "text", dict, "an object") or {}
    form = optional(text, "format", dict, "an object", "text.format") or {}
    summary = optional_string(reasoning, "summary", "reasoning")
    items = _items(body.get("input"))
    compacts = bool(items) and items[-1].get("type") == _TRIGGER
    previous = optional(body, "previous_response_id", str, "a string") or None
    is_json = form.get("type") in ("json_object", "json_schema") and not compacts
    return ResponseOptions(
        *(items[:-1] if compacts else items, store, background, _flag(body, "stream"), previous, _SEALED in include),
        *(None if summary == "none" else summary, is_json, _wants_logprobs(body), compacts),
    )


def chat_body(body: Json, items: Sequence[Json]) -> dict[str, Any]:
    """The body of a chat with these items, without the fields that concern the response alone."""
    chat = {name: value for name, value in body.items() if name not in _RESPONSE_FIELDS}
    reasoning = chat.get("reasoning")
    if isinstance(reasoning, dict):
        chat["reasoning"] = {name: value for name, value in reasoning.items() if name != "summary"}
    if _wants_logprobs(body):
        chat["logprobs"] = True
        # Without it DeepSeek sends those of the tokens it has chosen.
        chat |= {"top_logprobs": body["top_logprobs"]} if body.get("top_logprobs") else {}
    return {**chat, "input": list(items)}


def summary_request(body: Json, items: Sequence[Json]) -> dict[str, Any]:
    """The body of the request for a summary of `items`."""
    if not items:
        raise BadRequest("There is nothing to compact: input is empty.", param="input")
    fields = {name: body[name] for name in _SUMMARY_FIELDS if body.get(name) is not None}
    if fields.get("tools"):
        fields["tool_choice"] = "none"
    return {**fields, "input": [*items, _user_item(_QUESTION)]}


def compact_request(body: Json) -> dict[str, Any]:
    """A body of POST /v1/responses/compact as that of POST /v1/responses with a trigger."""
    given = body.get("input")
    if isinstance(given, str):
        given = [_user_item(given)]
    items = [*given, {"type": _TRIGGER}] if isinstance(given, list) else given or [{"type": _TRIGGER}]
    return {**body, "input": items, "store": False, "stream": False, "background": False}


def _user_item(text: str) -> Json:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def unseal(items: Sequence[Json], opener: Opener, memory: Chat = NO_CHAT) -> list[Json]:
    """The items, with reasoning and summaries that we had sealed in plain text again."""
    return unseal_each(items, lambda item: _unseal(item, opener), opener, memory)


def _unseal(item: Json, opener: Opener) -> Json:
    kind, sealed = item.get("type"), item.get("encrypted_content")
    if kind not in ("reasoning", COMPACTION) or not isinstance(sealed, str):
        return item
    if kind == "reasoning":
        # In plain text already; clients that keep only what was sealed may leave blanks there.
        texts = [part.get("text") if isinstance(part, dict) else part for part in as_list(item.get("content"))]
        if any(text is not None and not (isinstance(text, str) and is_blank(text)) for text in texts):
            return item
    if (text := opener.open(sealed)) is None:
        return item
    if kind == COMPACTION:
        return {"type": "message", "role": "system", "content": _PREFACE + text}
    return {**item, "content": [{"type": "reasoning_text", "text": text}]}


def _flag(body: Json, name: str, *, otherwise: bool = False) -> bool:
    flag = optional(body, name, bool, "true or false")
    return otherwise if flag is None else flag


def _wants_logprobs(body: Json) -> bool:
    """Whether a request asks for log probabilities, by any of three fields."""
    return _LOGPROBS in as_list(body.get("include")) or body.get("logprobs") is True or bool(body.get("top_logprobs"))


def _check_metadata(body: Json) -> None:
    metadata = optional(body, "metadata", dict, "an object") or {}
    if len(metadata) > _MOST_METADATA:
        raise BadRequest(f"metadata has more than {_MOST_METADATA} entries.", param="metadata")
    for name, value in metadata.items():
        param = f"metadata.{safe_text(name, 60)}"
        if not isinstance(value, str):
            raise bad_field(param, "a string")
        if len(name) > _LONGEST_METADATA_NAME or len(value) > _LONGEST_METADATA:
            raise too_long(param, _LONGEST_METADATA if len(name) <= _LONGEST_METADATA_NAME else _LONGEST_METADATA_NAME)


def _items(value: Any) -> tuple[Json, ...]:
    if isinstance(value, str):
        return (_user_item(value),)
    if not isinstance(value, list | None):
        raise bad_field("input", "a string or a list of items")
    items = []
    for index, item in enumerate(value or ()):
        item = object_at(item, f"input[{index}]")
        # Items are looked up and listed by their ids. OpenAI's own types allow a reference to leave out that it is one.
        has_id = bool(optional_string(item, "id", f"input[{index}]"))
        is_reference = has_id and item.get("type") is None and item.keys() <= {"type", "id"}
        items.append({**item, "type": "item_reference"} if is_reference else item)
    return tuple(items)


@dataclass(frozen=True)
class Frame:
    """A response before its answer: its ids and the fields that are known."""

    id_suffix: str
    created_at: int
    model: str
    options: ResponseOptions
    fields: Mapping[str, Any] = field(default_factory=dict)
    sealer: Sealer | None = None

    @property
    def response_id(self) -> str:
        return f"resp_{self.id_suffix}"

    def item_id(self, kind: str, index: int) -> str:
        return f"{kind}_{self.id_suffix}_{index}"

    @cached_property
    def _known(self) -> dict[str, Any]:
        known = {"id": self.response_id, "object": "response", "created_at": self.created_at, "model": self.model}
        return {**known, "background": self.options.background, "store": self.options.store, **self.fields}

    @cached_property
    def _encoded_fields(self) -> bytes:
        return encode_json(self._known)[:-1]

    def response(self, so_far: Mapping[str, Any]) -> dict[str, Any]:
        """The whole object; `so_far` is the state of the answer."""
        return {**self._known, **so_far}

    def encode(self, so_far: Mapping[str, Any]) -> bytes:
        """The same as JSON; the fields that do not change, the tools above all, are not encoded for every event."""
        return self._encoded_fields + b"," + encode_json(so_far)[1:]


def echoed_fields(body: Json) -> dict[str, Any]:
    echoed = {name: otherwise if body.get(name) is None else body[name] for name, otherwise in _ECHOED.items()}
    reasoning, text = body.get("reasoning") or {}, body.get("text") or {}
    echoed["reasoning"] = {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")}
    echoed["text"] = {**text, "format": text.get("format") or {"type": "text"}}
    echoed["tool_choice"] = _flat(echoed["tool_choice"])
    echoed["tools"] = [_echoed_tool(tool) for tool in body.get("tools") or ()]
    return {**echoed, **_FIXED}


def _echoed_tool(tool: Any) -> Any:
    """A tool with the fields that the official types require."""
    tool = _flat(tool)
    if isinstance(tool, dict) and tool.get("type") == "function":
        return {**tool, "parameters": tool.get("parameters"), "strict": tool.get("strict") or False}
    if isinstance(tool, dict) and tool.get("type") == "namespace":
        return {**tool, "description": tool.get("description") or ""}
    return tool


def _flat(tool: Any) -> Any:
    """A function, or the choice of one, in the form of this API; clients send that of chat completions as well."""
    function = tool.get("function") if isinstance(tool, dict) else None
    return {**function, "type": tool.get("type")} if isinstance(function, dict) else tool


def state(status: str, **known: Any) -> dict[str, Any]:
    """The fields of a response that change with its answer; empty where they are not known yet."""
    return {"status": status, **_UNKNOWN, **known}


def usage(counts: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if counts is None:
        return None
    prompt, completion = count_of(counts, "prompt_tokens"), count_of(counts, "completion_tokens")
    cached = count_of(as_object(counts.get("prompt_tokens_details")), "cached_tokens")
    reasoning = count_of(as_object(counts.get("completion_tokens_details")), "reasoning_tokens")
    return {
        "input_tokens": prompt,
        # DeepSeek charges nothing for filling its cache, and does not count it.
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": count_of(counts, "total_tokens") or prompt + completion,
    }


# Codes that clients act on; to them any other code is a server error, and they retry.
_CODES = frozenset({"rate_limit_exceeded", OVERFLOW, "invalid_prompt", "insufficient_quota"})
_CODES_BY_STATUS = {429: "rate_limit_exceeded", 402: "insufficient_quota", 400: "invalid_prompt"}


def error_object(error: ProxyError) -> dict[str, str]:
    code = error_code(error)
    if code not in _CODES:
        code = _CODES_BY_STATUS.get(error.status, "server_error")
    return {"code": code, "message": error.message}


def error_code(error: ProxyError) -> str:
    """The code of a failure: DeepSeek's own if it sent one, or that of an overflow which it only describes."""
    if isinstance(error, UpstreamFailed) and is_overflow_message(error.message):
        return OVERFLOW
    return str(error.payload()["error"].get("code"))
