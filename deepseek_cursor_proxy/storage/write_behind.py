"""WriteBehind: entries that the file does not have yet. They are found here meanwhile, and written later.

One behaviour for everything that is written later:

    bound     of the sizes of all entries; beyond it the oldest are lost
    flush     when the file reopens, when the store asks for it and when it closes: oldest first, so that newer entries
              stay the newest, in transactions so short that no turn waits noticeably for the writer
    refused   an entry that SQLite refuses for a reason of its own stops no other; it is kept, or else counts as lost
    killed    a process that is killed loses its entries; so a turn is written at once, and is an entry only while the
              file cannot be used

This module knows no table.
"""

import itertools
import sqlite3
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from deepseek_cursor_proxy.storage.faults import FaultGuard, Locked, Unusable
from deepseek_cursor_proxy.storage.sqlite.database import Database

_Entry = TypeVar("_Entry")

_TRIES_AT_CLOSE = 10
_SECONDS_BETWEEN_TRIES = 0.1


class BoundedEntries(Generic[_Entry]):
    """Entries in memory by key; a subclass says what they are. Called by any thread; the lock protects the fields."""

    # However small they are, there are no more entries.
    most = sys.maxsize

    def __init__(self, bound: int) -> None:
        """`bound` limits the sum of all sizes."""
        self.bound = bound
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        # Oldest first.
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._by_key: dict[Any, list[int]] = {}
        self._size = 0
        self._lost = 0

    def size(self, entry: _Entry) -> int:
        return 1

    def keys(self, entry: _Entry) -> Collection[Hashable]:
        """The keys under which an entry is found."""
        return ()

    def merge_keys(self, entry: _Entry) -> Collection[Hashable]:
        """The keys under which a new entry may find an old one to merge with."""
        return self.keys(entry)

    def merge(self, new: _Entry, old: _Entry) -> _Entry | None:
        """The entry that stands for both from now on, `old` itself if `new` adds nothing; None if both stay."""
        return new

    def first_to_go(self, entries: Mapping[int, _Entry]) -> int:
        """The number of the entry that is lost beyond the bound."""
        return next(iter(entries))

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entries: Sequence[_Entry]) -> None:
        with self._lock:
            for entry in entries:
                self._add(entry)
            while self._size > self.bound or len(self._entries) > self.most:
                self._remove(self.first_to_go(self._entries))
                self._lost += 1

    def find(self, keys: Collection[Hashable]) -> dict[Any, list[_Entry]]:
        """For every key that has entries these, newest first."""
        if not self._by_key:
            return {}
        with self._lock:
            known = [key for key in keys if key in self._by_key]
            return {key: [self._entries[number] for number in reversed(self._by_key[key])] for key in known}

    def entries(self) -> list[_Entry]:
        with self._lock:
            return list(self._entries.values())

    def discard(self, key: Hashable) -> None:
        """Forget what is under a key: the file has it, or something newer."""
        if self._by_key:
            with self._lock:
                for number in self._by_key.get(key, ())[:]:
                    self._remove(number)

    def clear(self) -> int:
        """Forget all entries; how many."""
        with self._lock:
            count, self._size = len(self._entries), 0
            self._entries.clear()
            self._by_key.clear()
        return count

    def take_lost(self) -> int:
        """How many entries were lost since the last call."""
        with self._lock:
            lost, self._lost = self._lost, 0
        return lost

    def _add(self, new: _Entry) -> None:
        for key in self.merge_keys(new):
            for number in reversed(self._by_key.get(key, ())):
                old = self._entries[number]
                merged = self.merge(new, old)
                if merged is old:
                    return
                if merged is not None:
                    self._remove(number)
                    new = merged
                    break
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


class WriteBehind(BoundedEntries[_Entry]):
    """Called by handler threads and the reopener. `_flushing` lets one thread flush."""

    keeps_refused = True

    def __init__(
        self,
        database: Database,
        write: Callable[[sqlite3.Connection, Sequence[_Entry]], object],
        faults: FaultGuard,
        *,
        bound: int,
        batch: int,
    ) -> None:
        """`batch` limits the sum of sizes in one transaction."""
        super().__init__(bound)
        self._database = database
        self._write = write
        self._faults = faults
        self._batch = batch
        self._flushing = threading.Lock()
        database.on_reopen(self.flush)

    @contextmanager
    def replaced(self, key: Hashable) -> Iterator[None]:
        """Forget what is under a key after the body has written something newer; no flush writes it meanwhile."""
        if key not in self._by_key:
            yield
            return
        with self._flushing:
            yield
            self.discard(key)

    def flush(self, *, is_retry: bool = True) -> None:
        """Write all entries; raises Unusable. With `is_retry` a past fault of the file is ignored."""
        last = -1
        with self._flushing:
            while batch := self._oldest(last):
                last = max(batch)
                self._write_batch(batch, is_retry)

    def close(self, flush: Callable[[], object] | None = None) -> int:
        """Write all entries, for a second if another process writes, and forget the rest; how many.

        The owner of the database gives a `flush` that also opens the file again.
        """
        for _ in range(_TRIES_AT_CLOSE):
            with self._faults.guard("catch up"):
                if self._entries:
                    (flush or self.flush)()
            if not self._entries or not isinstance(self._database.fault, Locked):
                break
            time.sleep(_SECONDS_BETWEEN_TRIES)
        return self.clear()

    def _oldest(self, after: int) -> dict[int, _Entry]:
        """The oldest entries after a number, as many as one transaction takes but at least one."""
        oldest: dict[int, _Entry] = {}
        left = self._batch
        with self._lock:
            for number, entry in self._entries.items():
                if number > after:
                    left -= self.size(entry)
                    if oldest and left < 0:
                        break
                    oldest[number] = entry
        return oldest

    def _write_batch(self, batch: dict[int, _Entry], is_retry: bool) -> None:
        try:
            with self._database.transaction(is_retry=is_retry) as connection:
                # Without those that were forgotten meanwhile.
                self._write(connection, [entry for number, entry in batch.items() if number in self._entries])
        except Unusable:
            raise
        except Exception as error:
            if len(batch) > 1:
                for number, entry in batch.items():
                    self._write_batch({number: entry}, is_retry)
                return
            self._faults.warn("record", error)
            if self.keeps_refused:
                return
            with self._lock:
                self._lost += 1
        with self._lock:
            # One that grew meanwhile has another number and stays.
            for number in batch:
                self._remove(number)
