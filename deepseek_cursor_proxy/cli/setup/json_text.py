"""An edit of JSON text: values at given paths are set, and all else keeps its place, its spelling and its comments.

The text is an object, or a list of objects that have a `name`, with which a path then begins. JSON has no room for
marks, so what stood there before is recorded and `revert` needs that record. It takes back only values that are still
ours. Comments, and commas after the last member, are overwritten with blanks before `json` reads the text, so every
position is one of the original text.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deepseek_cursor_proxy.cli.setup.files import ChangedLines, EditResult, Record, Unreadable, digest, line_end

Path = tuple[str, ...]
Values = Mapping[Path, Any]

_STRING = r'"(?:[^"\\]|\\.)*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA = re.compile(rf"({_STRING}|[\w}}\]])(\s*),(?=\s*[}}\]])|{_STRING}", re.DOTALL)
_BLANKS = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True)
class JsonEdit:
    """`defaults` are set only where there is nothing yet; `has_comments` if the program reads comments in its file.

    `volatile` are members that the program itself sets in our values: they may differ when the values are taken back.
    """

    values: Values
    defaults: Values = field(default_factory=dict)
    has_comments: bool = False
    is_list: bool = False
    volatile: tuple[str, ...] = ()

    def apply(self, text: str) -> EditResult:
        text, record = text if text.strip() else f"{self._nothing}\n", []
        # The last first: each is put in front of those that are there.
        for path, value in reversed((*self.defaults.items(), *self.values.items())):
            document = self._parse(text)
            parents, member = document.find(path)
            if member is not None and (path in self.defaults or member.value == value):
                continue
            depth = len(parents)
            old = text[member.at : member.end] if member is not None else None
            new = self._digest(value)
            record.append({"path": list(path), "new": new, "old": old, "new_objects": len(path) - depth})
            # Missing objects on the way are created with the value in them.
            for name in reversed(path[depth:]):
                value = {name: value}
            text = document.set(parents[-1], path[depth - 1], value, member)
        document = self._parse(text)
        for path, value in self.values.items():
            member = document.find(path)[1]
            if member is None or member.value != value:
                raise Unreadable(f"setup cannot set {'.'.join(path)} in it")
        return EditResult(text, record)

    def revert(self, text: str, record: Record) -> str:
        self._parse(text if text.strip() else self._nothing)
        for change in reversed(record):
            text = self._revert(text, tuple(change["path"]), change)
        return text

    def _revert(self, text: str, path: Path, change: dict[str, Any]) -> str:
        document = self._parse(text)
        parents, member = document.find(path)
        if member is None or text[member.at : member.end] == change["old"]:
            # It was removed by hand, or restored already.
            return text
        if self._digest(member.value) != change["new"]:
            raise ChangedLines(f"{'.'.join(path)} is no longer as setup wrote it")
        if change["old"] is not None:
            return f"{text[: member.at]}{change['old']}{text[member.end :]}"
        text = document.remove(parents[-1], member)
        # Objects that were created for it and are empty again.
        for depth in range(len(path) - 1, len(path) - 1 - change["new_objects"], -1):
            document = self._parse(text)
            parents, member = document.find(path[:depth])
            if member is None or member.value != {}:
                break
            text = document.remove(parents[-1], member)
        return text

    def by_hand(self) -> str:
        whole: dict[str, Any] = {}
        for path, value in (*self.defaults.items(), *self.values.items()):
            inner = whole
            for name in path[:-1]:
                inner = inner.setdefault(name, {})
            inner[path[-1]] = value
        return json.dumps([*whole.values()] if self.is_list else whole, indent=2, ensure_ascii=False) + "\n"

    @property
    def _nothing(self) -> str:
        return "[]" if self.is_list else "{}"

    def _parse(self, text: str) -> "JsonDocument":
        return JsonDocument(text, has_comments=self.has_comments, is_list=self.is_list)

    def _digest(self, value: Any) -> str:
        """Stands for a value in the record, which must not hold keys."""
        if isinstance(value, dict):
            value = {name: inner for name, inner in value.items() if name not in self.volatile}
        return digest(json.dumps(value, sort_keys=True).encode())


class JsonMember(NamedTuple):
    """A member of an object: it starts with its name, and its value stands from `at` to `end`. Or an item of a list."""

    name: str
    start: int
    at: int
    end: int
    value: Any


class JsonObject(NamedTuple):
    """An object, or the list, from its opening bracket to the position after its closing one."""

    start: int
    end: int
    members: list[JsonMember]
    is_list: bool


class JsonDocument:
    """The text of an object or list; Unreadable if it is none, or has comments that its program does not read."""

    def __init__(self, text: str, *, has_comments: bool, is_list: bool = False) -> None:
        self._text = text
        self._plain = _COMMENT.sub(_blank_comment, text)
        self._strict = _LAST_COMMA.sub(lambda found: f"{found[1]}{found[2]} " if found[1] else found[0], self._plain)
        try:
            self.value = _DECODER.decode(self._strict)
        except RecursionError:
            raise Unreadable("it is nested too deep") from None
        except ValueError as error:
            where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
            raise Unreadable(f"it is not valid JSON{where}") from None
        if self._strict != text and not has_comments:
            raise Unreadable("it has comments or commas that plain JSON does not have")
        if not isinstance(self.value, list if is_list else dict):
            raise Unreadable("it is not a list in brackets" if is_list else "it is not an object in braces")
        # The layout: line ends and indentation.
        self._line_end = line_end(text)
        found = re.search(r'^([ \t]+)["{]', text, re.MULTILINE)
        self._step = found[1] if found else "  "

    def find(self, path: Path) -> tuple[list[JsonObject], JsonMember | None]:
        """The objects on the way to a path as far as there are any, and the member that it leads to."""
        parents = [self._object(self._skip(0))]
        for name in path[:-1]:
            member = _last_member(parents[-1], name)
            if member is None:
                return parents, None
            if not isinstance(member.value, dict):
                raise Unreadable(f"its {name!r} is not an object in braces")
            parents.append(self._object(member.at))
        return parents, _last_member(parents[-1], path[-1])

    def _object(self, start: int) -> JsonObject:
        members = []
        is_list = self._plain[start] == "["
        at = self._skip(start + 1)
        while self._plain[at] != ("]" if is_list else "}"):
            name, value_at = "", at
            if not is_list:
                name, end = _DECODER.raw_decode(self._strict, at)
                value_at = self._skip(self._skip(end) + 1)
            value, end = _DECODER.raw_decode(self._strict, value_at)
            if is_list and isinstance(value, dict):
                name = str(value.get("name", ""))
            members.append(JsonMember(name, at, value_at, end, value))
            at = self._skip(end)
            if self._plain[at] == ",":
                at = self._skip(at + 1)
        return JsonObject(start, at + 1, members, is_list)

    def _skip(self, at: int) -> int:
        """The position behind blanks and comments."""
        found = _BLANKS.match(self._plain, at)
        assert found is not None
        return found.end()

    def set(self, parent: JsonObject, name: str, value: Any, member: JsonMember | None) -> str:
        """The text with this member, in the place of the one that is there."""
        text = self._text
        if member is not None:
            rendered = self._render(value, self._indent(member.start))
            return text[: member.at] + rendered + text[member.end :]
        label = "" if parent.is_list else f"{json.dumps(name)}: "
        if parent.members:
            return self._insert_before(parent.members[0], label, value)
        indent, inside = self._indent(parent.start), text[parent.start + 1 : parent.end - 1]
        rendered = self._render(value, indent + self._step)
        first = f"{self._line_end}{indent}{self._step}{label}{rendered}"
        rest = inside if inside.strip() else f"{self._line_end}{indent}"
        return text[: parent.start + 1] + first + rest + text[parent.end - 1 :]

    def _insert_before(self, first: JsonMember, label: str, value: Any) -> str:
        """Add a member before the first one: on its own line if that one is, else on the same line."""
        text, indent = self._text, self._indent(first.start)
        is_alone = not text[text.rfind("\n", 0, first.start) + 1 : first.start].strip()
        rendered = self._render(value, indent) if is_alone else json.dumps(value, ensure_ascii=False)
        gap = f"{self._line_end}{indent}" if is_alone else " "
        return f"{text[: first.start]}{label}{rendered},{gap}{text[first.start :]}"

    def remove(self, parent: JsonObject, member: JsonMember) -> str:
        """Cut a member with the comma behind it, or with the one before it if it is the last."""
        text, at = self._text, parent.members.index(member)
        if at + 1 < len(parent.members):
            return text[: member.start] + text[parent.members[at + 1].start :]
        comma = self._skip(member.end)
        has_comma = text.startswith(",", comma)
        rest = text[comma + 1 if has_comma else member.end :]
        if at:
            # A comment behind the member before stays, and so does a comma behind the last member.
            before = self._skip(parent.members[at - 1].end)
            between = text[before + 1 : member.start]
            # A comment that runs to the end of its line needs that end.
            if rest.lstrip(" \t\r").startswith("\n") or "//" not in between:
                between = between.rstrip()
            return text[:before] + ("," if has_comma else "") + between + rest
        blank = text[parent.start + 1 : member.start]
        inside = (blank if blank.strip() else "") + rest[: parent.end - 1 - len(text)]
        return text[: parent.start + 1] + (inside if inside.strip() else "") + text[parent.end - 1 :]

    def _indent(self, at: int) -> str:
        """The blanks in front of the line with that position."""
        found = re.match(r"[ \t]*", self._text[self._text.rfind("\n", 0, at) + 1 :])
        assert found is not None
        return found[0]

    def _render(self, value: Any, indent: str) -> str:
        lines = json.dumps(value, indent=self._step, ensure_ascii=False).splitlines()
        return f"{self._line_end}{indent}".join(lines)


_DECODER = json.JSONDecoder()


def _blank_comment(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith('"') else re.sub(r"[^\n]", " ", found[0])


def _last_member(parent: JsonObject, name: str) -> JsonMember | None:
    """The last one with this name, which is the one that counts."""
    return next((member for member in reversed(parent.members) if member.name == name), None)
