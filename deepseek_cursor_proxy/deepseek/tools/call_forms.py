"""The forms in which models write calls as text, and Quotes, which tells a quotation from a call.

To add a form, add it to FORMS, with the class that reads its blocks:

    Hermes    <tool_call>{"name": …, "arguments": {…}}</tool_call>, one call per block

A block is read piece by piece and stops at the first character that rules its form out. Rule: `read_call` accepts only
a call that the request's tools allow; everything else stays text. `written_calls` uses all of this.
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
    """What comes after an opening marker, read piece by piece."""

    state: State

    def feed(self, text: str, at: int) -> int:
        """Read the text from there; up to where. All of it as long as the block is open."""
        ...

    def values(self) -> Sequence[object]:
        """Of a closed block, the call in each, as {"name", "arguments"}."""
        ...


class _HermesBlock:
    """{"name": …, "arguments": {…}}</tool_call>, with blanks around the object."""

    _CLOSING = "</tool_call>"
    _OUTSIDE = re.compile(r'["{}]')
    _INSIDE = re.compile(r'["\\]')

    def __init__(self) -> None:
        self.state = State.OPEN
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
                at += 0 if self.state is State.BROKEN else 1
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
        return [decode("".join(self._object))]


# By opening marker.
FORMS: "Mapping[str, Callable[[], Block]]" = {"<tool_call>": _HermesBlock}
OPENING = re.compile("|".join(map(re.escape, FORMS)))


def partial_size(text: str) -> int:
    """The length of the longest end of a text that may be the beginning of a marker."""
    at = text.rfind("<", -max(map(len, FORMS)) + 1)
    return len(text) - at if at >= 0 and any(marker.startswith(text[at:]) for marker in FORMS) else 0


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
    if not all(_fits(each, as_object(properties.get(key)).get("type")) for key, each in arguments.items()):
        return None
    return name, json.dumps(arguments, ensure_ascii=False)


_TYPES: Mapping[object, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def _fits(value: object, declared: object) -> bool:
    """Whether a value has its declared type, where that is a simple one."""
    types = declared if isinstance(declared, list) else [declared]
    if not all(isinstance(each, str) and each in _TYPES for each in types):
        return True
    return any(type(value) in _TYPES[each] for each in types)


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
