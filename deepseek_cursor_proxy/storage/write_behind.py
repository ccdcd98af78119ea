"""WriteBehind: entries on their way to a file. Those that cannot be written wait here, are found, and follow later.

One behaviour for everything that is written, whatever the entries are and whatever file they go to. A subclass says how
large an entry is and under which keys it is found; a function that it is given writes entries in one transaction.

    write        at once, in one transaction with the entries of other threads; what cannot be written waits
    write_later  a moment later, in one transaction with others
    bound        limits the sizes of all entries together; beyond it the oldest are lost
    flush        when the file reopens, when its owner asks for it and when the owner closes: oldest first, in
                 transactions so short that no turn waits noticeably for the writer
    refused      an entry that SQLite refuses stops no other one; it is kept or counted as lost (`keeps_refused`)
    killed       a killed process loses the entries that wait; so turns that DeepSeek insists on are written with
                 `write`, and wait only during an outage

This module knows no table.
"""

import itertools
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Generic, TypeVar

from deepseek_cursor_proxy.net.threads import BackgroundTask
from deepseek_cursor_proxy.storage.database import Database
from deepseek_cursor_proxy.storage.faults import FaultGuard, Locked, Unusable

_Entry = TypeVar("_Entry")

_TRIES_AT_CLOSE = 10
_SECONDS_BETWEEN_TRIES = 0.1
# Keeps a shared transaction so short that no thread notices the others' share.
_MOST_WRITES_AT_ONCE = 64


class _Write(Generic[_Entry]):
    """The entries of one call, whether they were tried, and a result for each if they were written."""

    def __init__(self, entries: Sequence[_Entry]) -> None:
        self.entries = entries
        self.is_tried = False
        self.results: list[Any] | None = None


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

    def __init__(
        self, database: Database, write: Callable[[Sequence[_Entry], bool], Sequence[Any]], faults: FaultGuard
    ) -> None:
        """`write(entries, despite_fault)` returns one result per entry."""
        self._database = database
        self._write = write
        self._faults = faults
        self._writing = threading.RLock()
        self._writes: deque[_Write[_Entry]] = deque()
        self._writer = BackgroundTask(self._write_batch, "write-behind")
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        # Oldest first.
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._by_key: dict[Any, list[int]] = {}
        self._size = 0
        self._lost = 0
        database.on_reopen(self.flush)

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
        for number in [number for key in self.keys(new) for number in self._by_key.get(key, ()) if self.replaces]:
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
        for key in set(self.keys(old)):
            numbers = self._by_key[key]
            numbers.remove(number)
            if not numbers:
                del self._by_key[key]

    # Writing …

    def write(self, entries: Sequence[_Entry]) -> list[Any] | None:
        """Write entries at once, in one transaction with those of other threads.

        Returns one result per entry, or None if the entries wait instead.

        A commit costs about the same for one turn as for thirty.
        """
        mine = _Write(entries)
        # Before the lock, so that the thread that holds it can take this along.
        self._writes.append(mine)
        with self._writing:
            while not mine.is_tried:
                count = min(len(self._writes), _MOST_WRITES_AT_ONCE)
                self._write_together([self._writes.popleft() for _ in range(count)])
        return mine.results

    def _write_together(self, writes: Sequence[_Write[_Entry]]) -> None:
        entries = writes[0].entries if len(writes) == 1 else [entry for each in writes for entry in each.entries]
        try:
            results = iter(self._write(entries, False))
            for each in writes:
                each.results = list(itertools.islice(results, len(each.entries)))
            if self._by_key and self.replaces:
                self.discard([key for entry in entries for key in self.keys(entry)])
        # Any exception, also one that is no fault of the file: no entry may be lost by it.
        except Exception as error:
            self._faults.warn("record", error)
            if not self._writer.is_closed:
                self.add(entries)
                # Even if the fault has woken it: it may have finished before this was added.
                self._database.request_reopen()
        finally:
            for each in writes:
                each.is_tried = True

    def write_later(self, entries: Sequence[_Entry]) -> None:
        """Have entries written a moment later, in one transaction with others; returns at once."""
        self.add(entries)
        self._writer.wake()

    def _write_batch(self) -> None:
        # Others join the batch.
        self._writer.pause(self.seconds_between_batches)
        if not self.try_flush():
            self._database.request_reopen()

    def try_flush(self) -> bool:
        """Write what waits, unless the file has a fault; False if something waits for the file."""
        if self._entries and self._database.fault is None:
            with self._faults.guard("record"):
                self.flush(despite_fault=False)
                return True
        return not self._entries

    def flush(self, *, despite_fault: bool = True) -> bool:
        """Write all entries; with `despite_fault` despite a known fault. True if none was refused. Raises Unusable.

        Those that come meanwhile wait for the next flush: else this one would go on, in batches of one or two, as long
        as there are requests.
        """
        with self._lock:
            last, end = -1, next(reversed(self._entries), -1)
        while batch := self._oldest(last, end):
            last = max(batch)
            self._flush_batch(batch, despite_fault)
        return next(iter(self._entries), end + 1) > end

    def close(self, flush: Callable[[], object] | None = None) -> int:
        """Write all entries and forget those that cannot be written. Returns how many were forgotten.

        If another process holds the file locked, retries for a second. The owner of the database passes a `flush` that
        also opens the file again.
        """
        self._writer.close()
        for _ in range(_TRIES_AT_CLOSE):
            with self._faults.guard("catch up"):
                if self._entries:
                    (flush or self.flush)()
            if not self._entries or not isinstance(self._database.fault, Locked):
                break
            time.sleep(_SECONDS_BETWEEN_TRIES)
        return self.clear()

    def _oldest(self, after: int, end: int) -> dict[int, _Entry]:
        """The oldest entries after a number, up to another: as many as fit into one transaction, at least one."""
        oldest: dict[int, _Entry] = {}
        left = self.batch
        with self._lock:
            for number, entry in self._entries.items():
                if after < number <= end:
                    left -= self.size(entry)
                    if oldest and left < 0:
                        break
                    oldest[number] = entry
        return oldest

    def _flush_batch(self, batch: dict[int, _Entry], despite_fault: bool) -> None:
        with self._writing:
            try:
                # Without those that were discarded since, or written by another thread.
                if entries := [entry for number, entry in batch.items() if number in self._entries]:
                    self._write(entries, despite_fault)
            except Unusable:
                raise
            except Exception as error:
                if len(batch) > 1:
                    for number, entry in batch.items():
                        self._flush_batch({number: entry}, despite_fault)
                    return
                self._faults.warn("record", error)
                if self.keeps_refused:
                    return
                with self._lock:
                    self._lost += 1
            with self._lock:
                # An entry that was merged since has another number and stays.
                for number in batch:
                    self._remove(number)
