"""SteadyClock: the system's time for the age of stored rows, protected against jumps.

A clock that is set wrong, by a dead battery or by hand, must not expire everything in the file. A jump beyond the
tolerance is believed only after the clock has kept it for an hour of monotonic time; until then time runs on from
before the jump. This holds in both directions, because rows stored while the clock is behind look old once it is right.
After days in which the proxy did not run, or the machine slept, the clock is an hour late; that costs nothing.

    newest      the latest time in the file, from which time runs on after a restart
    tolerance   the largest jump that is believed at once: a small part of the age at which rows are pruned
"""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

_SECONDS_UNTIL_BELIEVED = 3600.0


class SteadyClock:
    """Called by any thread; the lock protects `_offset` and `_jump`."""

    def __init__(
        self, tolerance: float, wall: Callable[[], float] | None = None, monotonic: Callable[[], float] | None = None
    ) -> None:
        """`monotonic` may stop while the machine sleeps."""
        self._tolerance = tolerance
        self._wall = wall or time.time
        self._monotonic = monotonic or time.monotonic
        self._lock = threading.Lock()
        # How far the system's clock is ahead of the monotonic one, as it is believed.
        self._offset = self._wall() - self._monotonic()
        self._jump: _Jump | None = None

    def resume_from(self, newest: float) -> None:
        """Run on from the latest time in the file, unless that is in the future, which would make all rows old."""
        with self._lock:
            self._offset = min(self._offset, newest - self._monotonic())

    def __call__(self) -> float:
        wall, monotonic = self._wall(), self._monotonic()
        offset = wall - monotonic
        with self._lock:
            if abs(offset - self._offset) <= self._tolerance or self._has_lasted(offset, monotonic):
                self._offset, self._jump = offset, None
                return wall
            return monotonic + self._offset

    def _has_lasted(self, offset: float, now: float) -> bool:
        """Whether the clock has kept its jump for so long that it is believed."""
        if self._jump is None or abs(offset - self._jump.offset) > self._tolerance:
            self._jump = _Jump(offset, now)
        return now - self._jump.since >= _SECONDS_UNTIL_BELIEVED


class _Jump(NamedTuple):
    """An offset that is not believed yet, and the monotonic time at which it was first seen."""

    offset: float
    since: float
