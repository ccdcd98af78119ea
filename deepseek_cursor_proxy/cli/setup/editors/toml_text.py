"""An edit of TOML text: keys in front of the first table, and tables of our own at the end.

A key that the user has set already becomes a comment. Comments, order and spelling of all else stay. The result is
parsed: it must say what it said before, but for our keys.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deepseek_cursor_proxy.cli.setup.editors.documents import EditResult, Record, Unreadable, split_lines
from deepseek_cursor_proxy.cli.setup.editors.marked_lines import comment_out, insert, take_out

Values = Mapping[str, str | int | bool]


@dataclass(frozen=True)
class TomlEdit:
    """`tables` are named as in their header: `model_providers.mine`."""

    client: str
    keys: Values
    tables: Mapping[str, Values]

    def apply(self, text: str) -> EditResult:
        before = _parse(text)
        for name in self.tables:
            if _table(before, name) is not None:
                raise Unreadable(f"it has a table [{name}] that setup did not write")
        lines = split_lines(text)
        for first, last in self._statements(lines):
            lines[first:last] = map(comment_out, lines[first:last])
        # A blank line would otherwise separate nothing from nothing.
        gap = [""] if lines else []
        new = insert("".join(lines), 0, [*_rows(self.keys), *gap], self.client)
        rows = [row for name, values in self.tables.items() for row in ("", f"[{name}]", *_rows(values))]
        new = insert(new, len(split_lines(new)), rows, self.client)
        self._check(before, new)
        return EditResult(new, [])

    def revert(self, text: str, record: Record) -> str:
        return take_out(text)

    def by_hand(self) -> str:
        tables = ("\n".join(("", f"[{name}]", *_rows(values), "")) for name, values in self.tables.items())
        return "\n".join((*_rows(self.keys), "")) + "".join(tables)

    def _statements(self, lines: list[str]) -> Iterator[tuple[int, int]]:
        """The ranges of lines that set one of our keys, in front of the first table."""
        first = 0
        while first < len(lines):
            start = lines[first].strip()
            if start.startswith("["):
                return
            last = first + 1
            if start and not start.startswith("#"):
                while (values := _try_parse("".join(lines[first:last]))) is None and last < len(lines):
                    last += 1
                if values and next(iter(values)) in self.keys:
                    yield first, last
            first = last

    def _check(self, before: dict[str, Any], text: str) -> None:
        after = _parse(text)
        for name, values in self.tables.items():
            *parents, last = name.split(".")
            table = _table(after, ".".join(parents)) if parents else after
            if table is None or table.pop(last, None) != dict(values):
                raise Unreadable(f"a table [{name}] cannot be added to what it has")
            if parents and not table and _table(before, ".".join(parents)) is None:
                after.pop(parents[0])
        ours = {name: after.pop(name, None) for name in self.keys}
        rest = {name: value for name, value in before.items() if name not in self.keys}
        if ours != dict(self.keys) or after != rest:
            raise Unreadable("setup cannot add its lines without changing what others say")


def _parse(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Unreadable(f"it is not valid TOML: {error}") from None


def _try_parse(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return None


def _table(document: dict[str, Any], name: str) -> dict[str, Any] | None:
    found: Any = document
    for part in name.split("."):
        if not isinstance(found, dict):
            raise Unreadable(f"its {part!r} is no table")
        if part not in found:
            return None
        found = found[part]
    return found if isinstance(found, dict) else None


def _rows(values: Values) -> Iterator[str]:
    for name, value in values.items():
        # A basic string of TOML is one of JSON, but for DEL, which no value of ours has.
        yield f"{name} = {json.dumps(value, ensure_ascii=False)}"
