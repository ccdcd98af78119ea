"""Items of the Responses API as canonical messages.

A Responses history is a flat list; ours has turns. Reasoning, text and calls that follow each other are one assistant
message, up to the first result or the next question:

    reasoning, message(assistant), function_call, function_call, function_call_output, …
    └───────────────── one assistant message ─────────────────┘  └─ a tool message

A turn also ends where the next one visibly begins: new reasoning or new text after text, as long as nothing was called.
Items of our own say by their ids which answer they are of, so that one which thinks or speaks twice stays one turn.
Only reasoning in plain words counts: a summary is not what the model thought, and encrypted content is opaque here, so
both leave the reasoning unknown and the store is asked for it.

Items that other servers made for themselves (`web_search_call`, `mcp_call`, `image_generation_call`, …) and those of
unknown kinds are left out and named in `dropped`: their JSON, pictures in base64 included, is nobody's message.
So is a foreign `compaction` item; one of ours is a system message by now (see protocols.responses.compaction).

Tools may be declared in the list as well. They are read first, by `declared_tools`: what a call into a namespace is
called depends on what other tools there are.
"""

import re
from collections.abc import Mapping
from typing import Any

from deepseek_cursor_proxy.conversation import Message, Parts, ToolCall, is_blank, joined
from deepseek_cursor_proxy.memo import Beginnings
from deepseek_cursor_proxy.protocols.request import content, tool_namespaces
from deepseek_cursor_proxy.protocols.request.custom_tools import custom_call
from deepseek_cursor_proxy.protocols.request.fields import Json, bad_field, memory, object_at, optional, optional_string
from deepseek_cursor_proxy.protocols.request.messages import History, MessageReader, arguments_text
from deepseek_cursor_proxy.redaction import safe_text

# An item of an answer of ours: the mark of that answer, and its place there.
OWN_ID = re.compile(r"[a-z]+_([0-9a-f]{32})_(\d{1,6})")

_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_TOOLS = "additional_tools"
_KINDS = ("message", "reasoning", _TOOLS, *_CALLS, *_OUTPUTS)
# Parts of a message that some clients send in the place of the message.
_PARTS = ("input_text", "text", "input_image", "image_url", "input_file")


def is_item(value: Any) -> bool:
    """Whether a value in a list of messages is an item of this API and no chat message."""
    return isinstance(value, dict) and "role" not in value and value.get("type") in _KINDS


def declared_tools(items: Any, param: str = "input") -> list[tuple[Any, str]]:
    """The tools that are declared inside a history, each with the place it stands at."""
    found: list[tuple[Any, str]] = []
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict) and item.get("type") == _TOOLS:
            at = f"{param}[{index}].tools"
            tools = optional(item, "tools", list, "a list", at) or []
            found += [(tool, f"{at}[{place}]") for place, tool in enumerate(tools)]
    return found


def read(
    items: Any, param: str = "input", upstream_names: Mapping[tool_namespaces.QualifiedName, str] | None = None
) -> History:
    """The history an `input` stands for; a string is one user message.

    `upstream_names` are those of tools inside namespaces; a call of a tool that is gone gets the name it would have.
    """
    if isinstance(items, str):
        return History((Message("user", items),))
    if not isinstance(items, list):
        raise bad_field(param, "a string or a list of items")
    under = tuple((upstream_names or {}).items())
    count, known = _known.longest(items, under)
    reader = known.copy() if known is not None else _Reader(upstream_names or {})
    for index, item in enumerate(items[count:], count):
        reader.take(item, f"{param}[{index}]")
    _known.keep(tuple(items), reader.copy(), under)
    return reader.finished()


class _Turn:
    """The assistant message that is being put together."""

    def __init__(self) -> None:
        # The answer of ours that this is, if it is one.
        self.mark: str | None = None
        self.thoughts: list[str] = []
        self.said: list[Message] = []
        self.calls: list[ToolCall] = []

    def copy(self) -> "_Turn":
        twin = _Turn()
        twin.mark = self.mark
        twin.thoughts, twin.said, twin.calls = self.thoughts.copy(), self.said.copy(), self.calls.copy()
        return twin

    def message(self) -> Message | None:
        """The message, or None if nothing was said; a reasoning that nobody can read says nothing."""
        if not (self.thoughts or self.said or self.calls):
            return None
        reasoning = self._reasoning()
        for each in self.said:
            if is_blank(reasoning) and each.reasoning is not None:
                reasoning = each.reasoning
        calls = [call for each in self.said for call in each.tool_calls] + self.calls
        name = next((each.name for each in self.said if each.name is not None), None)
        return Message("assistant", self._content(), reasoning, tuple(calls), name=name)

    def _reasoning(self) -> str | None:
        if not self.thoughts:
            return None
        if self.mark is not None:
            return joined(self.thoughts)
        return "\n\n".join([thought for thought in self.thoughts if not is_blank(thought)] or self.thoughts)

    def _content(self) -> str | Parts:
        texts = [each.content for each in self.said if isinstance(each.content, str)]
        if self.mark is not None and len(texts) == len(self.said):
            return joined(texts)
        parts: list[Json] = []
        for each in self.said:
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
        """Another one, which goes on from here."""
        twin = _Reader(self._upstream_names)
        twin._messages, twin._dropped = self._messages.copy(), self._dropped.copy()
        twin._chat, twin._turn = self._chat.copy(), self._turn.copy()
        return twin

    def take(self, item: Any, param: str) -> None:
        item = object_at(item, param)
        kind = optional_string(item, "type", param)
        if kind is None or kind == "message":
            self._take_message(item, param)
        elif kind == "reasoning":
            self._take_reasoning(item, param)
        elif kind in _CALLS:
            self._go_on(item, begins=False)
            self._turn.calls.append(self._call(item, kind, param))
        elif kind in _OUTPUTS:
            self._end_turn()
            said = content.read(item.get("output"), f"{param}.output")
            self._messages.append(Message("tool", said, tool_call_id=_call_id(item, param)))
        elif kind in _PARTS:
            self._end_turn()
            self._messages.append(Message("user", content.join_parts([content.read_part(item, param)])))
        elif kind != _TOOLS:
            self._take_foreign(kind)

    def finished(self) -> History:
        self._end_turn()
        return History(tuple(self._messages), (*self._dropped, *self._chat.dropped))

    def _take_message(self, item: Json, param: str) -> None:
        found = self._chat.read(item, param)
        if found[-1].role != "assistant":
            self._end_turn()
            self._messages += _in_parts(item, found)
            return
        self._go_on(item, begins=bool(self._turn.said))
        self._turn.said += found

    def _take_reasoning(self, item: Json, param: str) -> None:
        self._go_on(item, begins=bool(self._turn.said))
        parts = optional(item, "content", list, "a list", f"{param}.content") or []
        texts = [_reasoning_text(part, f"{param}.content[{index}]") for index, part in enumerate(parts)]
        if said := [text for text in texts if text is not None]:
            self._turn.thoughts.append("\n".join(said))

    def _go_on(self, item: Json, *, begins: bool) -> None:
        """Go on with the turn that an item belongs to; without a word of ours one begins where it looks like it."""
        found = OWN_ID.fullmatch(given) if isinstance(given := item.get("id"), str) else None
        mark = found[1] if found is not None else None
        if mark is not None and self._turn.mark is not None:
            is_another = mark != self._turn.mark
        else:
            is_another = begins and not self._turn.calls
        if is_another:
            self._end_turn()
        self._turn.mark = self._turn.mark or mark

    def _call(self, item: Json, kind: str, param: str) -> ToolCall:
        name = optional_string(item, "name", param) or ""
        if namespace := optional_string(item, "namespace", param):
            name = self._upstream_names.get((namespace, name)) or tool_namespaces.upstream_name((namespace, name))
        if kind == "custom_tool_call":
            return custom_call(_call_id(item, param), name, optional_string(item, "input", param) or "")
        return ToolCall(_call_id(item, param), name, arguments_text(item.get("arguments")))

    def _take_foreign(self, kind: str) -> None:
        if kind.endswith("_output"):
            # What follows a result is the next turn, even if the result can't be told.
            self._end_turn()
        self._dropped.append(f"input item {safe_text(kind, 60)}")

    def _end_turn(self) -> None:
        message = self._turn.message()
        if message is not None:
            self._messages.append(message)
        self._turn = _Turn()


# As in chat_history: an item that comes back is the very same object as before, and so are the messages it becomes.
_known: Beginnings[Any, _Reader] = Beginnings(16 * 1024 * 1024, memory)


def _in_parts(item: Json, found: list[Message]) -> list[Message]:
    """A user's message whose several texts stay apart, as DeepSeek takes them; nobody else's may be a list there."""
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
