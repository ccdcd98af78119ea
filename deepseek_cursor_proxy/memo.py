"""What a pure function answered before, so that it need not work it out again.

A chat comes back every few seconds with all it ever said and one turn more. Whatever depends on a message alone is kept
under the whole message: equal keys have equal answers, whoever asks, so nothing can go stale and nothing of one caller
shows in the answer to another. Only time is saved: all of this may be forgotten at any moment.

Rule: keys are compared by their whole value, and values are never changed. This file knows no message.
"""

import operator
import sys
from collections.abc import Callable, Hashable, Sequence, Sized
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Item = TypeVar("Item")
State = TypeVar("State")

# Shorter lists are gone through as fast as they are looked for, longer ones than any agent's chat are somebody's joke.
_FEWEST_ITEMS = 8
MOST_ITEMS = 5000
_MOST_LISTS = 16


def guessed_size(value: object) -> int:
    """About how many bytes a value takes, not counting what it holds; at the most for text."""
    return 80 + (4 * len(value) if isinstance(value, Sized) else 0)


# PyPy has sys.getsizeof() and always raises in it.
size_of: Callable[[object], int] = guessed_size if sys.implementation.name == "pypy" else sys.getsizeof


class Memo(Generic[Key, Value]):
    """Called by any thread, without a lock: each step is one operation on a dictionary.

    Two threads that fill it at once may count a few bytes wrongly until it is next turned over, and nothing else.
    """

    def __init__(self, most_bytes: int, size: Callable[[Key, Value], int]) -> None:
        # Two halves: when the young one is full it becomes the old one, and what was old and not asked for meanwhile is
        # forgotten. That is nearly the order of use, at the price of a plain dictionary.
        self._half = most_bytes // 2
        self._size_of = size
        self._size = 0
        self._young: dict[Key, Value] = {}
        self._old: dict[Key, Value] = {}

    def get(self, key: Key) -> Value | None:
        found = self._young.get(key)
        if found is None and (found := self._old.get(key)) is not None:
            self.keep(key, found)
        return found

    def keep(self, key: Key, value: Value) -> None:
        size = self._size_of(key, value)
        if size > self._half:
            # It would push out everything else.
            return
        if self._size + size > self._half:
            self._old, self._young, self._size = self._young, {}, 0
        self._young[key] = value
        self._size += size


class _Whole(NamedTuple, Generic[Item, State]):
    """A list that was gone through, under what, what it came to, and how many bytes both hold."""

    items: Sequence[Item]
    under: object
    state: State
    items_size: int
    state_size: int

    @property
    def size(self) -> int:
        return self.items_size + self.state_size


class Beginnings(Generic[Item, State]):
    """What recent lists came to, so that a longer one that begins like one of them is gone through from there on.

    A list begins like another if its first items are the very same objects, and those are never changed. Called by any
    thread, without a lock: what one of two at once keeps may be forgotten, and no harm.
    """

    def __init__(self, most_bytes: int, size: Callable[[Item], int]) -> None:
        self._most_bytes = most_bytes
        self._size_of = size
        # Newest first.
        self._recent: tuple[_Whole[Item, State], ...] = ()

    def longest(self, items: Sequence[Item], under: object = None) -> tuple[int, State | None]:
        """How many of the items are known already under the same conditions, and what they came to."""
        found = self._longest(items, under)
        return (len(found.items), found.state) if found is not None else (0, None)

    def keep(self, items: Sequence[Item], state: State, under: object = None, state_size: int = 0) -> None:
        """What all of them came to; instead of what it goes on from, and of the oldest if there is no more room."""
        if not _FEWEST_ITEMS <= len(items) <= MOST_ITEMS:
            return
        before = self._longest(items, under)
        size, known = (before.items_size, len(before.items)) if before is not None else (0, 0)
        for item in items[known:]:
            size += self._size_of(item)
            if size + state_size > self._most_bytes:
                # It would push out everything else, and counting on takes as long as it is large.
                return
        new = _Whole(items, under, state, size, state_size)
        kept: list[_Whole[Item, State]] = []
        room = self._most_bytes
        for each in (new, *self._recent)[:_MOST_LISTS]:
            if each is not before and each.size <= room:
                room -= each.size
                kept.append(each)
        self._recent = tuple(kept)

    def _longest(self, items: Sequence[Item], under: object) -> _Whole[Item, State] | None:
        if not _FEWEST_ITEMS <= len(items) <= MOST_ITEMS:
            return None
        begun = [each for each in self._recent if each.under == under and _begins_with(items, each.items)]
        return max(begun, key=lambda each: len(each.items), default=None)


class Mapped(Generic[Item, Value]):
    """What every item of a list comes to, made once for those that recent lists begin with. Called by any thread."""

    def __init__(self, most_bytes: int, size: Callable[[Item], int], made_size: Callable[[Value], int]) -> None:
        """`made_size` is asked about what is made of an item, unless that is the item itself."""
        self._known: Beginnings[Item, tuple[list[Value], int]] = Beginnings(most_bytes, size)
        self._made_size = made_size

    def of(self, items: Sequence[Item], make: Callable[[Item], Value], under: object = None) -> list[Value]:
        """The whole list; `under` is all else that it depends on."""
        count, before = self._known.longest(items, under)
        known, size = before if before is not None else ([], 0)
        made = [make(item) for item in items[count:]]
        size += sum(self._made_size(new) for old, new in zip(items[count:], made, strict=True) if new is not old)
        whole = [*known, *made]
        self._known.keep(tuple(items), (whole, size), under, size)
        return whole.copy()


def _begins_with(items: Sequence[Item], known: Sequence[Item]) -> bool:
    return len(known) <= len(items) and all(map(operator.is_, known, items))
