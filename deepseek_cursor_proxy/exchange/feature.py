"""Feature: the interface between the core and a part of the proxy that can be taken away.

The core imports none. `proxy.py` lists them, and says how to take one away. `open` of a feature's `feature.py` adds it
to the services: as one of `Services.features`, and where it takes part in a request, in place of a default that does
nothing.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from deepseek_cursor_proxy.exchange.services import Services
    from deepseek_cursor_proxy.observers.events import Handlers


# Values of one Recent.
_MOST_RECENT = 16


class Gauge(NamedTuple):
    """A figure for Prometheus."""

    name: str
    help: str
    value: float


class Stored(NamedTuple):
    """What a feature has in the store's file, for `store stats` by the names of the lines, and its number."""

    what: str
    number: int
    lines: Mapping[str, str]


class Recent:
    """Values that take long to compute, each used for some seconds. The lock protects them; one thread computes."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._seconds = seconds
        self._lock = threading.Lock()
        self._values: dict[object, tuple[float, Any]] = {}

    def read(self, key: object, compute: Callable[[], Any]) -> Any:
        with self._lock:
            computed_at, value = self._values.get(key, (float("-inf"), None))
            if value is None or self.now() - computed_at >= self._seconds:
                value = compute()
                while len(self._values) >= _MOST_RECENT:
                    del self._values[next(iter(self._values))]
                self._values[key] = self.now(), value
            return value


class Feature:
    """Built once, and kept when the settings change. Called by any thread. A method does nothing unless overridden."""

    # That of its folder.
    name: str
    # Modules of its folder `views` that are views of the dashboard.
    views: tuple[str, ...] = ()

    def start(self, services: "Services") -> None:
        """Called once, when all features are open."""

    def share(self, shared: Any) -> None:
        """Share the tables with other proxies, by the SharedState of `features/redis`."""

    def handlers(self) -> "Handlers":
        """The events that it observes; called again when the settings have changed."""
        return {}

    def reconfigure(self, services: "Services") -> None:
        """Called when the settings have changed."""

    def drain(self, seconds: float) -> None:
        """Give work that no client waits for `seconds` to finish, then end it."""

    def close(self) -> None: ...

    # For the admin listener …

    def flush(self) -> None:
        """Write the entries that wait, because a command is going to read them."""

    def facts(self, services: "Services") -> Mapping[str, Any]:
        """Fields of /api/stats."""
        return {}

    def details(self, services: "Services", number: int) -> Mapping[str, Any]:
        """The facts of a request of this run, as fields of /api/requests/{number}."""
        return {}

    def readiness(self) -> Mapping[str, str]:
        """Fields of /readyz while the proxy is ready."""
        return {}

    def gauges(self) -> Iterable[Gauge]:
        return ()
