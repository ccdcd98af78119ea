"""What a pure function answered before, so that it need not work it out again.

A chat comes back every few seconds with all it ever said and one turn more. Whatever depends on a message alone is kept
under the whole message: equal keys have equal answers, whoever asks, so nothing can go stale and nothing of one caller
shows in the answer to another. Only time is saved: all of this may be forgotten at any moment.

Rule: keys are compared by their whole value, and values are never changed. This file knows no message.
"""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


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
