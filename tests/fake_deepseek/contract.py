"""What DeepSeek refuses, and in which words.

`refusal` judges one chat-completions body the way the server does: first as a typed value (the server is written in
Rust, so those words are serde's), then field by field, then as a history, and last as a history of thoughts.
`tool_rules` judges the functions, `prompt` what the model reads: DeepSeek itself accepts a history whose prompt lacks
an assistant header, but the answer to it is empty or wrong. The first thing wrong is the one reported. Where no capture
shows DeepSeek's words, as for pictures (limits of the vision guide, September 2026), the sentence is ours.
Rule: every check may trust what the checks before it established. This file knows no socket, clock or script.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import UnionType
from typing import Any, get_args

from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.json_codec import decode_json_object
from tests.fake_deepseek import prompt, tool_rules
from tests.fake_deepseek.prompt import V4_PRO, is_thinking

DESERIALIZE = "Failed to deserialize the JSON body into the target type: "
MISSING_REASONING = "The `reasoning_content` in the thinking mode must be passed back to the API."
UNANSWERED_CALLS = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
    "(insufficient tool messages following tool_calls message)"
)
ORPHAN_RESULT = "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
FORCED_TOOL = "Thinking mode does not support this tool_choice"
EFFORT_WITHOUT_THINKING = "thinking options type cannot be disabled when reasoning_effort is set"

VISION_MODELS = ("deepseek-flash", "deepseek-v4-flash", "deepseek-v4-flash-vision-exp")
MODELS = (V4_PRO, *VISION_MODELS)
MAX_PICTURE_BYTES, MAX_BYTES_OF_PICTURES = 32 * 1024 * 1024, 64 * 1024 * 1024
_MAX_PICTURES = 600
_LONGEST_URL = 8192
# JPEG, PNG, GIF and WebP are told by their first bytes, whatever the media type says.
_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF")

# Sentences, found lazily. Only the first is ever read, so the code after a `yield` may trust what it checked.
Problems = Iterator[str]


@dataclass(frozen=True)
class Rules:
    # Whether an empty reasoning is as good as none; for the tool calls of V4-Pro it always is.
    refuses_empty: bool = False
    # Whether the body was sent to a /beta path.
    is_beta: bool = False
    # Whether every model has the template of V4, as at a host that does not say otherwise.
    has_v4_template: bool = False
    # Whether a prompt without an assistant header is refused, which DeepSeek itself accepts.
    needs_headers: bool = True


NEWEST_RULES = Rules()


@dataclass(frozen=True)
class Refusal:
    message: str
    status: int = 400
    type: str = "invalid_request_error"
    code: str = "invalid_request_error"


class Refused(Exception):
    """The sentence of a refusal."""


def check(condition: object, words: str) -> None:
    if not condition:
        raise Refused(words)


def fit(condition: object, words: str) -> None:
    check(condition, DESERIALIZE + words)


def read(
    body: bytes, translate: Callable[[dict[str, Any]], dict[str, Any]] = lambda payload: payload
) -> dict[str, Any] | Refusal:
    """The object in a body, translated from another API, or the 400 that a body without one earns."""
    try:
        return translate(decode_json_object(body))
    except Refused as refused:
        return Refusal(str(refused))
    except BadRequest as error:
        return Refusal(DESERIALIZE + error.message)
    except (AttributeError, KeyError, TypeError) as misfit:
        # In a translation: something else than an object, or one without a field that it needs.
        return Refusal(DESERIALIZE + str(misfit))


def refusal(payload: object, rules: Rules = NEWEST_RULES) -> Refusal | None:
    misfit = _misfit(payload, _BODY)
    if misfit or not isinstance(payload, dict):
        return Refusal(DESERIALIZE + str(misfit).lstrip(".: "))
    problems = chain(
        _field_problems(payload), _tool_problems(payload, rules.is_beta), _message_problems(payload, rules.is_beta),
        _order_problems(payload["messages"]),
        prompt.problems(payload, is_v4=rules.has_v4_template) if rules.needs_headers else (),
        _reasoning_problems(payload, rules),
    )  # fmt: skip
    return next(map(Refusal, problems), None)


def refusal_in_words(payload: object, rules: Rules, words: Mapping[str, str]) -> Refusal | None:
    """The 400 that a body of another API earns, in the words of that API."""
    # Whether chats may have an empty reasoning makes no difference: in the other APIs it is as good as none.
    found = refusal(payload, replace(rules, refuses_empty=True))
    return found if found is None else replace(found, message=words.get(found.message, found.message))


@dataclass(frozen=True)
class _Tagged:
    """The shape of a map whose `tag` field says which other fields it has."""

    tag: str
    shapes: dict[str, dict[str, Any]]


# A shape is a type, a tuple of variants, a list holding its items' shape, a _Tagged, or the fields of a map;
# a field with a question mark may be null or absent.
_CALL = {"id": str, "type": ("function",), "function": {"name": str, "arguments": str}}
_FUNCTION = {"name": str, "description?": str, "parameters?": dict, "strict?": bool}
_ROLES: dict[str, dict[str, Any]] = {
    "system": {"content": str, "name?": str},
    "user": {"content": str | list, "name?": str},
    "assistant": {"content": str | None, "name?": str, "reasoning_content?": str, "tool_calls?": [_CALL]},
    "tool": {"content": str, "tool_call_id": str},
    "latest_reminder": {"content": str},  # undocumented; known from the server's own error text
}
_PARTS: dict[str, dict[str, Any]] = {
    "text": {"text": str},
    "image_url": {"image_url": {"url": str, "detail?": ("low", "high", "original", "auto")}},
    "file": {"file": {"file_id?": str, "file_data?": str, "filename?": str}},
}
_NAMED_TOOL = {"type": ("function",), "function": {"name": str}}
_BODY = {
    "model": str,
    "messages": [_Tagged("role", _ROLES)],
    "thinking?": {"type": ("enabled", "disabled")},
    "reasoning_effort?": ("none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"),
    "tools?": [{"type": ("function",), "function": _FUNCTION}],
    "tool_choice?": str | dict,
    "stream_options?": {"include_usage?": bool},
    "response_format?": {"type": str},
    "stop?": str | list,
    "user_id?": str,
    **dict.fromkeys(("stream?", "logprobs?"), bool),
    **dict.fromkeys(("max_tokens?", "top_logprobs?"), int),
    **dict.fromkeys(("temperature?", "top_p?", "presence_penalty?", "frequency_penalty?"), int | float),
}
_RANGES = {"max_tokens": (1, 393216), "temperature": (0, 2), "top_p": (0, 1), "top_logprobs": (0, 20)}
_NAMES = {str: "a string", bool: "a boolean", int: "an integer", float: "a float", list: "a sequence", dict: "a map"}


def _misfit(value: Any, shape: Any) -> str | None:
    """Where and how a value differs from its shape; the path is put together only when something is wrong."""
    if isinstance(shape, (type, UnionType)):
        # Python counts True among the integers; JSON does not.
        if isinstance(value, shape) and (shape is bool or not isinstance(value, bool)):
            return None
        expected = " or ".join(_NAMES.get(kind, "null") for kind in get_args(shape) or (shape,))
        return f": invalid type: {_kind(value)}, expected {expected}"
    if isinstance(shape, tuple):
        return _misfit(value, str) or (None if value in shape else _unknown(value, shape))
    if isinstance(shape, list):
        items = enumerate(value if isinstance(value, list) else ())
        return _misfit(value, list) or next((f"[{i}]{m}" for i, item in items if (m := _misfit(item, shape[0]))), None)
    if isinstance(shape, _Tagged):
        misfit = _misfit(value, {shape.tag: tuple(shape.shapes)})
        return misfit or _misfit(value, shape.shapes[value[shape.tag]])
    if not isinstance(value, dict):
        return _misfit(value, dict)
    for field, inner in shape.items():
        name = field.rstrip("?")
        item = value.get(name)
        if type(item) is inner or (item is None and field.endswith("?")):
            continue
        if name not in value:
            return f": missing field `{name}`"
        if misfit := _misfit(item, inner):
            return f".{name}{misfit}"
    return None


def _kind(value: object) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    bare = {type(None): "null", list: "sequence", dict: "map", str: f"string {shown}"}
    word = {bool: "boolean", int: "integer", float: "floating point"}
    return bare.get(type(value)) or f"{word[type(value)]} `{shown}`"


def _unknown(value: str, variants: Sequence[str]) -> str:
    quoted = [f"`{name}`" for name in variants]
    expected = f"one of {', '.join(quoted)}" if len(quoted) > 2 else " or ".join(quoted)
    return f": unknown variant `{value}`, expected {expected}"


def _field_problems(payload: Mapping[str, Any]) -> Problems:
    if payload["model"] not in MODELS:
        yield "Model Not Exist"
    for field, (low, high) in _RANGES.items():
        value = payload.get(field)
        if value is not None and not low <= value <= high:
            yield f"Invalid {field} value, the valid range of {field} is [{low}, {high}]"
    if payload.get("stream_options") is not None and not payload.get("stream"):
        yield "stream_options should be set along with stream = true"
    if (payload.get("response_format") or {"type": "text"})["type"] not in ("text", "json_object"):
        yield "This response_format type is unavailable now"
    stop = payload.get("stop")
    if isinstance(stop, list) and (len(stop) > 16 or not all(isinstance(word, str) for word in stop)):
        yield "Invalid 'stop': expected a string or up to 16 strings"
    user = payload.get("user_id")
    # Until the summer there was a pattern, which the guide now only recommends.
    if user is not None and len(user.encode("utf-8", "surrogatepass")) > 512:
        yield "Invalid 'user_id': longer than 512 bytes"
    if (payload.get("thinking") or {}).get("type") == "disabled" and payload.get("reasoning_effort") is not None:
        yield EFFORT_WITHOUT_THINKING


def _tool_problems(payload: Mapping[str, Any], beta: bool) -> Problems:
    functions = [tool["function"] for tool in payload.get("tools") or ()]
    yield from tool_rules.problems(functions, payload["messages"])
    strict = {bool(function.get("strict")) for function in functions}
    if True in strict and (False in strict or not beta):
        yield "Strict functions need the /beta path, and strict = true on all of them"
    choice = "auto" if payload.get("tool_choice") is None else payload["tool_choice"]
    if misfit := _misfit(choice, _NAMED_TOOL if isinstance(choice, dict) else ("none", "auto", "required")):
        yield f"{DESERIALIZE}tool_choice{misfit}"
    if choice not in ("none", "auto") and is_thinking(payload):
        yield FORCED_TOOL


def _message_problems(payload: Mapping[str, Any], beta: bool) -> Problems:
    if not payload["messages"]:
        yield "Empty input messages"
    for index, message in enumerate(payload["messages"]):
        if "reasoning_details" in message:
            yield f"{DESERIALIZE}messages[{index}]: unknown field `reasoning_details`"
        # Pictures are no exception: V4-Pro takes them as well, and reads a placeholder.
        parts = message["content"] if isinstance(message["content"], list) else []
        if misfit := _misfit(parts, [_Tagged("type", _PARTS)]):
            yield f"{DESERIALIZE}messages[{index}].content{misfit}"
        calls = (message.get("tool_calls") or ()) if message["role"] == "assistant" else ()
        if message.get("tool_call_id") == "" or not all(call["id"] for call in calls):
            yield f"Invalid messages[{index}]: the id of a tool call must not be empty"
        if message.get("prefix") and not (beta and message is payload["messages"][-1]):
            yield "prefix needs the /beta path, and works on the last message only"
    yield from _picture_problems(payload["messages"])


def _picture_problems(messages: Sequence[Mapping[str, Any]]) -> Problems:
    parts = chain.from_iterable(message["content"] for message in messages if isinstance(message["content"], list))
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    if len(urls) > _MAX_PICTURES:
        yield f"Too many images: {len(urls)}, at most {_MAX_PICTURES}"
    sizes = []
    for url in urls:
        if url.startswith("data:"):
            data = _decode(url)
            if not data.startswith(_SIGNATURES):
                yield "Unsupported image format: expected JPEG, PNG, GIF or WebP"
            sizes.append(len(data))
        elif not url.startswith(("http://", "https://")) or len(url) > _LONGEST_URL:
            yield "Invalid image URL"
    if any(size > MAX_PICTURE_BYTES for size in sizes) or sum(sizes) > MAX_BYTES_OF_PICTURES:
        yield "The images are too large"


def _decode(url: str) -> bytes:
    try:
        return base64.b64decode(url.partition(",")[2], validate=True)
    except ValueError:
        return b""


def _order_problems(messages: Sequence[Mapping[str, Any]]) -> Problems:
    unanswered: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in unanswered:
                yield ORPHAN_RESULT
            unanswered.remove(message["tool_call_id"])
        elif unanswered:
            yield UNANSWERED_CALLS
        elif message["role"] == "assistant":
            unanswered = [call["id"] for call in message.get("tool_calls") or ()]
    if unanswered:
        yield UNANSWERED_CALLS


def _reasoning_problems(payload: Mapping[str, Any], rules: Rules) -> Problems:
    turns: list[list[Mapping[str, Any]]] = [[]]
    for message in payload["messages"] if is_thinking(payload) else ():
        if message["role"] == "user":
            turns.append([])
        # The message a prefix asks to continue is not a previous turn.
        elif message["role"] == "assistant" and not message.get("prefix"):
            turns[-1].append(message)
    for turn in turns:
        first_call = next((i for i, message in enumerate(turn) if message.get("tool_calls")), len(turn))
        if payload.get("tools") or payload.get("server_tools"):
            owing = turn
        else:
            # Without `tools` only the tool loop the history ends in is checked, none that a user message closed.
            owing = turn[first_call:] if turn is turns[-1] else []
        for message in owing:
            refuses_empty = rules.refuses_empty or (payload["model"] == V4_PRO and bool(message.get("tool_calls")))
            if message.get("reasoning_content") in ((None, "") if refuses_empty else (None,)):
                yield MISSING_REASONING
