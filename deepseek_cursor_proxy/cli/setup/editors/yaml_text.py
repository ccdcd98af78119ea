"""Edits of YAML text: keys of the top level, or items of a list. Nothing here parses YAML as a whole.

Only the usual shape is edited: one document, its keys at the left edge, or a list of `- ` items. Whatever else stands
at the left edge, tabs as indentation, and quotes or brackets that do not end are refused, rather than guessed at.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from deepseek_cursor_proxy.cli.setup.editors.documents import EditResult, Record, Unreadable, split_lines
from deepseek_cursor_proxy.cli.setup.editors.marked_lines import comment_out, insert, take_out

Value = str | int | Sequence[str] | Mapping[str, int]
Values = Mapping[str, Value]

_KEY = re.compile(r"""(?P<name>[\w./-]+|"[^"\\]*"|'[^']*')[ ]*:(?=[ \r\n]|$)""")
_ITEM = re.compile(r"(?P<indent>[ ]*)-(?=[ \r\n]|$)")
_QUOTED = re.compile(r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^']|'')*')(?:\s+#.*)?""")
_BRACKETS = {"[": "]", "{": "}"}


class _Entry(NamedTuple):
    """A key of the top level, or an item at the left edge (whose key is None), with its lines."""

    key: str | None
    first: int
    last: int


@dataclass(frozen=True)
class YamlKeys:
    """Keys of the top level."""

    client: str
    keys: Values

    def apply(self, text: str) -> EditResult:
        lines = split_lines(text)
        entries = list(_entries(lines))
        if any(entry.key is None for entry in entries):
            raise Unreadable("it is a list, where keys are needed")
        for entry in entries:
            if entry.key in self.keys:
                lines[entry.first : entry.last] = map(comment_out, lines[entry.first : entry.last])
        return EditResult(insert("".join(lines), len(lines), list(_rows(self.keys)), self.client), [])

    def revert(self, text: str, record: Record) -> str:
        return take_out(text)

    def by_hand(self) -> str:
        return "\n".join((*_rows(self.keys), ""))


@dataclass(frozen=True)
class YamlItems:
    """Items of the list under a key, in front of its others; or at the end of a file that is a list itself.

    `head` are keys that a file needs and lacks if it is new.
    """

    client: str
    key: str | None
    items: Sequence[Values]
    head: Values

    def apply(self, text: str) -> EditResult:
        lines = split_lines(text)
        entries = list(_entries(lines))
        if self.key is None:
            return EditResult(self._append(text, lines, entries), [])
        if any(entry.key is None for entry in entries):
            raise Unreadable("it is a list, where keys are needed")
        entry = next((entry for entry in entries if entry.key == self.key), None)
        if entry is None:
            head = [] if entries else list(_rows(self.head))
            rows = [*head, f"{self.key}:", *self._item_rows("  ")]
            return EditResult(insert(text, len(lines), rows, self.client), [])
        return EditResult(self._put_first(lines, entry), [])

    def revert(self, text: str, record: Record) -> str:
        return take_out(text)

    def by_hand(self) -> str:
        rows = [*_rows(self.head), f"{self.key}:", *self._item_rows("  ")] if self.key else [*self._item_rows("")]
        return "\n".join((*rows, ""))

    def _append(self, text: str, lines: list[str], entries: list[_Entry]) -> str:
        if any(entry.key is not None for entry in entries):
            raise Unreadable("it has keys, where a list is needed")
        return insert(text, len(lines), [*self._item_rows("")], self.client)

    def _put_first(self, lines: list[str], entry: _Entry) -> str:
        value = _value(lines[entry.first])
        if value:
            raise Unreadable(f"its {self.key!r} is written in brackets or as one value")
        items = (found["indent"] for line in lines[entry.first + 1 : entry.last] if (found := _ITEM.match(line)))
        indent = next(items, None)
        if indent is None and any(_is_content(line) for line in lines[entry.first + 1 : entry.last]):
            raise Unreadable(f"its {self.key!r} is no list")
        rows = [*self._item_rows("  " if indent is None else indent)]
        return insert("".join(lines), entry.first + 1, rows, self.client)

    def _item_rows(self, indent: str) -> Iterator[str]:
        for item in self.items:
            for number, row in enumerate(_rows(item)):
                yield f"{indent}{'  ' if number else '- '}{row}"


def _entries(lines: list[str]) -> Iterator[_Entry]:
    starts: list[tuple[str | None, int]] = []
    for number, line in enumerate(lines):
        if re.match(r"[ ]*\t", line) and line.strip():
            raise Unreadable(f"line {number + 1} is indented by a tab")
        if line[0] in " #\r\n" or (line.rstrip() == "---" and not starts):
            if line[0] == " " and line.strip() and not starts and line.strip()[0] != "#":
                raise Unreadable(f"line {number + 1} is indented, but nothing stands above it")
            continue
        key, item = _KEY.match(line), _ITEM.match(line)
        if key is None and item is None:
            raise Unreadable(f"line {number + 1} is neither a key nor an item of a list at the left edge")
        if item is not None and starts and starts[0][0] is not None:
            # A list may stand at the left edge below its key.
            continue
        if key is not None and starts and starts[0][0] is None:
            raise Unreadable(f"line {number + 1} has a key among the items of a list")
        starts.append((key["name"].strip("\"'") if key is not None else None, number))
    ends = [*(number for _, number in starts[1:]), len(lines)]
    for (name, first), last in zip(starts, ends, strict=False):
        _refuse_open(lines[first:last], first)
        yield _Entry(name, first, _without_tail(lines, first, last))


def _refuse_open(lines: list[str], first: int) -> None:
    """Refuse a value in quotes or brackets that does not end where it should."""
    whole = " ".join(line.strip() for line in (_raw_value(lines[0]), *lines[1:]) if _is_content(line)).strip()
    if whole[:1] in "\"'":
        is_closed = not whole or _QUOTED.fullmatch(whole) is not None
    else:
        is_closed = whole[:1] not in _BRACKETS or re.sub(r"\s#.*", "", whole).endswith(_BRACKETS[whole[0]])
    if not is_closed:
        raise Unreadable(f"the value that begins in line {first + 1} does not end")


def _value(line: str) -> str:
    """What stands behind the key of a line, without a comment."""
    return re.sub(r"(^|\s)#.*", "", _raw_value(line)).strip()


def _raw_value(line: str) -> str:
    key = _KEY.match(line)
    return (line[key.end() :] if key is not None else line.lstrip(" -")).strip()


def _without_tail(lines: list[str], first: int, last: int) -> int:
    """The end of an entry without the blank lines and comments below it, which belong to the next one."""
    while last > first + 1 and not _is_content(lines[last - 1]):
        last -= 1
    return last


def _is_content(line: str) -> bool:
    return bool(line.strip()) and not line.strip().startswith("#")


def _rows(values: Values) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, str):
            yield f"{name}: {_scalar(value)}"
        elif isinstance(value, int):
            yield f"{name}: {json.dumps(value)}"
        elif isinstance(value, Mapping):
            yield f"{name}: {{{', '.join(f'{inner}: {number}' for inner, number in value.items())}}}"
        else:
            yield f"{name}: [{', '.join(map(_scalar, value))}]"


def _scalar(text: str) -> str:
    """A plain scalar where that means nothing else; a string of JSON is one of YAML."""
    is_plain = re.fullmatch(r"[A-Za-z][\w ./:-]*[\w/]", text) and ": " not in text
    is_word = text.lower() in ("true", "false", "yes", "no", "on", "off", "null")
    return text if is_plain and not is_word else json.dumps(text, ensure_ascii=False)
