"""Group commit: threads that write at the same time share one transaction.

A commit costs about the same for one turn as for thirty. The first thread writes its items and those that other
threads queued meanwhile; every thread returns once its own items were tried. This module knows no table and no file.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

_T = TypeVar("_T")

# Keeps a shared transaction so short that no thread notices the others' share.
_MOST_WRITES_AT_ONCE = 64


@dataclass(slots=True, eq=False)
class _Write(Generic[_T]):
    """The items of one call; `is_written` is None until they were tried."""

    items: Sequence[_T]
    is_written: bool | None = None


class GroupCommit(Generic[_T]):
    """Called by handler threads. The lock lets one thread write at a time; only that one takes from `_queue`."""

    def __init__(self, write: Callable[[Sequence[_T]], bool]) -> None:
        """`write` returns whether it succeeded and raises nothing: it also runs for other threads' items."""
        self._write = write
        self._lock = threading.Lock()
        self._queue: deque[_Write[_T]] = deque()

    def write(self, items: Sequence[_T]) -> bool:
        """Have the items written, by this thread or another; whether they were."""
        mine = _Write(items)
        # Before the lock, so that the thread that holds it can take this along.
        self._queue.append(mine)
        with self._lock:
            while mine.is_written is None:
                self._write_queued()
        return mine.is_written

    def _write_queued(self) -> None:
        writes = [self._queue.popleft() for _ in range(min(len(self._queue), _MOST_WRITES_AT_ONCE))]
        is_written = False
        try:
            is_written = self._write(
                writes[0].items if len(writes) == 1 else [item for write in writes for item in write.items]
            )
        finally:
            for write in writes:
                write.is_written = is_written
