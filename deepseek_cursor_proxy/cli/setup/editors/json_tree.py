"""JSON text as a tree that knows where each value stands, so that one can be changed and all else left as it is.

Comments and commas behind the last member, as many editors allow them, are read and reported. Nothing is changed here.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from deepseek_cursor_proxy.cli.setup.editors.documents import Unreadable

_BLANK = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"', re.DOTALL)
_SCALAR = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")


@dataclass(frozen=True)
class Member:
    """A member of an object; it starts with its name."""

    name: str
    start: int
    node: "Node"


@dataclass(frozen=True)
class Node:
    """A value between two places of the text; `members` if it is an object."""

    start: int
    end: int
    value: Any
    members: tuple[Member, ...] = ()

    @property
    def is_object(self) -> bool:
        return isinstance(self.value, dict)

    def member(self, name: str) -> Member | None:
        """The last one with this name, which is the one that counts."""
        return next((member for member in reversed(self.members) if member.name == name), None)


def parse(text: str, *, has_comments: bool) -> Node:
    """The value of a whole text; Unreadable if it is none, or has comments that its program does not read."""
    reader = _Reader(text)
    try:
        start = reader.skip(0)
        node = reader.value(start)
        if reader.skip(node.end) != len(text):
            raise Unreadable(f"it is not valid JSON: more follows the value{reader.place(reader.skip(node.end))}")
    except RecursionError:
        raise Unreadable("it is nested too deep") from None
    if reader.is_extended and not has_comments:
        raise Unreadable("it has comments or commas that plain JSON does not have")
    return node


def skip(text: str, at: int) -> int:
    """The place behind blanks and comments."""
    return _Reader(text).skip(at)


class _Reader:
    """Reads one text; `is_extended` once it met a comment, or a comma behind the last member."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.is_extended = False

    def skip(self, at: int) -> int:
        found = _BLANK.match(self._text, at)
        assert found is not None
        self.is_extended |= "/" in found[0]
        return found.end()

    def value(self, at: int) -> Node:
        first = self._text[at : at + 1]
        if first == "{":
            members = tuple(self._members(at + 1))
            end = members[-1].node.end if members else at + 1
            values = {member.name: member.node.value for member in members}
            return Node(at, self._close(end, "}"), values, members)
        if first == "[":
            nodes = list(self._items(at + 1))
            end = nodes[-1].end if nodes else at + 1
            return Node(at, self._close(end, "]"), [node.value for node in nodes])
        found = (_STRING if first == '"' else _SCALAR).match(self._text, at)
        if found is None:
            raise self._error(at)
        return Node(at, found.end(), self._load(found[0], at))

    def _load(self, text: str, at: int) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            raise self._error(at) from None

    def _members(self, at: int) -> Iterator[Member]:
        at = self.skip(at)
        while not self._text.startswith("}", at):
            name = _STRING.match(self._text, at)
            if name is None:
                raise self._error(at)
            colon = self.skip(name.end())
            if not self._text.startswith(":", colon):
                raise self._error(colon)
            node = self.value(self.skip(colon + 1))
            yield Member(self._load(name[0], at), at, node)
            at = self._next(node.end, "}")

    def _items(self, at: int) -> Iterator[Node]:
        at = self.skip(at)
        while not self._text.startswith("]", at):
            node = self.value(at)
            yield node
            at = self._next(node.end, "]")

    def _next(self, at: int, close: str) -> int:
        """The place of the next member, or of what closes."""
        at = self.skip(at)
        if self._text.startswith(close, at):
            return at
        if not self._text.startswith(",", at):
            raise self._error(at)
        at = self.skip(at + 1)
        self.is_extended |= self._text.startswith(close, at)
        return at

    def _close(self, at: int, close: str) -> int:
        """The end of an object or array whose last value ends at that place."""
        at = self.skip(at)
        at = self.skip(at + 1) if self._text.startswith(",", at) else at
        if not self._text.startswith(close, at):
            raise self._error(at)
        return at + 1

    def _error(self, at: int) -> Unreadable:
        return Unreadable(f"it is not valid JSON{self.place(at)}")

    def place(self, at: int) -> str:
        return f" (line {self._text.count(chr(10), 0, at) + 1})"
