"""PruningClock: decides when rows are too old, robust to clock jumps.

Everything else (booking, prices, display, the freshness of an answer) goes by the system's clock, `time.time`: it is
nearly always right, and explains a wrong figure. Deleting cannot be undone, so every store deletes by age with a
PruningClock alone, which cannot be used for anything else.

A clock that is set wrong, by a dead battery or by hand, must not expire everything in the file. A jump beyond the
tolerance is believed only after the clock has kept it for an hour of monotonic time; until then time runs on from
before the jump. So after days in which the proxy did not run, or the machine slept, pruning by age begins an hour late.

    tolerance   the largest jump that is believed at once: a small part of the age at which rows are pruned
"""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

_SECONDS_UNTIL_BELIEVED = 3600.0
_LARGEST_TOLERANCE_SECONDS = 24 * 3600.0
# Times that the proxy was used for less than an hour, each days after the one before.
_MOST_SHORT_RUNS = 30


def tolerance_for(max_age_seconds: float) -> float:
    return min(_LARGEST_TOLERANCE_SECONDS, max_age_seconds / 4)


class PruningClock:
    """Called by any thread; the lock protects `_offset` and `_jump`."""

    def __init__(
        self, tolerance: float, wall: Callable[[], float] | None = None, monotonic: Callable[[], float] | None = None
    ) -> None:
        """`monotonic` may stop while the machine sleeps."""
        self._tolerance = tolerance
        self._wall = wall or time.time
        self._monotonic = monotonic or time.monotonic
        self._lock = threading.Lock()
        # By how much the system's clock is ahead of the monotonic one, as far as we believe it.
        self._offset = self._wall() - self._monotonic()
        self._jump: _Jump | None = None

    def resume(self, newest_until: Callable[[float], float | None]) -> None:
        """Run on from the last time in the file that lasted an hour: one start with a wrong clock proves nothing.

        `newest_until` finds the newest time in the file up to a time. One in the future would make all rows old.
        """
        newest = newest_until(float("inf"))
        if newest is None:
            return
        for _ in range(_MOST_SHORT_RUNS):
            earlier = newest_until(newest - _SECONDS_UNTIL_BELIEVED)
            if earlier is None or newest - earlier <= _SECONDS_UNTIL_BELIEVED + self._tolerance:
                break
            newest = earlier
        with self._lock:
            self._offset = min(self._offset, newest - self._monotonic())

    def oldest_kept(self, max_age_seconds: float) -> float:
        """Rows with an earlier time may be deleted."""
        return self._now() - max_age_seconds

    def latest_plausible(self) -> float:
        """Rows with a later time were written while the clock was ahead, so that their age is not known.

        When there is too much of something they go first; else every new row would seem older and go at once.
        """
        return self.use_time() + self._tolerance

    def use_time(self) -> float:
        """The time of use of a row, for the column that pruning reads; never one that makes a new row look old."""
        return max(self._wall(), self._now())

    def _now(self) -> float:
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
