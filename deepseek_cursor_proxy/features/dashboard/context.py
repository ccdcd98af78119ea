"""AdminContext: what the endpoints of the admin listener look at: the proxy, its settings, its key and its state."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.https_proxy import local_url
from deepseek_cursor_proxy.config.loaded_config import LoadedConfig
from deepseek_cursor_proxy.features.dashboard import running
from deepseek_cursor_proxy.server.proxy_server import DeepSeekProxyServer
from deepseek_cursor_proxy.storage.database import StoreSize
from deepseek_cursor_proxy.storage.faults import Unusable

if TYPE_CHECKING:
    from deepseek_cursor_proxy.features.dashboard.metrics import Statistics
    from deepseek_cursor_proxy.proxy import Proxy


# A report serves all pages that ask for it; monitors cannot make the proxy knock at the upstream all the time; counting
# the rows of a large store takes a while.
_REPORT_SECONDS = 5.0
_PROBE_SECONDS = 10.0
_COUNT_SECONDS = 60.0
_MOST_RECENT = 16


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


class AdminContext:
    """Assigned by the main thread, `public_url` by the tunnel's; the threads of the listener read it."""

    def __init__(self, server: DeepSeekProxyServer, loaded: LoadedConfig, config_path: Path, url: str) -> None:
        """`url` is that of the admin listener."""
        self.server = server
        self.config_path = config_path
        self.started_at = time.time()
        # Of the tunnel that the proxy opened.
        self.public_url: str | None = None
        self.is_stopping = False
        self.url = url
        self.reports = Recent(_REPORT_SECONDS)
        self.probes = Recent(_PROBE_SECONDS)
        self._counts = Recent(_COUNT_SECONDS)
        # As of the last count that worked.
        self._store_size = StoreSize({}, 0)
        # Protects `_statistics`, which is made once.
        self._lock = threading.Lock()
        self._statistics: Statistics | None = None
        self.reload(loaded)
        server.on_services = self._observe

    def reload(self, loaded: LoadedConfig) -> None:
        self.loaded, config = loaded, loaded.config
        # The key in admin.key; None if the settings have one, of which we know the digest only.
        is_set = config.admin_key is not None
        self.own_key = None if is_set else running.read_or_create_key(config.reasoning_content_path)

    @property
    def config(self) -> ProxyConfig:
        return self.loaded.config

    @property
    def base_url(self) -> str:
        """The base URL of clients on this machine."""
        host, port, *_ = self.server.server_address
        return f"{local_url(str(host), port)}/v1"

    def services(self) -> "Proxy":
        return self.server.services()

    def statistics(self) -> "Statistics":
        """What all requests so far add up to."""
        return self._observe(self.services())

    def _observe(self, services: "Proxy") -> "Statistics":
        """Count from now on, which is before the first request; the request log survives a reload."""
        # Only here: listening does not need it.
        from deepseek_cursor_proxy.features.dashboard.metrics import Statistics

        with self._lock:
            if self._statistics is None:
                self._statistics = Statistics()
                services.request_log.subscribe(self._statistics.add)
            return self._statistics

    def store_size(self) -> StoreSize:
        """The rows and bytes of the store, as of the last count that worked."""
        database = self.services().reasoning_store.database

        def count() -> bool:
            # If it cannot be counted now, `fault` says why; the next count comes in a minute.
            with suppress(Unusable):
                self._store_size = database.size()
            return True

        if database.fault is None:
            self._counts.read("", count)
        return self._store_size
