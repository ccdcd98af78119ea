"""Table: the rows of one kind, and how long and how much of them is kept. Every store of the file is one.

A store is a subclass that declares its Kind and adds its policy. No answer ever fails because of a store: while the
file cannot be used, reading and pruning end without a result, and a row waits in memory, where it is found. The longest
unused rows are deleted beyond the limits of number, bytes and age, in small steps on a thread that no answer waits for.
"""

import logging
import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypedDict, Unpack

from deepseek_cursor_proxy.storage.faults import FaultGuard
from deepseek_cursor_proxy.storage.pruner import Pruner
from deepseek_cursor_proxy.storage.sqlite.database import Database
from deepseek_cursor_proxy.storage.steady_clock import PruningClock, tolerance_for
from deepseek_cursor_proxy.storage.write_behind import WriteBehind

# SQLite's default limit of variables in one statement is 32766 since 3.32; older builds took 999.
KEYS_PER_QUERY = 900
# From this share of a limit on a table is nearly full; a file that is smaller needs no sum of its rows.
_NEARLY_FULL = 0.8
_MOST_BYTES_UNWRITTEN = 4 * 1024 * 1024


@dataclass(frozen=True)
class Kind:
    """The table of a store, its columns, and the limits that hold unless others are given.

    key, values        the columns by which a row is found, and those that it holds
    time, size         the column of its age; SQL for its bytes
    may_go             SQL for rows that may be pruned
    share_by_age       the largest share of rows that one pruning deletes because of age
    rows_per_step      rows deleted in one transaction, so short that no turn waits noticeably for the writer
    rows_per_sum       rows whose sizes are added up while other threads wait for the connection; None: all
    """

    table: str
    title: str
    key: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    id: str = "id"
    time: str = "used_at"
    size: str = "size"
    may_go: str = "TRUE"
    max_age_seconds: float = 30 * 24 * 3600
    max_rows: float = math.inf
    max_bytes: float = math.inf
    share_by_age: float = 1.0
    writes_between_prunings: int = 64
    rows_per_step: int = 200
    rows_per_sum: int | None = None


class _Row(NamedTuple):
    """A row to write; with `keeps_first` one that is there stays and is used now."""

    key: tuple[Any, ...]
    values: tuple[Any, ...]
    time: float | None
    keeps_first: bool


class _UnwrittenRows(WriteBehind[_Row]):
    def size(self, entry: _Row) -> int:
        return 200 + sum(len(value) for value in entry.values if isinstance(value, bytes))

    def keys(self, entry: _Row) -> list[tuple[Any, ...]]:
        return [entry.key]

    def merge(self, new: _Row, old: _Row) -> _Row:
        return old if new.keeps_first else new


class TableOptions(TypedDict, total=False):
    """The limits of a table in place of those of its kind, and the clock by which rows are too old."""

    max_age_seconds: float
    max_rows: float
    max_bytes: float
    pruning: PruningClock | None


class Table:
    """Called by handler threads. The database, the guard and the pruner have locks of their own."""

    kind: ClassVar[Kind]

    def __init__(self, database: Database, **options: Unpack[TableOptions]) -> None:
        kind = self.kind
        self.database = database
        self._max_age = options.get("max_age_seconds", kind.max_age_seconds)
        self._max_rows = options.get("max_rows", kind.max_rows)
        self._max_bytes = options.get("max_bytes", kind.max_bytes)
        self.pruning = options.get("pruning") or PruningClock(tolerance_for(self._max_age))
        self._faults = FaultGuard(logging.getLogger(type(self).__module__), kind.title)
        self._pruner = Pruner(lambda: self.prune(), every=kind.writes_between_prunings, name=f"{kind.table}-prune")
        self._is_nearly_full = False
        self._unwritten = _UnwrittenRows(
            database, self._write_pending_rows, self._faults, bound=_MOST_BYTES_UNWRITTEN, batch=256 * 1024
        )

    def close(self) -> None:
        """End a running pruning and write what waits; idempotent. The database is its owner's to close."""
        self._pruner.close()
        self._unwritten.close()

    # Rows by key …

    def _read_rows(self, keys: Sequence[Any], prefix: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The last part of the key, the values and the time of the rows with these keys below a common prefix.

        Rows that are not written yet come first.
        """
        *first, last = self.kind.key
        select = f"SELECT {', '.join((last, *self.kind.values, self.kind.time))} FROM {self.kind.table}"
        pending = self._unwritten.find([(*prefix, key) for key in keys])
        rows: list[tuple[Any, ...]] = [(key[-1], *row.values, row.time) for key, [row] in pending.items()]
        with self._faults.guard("look up"), self.database.reader() as connection:
            for start in range(0, len(keys), KEYS_PER_QUERY):
                chunk = keys[start : start + KEYS_PER_QUERY]
                where = "".join(f"{name} = ? AND " for name in first) + f"{last} IN ({','.join('?' * len(chunk))})"
                rows += connection.execute(f"{select} WHERE {where}", (*prefix, *chunk))
        return rows

    def _read_all(self, most: int) -> list[tuple[Any, ...]]:
        """The key and the values of every row of a small table."""
        with self._faults.guard("look up"), self.database.reader() as connection:
            columns = ", ".join((*self.kind.key, *self.kind.values))
            return connection.execute(f"SELECT {columns} FROM {self.kind.table} LIMIT ?", (most,)).fetchall()
        return []

    def _write_row(
        self, key: Sequence[Any], values: Sequence[Any], time: float | None = None, *, keeps_first: bool = False
    ) -> tuple[Any, ...]:
        """Insert a row, or replace all or only the time of the one with this key; the values that the row has now."""
        row = _Row(tuple(key), tuple(values), time, keeps_first)
        with (
            self._faults.guard("record"),
            self._unwritten.replaced(row.key),
            self.database.transaction() as connection,
        ):
            return self._upsert(connection, row)
        self._unwritten.add([row])
        self.database.request_reopen()
        return row.values

    def _write_pending_rows(self, connection: sqlite3.Connection, rows: Sequence["_Row"]) -> None:
        for row in rows:
            self._upsert(connection, row)

    def _upsert(self, connection: sqlite3.Connection, row: "_Row") -> tuple[Any, ...]:
        kind, times = self.kind, [] if row.time is None else [row.time]
        columns = (*kind.key, *kind.values, *([] if row.time is None else [kind.time]))
        replaced = columns[len(kind.key) + row.keeps_first * len(kind.values) :]
        written: tuple[Any, ...] = connection.execute(
            f"INSERT INTO {kind.table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) "
            f"ON CONFLICT ({', '.join(kind.key)}) DO UPDATE SET "
            f"{', '.join(f'{name} = excluded.{name}' for name in replaced)} RETURNING {', '.join(kind.values)}",
            (*row.key, *row.values, *times),
        ).fetchone()
        if row.time is not None:
            self._pruner.count_writes()
        return written

    # Pruning …

    def prune(self) -> int:
        """Delete the longest unused rows beyond the limits; how many. Called on the pruner's thread, or by tests."""
        with self._faults.guard("prune"):
            rows, size = self._measure()
            deleted = self._delete(rows - self._max_rows, size - self._max_bytes, None)
            oldest_kept = self.pruning.oldest_kept(self._max_age)
            expired = self._number(f"SELECT count(*) FROM {self.kind.table} WHERE {self.kind.time} < ?", oldest_kept)
            return deleted + self._delete(min(expired, max(1, int(rows * self.kind.share_by_age))), 0, oldest_kept)
        return 0

    def totals(self) -> tuple[int, int]:
        """The number of rows and their bytes; raises Unusable."""
        with self.database.reader() as connection:
            rows, size = connection.execute(
                f"SELECT count(*), coalesce(sum({self.kind.size}), 0) FROM {self.kind.table}"
            ).fetchone()
            return rows, size

    def _measure(self, *, is_exact: bool = True) -> tuple[int, int]:
        """The number of rows and their bytes, or those of the file as long as that is far from the limit."""
        rows = self._number(f"SELECT count(*) FROM {self.kind.table}")
        size = self._number("PRAGMA page_count") * self._number("PRAGMA page_size")
        if is_exact and size >= _NEARLY_FULL * self._max_bytes:
            size = self._sum_sizes(self.kind.rows_per_sum) if self.kind.rows_per_sum else self.totals()[1]
        self._is_nearly_full = rows >= _NEARLY_FULL * self._max_rows or size >= _NEARLY_FULL * self._max_bytes
        return rows, size

    def _sum_sizes(self, step: int) -> int:
        kind = self.kind
        last = self._number(f"SELECT coalesce(max({kind.id}), 0) FROM {kind.table}")
        query = f"SELECT coalesce(sum({kind.size}), 0) FROM {kind.table} WHERE {kind.id} >= ? AND {kind.id} < ?"
        return sum(self._number(query, start, start + step) for start in range(0, last + 1, step))

    def _number(self, query: str, *values: Any) -> int:
        with self.database.reader() as connection:
            return int(connection.execute(query, values).fetchone()[0])

    def _delete(self, rows: float, size: float, before: float | None) -> int:
        """Delete so many of the longest unused rows or bytes, of all or of those before a time; how many rows."""
        deleted = 0
        while (rows > 0 or size > 0) and not self._pruner.is_closed:
            gone: list[tuple[int]] = []
            with self.database.transaction() as connection:
                if before is None:
                    # Another process may be pruning, too.
                    rows, size = self._excess(connection, rows, size)
                for id, each in self._longest_unused(connection, before):
                    if rows <= 0 and size <= 0:
                        break
                    gone.append((id,))
                    rows, size = rows - 1, size - each
                connection.executemany(f"DELETE FROM {self.kind.table} WHERE {self.kind.id} = ?", gone)
            if not gone:
                break
            deleted += len(gone)
            self._pruner.pause_step()
        return deleted

    def _excess(self, connection: sqlite3.Connection, rows: float, size: float) -> tuple[float, float]:
        """These rows and bytes, or fewer if fewer are beyond the limits by now; a sum of many steps is not repeated."""
        kind = self.kind
        bytes = kind.size if kind.rows_per_sum is None else "NULL"
        held, held_bytes = connection.execute(f"SELECT count(*), sum({bytes}) FROM {kind.table}").fetchone()
        return min(rows, held - self._max_rows), min(size, held_bytes - self._max_bytes) if held_bytes else size

    def _longest_unused(self, connection: sqlite3.Connection, before: float | None) -> list[tuple[int, int]]:
        """Id and bytes of some rows: of all those with a time in the future go first, whose age is not known."""
        kind = self.kind
        query = f"SELECT {kind.id}, {kind.size} FROM {kind.table} WHERE {kind.may_go} AND {kind.time} {{}} ? "
        query += f"ORDER BY {kind.time} LIMIT {kind.rows_per_step}"
        if before is not None:
            return connection.execute(query.format("<"), (before,)).fetchall()
        future = self.pruning.latest_plausible()
        found = (connection.execute(query.format(sign), (future,)).fetchall() for sign in (">", "<="))
        return next(filter(None, found), [])


def encode_text(text: str) -> bytes:
    # A lone surrogate is legal in JSON and has no UTF-8 form.
    return text.encode("utf-8", "surrogatepass")


def decode_text(blob: bytes) -> str:
    return blob.decode("utf-8", "surrogatepass")
