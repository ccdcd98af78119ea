"""Retries: which failures are worth another call, and the pause before it (exponential back-off with jitter).

A busy DeepSeek or a broken connection recovers in seconds, but Cursor stops its agent at the first error. So such calls
are retried, at growing intervals, until the seconds of the setting `retry_budget` are used up. A timeout is not
retried: it has cost minutes already. The second try on a new connection, after a pooled one turned out to be closed,
does not count here (`upstream/client`). Whether a retry is the right step is decided in `next_step`.
"""

import random
import time
from collections.abc import Callable
from typing import NamedTuple

from deepseek_cursor_proxy.errors import ProxyError, UpstreamDropped, UpstreamRefused

_TEMPORARY = frozenset({429, 500, 502, 503, 504})
# Why a call was made again.
REASONS = ("dropped", *(f"http_{status}" for status in sorted(_TEMPORARY)))
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 8.0
# Clients that failed together should not retry together.
_JITTER = (0.1, 0.3)


class TemporaryFailure(NamedTuple):
    """A failure after which the same call may succeed in a moment."""

    # One of REASONS.
    reason: str
    # The seconds of the upstream's Retry-After.
    retry_after: int


class Pause(NamedTuple):
    """The wait before a retry, and the retry's reason, one of REASONS."""

    seconds: float
    reason: str


def temporary_failure(error: ProxyError) -> TemporaryFailure | None:
    """The error as a temporary failure; None if it is permanent."""
    if isinstance(error, UpstreamDropped):
        return TemporaryFailure("dropped", error.retry_after or 0)
    if isinstance(error, UpstreamRefused) and error.status in _TEMPORARY:
        return TemporaryFailure(f"http_{error.status}", error.retry_after or 0)
    return None


class Retries:
    """The retries of one request, and their `reasons`, each of REASONS. Used by its thread."""

    def __init__(
        self,
        budget: float,
        pause: Callable[[float], None],
        *,
        now: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.reasons: list[str] = []
        self._now = now
        self._uniform = uniform
        self._pause = pause
        self._deadline = now() + budget

    def pause_after(self, failure: TemporaryFailure | None) -> Pause | None:
        """The pause before the next call; None if the failure is permanent, or the pause would exceed the budget."""
        if failure is None:
            return None
        seconds = _FIRST_PAUSE_SECONDS * 2 ** min(len(self.reasons), 16)
        seconds = min(seconds, _LONGEST_PAUSE_SECONDS) * (1 - self._uniform(*_JITTER))
        # When DeepSeek asks for a longer wait than the budget, the client gets the error at once and can decide.
        seconds = max(seconds, failure.retry_after)
        return Pause(seconds, failure.reason) if self._now() + seconds <= self._deadline else None

    def wait(self, pause: Pause | None) -> None:
        """Wait, then count the retry that follows."""
        assert pause is not None
        self._pause(pause.seconds)
        self.reasons.append(pause.reason)
