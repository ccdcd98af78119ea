"""Which failed calls are retried, and after how long.

A busy DeepSeek or a broken connection recovers in seconds, but Cursor stops its agent at the first error. So such calls
are retried, at growing intervals, as long as the client has received no byte of an answer and the seconds of the
setting `retry_budget` last. A timeout is not retried: it has cost minutes already. Two resends are not counted here:
over a pooled connection that was closed (`client`), and for missing reasoning (`exchange/upstream_call`).
"""

import random
import time
from collections.abc import Callable

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


def is_temporary(error: ProxyError) -> bool:
    """Whether the same call may succeed in a moment."""
    return isinstance(error, UpstreamDropped) or (isinstance(error, UpstreamRefused) and error.status in _TEMPORARY)


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

    def wait(self, error: ProxyError, peer: Peer | None) -> bool:
        """Wait until it is time to retry; False, at once, for no retry. ClientGone when the peer leaves meanwhile."""
        if not is_temporary(error):
            return False
        seconds = _FIRST_PAUSE_SECONDS * 2 ** min(self.count, 16)
        seconds = min(seconds, _LONGEST_PAUSE_SECONDS) * (1 - self._uniform(*_JITTER))
        # When DeepSeek asks for a longer wait than the budget, the client gets the error at once and can decide.
        seconds = max(seconds, error.retry_after or 0)
        if self._now() + seconds > self._deadline:
            return False
        self._pause(seconds, peer)
        self.reasons.append("dropped" if isinstance(error, UpstreamDropped) else f"http_{error.status}")
        return True
