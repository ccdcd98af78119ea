"""Reasonings that wait for the file: what could not be written is found here meanwhile, and written later.

Bounded by bytes; when there is too much, the oldest go first. So a proxy whose file never becomes usable simply
remembers the latest of what was thought. This room knows no file.
"""

import itertools
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import NamedTuple

# What an entry takes up in memory besides its text and keys, about.
_BYTES_PER_ENTRY = 500


class PendingReasoning(NamedTuple):
    """A reasoning under all its keys; one with `known_as` is in the file under that key, unless the file was lost.

    `begun` is what was recorded of it earlier, by the same answer, before it went on thinking. `extends` is a key that
    the same answer recorded the same reasoning under, before it went on with further calls. It is not written if the
    file knows one of the keys in `unless`.
    """

    keys: tuple[bytes, ...]
    text: bytes
    linked_key: bytes | None = None
    previous: bytes | None = None
    extends: bytes | None = None
    unless_known: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        return _BYTES_PER_ENTRY + len(self.text) + sum(map(len, self.keys))


class PendingReasonings:
    """Called by handler threads and by whoever writes it down. The lock protects all of it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        # Oldest first.
        self._waiting: OrderedDict[int, PendingReasoning] = OrderedDict()
        self._by_key: dict[bytes, list[int]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, some: Sequence[PendingReasoning]) -> None:
        with self._lock:
            for each in some:
                self._add(each)
            while self._bytes > self._max_bytes:
                self._remove(next(iter(self._waiting)))

    def find(self, keys: Collection[bytes]) -> dict[bytes, list[bytes]]:
        """For every key that waits here, the texts under it, newest first."""
        with self._lock:
            known = [key for key in keys if key in self._by_key] if self._by_key else []
            return {key: [self._waiting[number].text for number in reversed(self._by_key[key])] for key in known}

    def oldest(self, max_bytes: int) -> dict[int, PendingReasoning]:
        """Some of the oldest by their numbers, at least one if there is any; they stay here until `remove`."""
        some: dict[int, PendingReasoning] = {}
        with self._lock:
            for number, each in self._waiting.items():
                if some and each.size > max_bytes:
                    break
                some[number] = each
                max_bytes -= each.size
        return some

    def remove(self, numbers: Collection[int]) -> None:
        """What is in the file now; one that grew meanwhile has another number and stays."""
        with self._lock:
            for number in numbers:
                self._remove(number)

    def clear(self) -> None:
        self.remove(list(self._waiting))

    def _add(self, new: PendingReasoning) -> None:
        new = self._merged(new)
        for number in reversed(self._by_key.get(new.keys[0], ())):
            old = self._waiting[number]
            if new.linked_key is not None or new.unless_known:
                # A key that leads somewhere is not led elsewhere.
                return
            if new.linked_key is None and old.linked_key is None and old.text in (new.text, new.previous):
                # The same turn again, or one that went on thinking after its calls. Not whatever begins like it: that
                # is another answer in the same words, and then nobody can tell whose they are.
                self._remove(number)
                break
        number = next(self._numbers)
        self._waiting[number] = new
        self._bytes += new.size
        for key in set(new.keys):
            self._by_key.setdefault(key, []).append(number)

    def _merged(self, new: PendingReasoning) -> PendingReasoning:
        """The entry with the keys of the one that it extends, which it replaces."""
        for number in self._by_key.get(new.extends, ()) if new.extends is not None else ():
            old = self._waiting[number]
            if old.linked_key is None and old.text == new.text:
                self._remove(number)
                return new._replace(keys=tuple(dict.fromkeys((*new.keys, *old.keys))))
        return new

    def _remove(self, number: int) -> None:
        if (old := self._waiting.pop(number, None)) is None:
            return
        self._bytes -= old.size
        for key in set(old.keys):
            numbers = self._by_key[key]
            numbers.remove(number)
            if not numbers:
                del self._by_key[key]
