"""Whether the proxy is ready: its store can be used, and its upstream was reached within the last minute.

If no call has reached the upstream lately, a connection is opened to it and closed again, which costs neither money nor
a key. The result of that counts for some seconds, so that monitors cannot make the proxy knock all the time.
"""

import threading
import time
from collections.abc import Callable

from deepseek_cursor_proxy.errors import ProxyError
from deepseek_cursor_proxy.exchange.services import Services

_FRESH_SECONDS = 60.0
_PROBE_VALID_SECONDS = 10.0


class Readiness:
    """Called by connection threads. The lock protects the last probe, and lets one thread probe at a time."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._probed_at = float("-inf")
        self._probe_failure: str | None = None

    def reasons(self, services: Services) -> list[str]:
        """Why the proxy is not ready; nothing if it is."""
        found = []
        if (fault := services.reasoning_store.database.fault) is not None:
            found.append(f"the store cannot be used: {fault}")
        if (failure := self._upstream_failure(services)) is not None:
            found.append(failure)
        return found

    def _upstream_failure(self, services: Services) -> str | None:
        if self._now() - services.upstream.reached_at < _FRESH_SECONDS:
            return None
        with self._lock:
            if self._now() - self._probed_at >= _PROBE_VALID_SECONDS:
                self._probe_failure = _probe(services)
                self._probed_at = self._now()
            return self._probe_failure


def _probe(services: Services) -> str | None:
    """Why no upstream can be reached; None if one can."""
    failures = []
    for upstream in services.upstreams.all:
        try:
            services.upstream.probe(upstream.destination(""))
        except ProxyError as error:
            failures.append(error.message)
        else:
            return None
    return " ".join(failures)
