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
    """Called by any thread; the lock protects `_believed` and `_doubtful`."""

    def __init__(
        self, tolerance: float, wall: Callable[[], float] | None = None, monotonic: Callable[[], float] | None = None
    ) -> None:
        """`monotonic` may stop while the machine sleeps."""
        self._tolerance = tolerance
        self._wall = wall or time.time
        self._monotonic = monotonic or time.monotonic
        self._lock = threading.Lock()
        self._believed = _Moment(self._wall(), self._monotonic())
        self._doubtful: _Moment | None = None

    def resume_from(self, newest: float) -> None:
        """Run on from the latest time in the file, unless that is in the future, which would make all rows old."""
        with self._lock:
            if newest < self._believed.wall:
                self._believed = _Moment(newest, self._monotonic())

    def __call__(self) -> float:
        now = _Moment(self._wall(), self._monotonic())
        with self._lock:
            if now.is_near(self._believed, self._tolerance):
                self._believed, self._doubtful = now, None
            elif self._doubtful is None or not now.is_near(self._doubtful, self._tolerance):
                self._doubtful = now
            elif now.monotonic - self._doubtful.monotonic >= _SECONDS_UNTIL_BELIEVED:
                self._believed, self._doubtful = now, None
            return self._believed.wall + now.monotonic - self._believed.monotonic


class _Moment(NamedTuple):
    """A moment on both clocks."""

    wall: float
    monotonic: float

    def is_near(self, before: "_Moment", tolerance: float) -> bool:
        """Whether about the same time has passed on both clocks."""
        return abs(self.wall - before.wall - (self.monotonic - before.monotonic)) <= tolerance
