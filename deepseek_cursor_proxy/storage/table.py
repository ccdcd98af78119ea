"""Table: the rows of one kind, and how long and how much of them is kept. Every store of the file is one.

A store is a subclass that declares its Kind and adds its policy; `entries` has the seam to the engine. No answer ever
fails because of a store: while the file cannot be used, reading and pruning end without a result, and a row waits in
memory, where it is found. Old rows are deleted on a thread that no answer waits for.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypedDict, TypeVar, Unpack, cast

from deepseek_cursor_proxy.net.threads import BackgroundTask
from deepseek_cursor_proxy.storage.entries import Kind, Row
from deepseek_cursor_proxy.storage.faults import FaultGuard
from deepseek_cursor_proxy.storage.sqlite.database import Database
from deepseek_cursor_proxy.storage.sqlite.rows import Rows, open_rows
from deepseek_cursor_proxy.storage.steady_clock import PruningClock, tolerance_for
from deepseek_cursor_proxy.storage.write_behind import WriteBehind

_Entry = TypeVar("_Entry")

# What a killed process loses of the entries that can wait; a transaction costs twice as much as an entry in it.
_SECONDS_BETWEEN_BATCHES = 0.25
# Long enough for a waiting thread to wake up and take the lock; Python switches threads every 5 ms.
_SECONDS_BETWEEN_STEPS = 0.01


class TableOptions(TypedDict, total=False):
    """The limits of a table in place of those of its kind, and the clock by which rows are too old."""

    max_age_seconds: float
    max_rows: float
    max_bytes: float
    pruning: PruningClock | None


class WaitingRows(WriteBehind[Row]):
    bound = 4 * 1024 * 1024
    batch = 256 * 1024
    # A number beyond those of SQLite, say, from an odd upstream: no later try would write it.
    keeps_refused = False

    def size(self, entry: Row) -> int:
        return 200 + sum(len(value) for value in (*entry.key, *entry.values) if isinstance(value, (bytes, str)))

    def keys(self, entry: Row) -> list[tuple[Any, ...]]:
        return [entry.key]

    def merge(self, new: Row, old: Row) -> Row:
        return old if new.keeps_first else new


class Table(Generic[_Entry]):
    """Called by workers. Database, guard, pruner and write-behind have locks of their own."""

    kind: Kind
    waiting_type: type[WriteBehind[Any]] = WaitingRows

    def __init__(self, database: Database, **options: Unpack[TableOptions]) -> None:
        pruning, limits = options.pop("pruning", None), cast("dict[str, Any]", options)
        self.kind = self.kind._replace(**limits)
        self.database = database
        self.pruning = pruning or PruningClock(tolerance_for(self.kind.max_age_seconds))
        self.rows: Rows = open_rows(database, self.kind, self.pruning)
        self._faults = FaultGuard(logging.getLogger(type(self).__module__), self.kind.title)
        self._waiting: WriteBehind[_Entry] = self.waiting_type(database, self._write_entries, self._faults)
        self._writer = BackgroundTask(self._write_batch, f"{self.kind.table}-write")
        self._pruner = Pruner(
            lambda: self.prune(), every=self.kind.writes_between_prunings, name=f"{self.kind.table}-prune"
        )

    def get_many(self, keys: Sequence[Any], prefix: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """For each row found: (last key column, *values, time). `prefix` holds the leading key columns.

        Rows that are not written yet come first.
        """
        waiting: dict[Any, list[Any]] = self._waiting.find([(*prefix, key) for key in keys])
        rows: list[tuple[Any, ...]] = [(key[-1], *row.values, row.time) for key, [row] in waiting.items()]
        with self._faults.guard("look up"):
            rows += self.rows.read(keys, prefix)
        return rows

    def get_all(self, most: int) -> list[tuple[Any, ...]]:
        """For each row of a small table: (*key columns, *values). Returns at most `most` rows."""
        with self._faults.guard("look up"):
            return self.rows.read_all(most)
        return []

    def write(self, entry: _Entry) -> Any:
        """Write an entry. Returns the engine's result, or None if the entry waits for the file."""
        results = self._waiting.put([entry])
        if results is None:
            return None
        if self.kind.writes_between_prunings:
            self._pruner.count_writes()
        return results[0]

    def write_later(self, entries: Sequence[_Entry]) -> None:
        """Have entries written a moment later, in one transaction with others; returns at once."""
        self._waiting.add(entries)
        self._writer.wake()

    def _write_batch(self) -> float | None:
        # Others join the batch.
        self._writer.pause(_SECONDS_BETWEEN_BATCHES)
        if not self.flush():
            self.database.request_reopen()
        return None

    def flush(self) -> bool:
        """Write what waits, unless the file has a fault; False if something waits for the file."""
        if self.database.fault is None:
            with self._faults.guard("record"):
                self._waiting.flush(is_retry=False)
                return True
        return not self._waiting

    def _write_entries(self, entries: Sequence[_Entry], is_retry: bool) -> Sequence[Any]:
        return self.rows.write(entries, is_retry)

    def prune(self) -> int:
        """Delete the least recently used rows beyond the limits, on the pruner's thread. Returns how many."""
        with self._faults.guard("prune"):
            return self.rows.prune(self._pruner.pause_step)
        return 0

    def totals(self) -> tuple[int, int]:
        """Returns the number of rows and their bytes. Raises Unusable."""
        return self.rows.totals()

    def close(self) -> None:
        """Stop pruning and write waiting entries; idempotent. The owner of the database closes it."""
        self._writer.close()
        self._pruner.close()
        self._waiting.close()


class Pruner(BackgroundTask):
    """Runs `prune` once per `every` writes on its own thread."""

    def __init__(self, prune: Callable[[], object], *, every: int, name: str) -> None:
        super().__init__(self._prune_once, name)
        self._prune = prune
        self.every = every
        self._writes = 0

    def count_writes(self, count: int = 1) -> None:
        with self._lock:
            before, self._writes = self._writes, self._writes + count
        if before // self.every != self._writes // self.every:
            # Also while a pruning runs: it may have passed the new rows already.
            self.wake()

    def pause_step(self) -> bool:
        """Call between two steps: a thread that retakes a lock at once starves waiting ones. False: stop pruning."""
        self.pause(_SECONDS_BETWEEN_STEPS)
        return not self.is_closed

    def _prune_once(self) -> None:
        self._prune()
