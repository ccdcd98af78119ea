"""Table: the rows of one kind in the store's file, and how long and how much of them is kept.

A store is a subclass with all SQL of its table. Rows are written by a WriteBehind and deleted by a thread that no
answer waits for: first those beyond `max_rows` and `max_bytes`, then those older than `max_age_seconds`, of which one
pruning deletes a tenth of the table at most, so that a clock that is wrong for a while deletes little. The least
recently used go first.
"""

import logging
import math
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypedDict, TypeVar, Unpack

from deepseek_cursor_proxy.storage.database import Database
from deepseek_cursor_proxy.storage.faults import FaultGuard
from deepseek_cursor_proxy.storage.write_behind import WriteBehind

_Entry = TypeVar("_Entry")

# Long enough for a waiting thread to wake up and take the lock, which one that takes it again at once would starve;
# Python switches threads every 5 ms.
_SECONDS_BETWEEN_STEPS = 0.01
# From this share of a limit on a table is nearly full; a file that is smaller needs no sum of its rows.
_NEARLY_FULL = 0.8
# Rows whose sizes are added up while other threads wait for the connection.
_ROWS_PER_SUM = 2000
# The largest part of a table that one pruning deletes because of age.
_PART_BY_AGE = 10


class TableOptions(TypedDict, total=False):
    """The limits of a table in place of its own, and its clock."""

    max_age_seconds: float
    max_rows: float
    max_bytes: float
    clock: Callable[[], float]


class Table(Generic[_Entry]):
    """Called by any thread. Database, guard and write-behind have locks of their own.

    name, title              of the table, in SQL and in warnings
    statements               CREATE statements, unless the core has them
    id, time                 the columns of a row's number and of its time
    size, prunable           SQL for the bytes of a row, and for whether it may be deleted
    writes_between_prunings  pruning counts the whole table, so it runs once for many writes
    rows_per_step            rows deleted in one transaction, so short that no turn waits noticeably for the writer
    """

    name: str
    title: str
    statements = ""
    waiting_type: type[WriteBehind[_Entry]]
    id = "id"
    time = "used_at"
    size = "0"
    prunable = "TRUE"
    max_age_seconds: float = 30 * 24 * 3600
    max_rows: float = math.inf
    max_bytes: float = math.inf
    writes_between_prunings = 64
    rows_per_step = 200

    def __init__(self, database: Database, **options: Unpack[TableOptions]) -> None:
        self.database = database
        self.clock: Callable[[], float] = time.time
        vars(self).update(options)
        self.is_nearly_full = False
        self._faults = FaultGuard(logging.getLogger(type(self).__module__), self.title)
        self._waiting = self.waiting_type(database, self._write, self._faults)
        # Since the last pruning began.
        self._writes = 0
        # The one that runs.
        self._pruning: Iterator[int] | None = None
        if self.statements:
            database.require(self.statements)

    def _write(self, connection: sqlite3.Connection, entries: Sequence[_Entry]) -> None:
        """Write entries in a transaction."""
        self._count_writes(len(entries))
        for entry in entries:
            self._write_entry(connection, entry)

    def _write_entry(self, connection: sqlite3.Connection, entry: _Entry) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        """Write what waits, unless the file has a fault."""
        with self._faults.guard("record"):
            self._waiting.flush(despite_fault=False)

    def totals(self) -> tuple[int, int]:
        """Returns the number of rows and their bytes. Raises Unusable."""
        [(rows, size)] = self.database.select(f"SELECT count(*), coalesce(sum({self.size}), 0) FROM {self.name}")
        return rows, size

    def close(self) -> int:
        """Write waiting entries; idempotent. Returns how many are lost. The owner of the database closes it."""
        return self._waiting.close()

    # Pruning …

    def _count_writes(self, count: int) -> None:
        self._writes += count
        # Once: a pruning that runs has pauses between its steps, and looks at its end what was written meanwhile.
        if self._writes - count < self.writes_between_prunings <= self._writes:
            self.database.background.run(self._prune_on)

    def _prune_on(self) -> float | None:
        """Begin a pruning, or take the next step of the one that runs. Returns the seconds until the next step."""
        if self._pruning is None:
            self._writes, self._pruning = 0, self.prune()
        if next(self._pruning, None) is not None:
            return _SECONDS_BETWEEN_STEPS
        self._pruning = None
        # It may have passed the rows that were written meanwhile.
        return 0.0 if self._writes >= self.writes_between_prunings else None

    def prune(self) -> Iterator[int]:
        """Delete rows beyond the limits; yield after every step how many it has deleted."""
        with self._faults.guard("prune"):
            rows, size = self.measure()
            yield from self._delete(rows - self.max_rows, size - self.max_bytes, self.max_rows)
            old = f"SELECT count(*) FROM {self.name} WHERE {self.prunable} AND {self.time} < ?"
            expired = self.database.number(old, self.clock() - self.max_age_seconds)
            yield from self._delete(min(expired, max(1, rows // _PART_BY_AGE)))

    def measure(self) -> tuple[int, int]:
        """Returns the number of rows and their bytes; sets `is_nearly_full`. Raises Unusable.

        While the file is far below the limit, its size stands in for the sum.
        """
        rows, size = self.database.number(f"SELECT count(*) FROM {self.name}"), self.database.file_size()
        if size >= _NEARLY_FULL * self.max_bytes:
            last = self.database.number(f"SELECT coalesce(max({self.id}), 0) FROM {self.name}")
            part = f"SELECT coalesce(sum({self.size}), 0) FROM {self.name} WHERE {self.id} >= ? AND {self.id} < ?"
            starts = range(0, last + 1, _ROWS_PER_SUM)
            size = sum(self.database.number(part, start, start + _ROWS_PER_SUM) for start in starts)
        self.is_nearly_full = rows >= _NEARLY_FULL * self.max_rows or size >= _NEARLY_FULL * self.max_bytes
        return rows, size

    def _delete(self, rows: float, size: float = 0, kept: float = 0) -> Iterator[int]:
        """Delete the least recently used rows until these numbers of rows and bytes are gone.

        At least `kept` rows stay: another process may be pruning, too.
        """
        oldest = f"SELECT {self.id}, {self.size} FROM {self.name} WHERE {self.prunable} ORDER BY {self.time} LIMIT ?"
        while rows > 0 or size > 0:
            gone: list[tuple[int]] = []
            with self.database.transaction() as connection:
                held = connection.execute(f"SELECT count(*) FROM {self.name}").fetchone()[0]
                rows = min(rows, held - kept) if rows > 0 else rows
                for id, bytes in connection.execute(oldest, (self.rows_per_step,)).fetchall():
                    if rows <= 0 and size <= 0:
                        break
                    gone.append((id,))
                    rows, size = rows - 1, size - bytes
                connection.executemany(f"DELETE FROM {self.name} WHERE {self.id} = ?", gone)
            yield len(gone)
            if not gone:
                break


# The texts of tables …

_FASTEST = 1
_SMALLEST_WINDOW_BITS = 9
# What zlib keeps of a window for the bytes ahead: repetitions are found in the rest.
_BYTES_AHEAD = 262


def compress(data: bytes | bytearray) -> bytes:
    """Pack with zlib at its fastest level and tables of about the size of the data: most stored texts are short.

    `zlib.compress` sets up 256 kB of tables for every text; where the allocator has given them back to the system since
    the last one, that costs five times as much as compressing a few hundred bytes. Any zlib reads the result.
    """
    window_bits = min(max((len(data) + _BYTES_AHEAD).bit_length(), _SMALLEST_WINDOW_BITS), zlib.MAX_WBITS)
    # zlib's hash table has 2 ** (level + 7) entries.
    memory_level = window_bits - 7
    packer = zlib.compressobj(_FASTEST, zlib.DEFLATED, window_bits, memory_level)
    return packer.compress(data) + packer.flush()
