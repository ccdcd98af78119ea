"""An edit of JSON text: values at given paths are set, and all else keeps its place, its spelling and its comments.

JSON has no room for marks, so what stood there before is recorded and `revert` needs that record. It takes back only
values that are still ours. The text is read as a tree that knows where each value stands; comments and commas behind
the last member, as many editors allow them, are read and reported.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from deepseek_cursor_proxy.cli.setup.editors.documents import ChangedLines, EditResult, Record, Unreadable, line_end

Path = tuple[str, ...]
Values = Mapping[Path, Any]

_BLANK = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"', re.DOTALL)
_SCALAR = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")


@dataclass(frozen=True)
class JsonMember:
    """A member of an object; it starts with its name."""

    name: str
    start: int
    node: "JsonNode"


@dataclass(frozen=True)
class JsonNode:
    """A value between two places of the text; `members` if it is an object."""

    start: int
    end: int
    value: Any
    members: tuple[JsonMember, ...] = ()

    @property
    def is_object(self) -> bool:
        return isinstance(self.value, dict)

    def member(self, name: str) -> JsonMember | None:
        """The last one with this name, which is the one that counts."""
        return next((member for member in reversed(self.members) if member.name == name), None)


@dataclass(frozen=True)
class JsonEdit:
    """`defaults` are set only where there is nothing yet; `has_comments` if the program reads comments in its file."""

    values: Values
    defaults: Values = field(default_factory=dict)
    has_comments: bool = False

    def apply(self, text: str) -> EditResult:
        text, record = text if text.strip() else "{}\n", []
        for path, value in (*self.defaults.items(), *self.values.items()):
            parents, found = _walk(self._parse(text), path)
            if found is not None and (path in self.defaults or found.node.value == value):
                continue
            # What is missing on the way is made with the value in it.
            depth = len(parents)
            old = text[found.node.start : found.node.end] if found is not None else None
            record.append({"path": list(path), "new": _digest(value), "old": old, "new_objects": len(path) - depth})
            text = _set(text, parents[-1], path[depth - 1], _nested(path[depth:], value), found)
        self._check(text)
        return EditResult(text, record)

    def revert(self, text: str, record: Record) -> str:
        self._parse(text if text.strip() else "{}")
        for change in reversed(record):
            text = self._revert(text, tuple(change["path"]), change)
        return text

    def by_hand(self) -> str:
        whole: dict[str, Any] = {}
        for path, value in (*self.defaults.items(), *self.values.items()):
            inner = whole
            for name in path[:-1]:
                inner = inner.setdefault(name, {})
            inner[path[-1]] = value
        return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"

    def _revert(self, text: str, path: Path, change: dict[str, Any]) -> str:
        parents, found = _walk(self._parse(text), path)
        there = text[found.node.start : found.node.end] if found is not None else None
        if found is None or there == change["old"]:
            # It was removed by hand, or put back already.
            return text
        if _digest(found.node.value) != change["new"]:
            raise ChangedLines(f"{'.'.join(path)} is no longer as setup wrote it")
        if change["old"] is not None:
            return f"{text[: found.node.start]}{change['old']}{text[found.node.end :]}"
        text = _remove(text, parents[-1], found)
        # Objects that were made for it and are empty again.
        for depth in range(len(path) - 1, len(path) - 1 - change["new_objects"], -1):
            parents, found = _walk(self._parse(text), path[:depth])
            if found is None or found.node.members or not found.node.is_object:
                break
            text = _remove(text, parents[-1], found)
        return text

    def _check(self, text: str) -> None:
        root = self._parse(text)
        for path, value in self.values.items():
            found = _walk(root, path)[1]
            if found is None or found.node.value != value:
                raise Unreadable(f"setup cannot set {'.'.join(path)} in it")

    def _parse(self, text: str) -> JsonNode:
        root = parse(text, has_comments=self.has_comments)
        if not root.is_object:
            raise Unreadable("it is not an object in braces")
        return root


def _digest(value: Any) -> str:
    """Stands for a value in the record, which shall hold no key."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _walk(root: JsonNode, path: Path) -> tuple[list[JsonNode], JsonMember | None]:
    """The objects on the way to a path as far as there are any, and the member that it leads to."""
    parents = [root]
    for name in path[:-1]:
        member = parents[-1].member(name)
        if member is None:
            return parents, None
        if not member.node.is_object:
            raise Unreadable(f"its {name!r} is not an object in braces")
        parents.append(member.node)
    return parents, parents[-1].member(path[-1])


def _nested(path: Path, value: Any) -> Any:
    for name in reversed(path):
        value = {name: value}
    return value


def _set(text: str, parent: JsonNode, name: str, value: Any, found: JsonMember | None) -> str:
    form = _Form(text)
    if found is not None:
        rendered = form.render(value, form.indent(found.start))
        return text[: found.node.start] + rendered + text[found.node.end :]
    if parent.members:
        return form.after(parent, name, value)
    return form.into_empty(parent, name, value)


def _remove(text: str, parent: JsonNode, member: JsonMember) -> str:
    """Cut a member with the comma behind it, or with the one before it if it is the last."""
    at = parent.members.index(member)
    if at + 1 < len(parent.members):
        return text[: member.start] + text[parent.members[at + 1].start :]
    comma = skip(text, member.node.end)
    has_comma = text.startswith(",", comma)
    rest = text[comma + 1 if has_comma else member.node.end :]
    if at:
        # A comment behind the member before stays, and so does a comma behind the last member.
        before = skip(text, parent.members[at - 1].node.end)
        between = text[before + 1 : member.start]
        # A comment that runs to the end of its line needs that end.
        if rest.lstrip(" \t\r").startswith("\n") or "//" not in between:
            between = between.rstrip()
        return text[:before] + ("," if has_comma else "") + between + rest
    blank = text[parent.start + 1 : member.start]
    inside = (blank if blank.strip() else "") + rest[: parent.end - 1 - len(text)]
    return text[: parent.start + 1] + (inside if inside.strip() else "") + text[parent.end - 1 :]


class _Form:
    """How a text is laid out: its line ends and its indentation."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = line_end(text)
        found = re.search(r"^([ \t]+)\"", text, re.MULTILINE)
        self._step = found[1] if found else "  "

    def indent(self, at: int) -> str:
        """The blanks in front of the line with that place."""
        found = re.match(r"[ \t]*", self._text[self._text.rfind("\n", 0, at) + 1 :])
        assert found is not None
        return found[0]

    def render(self, value: Any, indent: str) -> str:
        lines = json.dumps(value, indent=self._step, ensure_ascii=False).splitlines()
        return f"{self._end}{indent}".join(lines)

    def after(self, parent: JsonNode, name: str, value: Any) -> str:
        """Add a member behind the last one, in its line or in one of its own as that is."""
        last, text = parent.members[-1], self._text
        is_alone = not text[text.rfind("\n", 0, last.start) + 1 : last.start].strip()
        indent = self.indent(last.start)
        comma = skip(text, last.node.end)
        has_comma = text.startswith(",", comma)
        end = comma + 1 if has_comma else last.node.end
        # A comment in the rest of the line is about the member before.
        rest = re.match(r"[ \t]*(?:/\*[^\n]*?\*/[ \t]*)*(?://[^\r\n]*)?", text[end:])
        assert rest is not None
        note = rest[0].rstrip() if "/" in rest[0] else ""
        is_alone |= "//" in note
        gap = f"{self._end}{indent}" if is_alone else " "
        rendered = self.render(value, indent) if is_alone else json.dumps(value, ensure_ascii=False)
        member = f"{gap}{json.dumps(name)}: {rendered}"
        tail = "," if has_comma else ""
        return text[:end] + ("" if has_comma else ",") + note + member + tail + text[end + len(note) :]

    def into_empty(self, parent: JsonNode, name: str, value: Any) -> str:
        text, inside = self._text, self._text[parent.start + 1 : parent.end - 1]
        indent = self.indent(parent.start)
        rendered = self.render(value, indent + self._step)
        member = f"{self._end}{indent}{self._step}{json.dumps(name)}: {rendered}"
        rest = inside if inside.strip() else f"{self._end}{indent}"
        return text[: parent.start + 1] + member + rest + text[parent.end - 1 :]


# The tree …


def parse(text: str, *, has_comments: bool) -> JsonNode:
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

    def value(self, at: int) -> JsonNode:
        first = self._text[at : at + 1]
        if first == "{":
            members = tuple(self._members(at + 1))
            end = members[-1].node.end if members else at + 1
            values = {member.name: member.node.value for member in members}
            return JsonNode(at, self._close(end, "}"), values, members)
        if first == "[":
            nodes = list(self._items(at + 1))
            end = nodes[-1].end if nodes else at + 1
            return JsonNode(at, self._close(end, "]"), [node.value for node in nodes])
        found = (_STRING if first == '"' else _SCALAR).match(self._text, at)
        if found is None:
            raise self._error(at)
        return JsonNode(at, found.end(), self._load(found[0], at))

    def _load(self, text: str, at: int) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            raise self._error(at) from None

    def _members(self, at: int) -> Iterator[JsonMember]:
        at = self.skip(at)
        while not self._text.startswith("}", at):
            name = _STRING.match(self._text, at)
            if name is None:
                raise self._error(at)
            colon = self.skip(name.end())
            if not self._text.startswith(":", colon):
                raise self._error(colon)
            node = self.value(self.skip(colon + 1))
            yield JsonMember(self._load(name[0], at), at, node)
            at = self._next(node.end, "}")

    def _items(self, at: int) -> Iterator[JsonNode]:
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
