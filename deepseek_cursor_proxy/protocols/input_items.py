"""Reads the items of the Responses API as canonical messages.

A Responses history is a flat list; a canonical one has turns. Consecutive reasoning, text and calls are one assistant
message, up to the first result or the next user message:

    reasoning, message(assistant), function_call, function_call, function_call_output, …
    └───────────────── one assistant message ─────────────────┘  └─ a tool message

A turn also ends where the next one begins: with new reasoning or new text after text, as long as it has no call. Items
of our own have the id of their response in their ids, so that a response with reasoning or text twice stays one turn.
Only plain reasoning counts. A summary of another server is not what the model thought and encrypted content cannot be
read here, so both leave the reasoning unknown, and `reasoning.restore` looks it up. In our own items the summary is the
whole reasoning.

Items of tools that DeepSeek runs itself (`web_search_call`) are part of their turn, as they are: it continues after
them with reasoning and text. Where DeepSeek does not get them they are left out, in `dropped`, like items of other
servers (`mcp_call`, `image_generation_call`, …) and of unknown kinds: their JSON, with images in base64, is no message.
So is a `compaction` item of another server; one of ours is a system message by now (see
features/responses/fields.py).

Tools may be declared in the list as well. `declared_tools` finds them first, because the upstream name of a call into a
namespace depends on the other tools.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from deepseek_cursor_proxy.chat_memory import NO_CHAT, Chat, Stage
from deepseek_cursor_proxy.conversation import Message, Parts, ToolCall, is_blank, join_pieces, pack_items, place_items
from deepseek_cursor_proxy.deepseek import server_tools
from deepseek_cursor_proxy.deepseek.server_tools import RESPONSES
from deepseek_cursor_proxy.json_codec import Json, bad_field, object_at, optional, optional_string
from deepseek_cursor_proxy.protocols import messages as chat_messages
from deepseek_cursor_proxy.protocols.tools import NO_TOOLS, ToolNames, upstream_name, wrap_text
from deepseek_cursor_proxy.redaction import safe_text

# The id of an item of ours: the suffix of the response's id, and the index in its output.
OWN_ID = re.compile(r"[a-z]+_([0-9a-f]{32})_(\d{1,6})")
# An id that we gave to an item without one, in an answer or in a stored input.
_MADE_UP_ID = re.compile(r"[a-z]+_[0-9a-f]{32}_i?\d{1,6}")

_CALL_KINDS = ("function_call", "custom_tool_call")
_OUTPUT_KINDS = ("function_call_output", "custom_tool_call_output")
_TOOLS_KIND = "additional_tools"
_KINDS = ("message", "reasoning", _TOOLS_KIND, *_CALL_KINDS, *_OUTPUT_KINDS)
# Parts of a message that some clients send in place of the message.
_PART_KINDS = ("input_text", "text", "input_image", "image_url", "input_file")


def is_item(value: Json) -> bool:
    """Whether an object without a role in a list of messages is an item."""
    return value.get("type") in _KINDS


def declared_tools(items: Any, param: str = "input") -> list[tuple[Any, str]]:
    """The tools declared inside a history, each with its path."""
    declared: list[tuple[Any, str]] = []
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict) and item.get("type") == _TOOLS_KIND:
            at = f"{param}[{index}].tools"
            tools = optional(item, "tools", list, "a list", at) or []
            declared += [(tool, f"{at}[{position}]") for position, tool in enumerate(tools)]
    return declared


def read(
    items: Any,
    param: str = "input",
    tools: ToolNames = NO_TOOLS,
    memory: Chat = NO_CHAT,
    *,
    keep_server_items: bool = False,
) -> chat_messages.ParsedHistory:
    """The history of an `input`; tools in namespaces that `tools` does not name get their default names."""
    if isinstance(items, str):
        return chat_messages.ParsedHistory((Message("user", items),))
    if not isinstance(items, list):
        raise bad_field(param, "a string or a list of items")
    lookup = memory.look_up(_PARSE, items, (keep_server_items, tools))
    reader = lookup.result.copy() if lookup.result is not None else _Reader(tools, keep_server_items)
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
    # Items of tools that DeepSeek runs, each with the thoughts and messages before it; and whether no message followed.
    server_items: list[tuple[Json, int, int]] = field(default_factory=list)
    is_after_server_item: bool = False

    def copy(self) -> "_Turn":
        lists = (self.thoughts.copy(), self.messages.copy(), self.calls.copy(), self.server_items.copy())
        return _Turn(self.id_suffix, *lists, self.is_after_server_item)

    def message(self) -> Message | None:
        """The message; None if the turn is empty or has nothing but unreadable reasoning."""
        if not (self.thoughts or self.messages or self.calls or self.server_items):
            return None
        reasoning = self._reasoning()
        for message in self.messages:
            if is_blank(reasoning) and message.reasoning is not None:
                reasoning = message.reasoning
        calls = [call for message in self.messages for call in message.tool_calls] + self.calls
        name = next((message.name for message in self.messages if message.name is not None), None)
        items = self._server_items() if self.server_items else None
        return Message("assistant", self._content(), reasoning, tuple(calls), name=name, server_items=items)

    def _server_items(self) -> str:
        """The items of the turn in their order, as `pack_items` wants them."""
        texts = [message.content if isinstance(message.content, str) else "" for message in self.messages]
        return pack_items(RESPONSES, place_items(self.server_items, self.thoughts, texts))

    @property
    def _is_one_answer(self) -> bool:
        """Whether it is known that all of it comes from one answer: the words are pieces of one text."""
        return self.id_suffix is not None or bool(self.server_items)

    def _reasoning(self) -> str | None:
        if not self.thoughts:
            return None
        if self._is_one_answer:
            return join_pieces(self.thoughts)
        return "\n\n".join([thought for thought in self.thoughts if not is_blank(thought)] or self.thoughts)

    def _content(self) -> str | Parts:
        texts = [message.content for message in self.messages if isinstance(message.content, str)]
        if self._is_one_answer and len(texts) == len(self.messages):
            return join_pieces(texts)
        parts: list[Json] = []
        for message in self.messages:
            parts += [chat_messages.text_part(message.content)] if isinstance(message.content, str) else message.content
        return chat_messages.join_parts(parts)


class _Reader:
    def __init__(self, tools: ToolNames, keep_server_items: bool) -> None:
        self._tools = tools
        self._keep_server_items = keep_server_items
        self._messages: list[Message] = []
        self._dropped: list[str] = []
        self._chat = chat_messages.MessageReader()
        self._turn = _Turn()

    def copy(self) -> "_Reader":
        twin = _Reader(self._tools, self._keep_server_items)
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
            output = chat_messages.read_content(item.get("output"), f"{param}.output")
            self._messages.append(Message("tool", output, tool_call_id=chat_messages.call_id(item, "call_id", param)))
        elif self._keep_server_items and server_tools.is_server_item(kind):
            self._read_server_item(item)
        elif kind in _PART_KINDS:
            self._end_turn()
            self._messages.append(Message("user", chat_messages.join_parts([chat_messages.read_part(item, param)])))
        elif kind != _TOOLS_KIND:
            if kind.endswith("_output"):
                # The next turn follows a result, even a dropped one.
                self._end_turn()
            self._dropped.append(f"input item {safe_text(kind, 60)}")

    def history(self) -> chat_messages.ParsedHistory:
        self._end_turn()
        return chat_messages.ParsedHistory(tuple(self._messages), (*self._dropped, *self._chat.dropped))

    def _read_message(self, item: Json, param: str) -> None:
        messages = self._chat.read(item, param)
        if messages[-1].role != "assistant":
            self._end_turn()
            self._messages += _keep_parts(item, messages)
            return
        self._continue_turn(item, begins=bool(self._turn.messages))
        self._turn.messages += messages
        self._turn.is_after_server_item = False

    def _read_server_item(self, item: Json) -> None:
        self._continue_turn(item, begins=False)
        turn, item_id = self._turn, item.get("id")
        is_given = isinstance(item_id, str) and item_id and not _MADE_UP_ID.fullmatch(item_id)
        known = {name: value for name, value in item.items() if value is not None and (name != "id" or is_given)}
        turn.server_items.append((known, len(turn.thoughts), len(turn.messages)))
        turn.is_after_server_item = True

    def _read_reasoning(self, item: Json, param: str) -> None:
        self._continue_turn(item, begins=bool(self._turn.messages))
        field = "content" if item.get("content") or _own_suffix(item) is None else "summary"
        parts = optional(item, field, list, "a list", f"{param}.{field}") or []
        texts: list[str | None] = []
        for index, part in enumerate(parts):
            at = f"{param}.{field}[{index}]"
            texts.append(optional_string(object_at(part, at), "text", at))
        if readable := [text for text in texts if text is not None]:
            self._turn.thoughts.append("\n".join(readable))

    def _continue_turn(self, item: Json, *, begins: bool) -> None:
        """Begin a new turn if the item is of another response of ours or, without our ids, if it `begins` one."""
        id_suffix = _own_suffix(item)
        if id_suffix is not None and self._turn.id_suffix is not None:
            is_another = id_suffix != self._turn.id_suffix
        else:
            is_another = begins and not (self._turn.calls or self._turn.is_after_server_item)
        if is_another:
            self._end_turn()
        self._turn.id_suffix = self._turn.id_suffix or id_suffix

    def _call(self, item: Json, kind: str, param: str) -> ToolCall:
        name = optional_string(item, "name", param) or ""
        if namespace := optional_string(item, "namespace", param):
            name = self._tools.upstream.get((namespace, name)) or upstream_name((namespace, name))
        arguments = chat_messages.arguments_text(item.get("arguments"))
        if kind == "custom_tool_call":
            arguments = wrap_text(optional_string(item, "input", param) or "")
        return ToolCall(chat_messages.call_id(item, "call_id", param), name, arguments)

    def _end_turn(self) -> None:
        message = self._turn.message()
        if message is not None:
            self._messages.append(self._tools.wrap_custom_calls(message) if message.tool_calls else message)
        self._turn = _Turn()


def _own_suffix(item: Json) -> str | None:
    """The part of an item's id that names its response; None if it is no item of ours."""
    own_id = OWN_ID.fullmatch(item_id) if isinstance(item_id := item.get("id"), str) else None
    return own_id[1] if own_id is not None else None


_PARSE: Stage[Any, _Reader] = Stage("parse items", is_of_json=True)


def _keep_parts(item: Json, messages: list[Message]) -> list[Message]:
    """A user message keeps its text parts as a list; DeepSeek accepts a list from no other role."""
    parts, message = item.get("content"), messages[-1]
    is_text = message.role == "user" and len(messages) == 1 and isinstance(message.content, str)
    if not is_text or not isinstance(parts, list) or len(parts) < 2:
        return messages
    return [message._replace(content=tuple(chat_messages.read_part(part, "content") for part in parts))]
