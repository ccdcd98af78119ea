"""The chat memory: what each stage made of recent chats, so that a stage processes only the new messages of a chat.

A chat comes back every few seconds with its whole history and one turn more. Each stage looks up the longest beginning
of its list that is known, and goes on from there:

    stage      goes through                  result                          in
    decode     the bytes of a body           JSON values                     api/incremental_json
    unseal     JSON values                   the same, unsealed              protocols/responses, protocols/anthropic
    parse      JSON values                   Messages                        protocols/request
    finish     Messages                      the same, custom calls wrapped  protocols/request
    echoes     Messages                      those that take the place of    reasoning/echoes, if there are any
                                             turns with an echo
    identify   Messages                      their keys                      reasoning/identity
    restore    keys                          Messages with reasoning, and    reasoning/restore
                                             the stored texts of those sent
    repair     Messages with reasoning       that nothing is to repair       deepseek/history_repair
    details    Messages with reasoning       the same with its details       reasoning/details, for hosts that have them
    items      Messages with reasoning       the same with whole searches    reasoning/server_turns, if there are any
    encode     Messages with reasoning       JSON bytes                      deepseek/apis/chat_api, responses_api

Only `decode` compares values. The others compare objects with `is`, so each of them finds a list only if the stage
before it has returned the same objects as for the last request. That is the rule for every result here: it
is never changed, and a longer list gives the same objects again.

All stages share one budget, the least recently used entries leave first; those of one chat are used together. A new
chat takes the place of idle chats, not of busy ones. Only time is saved: without memory (NO_MEMORY) every result is
equal. Results for one value, such as the digest of a message, are in a plain Memo of their module, by value: a chat
whose beginning changed still finds those.
"""

import operator
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# A chat of 200 tool turns is a megabyte, and some eight in all stages: eight to thirty-two of these at once. Strings
# that stages share are counted by each of them: half of this is really held.
_LEAST_BYTES = 64 * 1024 * 1024
_MOST_BYTES = 256 * 1024 * 1024
_SHARE_OF_MACHINE = 32
# When more busy chats than fit take turns, each would evict what the next one needs, and all would cost three times as
# much; so those that are known stay. Between two requests of an agent are seconds, as a rule.
_BUSY_SECONDS = 60.0
# A larger share for one entry would evict too many others.
_LARGEST_SHARE = 4
# Lookups go through all of a stage.
_MAX_ENTRIES = 256
# Shorter lists are processed as fast as they are looked up; no agent's chat is longer.
MIN_ITEMS = 8
MAX_ITEMS = 5000
_BYTES_PER_ENTRY = 500
_BYTES_PER_ITEM = 16


@dataclass(frozen=True, eq=False)
class Stage(Generic[Item, Result]):
    """One kind of entry: a constant of the module that computes it."""

    name: str
    # About how many bytes an item and what is made of it take.
    item_size: Callable[[Item], int]


@dataclass(frozen=True, eq=False, slots=True)
class Entry(Generic[Item, Result]):
    """The result of a stage for a list of items under some conditions."""

    stage: Stage[Item, Result]
    items: Sequence[Item]
    conditions: object
    result: Result
    items_size: int
    result_size: int = 0

    @property
    def size(self) -> int:
        return self.items_size + self.result_size


class ChatMemory:
    """Called by any thread. The lock protects all fields; entries and their results never change."""

    def __init__(self, max_bytes: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """By default as large as the machine allows."""
        if max_bytes is None:
            max_bytes = min(max(_machine_bytes() // _SHARE_OF_MACHINE, _LEAST_BYTES), _MOST_BYTES)
        self._max_bytes = max_bytes
        self._clock = clock
        self._lock = threading.Lock()
        # When each was last used; the least recent first.
        self._entries: dict[Entry[Any, Any], float] = {}
        # The same entries, for lookups.
        self._by_stage: dict[Stage[Any, Any], dict[Entry[Any, Any], None]] = {}
        self._size = 0

    @property
    def max_entry_bytes(self) -> int:
        return self._max_bytes // _LARGEST_SHARE

    def look_up(
        self, stage: Stage[Item, Result], items: Sequence[Item], conditions: object = None
    ) -> "Lookup[Item, Result]":
        """The longest known beginning of a list; `conditions` are everything else that the result depends on."""
        if not MIN_ITEMS <= len(items) <= MAX_ITEMS:
            return _NO_LOOKUP
        best: Entry[Item, Result] | None = None
        for entry in self.entries(stage):
            is_longer = best is None or len(entry.items) > len(best.items)
            if is_longer and begins_with(items, entry.items) and entry.conditions == conditions:
                best = entry
        if best is None:
            return Lookup(self, stage, items, conditions)
        return Lookup(self, stage, items, conditions, best, len(best.items), best.result)

    def find_alike(
        self, stage: Stage[Item, Result], items: Sequence[Item], conditions: object
    ) -> "tuple[Entry[Item, Result] | None, int]":
        """The entry whose items begin like a list for longest, and how many are the same; it may end otherwise."""
        best, most = None, 0
        for entry in self.entries(stage):
            pairs = enumerate(map(operator.is_, entry.items, items))
            common = next((at for at, is_same in pairs if not is_same), min(len(entry.items), len(items)))
            if common > most and entry.conditions == conditions:
                best, most = entry, common
        return best, most

    def entries(self, stage: Stage[Item, Result]) -> list[Entry[Item, Result]]:
        with self._lock:
            return list(self._by_stage.get(stage, ()))

    def put(self, entry: Entry[Any, Any], replaced: Collection[Entry[Any, Any]] = ()) -> None:
        """Add an entry in place of those that it continues; not if it is too large or has no room beside busy ones."""
        if entry.size > self.max_entry_bytes:
            return
        now = self._clock()
        with self._lock:
            # Another thread may have removed one already.
            known = [old for old in replaced if old in self._entries]
            for old in known:
                self._remove(old)
            while self._size + entry.size > self._max_bytes or len(self._entries) >= _MAX_ENTRIES:
                oldest, used_at = next(iter(self._entries.items()))
                if not known and now - used_at < _BUSY_SECONDS:
                    return
                self._remove(oldest)
            self._entries[entry] = now
            self._by_stage.setdefault(entry.stage, {})[entry] = None
            self._size += entry.size

    def _remove(self, entry: Entry[Any, Any]) -> None:
        del self._entries[entry], self._by_stage[entry.stage][entry]
        self._size -= entry.size


# Not frozen: every request makes one per stage, and a frozen one costs five times as much.
@dataclass(eq=False, slots=True)
class Lookup(Generic[Item, Result]):
    """A list of items and the entry for its longest known beginning. Used by one thread."""

    memory: ChatMemory = field(repr=False)
    stage: Stage[Item, Result]
    items: Sequence[Item]
    conditions: object
    entry: Entry[Item, Result] | None = None
    # How many items are known, and the result for these; None if none are.
    count: int = 0
    result: Result | None = None

    def store(self, result: Result, result_size: int = 0) -> None:
        """Remember the result for all items; `result_size` is what `item_size` does not count."""
        if self is _NO_LOOKUP:
            return
        items_size = self.entry.items_size if self.entry is not None else _BYTES_PER_ENTRY
        for item in self.items[self.count :]:
            items_size += _BYTES_PER_ITEM + self.stage.item_size(item)
            if items_size + result_size > self.memory.max_entry_bytes:
                # Counting all of it would take as long as it is large.
                return
        entry = Entry(self.stage, tuple(self.items), self.conditions, result, items_size, result_size)
        self.memory.put(entry, (self.entry,) if self.entry is not None else ())


def begins_with(items: Sequence[Item], known: Sequence[Item]) -> bool:
    return len(known) <= len(items) and all(map(operator.is_, known, items))


def _machine_bytes() -> int:
    """The memory of the machine, or of the container that this process is in; 0 if the system does not say."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return total
    return min(total, int(limit)) if limit.isdigit() else total


# For callers without a chat: tests, and requests that are made once.
NO_MEMORY = ChatMemory(0)
# For all lists that are too short or too long to be remembered.
_NO_LOOKUP: Lookup[Any, Any] = Lookup(NO_MEMORY, Stage("none", lambda item: 0), (), None)
