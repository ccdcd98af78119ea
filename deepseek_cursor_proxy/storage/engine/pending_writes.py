"""Reasonings that could not be written yet: looked up here meanwhile, written when the file can be used.

Bounded by bytes, the oldest go first: a proxy whose file never becomes usable remembers the latest reasonings. This
module knows no file and no SQL. Responses that wait are in `response_rows`.
"""

import itertools
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import NamedTuple

# Roughly what an entry takes in memory besides its text and keys.
_BYTES_PER_ENTRY = 500


class PendingReasoning(NamedTuple):
    """A reasoning under all its keys.

    known_key       the file has the text under this key already, unless the file was lost: only a key is added
    previous        the shorter text that the same answer recorded before it went on thinking; it is replaced
    extends         a key under which the same answer recorded the same text before further tool calls
    unless_known    nothing is written if the file knows one of these keys
    """

    keys: tuple[bytes, ...]
    text: bytes
    known_key: bytes | None = None
    previous: bytes | None = None
    extends: bytes | None = None
    unless_known: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        return _BYTES_PER_ENTRY + len(self.text) + sum(map(len, self.keys))


class PendingReasonings:
    """Called by handler threads and the reopener. The lock protects all fields."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        # Oldest first.
        self._entries: OrderedDict[int, PendingReasoning] = OrderedDict()
        self._by_key: dict[bytes, list[int]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entries: Sequence[PendingReasoning]) -> None:
        with self._lock:
            for entry in entries:
                self._add(entry)
            while self._bytes > self._max_bytes:
                self._remove(next(iter(self._entries)))

    def find(self, keys: Collection[bytes]) -> dict[bytes, list[bytes]]:
        """For every pending key its texts, newest first."""
        with self._lock:
            known = [key for key in keys if key in self._by_key] if self._by_key else []
            return {key: [self._entries[number].text for number in reversed(self._by_key[key])] for key in known}

    def oldest(self, max_bytes: int) -> dict[int, PendingReasoning]:
        """The oldest entries by number, up to `max_bytes` but at least one; they stay until `remove`."""
        oldest: dict[int, PendingReasoning] = {}
        with self._lock:
            for number, each in self._entries.items():
                if oldest and each.size > max_bytes:
                    break
                oldest[number] = each
                max_bytes -= each.size
        return oldest

    def remove(self, numbers: Collection[int]) -> None:
        """Forget entries that the file has now; one that grew meanwhile has another number and stays."""
        with self._lock:
            for number in numbers:
                self._remove(number)

    def clear(self) -> None:
        self.remove(list(self._entries))

    def _add(self, new: PendingReasoning) -> None:
        new = self._merge(new)
        for number in reversed(self._by_key.get(new.keys[0], ())):
            old = self._entries[number]
            if new.known_key is not None or new.unless_known:
                # A key that is known already keeps its reasoning.
                return
            if old.known_key is None and old.text in (new.text, new.previous):
                # The same turn again, or one that went on thinking after its calls. A text that merely begins alike
                # is another answer in the same words and stays an entry of its own.
                self._remove(number)
                break
        number = next(self._numbers)
        self._entries[number] = new
        self._bytes += new.size
        for key in set(new.keys):
            self._by_key.setdefault(key, []).append(number)

    def _merge(self, new: PendingReasoning) -> PendingReasoning:
        """The entry with the keys of the one that it extends and replaces."""
        for number in self._by_key.get(new.extends, ()) if new.extends is not None else ():
            old = self._entries[number]
            if old.known_key is None and old.text == new.text:
                self._remove(number)
                return new._replace(keys=tuple(dict.fromkeys((*new.keys, *old.keys))))
        return new

    def _remove(self, number: int) -> None:
        if (old := self._entries.pop(number, None)) is None:
            return
        self._bytes -= old.size
        for key in set(old.keys):
            numbers = self._by_key[key]
            numbers.remove(number)
            if not numbers:
                del self._by_key[key]
