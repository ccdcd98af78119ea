"""Reads the items of the Responses API as canonical messages.

A Responses history is a flat list; a canonical one has turns. Consecutive reasoning, text and calls are one assistant
message, up to the first result or the next user message:

    reasoning, message(assistant), function_call, function_call, function_call_output, …
    └───────────────── one assistant message ─────────────────┘  └─ a tool message

A turn also ends where the next one begins: with new reasoning or new text after text, as long as it has no call. Items
of our own have the id of their response in their ids, so that a response with reasoning or text twice stays one turn.
Only plain reasoning counts. A summary is not what the model thought and encrypted content cannot be read here, so both
leave the reasoning unknown, and `reasoning.restore` looks it up.

Items of other servers (`web_search_call`, `mcp_call`, `image_generation_call`, …) and of unknown kinds are left out, in
`dropped`: their JSON, with images in base64, is no message. So is a foreign `compaction` item; one of ours is a system
message by now (see protocols.responses.compaction).

Tools may be declared in the list as well. `declared_tools` finds them first, because the upstream name of a call into a
namespace depends on the other tools.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deepseek_cursor_proxy.chat_memory import NO_MEMORY, ChatMemory, Stage
from deepseek_cursor_proxy.conversation import Message, Parts, ToolCall, is_blank, join_pieces
from deepseek_cursor_proxy.memo import json_size
from deepseek_cursor_proxy.protocols.request import content, tool_namespaces
from deepseek_cursor_proxy.protocols.request.custom_tools import wrap_text
from deepseek_cursor_proxy.protocols.request.field_checks import Json, bad_field, object_at, optional, optional_string
from deepseek_cursor_proxy.protocols.request.messages import MessageReader, ParsedHistory, arguments_text
from deepseek_cursor_proxy.redaction import safe_text

# The id of an item of ours: the suffix of the response's id, and the index in its output.
OWN_ID = re.compile(r"[a-z]+_([0-9a-f]{32})_(\d{1,6})")

_CALL_KINDS = ("function_call", "custom_tool_call")
_OUTPUT_KINDS = ("function_call_output", "custom_tool_call_output")
_TOOLS_KIND = "additional_tools"
_KINDS = ("message", "reasoning", _TOOLS_KIND, *_CALL_KINDS, *_OUTPUT_KINDS)
# Parts of a message that some clients send in place of the message.
_PART_KINDS = ("input_text", "text", "input_image", "image_url", "input_file")


def is_item(value: Any) -> bool:
    """Whether a value in a list of messages is an item and no chat message."""
    return isinstance(value, dict) and "role" not in value and value.get("type") in _KINDS


def declared_tools(items: Any, param: str = "input") -> list[tuple[Any, str]]:
    """The tools declared inside a history, each with its path."""
    found: list[tuple[Any, str]] = []
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict) and item.get("type") == _TOOLS_KIND:
            at = f"{param}[{index}].tools"
            tools = optional(item, "tools", list, "a list", at) or []
            found += [(tool, f"{at}[{position}]") for position, tool in enumerate(tools)]
    return found


def read(
    items: Any,
    param: str = "input",
    upstream_names: Mapping[tool_namespaces.QualifiedName, str] | None = None,
    memory: ChatMemory = NO_MEMORY,
) -> ParsedHistory:
    """The history of an `input`; `upstream_names` are those of tools in namespaces, others get their default names."""
    if isinstance(items, str):
        return ParsedHistory((Message("user", items),))
    if not isinstance(items, list):
        raise bad_field(param, "a string or a list of items")
    lookup = memory.look_up(_PARSE, items, tuple((upstream_names or {}).items()))
    reader = lookup.result.copy() if lookup.result is not None else _Reader(upstream_names or {})
    for index, item in enumerate(items[lookup.count :], lookup.count):
        reader.read(item, f"{param}[{index}]")
    lookup.store(reader.copy())
    return reader.history()


@dataclass
class _Turn:
    # The suffix of ids in the response of ours that the turn comes from, if it does.
    id_suffix: str | None = None
    thoughts: list[str] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def copy(self) -> "_Turn":
        return _Turn(self.id_suffix, self.thoughts.copy(), self.messages.copy(), self.calls.copy())

    def message(self) -> Message | None:
        """The message; None if the turn is empty or has nothing but unreadable reasoning."""
        if not (self.thoughts or self.messages or self.calls):
            return None
        reasoning = self._reasoning()
        for each in self.messages:
            if is_blank(reasoning) and each.reasoning is not None:
                reasoning = each.reasoning
        calls = [call for each in self.messages for call in each.tool_calls] + self.calls
        name = next((each.name for each in self.messages if each.name is not None), None)
        return Message("assistant", self._content(), reasoning, tuple(calls), name=name)

    def _reasoning(self) -> str | None:
        if not self.thoughts:
            return None
        if self.id_suffix is not None:
            return join_pieces(self.thoughts)
        return "\n\n".join([thought for thought in self.thoughts if not is_blank(thought)] or self.thoughts)

    def _content(self) -> str | Parts:
        texts = [each.content for each in self.messages if isinstance(each.content, str)]
        if self.id_suffix is not None and len(texts) == len(self.messages):
            return join_pieces(texts)
        parts: list[Json] = []
        for each in self.messages:
            parts += [content.text_part(each.content)] if isinstance(each.content, str) else each.content
        return content.join_parts(parts)


class _Reader:
    def __init__(self, upstream_names: Mapping[tool_namespaces.QualifiedName, str]) -> None:
        self._upstream_names = upstream_names
        self._messages: list[Message] = []
        self._dropped: list[str] = []
        self._chat = MessageReader()
        self._turn = _Turn()

    def copy(self) -> "_Reader":
        twin = _Reader(self._upstream_names)
        twin._messages, twin._dropped = self._messages.copy(), self._dropped.copy()
        twin._chat, twin._turn = self._chat.copy(), self._turn.copy()
        return twin

    def read(self, item: Any, param: str) -> None:
        item = object_at(item, param)
        kind = optional_string(item, "type", param)
        if kind is None or kind == "message":
            self._read_message(item, param)
        elif kind == "reasoning":
            self._read_reasoning(item, param)
        elif kind in _CALL_KINDS:
            self._continue_turn(item, begins=False)
            self._turn.calls.append(self._call(item, kind, param))
        elif kind in _OUTPUT_KINDS:
            self._end_turn()
            output = content.read(item.get("output"), f"{param}.output")
            self._messages.append(Message("tool", output, tool_call_id=_call_id(item, param)))
        elif kind in _PART_KINDS:
            self._end_turn()
            self._messages.append(Message("user", content.join_parts([content.read_part(item, param)])))
        elif kind != _TOOLS_KIND:
            if kind.endswith("_output"):
                # The next turn follows a result, even a dropped one.
                self._end_turn()
            self._dropped.append(f"input item {safe_text(kind, 60)}")

    def history(self) -> ParsedHistory:
        self._end_turn()
        return ParsedHistory(tuple(self._messages), (*self._dropped, *self._chat.dropped))

    def _read_message(self, item: Json, param: str) -> None:
        found = self._chat.read(item, param)
        if found[-1].role != "assistant":
            self._end_turn()
            self._messages += _keep_parts(item, found)
            return
        self._continue_turn(item, begins=bool(self._turn.messages))
        self._turn.messages += found

    def _read_reasoning(self, item: Json, param: str) -> None:
        self._continue_turn(item, begins=bool(self._turn.messages))
        parts = optional(item, "content", list, "a list", f"{param}.content") or []
        texts = [_reasoning_text(part, f"{param}.content[{index}]") for index, part in enumerate(parts)]
        if readable := [text for text in texts if text is not None]:
            self._turn.thoughts.append("\n".join(readable))

    def _continue_turn(self, item: Json, *, begins: bool) -> None:
        """Begin a new turn if the item is of another response of ours or, without our ids, if it `begins` one."""
        found = OWN_ID.fullmatch(item_id) if isinstance(item_id := item.get("id"), str) else None
        id_suffix = found[1] if found is not None else None
        if id_suffix is not None and self._turn.id_suffix is not None:
            is_another = id_suffix != self._turn.id_suffix
        else:
            is_another = begins and not self._turn.calls
        if is_another:
            self._end_turn()
        self._turn.id_suffix = self._turn.id_suffix or id_suffix

    def _call(self, item: Json, kind: str, param: str) -> ToolCall:
        name = optional_string(item, "name", param) or ""
        if namespace := optional_string(item, "namespace", param):
            name = self._upstream_names.get((namespace, name)) or tool_namespaces.upstream_name((namespace, name))
        if kind == "custom_tool_call":
            return ToolCall(_call_id(item, param), name, wrap_text(optional_string(item, "input", param) or ""))
        return ToolCall(_call_id(item, param), name, arguments_text(item.get("arguments")))

    def _end_turn(self) -> None:
        message = self._turn.message()
        if message is not None:
            self._messages.append(message)
        self._turn = _Turn()


_PARSE: Stage[Any, _Reader] = Stage("parse items", json_size)


def _keep_parts(item: Json, found: list[Message]) -> list[Message]:
    """A user message keeps its text parts as a list; DeepSeek accepts a list from no other role."""
    parts = item.get("content")
    message = found[-1]
    if message.role != "user" or len(found) != 1 or not isinstance(message.content, str):
        return found
    if not isinstance(parts, list) or len(parts) < 2:
        return found
    return [message._replace(content=tuple(content.read_part(part, "content") for part in parts))]


def _reasoning_text(part: Any, param: str) -> str | None:
    return optional_string(object_at(part, param), "text", param)


def _call_id(item: Json, param: str) -> str:
    return optional_string(item, "call_id", param) or ""
