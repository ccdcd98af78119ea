"""Edits of TOML and YAML. A comment above our lines marks them, so the file itself tells how it was before.

The mark says how many lines follow it and has their checksum. There is no mark at their end: programs that rewrite
their own TOML would put new tables in front of it. A line of the user that stands in the way becomes a comment that
holds it. So our lines can be taken out to the byte, whatever was added elsewhere since.

TOML is parsed before and after: all but our keys must be the same. Of YAML only the usual shape is edited: one
document, its keys at the left edge, or a list of `- ` items. Anything else at the left edge, tabs as indentation, and
quotes or brackets that do not end are refused, rather than guessed at.
"""

import json
import re
import tomllib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deepseek_cursor_proxy.cli.setup.files import ChangedLines, EditResult, Record, Unreadable, line_end, split_lines

Value = str | int | Sequence[str] | Mapping[str, int]
Values = Mapping[str, Value]

_REPLACED = "# deepseek-cursor-proxy replaced: "
_MARK = re.compile(r"[ ]*# deepseek-cursor-proxy: the next (\d+) lines? .*\[([0-9a-f]{8})\]\s*")


@dataclass(frozen=True)
class _MarkedEdit:
    client: str

    def revert(self, text: str, record: Record) -> str:
        return take_out(text)

    def _insert(self, lines: Sequence[str], at: int, rows: Iterable[str]) -> EditResult:
        return EditResult(insert("".join(lines), at, list(rows), self.client), [])


def insert(text: str, at: int, rows: list[str], client: str) -> str:
    """Insert lines, with the comment that marks them, before the line with that number."""
    indent = rows[0][: len(rows[0]) - len(rows[0].lstrip(" "))]
    noun = "1 line is" if len(rows) == 1 else f"{len(rows)} lines are"
    how = f"from `setup {client}`, and `--undo` takes them out"
    mark = f"{indent}# deepseek-cursor-proxy: the next {noun} {how} [{_checksum(rows)}]"
    end, lines = line_end(text), split_lines(text)
    new = [f"{row}{end}" for row in (mark, *rows)]
    if lines and at == len(lines) and not lines[-1].endswith("\n"):
        # The file ends without a line end, and so it does with ours: `take_out` goes by that.
        lines[-1] += end
        new[-1] = new[-1].removesuffix(end)
    return "".join((*lines[:at], *new, *lines[at:]))


def take_out(text: str) -> str:
    """The text without our lines, and with the lines they replaced. ChangedLines if ours were edited."""
    kept: list[str] = []
    lines = split_lines(text)
    at = 0
    while at < len(lines):
        mark = _MARK.fullmatch(lines[at])
        if mark is None:
            kept.append(lines[at].removeprefix(_REPLACED))
            at += 1
            continue
        end = at + 1 + int(mark[1])
        ours = [line.rstrip("\r\n") for line in lines[at + 1 : end]]
        if end > len(lines) or _checksum(ours) != mark[2]:
            raise ChangedLines(f"the {mark[1]} lines below line {at + 1} are no longer as setup wrote them")
        at = end
        if at == len(lines) and kept and not lines[-1].endswith("\n"):
            kept[-1] = kept[-1].removesuffix("\n").removesuffix("\r")
    return "".join(kept)


def _checksum(lines: list[str]) -> str:
    return f"{zlib.crc32(chr(10).join(lines).encode('utf-8', 'surrogatepass')):08x}"


def _comment_out(lines: list[str], first: int, last: int) -> None:
    lines[first:last] = [f"{_REPLACED}{line}" for line in lines[first:last]]


# TOML …


@dataclass(frozen=True)
class TomlEdit(_MarkedEdit):
    """Keys in front of the first table, and a table of our own at the end, if it has a name, such as `parent.mine`."""

    keys: Values
    table: str = ""
    table_keys: Values = field(default_factory=dict)

    def apply(self, text: str) -> EditResult:
        expected = self._merge(_parse_toml(text))
        lines = split_lines(text)
        for first, last in self._statements(lines):
            _comment_out(lines, first, last)
        # A blank line would otherwise separate nothing from nothing.
        gap = [""] if lines else []
        lines = split_lines(self._insert(lines, 0, [*_toml_rows(self.keys), *gap]).text)
        result = EditResult("".join(lines), [])
        if self.table:
            result = self._insert(lines, len(lines), ["", *self._table_rows()])
        if _parse_toml(result.text) != expected:
            raise Unreadable("setup cannot add its lines without changing the meaning of others")
        return result

    def by_hand(self) -> str:
        return "\n".join((*_toml_rows(self.keys), "", *self._table_rows(), ""))

    def _table_rows(self) -> list[str]:
        return [f"[{self.table}]", *_toml_rows(self.table_keys)] if self.table else []

    def _merge(self, document: dict[str, Any]) -> dict[str, Any]:
        """The parsed document with our keys and our table."""
        if not self.table:
            return {**document, **self.keys}
        parent, _, name = self.table.rpartition(".")
        tables = document.get(parent, {})
        if not isinstance(tables, dict):
            raise Unreadable(f"its {parent!r} is not a table")
        if name in tables:
            raise Unreadable(f"it has a table [{self.table}] that setup did not write")
        return {**document, **self.keys, parent: {**tables, name: dict(self.table_keys)}}

    def _statements(self, lines: list[str]) -> Iterator[tuple[int, int]]:
        """The ranges of lines that set one of our keys, in front of the first table."""
        first = 0
        while first < len(lines) and not lines[first].strip().startswith("["):
            last = first + 1
            # A value may continue in the next lines; the document as a whole is known to be valid.
            while (values := _statement("".join(lines[first:last]))) is None and last < len(lines):
                last += 1
            if values and next(iter(values)) in self.keys:
                yield first, last
            first = last


def _parse_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Unreadable(f"it is not valid TOML: {error}") from None


def _statement(text: str) -> dict[str, Any] | None:
    try:
        return _parse_toml(text)
    except Unreadable:
        return None


def _toml_rows(values: Values) -> Iterator[str]:
    for name, value in values.items():
        # A basic string of TOML is one of JSON, but for DEL, which no value of ours has.
        yield f"{name} = {json.dumps(value, ensure_ascii=False)}"


# YAML …

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
class YamlKeys(_MarkedEdit):
    """Keys of the top level."""

    keys: Values

    def apply(self, text: str) -> EditResult:
        lines = split_lines(text)
        for entry in _entries(lines, is_list=False):
            if entry.key in self.keys:
                _comment_out(lines, entry.first, entry.last)
        return self._insert(lines, len(lines), _yaml_rows(self.keys))

    def by_hand(self) -> str:
        return "\n".join((*_yaml_rows(self.keys), ""))


@dataclass(frozen=True)
class YamlItems(_MarkedEdit):
    """Items of the list under a key, in front of its others; or at the end of a file that is a list itself.

    `head` are keys that a file needs and lacks if it is new.
    """

    key: str | None
    items: Sequence[Values]
    head: Values

    def apply(self, text: str) -> EditResult:
        lines = split_lines(text)
        entries = _entries(lines, is_list=self.key is None)
        entry = next((entry for entry in entries if entry.key == self.key), None)
        if self.key is None or entry is None:
            return self._insert(lines, len(lines), self._all_rows(with_head=not entries))
        value = re.sub(r"(^|\s)#.*", "", _raw_value(lines[entry.first])).strip()
        if re.fullmatch(r"\[\s*\]", value):
            _comment_out(lines, entry.first, entry.last)
            return self._insert(lines, entry.last, self._all_rows(with_head=False))
        if value:
            raise Unreadable(f"its {self.key!r} is written in brackets or as one value")
        below = lines[entry.first + 1 : entry.last]
        indent = next((item["indent"] for item in map(_ITEM.match, below) if item is not None), None)
        if indent is None and any(map(_is_content, below)):
            raise Unreadable(f"its {self.key!r} is not a list")
        return self._insert(lines, entry.first + 1, self._item_rows("  " if indent is None else indent))

    def by_hand(self) -> str:
        return "\n".join((*self._all_rows(with_head=True), ""))

    def _all_rows(self, *, with_head: bool) -> Iterator[str]:
        """The items with the key that they stand under."""
        if self.key is None:
            yield from self._item_rows("")
            return
        if with_head:
            yield from _yaml_rows(self.head)
        yield f"{self.key}:"
        yield from self._item_rows("  ")

    def _item_rows(self, indent: str) -> Iterator[str]:
        for item in self.items:
            for number, row in enumerate(_yaml_rows(item)):
                yield f"{indent}{'  ' if number else '- '}{row}"


def _entries(lines: list[str], *, is_list: bool) -> list[_Entry]:
    """The entries of a document that is a list of items, or has keys."""
    starts: list[_Entry] = []
    for number, line in enumerate(lines):
        if re.match(r"[ ]*\t", line) and line.strip():
            raise Unreadable(f"line {number + 1} is indented by a tab")
        if line[0] in " #\r\n" or (line.rstrip() == "---" and not starts):
            if line[0] == " " and _is_content(line) and not starts:
                raise Unreadable(f"line {number + 1} is indented, but nothing stands above it")
            continue
        key, item = _KEY.match(line), _ITEM.match(line)
        if key is None and item is None:
            raise Unreadable(f"line {number + 1} is neither a key nor an item of a list at the left edge")
        # A list may stand at the left edge below its key.
        if key is not None or is_list or not starts:
            if (key is None) is not is_list:
                raise Unreadable("it has keys but should be a list" if is_list else "it is a list but should have keys")
            starts.append(_Entry(key["name"].strip("\"'") if key is not None else None, number, len(lines)))
    entries = []
    for number, (name, first, last) in enumerate(starts):
        if number + 1 < len(starts):
            last = starts[number + 1].first
        _refuse_open(lines[first:last], first)
        # Blank lines and comments at the end belong to the next entry.
        while last > first + 1 and not _is_content(lines[last - 1]):
            last -= 1
        entries.append(_Entry(name, first, last))
    return entries


def _refuse_open(lines: list[str], first: int) -> None:
    """Refuse a value in quotes or brackets that does not end where it should."""
    whole = " ".join(line.strip() for line in (_raw_value(lines[0]), *lines[1:]) if _is_content(line)).strip()
    if whole[:1] in "\"'":
        is_closed = not whole or _QUOTED.fullmatch(whole) is not None
    else:
        is_closed = whole[:1] not in _BRACKETS or re.sub(r"\s+#.*", "", whole).endswith(_BRACKETS[whole[0]])
    if not is_closed:
        raise Unreadable(f"the value that begins in line {first + 1} does not end")


def _raw_value(line: str) -> str:
    """The text after the key or the dash of a line."""
    key = _KEY.match(line)
    return (line[key.end() :] if key is not None else line.lstrip(" -")).strip()


def _is_content(line: str) -> bool:
    return bool(line.strip()) and not line.strip().startswith("#")


def _yaml_rows(values: Values) -> Iterator[str]:
    for name, value in values.items():
        is_plain = isinstance(value, str) and _is_plain(value)
        yield f"{name}: {value if is_plain else json.dumps(value, ensure_ascii=False)}"


def _is_plain(text: str) -> bool:
    """Whether a plain scalar means this text; elsewhere JSON is YAML as well."""
    is_word = text.lower() in ("true", "false", "yes", "no", "on", "off", "null")
    return not is_word and ": " not in text and re.fullmatch(r"[A-Za-z][\w ./:-]*[\w/]", text) is not None
