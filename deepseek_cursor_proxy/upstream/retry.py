"""When a call is worth another try, and how long to wait for it.

DeepSeek being busy and connections that break are over in seconds, but Cursor stops its agent at the first error. So
such failures are tried again, at growing distances, as long as the client has not seen a byte of an answer and the
budget of the request lasts. Being silent for too long is no such failure: it has cost minutes already.
"""

import random
import time
from collections.abc import Callable

from deepseek_cursor_proxy.errors import ProxyError, UpstreamDropped, UpstreamRefused
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.net import wait

_PASSING = frozenset({429, 500, 502, 503, 504})
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 8.0
# Clients that failed together should not come back together.
_JITTER = (0.1, 0.3)


class Retries:
    """The second chances of one request. Used by the thread that runs it; `count` is how many were taken."""

    def __init__(
        self,
        budget: float,
        *,
        now: Callable[[], float] = time.monotonic,
        chance: Callable[[float, float], float] = random.uniform,
        pause: Callable[[float, Peer | None], None] = wait.pause,
    ) -> None:
        self.count = 0
        self._now = now
        self._chance = chance
        self._pause = pause
        self._until = now() + budget

    def wait(self, error: ProxyError, peer: Peer | None) -> bool:
        """Whether to try again; True only after the time for that has come. ClientGone when the peer leaves first."""
        if not _is_passing(error):
            return False
        seconds = _FIRST_PAUSE_SECONDS * 2 ** min(self.count, 16)
        seconds = min(seconds, _LONGEST_PAUSE_SECONDS) * (1 - self._chance(*_JITTER))
        # Asked to wait for longer than there is time, the client is told at once and can decide for itself.
        seconds = max(seconds, error.retry_after or 0)
        if self._now() + seconds > self._until:
            return False
        self._pause(seconds, peer)
        self.count += 1
        return True


def _is_passing(error: ProxyError) -> bool:
    return isinstance(error, UpstreamDropped) or (isinstance(error, UpstreamRefused) and error.status in _PASSING)
