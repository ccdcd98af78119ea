"""Writes of many threads in one transaction: whoever comes first writes what all others have brought meanwhile.

A commit costs much the same for one turn as for thirty, so those that wait for one share the next. Nobody returns
before what it brought has been tried. This room knows no table and no file.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

_T = TypeVar("_T")

# One transaction stays short enough that nobody notices having shared it.
_MOST_WRITES_AT_ONCE = 64


class _Write(Generic[_T]):
    """What one caller brought; `is_written` is None until it was tried."""

    __slots__ = ("is_written", "some")

    def __init__(self, some: Sequence[_T]) -> None:
        self.some = some
        self.is_written: bool | None = None


class GroupCommit(Generic[_T]):
    """Called by handler threads. The lock lets one thread write at a time; only that one takes from `_waiting`."""

    def __init__(self, write: Callable[[Sequence[_T]], bool]) -> None:
        """`write` tells whether it could, and raises nothing: it may be called for others than its caller."""
        self._write = write
        self._lock = threading.Lock()
        self._waiting: deque[_Write[_T]] = deque()

    def write(self, some: Sequence[_T]) -> bool:
        """Have this written, by this thread or another one; whether it was."""
        turn = _Write(some)
        # Before the lock: whoever holds it may take this along.
        self._waiting.append(turn)
        with self._lock:
            while turn.is_written is None:
                self._write_together()
        return turn.is_written

    def _write_together(self) -> None:
        turns = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST_WRITES_AT_ONCE))]
        is_written = False
        try:
            is_written = self._write(
                turns[0].some if len(turns) == 1 else [each for turn in turns for each in turn.some]
            )
        finally:
            for turn in turns:
                turn.is_written = is_written
