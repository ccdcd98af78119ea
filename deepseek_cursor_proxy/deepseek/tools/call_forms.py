"""What the forms of calls in a model's own markup share: Block, `read_call`, and Quotes, which finds quotations.

The forms are Hermes, `<tool_call>{"name": …, "arguments": {…}}</tool_call>` with one call per block, which is here, and
those of `dsml`. A block is read piece by piece and stops at the first character that rules its form out. Rule:
`read_call` accepts only a call that the request's tools allow; everything else stays text. `written_calls` uses all.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

from deepseek_cursor_proxy.json_codec import as_list, as_object, decode_upstream_json


class State(Enum):
    OPEN = "open"
    CLOSED = "closed"
    # It is no block of its form.
    BROKEN = "broken"


class Block(Protocol):
    """The text after an opening marker, read piece by piece."""

    state: State
    # Number of characters read after the last whole call.
    tail: int

    @property
    def unread(self) -> str:
        """The text that a broken block has read beyond its end."""
        ...

    def feed(self, text: str, at: int) -> int:
        """Read the text from `at`. Returns where the block ends: the end of the text unless the block is closed."""
        ...

    def values(self) -> Sequence[object]:
        """The whole calls so far, each as {"name", "arguments"}."""
        ...


class HermesBlock:
    """{"name": …, "arguments": {…}}</tool_call>, with blanks around the object."""

    MARKER = "<tool_call>"
    _CLOSING = "</tool_call>"
    _OUTSIDE = re.compile(r'["{}]')
    _INSIDE = re.compile(r'["\\]')

    def __init__(self) -> None:
        self.state = State.OPEN
        self.tail = 0
        self.unread = ""
        self._object: list[str] = []
        self._depth = 0
        self._is_in_string = self._is_escaped = False
        # How much of the closing marker has come; None before the end of the object.
        self._closed: int | None = None

    def feed(self, text: str, at: int) -> int:
        while at < len(text) and self.state is State.OPEN:
            if self._depth:
                end = self._end_of_object(text, at)
                self._object.append(text[at:end])
                at = end
            else:
                self.state = self._read_around(text[at])
                if self.state is State.BROKEN:
                    self.unread = text[at:]
                    return len(text)
                at += 1
        return at

    def _read_around(self, character: str) -> State:
        """Read a character before the object or after it."""
        if self._closed is None and character == "{":
            self._object.append(character)
            self._depth = 1
        elif self._closed is not None and character == self._CLOSING[self._closed]:
            self._closed += 1
            return State.CLOSED if self._closed == len(self._CLOSING) else State.OPEN
        elif self._closed or not character.isspace():
            return State.BROKEN
        return State.OPEN

    def _end_of_object(self, text: str, at: int) -> int:
        """Where the object ends, or the text."""
        if self._is_escaped:
            self._is_escaped = False
            at += 1
        while (found := (self._INSIDE if self._is_in_string else self._OUTSIDE).search(text, at)) is not None:
            at = found.end()
            if found[0] == "\\":
                self._is_escaped = at == len(text)
                at += 1
            elif found[0] == '"':
                self._is_in_string = not self._is_in_string
            else:
                self._depth += 1 if found[0] == "{" else -1
                if not self._depth:
                    self._closed = 0
                    return at
        return len(text)

    def values(self) -> Sequence[object]:
        return [decode("".join(self._object))] if self.state is State.CLOSED else []


def read_call(value: object, tools: Mapping[str, Mapping[str, Any]]) -> tuple[str, str] | None:
    """The name and the arguments of a call of a declared tool; None for anything else."""
    found = as_object(value)
    name, arguments = found.get("name"), found.get("arguments")
    if isinstance(arguments, str):
        arguments = decode(arguments)
    if not isinstance(name, str) or name not in tools or not isinstance(arguments, dict):
        return None
    schema = as_object(tools[name].get("parameters"))
    if not all(required in arguments for required in as_list(schema.get("required")) if isinstance(required, str)):
        return None
    properties = as_object(schema.get("properties"))
    try:
        typed = {key: _typed(each, as_object(properties.get(key)).get("type")) for key, each in arguments.items()}
    except ValueError:
        return None
    return name, json.dumps(typed, ensure_ascii=False)


_TYPES: Mapping[object, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


class RawText(str):
    """An argument that came as text: a string, unless its tool declares other types and it is JSON of one of them."""


def _typed(value: object, declared: object) -> object:
    """The value in its declared type, if that is a simple one. Raises ValueError if the value has another."""
    types = declared if isinstance(declared, list) else [declared]
    is_simple = all(isinstance(each, str) and each in _TYPES for each in types)
    if isinstance(value, RawText):
        value = decode_upstream_json(value) if is_simple and "string" not in types else str(value)
    if is_simple and not any(type(value) in _TYPES[each] for each in types):
        raise ValueError
    return value


def decode(text: str) -> object:
    try:
        return decode_upstream_json(text)
    except (ValueError, RecursionError):
        return None


class Quotes:
    """Whether a text ends inside a quotation of Markdown: fences, backticks in a line, HTML comments, <details>.

    The text is read once, and only when the question comes up. What is in doubt is a quotation: a fence that is never
    closed goes on to the end. Used by the thread that reads the answer.
    """

    _BEGIN = re.compile(
        r"^[ \t>]*(?:[-*+][ \t]+|\d+[.)][ \t]+)?(?P<fence>`{3,}(?=[^`\n]*(?:\n|\Z))|~{3,})"
        r"|(?P<span>`+)|(?P<comment><!--)|(?P<details><details\b)",
        re.MULTILINE | re.IGNORECASE,
    )
    _DETAILS = re.compile(r"<(/?)details\b", re.IGNORECASE)
    # A span does not go on after a blank line.
    _SPAN = re.compile(r"`+|\n[ \t\r]*\n")

    def __init__(self) -> None:
        self._unread: list[str] = []
        # The character before it, which says whether a line begins there.
        self._last = "\n"
        self._state: Callable[[str, int], int] | None = None
        # The run that began the open fence or span; how many <details> are open.
        self._run = ""
        self._depth = 0

    def add(self, text: str) -> None:
        self._unread.append(text)

    def is_open(self) -> bool:
        text, at = self._last + "".join(self._unread), 1
        self._unread, self._last = [], text[-1]
        while 0 <= at < len(text):
            at = self._begin(text, at) if self._state is None else self._state(text, at)
        return self._state is not None

    def _begin(self, text: str, at: int) -> int:
        found = self._BEGIN.search(text, at)
        if found is None:
            return -1
        kind = str(found.lastgroup)
        self._state = {
            "fence": self._end_fence, "span": self._end_span, "comment": self._end_comment, "details": self._end_details
        }[kind]  # fmt: skip
        self._run, self._depth = found[kind], 1
        return found.end()

    def _end(self, end: int) -> int:
        if end >= 0:
            self._state = None
        return end

    def _end_fence(self, text: str, at: int) -> int:
        found = re.compile(rf"^[ \t>]*{self._run}{self._run[0]}*[ \t\r]*\n", re.MULTILINE).search(text, at)
        return self._end(found.end() if found is not None else -1)

    def _end_span(self, text: str, at: int) -> int:
        for found in self._SPAN.finditer(text, at):
            if found[0][0] == "\n" or found[0] == self._run:
                return self._end(found.end())
        return -1

    def _end_comment(self, text: str, at: int) -> int:
        end = text.find("-->", at)
        return self._end(end + 3 if end >= 0 else -1)

    def _end_details(self, text: str, at: int) -> int:
        for found in self._DETAILS.finditer(text, at):
            self._depth += -1 if found[1] else 1
            if not self._depth:
                return self._end(found.end())
        return -1
