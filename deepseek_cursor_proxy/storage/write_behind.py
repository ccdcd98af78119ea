"""WriteBehind: entries on their way to a file. Those that cannot be written wait here, are found, and follow later.

Flusher: writes the entries of all tables of a file.

One behaviour for everything that is written, whatever the entries are and whatever file they go to. A subclass says how
large an entry is and under which keys it is found; a function that it is given writes entries in one transaction.

    write        at once, in one transaction with the entries of other threads; what cannot be written waits
    write_later  a moment later on the thread of the file, in one transaction with what waits in its other tables
    bound        limits the sizes of all entries together; beyond it the oldest are lost
    flush        when the file reopens, when its owner asks for it and when the owner closes: oldest first, in
                 transactions so short that no turn waits noticeably for the writer
    refused      an entry that SQLite refuses stops no other one; it is kept or counted as lost (`keeps_refused`)
    killed       a killed process loses the entries that wait; so turns that DeepSeek insists on are written with
                 `write`, and wait only during an outage

This module knows no table.
"""

import sqlite3
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from itertools import count, zip_longest
from typing import Any, Generic, TypeVar

from deepseek_cursor_proxy.storage.database import Database
from deepseek_cursor_proxy.storage.faults import FaultGuard, Locked, Unusable

_Entry = TypeVar("_Entry")
_WriteEntries = Callable[[sqlite3.Connection, Sequence[_Entry]], object]

_TRIES_AT_CLOSE = 10
_SECONDS_BETWEEN_TRIES = 0.1
# Keeps a shared transaction so short that no thread notices the others' share.
_MOST_WRITES_AT_ONCE = 64


class _Write(Generic[_Entry]):
    """The entries of one call, whether they were tried, and whether they were written."""

    def __init__(self, entries: Sequence[_Entry]) -> None:
        self.entries = entries
        self.is_tried = self.is_written = False


class WriteBehind(Generic[_Entry]):
    """Entries in memory by key. Called by any thread.

    `_lock` protects the entries. `_writing`, which is taken first, lets one thread write and take from `_writes`.
    """

    # The limits of the sum of all sizes, and of those in one transaction of a flush.
    bound = sys.maxsize
    batch = sys.maxsize
    # Whether a new entry takes the place of the one that waits under its key.
    replaces = True
    keeps_refused = True
    # What a killed process loses of the entries that can wait; a transaction costs twice as much as an entry in it.
    seconds_between_batches = 0.25

    def __init__(self, database: Database, write: _WriteEntries[_Entry], faults: FaultGuard) -> None:
        """`write` writes entries in a transaction."""
        self._database = database
        self._write = write
        self._faults = faults
        self._writing = threading.RLock()
        self._writes: deque[_Write[_Entry]] = deque()
        self._is_closed = False
        self._lock = threading.Lock()
        self._numbers = count()
        # Oldest first.
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._by_key: dict[Any, list[int]] = {}
        self._size = 0
        self._lost = 0
        self._flusher: Flusher = database.flusher or Flusher(database)
        self._flusher.tables.append(self)

    def size(self, entry: _Entry) -> int:
        return 1

    def keys(self, entry: _Entry) -> Collection[Hashable]:
        """The keys under which `find` returns an entry."""
        return ()

    def merge(self, new: _Entry, old: _Entry) -> _Entry:
        """The entry that takes the place of both, if the new one `replaces` the old."""
        return new

    # Entries that wait …

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, keys: Collection[Hashable]) -> dict[Any, list[_Entry]]:
        """The waiting entries of each key that has any, oldest first."""
        if not self._by_key:
            return {}
        with self._lock:
            known = [key for key in keys if key in self._by_key]
            return {key: [self._entries[number] for number in self._by_key[key]] for key in known}

    def entries(self) -> list[_Entry]:
        with self._lock:
            return list(self._entries.values())

    def add(self, entries: Sequence[_Entry]) -> None:
        """Keep entries until the next flush."""
        with self._lock:
            for entry in entries:
                self._add(entry)
            while self._size > self.bound:
                self._remove(next(iter(self._entries)))
                self._lost += 1

    def discard(self, keys: Collection[Hashable]) -> None:
        """Forget the entries under these keys: the file has them, or newer ones."""
        if self._by_key:
            with self._lock:
                for number in [number for key in keys for number in self._by_key.get(key, ())]:
                    self._remove(number)

    def clear(self) -> int:
        """Forget all entries. Returns how many."""
        with self._lock:
            count, self._size = len(self._entries), 0
            self._entries.clear()
            self._by_key.clear()
        return count

    def take_lost(self) -> int:
        """Returns how many entries were lost since the last call."""
        with self._lock:
            lost, self._lost = self._lost, 0
        return lost

    def _add(self, new: _Entry) -> None:
        if self.replaces and self._by_key:
            for number in [number for key in self.keys(new) for number in self._by_key.get(key, ())]:
                new = self.merge(new, self._entries[number])
                self._remove(number)
        number = next(self._numbers)
        self._entries[number] = new
        self._size += self.size(new)
        for key in set(self.keys(new)):
            self._by_key.setdefault(key, []).append(number)

    def _remove(self, number: int) -> None:
        if (old := self._entries.pop(number, None)) is None:
            return
        self._size -= self.size(old)
        for key in set(self.keys(old)) if self._by_key else ():
            numbers = self._by_key[key]
            numbers.remove(number)
            if not numbers:
                del self._by_key[key]

    # Writing …

    def write(self, entries: Sequence[_Entry]) -> bool:
        """Write entries at once, in one transaction with those of other threads; False if they wait instead.

        A commit costs about the same for one turn as for thirty.
        """
        mine = _Write(entries)
        # Before the lock, so that the thread that holds it can take this along.
        self._writes.append(mine)
        with self._writing:
            while not mine.is_tried:
                count = min(len(self._writes), _MOST_WRITES_AT_ONCE)
                self._write_together([self._writes.popleft() for _ in range(count)])
        return mine.is_written

    def _write_together(self, writes: Sequence[_Write[_Entry]]) -> None:
        entries = writes[0].entries if len(writes) == 1 else [entry for each in writes for entry in each.entries]
        try:
            with self._database.transaction() as connection:
                self._write(connection, entries)
            for each in writes:
                each.is_written = True
            if self._by_key and self.replaces:
                self.discard([key for entry in entries for key in self.keys(entry)])
        # Any exception, also one that is no fault of the file: no entry may be lost by it.
        except Exception as error:
            self._faults.warn("record", error)
            if not self._is_closed:
                self.add(entries)
                # Even if the fault has woken it: it may have finished before this was added.
                self._database.request_reopen()
        finally:
            for each in writes:
                each.is_tried = True

    def write_later(self, entries: Sequence[_Entry]) -> None:
        """Have entries written within `seconds_between_batches`; returns at once."""
        self.add(entries)
        self._database.background.run(self._flusher.flush_all, self.seconds_between_batches)

    def flush(self, *, despite_fault: bool = True) -> int:
        """Write all entries; with `despite_fault` despite a known fault. Raises Unusable."""
        return self._flusher.flush([self], despite_fault=despite_fault)

    def close(self, flush: Callable[[], object] | None = None) -> int:
        """Write all entries and forget those that cannot be written. Returns how many were forgotten.

        If another process holds the file locked, retries for a second. The owner of the database passes a `flush` that
        also opens the file again.
        """
        self._is_closed = True
        for _ in range(_TRIES_AT_CLOSE):
            with self._faults.guard("catch up"):
                if self._entries:
                    (flush or self.flush)()
            if not self._entries or not isinstance(self._database.fault, Locked):
                break
            time.sleep(_SECONDS_BETWEEN_TRIES)
        return self.clear()

    def batches(self) -> Iterator["_Batch"]:
        """The entries that wait now, oldest first: as many together as fit into one transaction, at least one."""
        with self._lock:
            waiting = list(self._entries.items())
        batch, left = dict[int, _Entry](), self.batch
        for number, entry in waiting:
            left -= self.size(entry)
            if batch and left < 0:
                yield self, batch
                batch, left = {}, self.batch - self.size(entry)
            batch[number] = entry
        yield self, batch

    def _forget(self, batch: dict[int, _Entry], lost: int = 0) -> None:
        """Forget entries; one that was merged since has another number and stays."""
        with self._lock:
            self._lost += lost
            for number in batch:
                self._remove(number)


# Entries of a table by their numbers.
_Batch = tuple[WriteBehind[Any], dict[int, Any]]


class Flusher:
    """Writes what waits in all tables of a file, in common transactions: a commit costs more than most entries.

    Called by any thread.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.tables: list[WriteBehind[Any]] = []
        database.flusher = self
        database.on_reopen(lambda: not self.flush(self.tables, despite_fault=True))

    def flush_all(self) -> None:
        """Write what waits in all tables, on the file's thread; what cannot be written follows when it reopens."""
        try:
            self.flush(self.tables, despite_fault=False)
        except Unusable:
            # Even if the fault has woken it: it may have finished before these entries were added.
            self._database.request_reopen()

    def flush(self, tables: Sequence[WriteBehind[Any]], *, despite_fault: bool) -> int:
        """Write all entries, oldest first. Returns how many are refused and wait on. Raises Unusable.

        Those that come meanwhile wait for the next flush: else this one would go on, in batches of one or two, as long
        as there are requests.
        """
        if not despite_fault and (fault := self._database.fault):
            # Before the entries are listed: every turn of an outage comes here.
            raise fault.copy()
        waiting = [table.batches() for table in tables if table]
        return sum(self._write([*filter(None, batches)], despite_fault) for batches in zip_longest(*waiting))

    def _write(self, batches: Sequence[_Batch], despite_fault: bool) -> int:
        """Write in one transaction; if an entry is refused, each table alone, and of that one each entry alone."""
        for table, _ in batches:
            table._writing.acquire()
        try:
            with self._database.transaction(despite_fault=despite_fault) as connection:
                for table, batch in batches:
                    # Without those that were discarded since, or written by another thread.
                    if entries := [entry for number, entry in batch.items() if number in table._entries]:
                        table._write(connection, entries)
            for table, batch in batches:
                table._forget(batch)
                self._database.written_late += len(batch) if despite_fault else 0
            return 0
        except Unusable:
            raise
        # Any other exception: no entry may be lost by it.
        except Exception as error:
            table, batch = batches[0]
            parts = batches if len(batches) > 1 else [(table, {number: entry}) for number, entry in batch.items()]
            if len(parts) > 1:
                return sum(self._write([part], despite_fault) for part in parts)
            table._faults.warn("record", error)
            if not table.keeps_refused:
                table._forget(batch, lost=1)
            return int(table.keeps_refused)
        finally:
            for table, _ in batches:
                table._writing.release()
