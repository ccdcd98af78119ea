"""Breaker: whether an upstream is worth calling, judged by the outcome of earlier calls.

    closed       calls go there; failures of several chats in a row, or one sure failure, open it
    open         calls go elsewhere if they can, for a time that doubles with every probe that fails
    half-open    that time is over: one call is the probe; if the upstream accepts it, the breaker is closed again

A probe that never reports, because its client left, is followed by another after the same time. Which failures count is
decided in `exchange/failover.py`; a call that has nowhere else to go is made however the breaker stands.
"""

import threading
import time
from collections.abc import Callable

# One or two failures are an accident; those of one chat, however many, may be due to what it asks.
_FAILURES = 3
_FIRST_SECONDS = 10.0
_LONGEST_SECONDS = 300.0


class Breaker:
    """The breaker of one upstream. Called by any thread; the lock protects all fields."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        # The chats that failed since the last complete answer.
        self._failed: set[object] = set()
        self._seconds = _FIRST_SECONDS
        # The time of the next probe; None while closed.
        self._probe_at: float | None = None
        self._has_probe = False

    @property
    def is_ready(self) -> bool:
        """Whether it is closed, or a probe is due."""
        probe_at = self._probe_at
        return probe_at is None or self._now() >= probe_at

    @property
    def state(self) -> str:
        """Its state: closed, open or half_open."""
        if self._probe_at is None:
            return "closed"
        return "half_open" if self._has_probe or self.is_ready else "open"

    @property
    def seconds_left(self) -> float:
        """Seconds until the next probe; 0 while closed."""
        return max(0.0, self._probe_at - self._now()) if self._probe_at is not None else 0.0

    def begin_call(self) -> None:
        """Record that a call is about to be made; if a probe is due, the call is the probe."""
        with self._lock:
            if self._probe_at is not None and self._now() >= self._probe_at:
                self._probe_at = self._now() + self._seconds
                self._has_probe = True

    def record_acceptance(self) -> bool:
        """Record an accepted call. True if this closed the breaker; the next failure opens it again."""
        with self._lock:
            was_open = self._probe_at is not None
            if was_open:
                self._probe_at, self._has_probe = None, False
                self._failed = set(range(_FAILURES - 1))
            return was_open

    def record_success(self) -> None:
        """Record a complete answer."""
        with self._lock:
            if self._probe_at is None:
                self._seconds = _FIRST_SECONDS
                self._failed.clear()

    def record_failure(self, chat: bytes, *, is_sure: bool = False) -> bool:
        """Record a failed call of a chat; `is_sure`: any call would fail this way. True if this opened the breaker."""
        with self._lock:
            if self._probe_at is not None:
                if self._has_probe:
                    self._wait_longer()
                return False
            self._failed.add(chat)
            if len(self._failed) < _FAILURES and not is_sure:
                return False
            self._probe_at = self._now() + self._seconds
            return True

    def _wait_longer(self) -> None:
        self._seconds = min(2 * self._seconds, _LONGEST_SECONDS)
        self._probe_at, self._has_probe = self._now() + self._seconds, False
