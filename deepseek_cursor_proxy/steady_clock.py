"""The time by which stored things get old: the system's, unless that jumps.

A clock that is set wrong, by a dead battery or by hand, must not expire everything in the file. A jump by more than is
plausible is not believed at once: until the clock has stood by it for an hour of our own running time, time goes on
from where it was. Both directions count, because what is stored while the clock is behind looks old when it is right.
After days in which the proxy did not run, or the machine slept, that hour passes as well; nothing is lost by it.

    newest      the latest time in the file, from which time goes on after a restart
    tolerance   the largest jump that is believed at once: a small part of the age at which things are forgotten
"""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

_SECONDS_UNTIL_BELIEVED = 3600.0


class SteadyClock:
    """Called by any thread; the lock protects `_known` and `_doubted`."""

    def __init__(
        self, tolerance: float, wall: Callable[[], float] | None = None, running: Callable[[], float] | None = None
    ) -> None:
        """`running` never jumps, and may stand still while the machine sleeps."""
        self._tolerance = tolerance
        self._wall = wall or time.time
        self._running = running or time.monotonic
        self._lock = threading.Lock()
        self._known = _Moment(self._wall(), self._running())
        self._doubted: _Moment | None = None

    def go_on_from(self, newest: float) -> None:
        """Time was this late when the process before us last stored something.

        What was stored in the future proves nothing, and if it were believed, all else would be old at once.
        """
        with self._lock:
            if newest < self._known.wall:
                self._known = _Moment(newest, self._running())

    def __call__(self) -> float:
        now = _Moment(self._wall(), self._running())
        with self._lock:
            if now.is_near(self._known, self._tolerance):
                self._known, self._doubted = now, None
            elif self._doubted is None or not now.is_near(self._doubted, self._tolerance):
                self._doubted = now
            elif now.running - self._doubted.running >= _SECONDS_UNTIL_BELIEVED:
                self._known, self._doubted = now, None
            return self._known.wall + now.running - self._known.running


class _Moment(NamedTuple):
    """A moment by both clocks."""

    wall: float
    running: float

    def is_near(self, before: "_Moment", tolerance: float) -> bool:
        """Whether about as much time has passed by one clock as by the other."""
        return abs(self.wall - before.wall - (self.running - before.running)) <= tolerance
