"""Reads chat messages, with the content of any API in them, as canonical messages.

Roles that DeepSeek does not know are translated, arguments become strings, calls of the old functions API get ids.
Text stays as it is: `reasoning.restore` takes our thinking blocks out of it.

Content becomes text, or parts in the shape of chat completions. Text parts are joined by line breaks, because DeepSeek
takes plain strings. Images stay parts: `image_url` (chat), `input_image` (Responses) and `image` (Anthropic) become one
canonical `image_url` part, so that the same image is the same history. A part of an unknown kind becomes its JSON as
text, with a placeholder for long base64 (sound, images, encrypted data), which no model can read.

Anthropic's blocks, which Cursor also writes inside chat messages for models named "claude", are more than content. One
message of blocks may be several canonical ones: tool results first, because DeepSeek requires them right after their
calls, then the text of the user.

    tool_use            a tool call of the assistant
    thinking            its reasoning; empty if it was hidden from the client: `reasoning.restore` looks it up
    redacted_thinking   readable by Anthropic alone: left out, in `dropped`
    tool_result         a tool message; an error is marked in its first line, because DeepSeek has no field for it
    server_tool_use     and the results of it: tools that DeepSeek ran itself, in `server_items` with all of their turn,
    and others          if the caller wants them so

Every other block is an ordinary part. `cache_control` is ignored.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from deepseek_cursor_proxy.chat_memory import NO_CHAT, Chat, Stage
from deepseek_cursor_proxy.conversation import Message, Parts, ToolCall, is_blank, pack_items
from deepseek_cursor_proxy.deepseek import server_tools
from deepseek_cursor_proxy.deepseek.images import placeholder
from deepseek_cursor_proxy.deepseek.server_tools import CHAT, MESSAGES
from deepseek_cursor_proxy.json_codec import Json, bad_field, json_text, object_at, optional, optional_string
from deepseek_cursor_proxy.protocols.tools import NO_TOOLS, ToolNames, wrap_text

_ROLES = {"developer": "system", "function": "tool"}
_KNOWN_ROLES = frozenset({"system", "user", "assistant", "tool"})


class ParsedHistory(NamedTuple):
    """Canonical messages, and the names of what was left out."""

    messages: tuple[Message, ...]
    dropped: tuple[str, ...] = ()


# The canonical messages for a list, and the state of the reader after the last one.
_PARSE: "Stage[Any, tuple[tuple[Message, ...], MessageReader]]" = Stage("parse messages", is_of_json=True)


def read(
    messages: list[Any], memory: Chat = NO_CHAT, server_api: str | None = None, tools: ToolNames = NO_TOOLS
) -> ParsedHistory:
    """The canonical messages; results of DeepSeek's own tools stay in the messages, in the form of `server_api`."""
    lookup = memory.look_up(_PARSE, messages, (server_api, tools))
    known, last = lookup.result or ((), None)
    history, reader = [*known], last.copy() if last is not None else MessageReader(server_api)
    for index, message in enumerate(messages[lookup.count :], lookup.count):
        plain = read_plain(message)
        for each in (plain,) if plain is not None else reader.read(message, f"messages[{index}]"):
            history.append(tools.wrap_custom_calls(each) if each.tool_calls else each)
    parsed = ParsedHistory(tuple(history), tuple(reader.dropped))
    lookup.store((parsed.messages, reader))
    return parsed


def count_known(messages: list[Any], memory: Chat) -> int:
    """How many messages at the beginning of a list were read before, so that each of them has a role."""
    known = memory.entries.get(_PARSE)
    return known.count_same(messages) if known is not None else 0


def read_plain(message: Any) -> Message | None:
    """Parse a message that has only the usual fields and types, in a fifth of the time; None for any other."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, str):
        return None
    role = message.get("role")
    if role == "tool":
        call_id = message.get("tool_call_id")
        is_usual = len(message) == 3 and isinstance(call_id, str) and call_id
        return Message(role, content, tool_call_id=call_id) if is_usual else None
    if role != "assistant":
        return Message(role, content) if len(message) == 2 and role in ("user", "system") else None
    calls, reasoning = message.get("tool_calls"), message.get("reasoning_content")
    if len(message) != 2 + (calls is not None) + (reasoning is not None):
        return None
    if not (calls is None or isinstance(calls, list)) or not (reasoning is None or isinstance(reasoning, str)):
        return None
    plain: list[ToolCall] = []
    for call in calls or ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            return None
        call_id, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
        if not (isinstance(call_id, str) and isinstance(name, str) and isinstance(arguments, str)):
            return None
        plain.append(ToolCall(call_id, name, arguments))
    return Message("assistant", content, reasoning, tuple(plain))


class MessageReader:
    """Reads the messages of one history, in order; `dropped` names what was left out."""

    def __init__(self, server_api: str | None = None) -> None:
        self._server_api = server_api
        # The calls of the old functions API, which has no ids: a call and its result get the same one.
        self._legacy_calls = 0
        self.dropped: list[str] = []

    def copy(self) -> "MessageReader":
        # Not copy.copy(), which takes five times as long.
        twin = MessageReader(self._server_api)
        twin._legacy_calls, twin.dropped = self._legacy_calls, self.dropped.copy()
        return twin

    def read(self, message: Any, param: str) -> list[Message]:
        """One message of the client, which may be several canonical ones."""
        message = object_at(message, param)
        role = message.get("role")
        if not isinstance(role, str):
            raise bad_field(f"{param}.role", "a string")
        role = _ROLES.get(role, role if role in _KNOWN_ROLES else "user")
        if role == "assistant":
            return [self._assistant(message, param)]
        blocks = read_blocks(message.get("content"), role, f"{param}.content")
        name = optional_string(message, "name", param)
        call_id = optional_string(message, "tool_call_id", param) if role == "tool" else None
        if blocks.results and not blocks.content:
            return list(blocks.results)
        if role != "tool":
            return [*blocks.results, Message(role, blocks.content, name=name)]
        if not call_id:
            call_id = f"call_function_{self._legacy_calls}" if name is not None and self._legacy_calls else ""
        return [*blocks.results, Message(role, blocks.content, tool_call_id=call_id)]

    def _assistant(self, message: Json, param: str) -> Message:
        content: Any = message.get("content")
        items = server_tools.read_fields(message) if self._server_api == CHAT else None
        if items is not None and server_tools.has_blocks(content):
            content = server_tools.plain_blocks(content)
        is_server_turn = self._server_api == MESSAGES and has_server_blocks(content)
        blocks = read_blocks(content, "assistant", f"{param}.content", is_server_turn=is_server_turn)
        self.dropped += blocks.dropped
        reasoning = optional_string(message, "reasoning_content", param)
        if is_blank(reasoning) and blocks.reasoning is not None:
            reasoning = blocks.reasoning
        entries = optional(message, "tool_calls", list, "a list", f"{param}.tool_calls") or []
        calls = [*blocks.calls, *(_call(call, f"{param}.tool_calls[{at}]") for at, call in enumerate(entries))]
        legacy = optional(message, "function_call", dict, "an object", f"{param}.function_call")
        if legacy is not None:
            self._legacy_calls += 1
            calls.append(_function_call(f"call_function_{self._legacy_calls}", legacy, f"{param}.function_call"))
        name = optional_string(message, "name", param)
        prefix = optional(message, "prefix", bool, "true or false", f"{param}.prefix") or False
        items = blocks.server_items if items is None else items
        return Message(
            "assistant", blocks.content, reasoning, tuple(calls), name=name, prefix=prefix, server_items=items
        )


def arguments_text(arguments: Any) -> str:
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else json_text(arguments)


def _call(call: Any, param: str) -> ToolCall:
    call = object_at(call, param)
    call_id = optional_string(call, "id", param) or ""
    if call.get("type") == "custom" and call.get("function") is None:
        custom = object_at(call.get("custom"), f"{param}.custom")
        name = optional_string(custom, "name", f"{param}.custom") or ""
        return ToolCall(call_id, name, wrap_text(optional_string(custom, "input", f"{param}.custom") or ""))
    return _function_call(call_id, object_at(call.get("function"), f"{param}.function"), f"{param}.function")


def _function_call(call_id: str, function: Json, param: str) -> ToolCall:
    return ToolCall(call_id, optional_string(function, "name", param) or "", arguments_text(function.get("arguments")))


# As the Frame of `features/responses` numbers its items; pi 0.74 cuts the two ids at 64 characters.
_ITEM_ID = re.compile(r"(?<=.{8})_fc_[0-9a-f]{8,32}(?:_\d{0,6})?\Z")

ERROR_LINE = "[the tool reported an error]"

# Tools that DeepSeek does not run, and whose blocks it does not take back (guide of 2026-08-27).
_FOREIGN_TOOL = re.compile(r"(?:\w+_)?code_execution|tool_search_tool\w*")
_FOREIGN_RESULT = re.compile(r"(?:\w+_)?code_execution_tool_result|(?:mcp|tool_search)_tool_result")
_TEXTS = ("text", "input_text", "output_text", "refusal")
# Longer than any hash or token that a model could use.
_OPAQUE = re.compile(r"(?:data:[\w/.+;=-]{0,100},)?[A-Za-z0-9+/_-]{1000,}={0,2}")
# The values of DeepSeek's vision guide; any other value is left out rather than refused.
_DETAILS = ("low", "high", "original", "auto")


class Blocks(NamedTuple):
    """A message of blocks: its content, and what else they hold."""

    content: str | Parts
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    results: tuple[Message, ...] = ()
    dropped: tuple[str, ...] = ()
    server_items: str | None = None


def read_blocks(value: Any, role: str, param: str, *, is_server_turn: bool = False) -> Blocks:
    """The content of a message with the given canonical role.

    A server turn has blocks of tools that DeepSeek ran itself: its text and reasoning are joined as they are, and
    `server_items` has the order of all (see `conversation.pack_items`).
    """
    if not isinstance(value, list):
        return Blocks(read_content(value, param))
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    results: list[Message] = []
    dropped: list[str] = []
    parts: list[Json] = []
    items: list[Json] = []
    for index, block in enumerate(value):
        at = f"{param}[{index}]"
        match block.get("type") if isinstance(block, dict) else None, role:
            case "tool_use", "assistant":
                calls.append(_tool_use(block, at))
                items.append({"type": "tool_use"})
            case "thinking", "assistant":
                thoughts.append(optional_string(block, "thinking", at) or "")
                items += [{"type": "thinking", "length": len(thoughts[-1])}] if thoughts[-1] else []
            case "redacted_thinking", "assistant":
                dropped.append("redacted_thinking")
            case "tool_result", "user" | "tool":
                results.append(_result(block, at))
            case _ if is_server_turn and _is_server_block(block):
                # The mark of the cache moves with every turn of a chat.
                items.append({name: field for name, field in block.items() if name != "cache_control"})
            case _:
                parts.append(read_part(block, at))
                if is_server_turn:
                    items += _text_items(block, parts[-1])
    reasoning = "\n\n".join(filter(None, thoughts)) or None
    if is_server_turn:
        text = "".join([item["text"] for item in items if item["type"] == "text"])
        packed = pack_items(MESSAGES, items)
        return Blocks(text, "".join(thoughts) or None, tuple(calls), (), tuple(dropped), packed)
    return Blocks(join_parts(parts), reasoning, tuple(calls), tuple(results), tuple(dropped))


def has_server_blocks(blocks: Any) -> bool:
    """Whether the blocks of an assistant have those of tools that DeepSeek runs itself, known or not."""
    return isinstance(blocks, list) and any(map(_is_server_block, blocks))


def _is_server_block(block: Any) -> bool:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind in ("text", "thinking", "tool_use", None):
        # Nearly all are one of these.
        return False
    if kind == "server_tool_use":
        is_whole = isinstance(block.get("id"), str) and isinstance(block.get("input"), dict)
        return is_whole and not _FOREIGN_TOOL.fullmatch(str(block.get("name")))
    if not isinstance(kind, str) or not kind.endswith("_tool_result") or _FOREIGN_RESULT.fullmatch(kind):
        return False
    return isinstance(block.get("tool_use_id"), str)


def _text_items(block: Any, part: Json) -> list[Json]:
    text = part["text"] if part["type"] == "text" else placeholder(part)
    cited = block.get("citations") if isinstance(block, dict) else None
    citations = {"citations": cited} if cited and isinstance(cited, list) else {}
    return [{"type": "text", "text": text, **citations}] if text else []


def call_id(source: Json, name: str, param: str) -> str:
    """The id of a tool call, without that of an item of ours, which pi appends when it leaves the Responses API."""
    given = optional_string(source, name, param) or ""
    return _ITEM_ID.sub("", given) if "_fc_" in given else given


def _tool_use(block: Json, param: str) -> ToolCall:
    arguments = {} if block.get("input") is None else block["input"]
    return ToolCall(
        call_id(block, "id", param),
        optional_string(block, "name", param) or "",
        arguments if isinstance(arguments, str) else json_text(arguments),
    )


def _result(block: Json, param: str) -> Message:
    output = read_content(block.get("content"), f"{param}.content")
    if optional(block, "is_error", bool, "true or false", f"{param}.is_error"):
        output = f"{ERROR_LINE}\n{output}" if isinstance(output, str) else (text_part(ERROR_LINE), *output)
    return Message("tool", output, tool_call_id=call_id(block, "tool_use_id", param))


def read_content(content: Any, param: str) -> str | Parts:
    """Canonical content; absent content is empty text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_field(param, "a string or a list of parts")
    return join_parts([read_part(part, f"{param}[{index}]") for index, part in enumerate(content)])


def join_parts(parts: Sequence[Json]) -> str | Parts:
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return tuple(parts)


def text_part(text: str) -> Json:
    return {"type": "text", "text": text}


def read_part(part: Any, param: str) -> Json:
    """One part in its canonical shape: `text`, `image_url` or `file`."""
    if isinstance(part, str):
        return text_part(part)
    part = object_at(part, param)
    kind = part.get("type")
    if kind in _TEXTS or (kind is None and "text" in part):
        return text_part(optional_string(part, "refusal" if kind == "refusal" else "text", param) or "")
    if kind in ("image_url", "input_image"):
        return _image(part, param)
    if kind in ("image", "document"):
        return _anthropic_source(part, param)
    if kind in ("file", "input_file"):
        return _file(part, param)
    return _json_part(part)


def _json_part(part: Json) -> Json:
    """A part as its JSON, without `cache_control`, which moves with every turn of a chat."""
    return text_part(
        json_text({name: _shorten_opaque(value) for name, value in part.items() if name != "cache_control"})
    )


def _shorten_opaque(value: Any) -> Any:
    if isinstance(value, str):
        return f"[{len(value)} characters]" if _OPAQUE.fullmatch(value) else value
    if isinstance(value, dict):
        return {name: _shorten_opaque(inner) for name, inner in value.items()}
    return [_shorten_opaque(inner) for inner in value] if isinstance(value, list) else value


def _image(part: Json, param: str) -> Json:
    """Chat nests the URL in an object; Responses has the bare URL, or the id of an uploaded file."""
    image = part.get("image_url")
    detail = optional_string(part, "detail", param)
    if isinstance(image, dict):
        url = optional_string(image, "url", f"{param}.image_url")
        detail = optional_string(image, "detail", f"{param}.image_url") or detail
    else:
        url = optional_string(part, "image_url", param)
    if url is None:
        file_id = optional_string(part, "file_id", param)
        if file_id is None:
            raise bad_field(f"{param}.image_url", "a URL")
        return {"type": "file", "file": {"file_id": file_id}}
    return _image_url(url, detail)


def _image_url(url: str, detail: str | None = None) -> Json:
    return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail in _DETAILS else {})}}


def _anthropic_source(part: Json, param: str) -> Json:
    source = object_at(part.get("source"), f"{param}.source")
    at = f"{param}.source"
    kind, is_image = source.get("type"), part["type"] == "image"
    if kind == "base64":
        media = optional_string(source, "media_type", at) or ("image/png" if is_image else "application/pdf")
        url = f"data:{media};base64,{optional_string(source, 'data', at) or ''}"
        if is_image:
            return _image_url(url)
        name = optional_string(part, "title", param) or "document"
        return {"type": "file", "file": {"file_data": url, "filename": name}}
    if kind == "file":
        return {"type": "file", "file": {"file_id": optional_string(source, "file_id", at) or ""}}
    url = optional_string(source, "url", at) or ""
    if kind == "url" and is_image:
        return _image_url(url)
    text = optional_string(source, "data", at)
    if kind == "text" and text is not None:
        title = optional_string(part, "title", param)
        return text_part(f"[document: {title}]\n{text}" if title else text)
    return _json_part(part)


def _file(part: Json, param: str) -> Json:
    """Chat nests the fields of a file, Responses does not. A file by URL becomes text: DeepSeek cannot fetch it."""
    nested = part.get("file")
    source, at = (nested, f"{param}.file") if isinstance(nested, dict) else (part, param)
    fields = {name: optional_string(source, name, at) for name in ("file_id", "file_data", "filename")}
    if fields["file_id"] is None and fields["file_data"] is None:
        return _json_part(part)
    return {"type": "file", "file": {name: value for name, value in fields.items() if value is not None}}
