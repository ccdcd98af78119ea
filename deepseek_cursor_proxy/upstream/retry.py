"""Which failures pass by themselves, and how long a request waits before it makes the call again.

A busy DeepSeek or a broken connection recovers in seconds, but Cursor stops its agent at the first error. So such calls
are retried, at growing intervals, as long as the seconds of the setting `retry_budget` last. A timeout is not retried:
it has cost minutes already. `exchange/next_step` decides whether a retry is what follows a failure; the second try on a
new connection, after a pooled one turned out to be closed, is not counted here (`client`).
"""

import random
import time
from collections.abc import Callable
from typing import NamedTuple

from deepseek_cursor_proxy.errors import ProxyError, UpstreamDropped, UpstreamRefused
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.net import wait

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
    # The seconds that the upstream asks to wait.
    retry_after: int


class Pause(NamedTuple):
    """How long to wait before a retry, and why there is one: one of REASONS."""

    seconds: float
    reason: str


def temporary_failure(error: ProxyError) -> TemporaryFailure | None:
    """The error as a failure that passes by itself; None for any other."""
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
        *,
        now: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
        pause: Callable[[float, Peer | None], None] = wait.pause,
    ) -> None:
        self.reasons: list[str] = []
        self._now = now
        self._uniform = uniform
        self._pause = pause
        self._deadline = now() + budget

    @property
    def count(self) -> int:
        return len(self.reasons)

    def pause_after(self, failure: TemporaryFailure | None) -> Pause | None:
        """The pause before the next call; None if the failure does not pass, or the budget has less."""
        if failure is None:
            return None
        seconds = _FIRST_PAUSE_SECONDS * 2 ** min(self.count, 16)
        seconds = min(seconds, _LONGEST_PAUSE_SECONDS) * (1 - self._uniform(*_JITTER))
        # When DeepSeek asks for a longer wait than the budget, the client gets the error at once and can decide.
        seconds = max(seconds, failure.retry_after)
        return Pause(seconds, failure.reason) if self._now() + seconds <= self._deadline else None

    def wait(self, pause: Pause, peer: Peer | None) -> None:
        """Wait, and count the retry that follows; ClientGone when the peer leaves meanwhile."""
        self._pause(pause.seconds, peer)
        self.reasons.append(pause.reason)
