"""AdminContext: what the endpoints of the admin listener look at: the proxy, its settings, its key and its state."""

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from deepseek_cursor_proxy.cli import running_proxy
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.https_proxy import local_url
from deepseek_cursor_proxy.config.loaded_config import LoadedConfig
from deepseek_cursor_proxy.exchange.feature import Recent
from deepseek_cursor_proxy.server.proxy_server import DeepSeekProxyServer
from deepseek_cursor_proxy.storage.database import StoreSize
from deepseek_cursor_proxy.storage.faults import Unusable

if TYPE_CHECKING:
    from deepseek_cursor_proxy.exchange.services import Services
    from deepseek_cursor_proxy.features.dashboard.metrics import Statistics


# Monitors cannot make the proxy knock at the upstream all the time; counting the rows of a large store takes a while.
_PROBE_SECONDS = 10.0
_COUNT_SECONDS = 60.0


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
        self.probes = Recent(_PROBE_SECONDS)
        # Figures of the last hour, by the newest request.
        self.hours = Recent(_PROBE_SECONDS)
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
        self.own_key = None if is_set else running_proxy.read_or_create_key(config.reasoning_content_path)

    @property
    def config(self) -> ProxyConfig:
        return self.loaded.config

    @property
    def base_url(self) -> str:
        """The base URL of clients on this machine."""
        host, port, *_ = self.server.server_address
        return f"{local_url(str(host), port)}/v1"

    def services(self) -> "Services":
        return self.server.services()

    def statistics(self) -> "Statistics":
        """What all requests so far add up to."""
        return self._observe(self.services())

    def _observe(self, services: "Services") -> "Statistics":
        """Count from now on, which is before the first request; the request log survives a reload."""
        # Imported late: listening does not need it.
        from deepseek_cursor_proxy.features.dashboard.metrics import Statistics
        from deepseek_cursor_proxy.features.request_log.feature import RequestLog

        with self._lock:
            if self._statistics is None:
                self._statistics = Statistics()
                services.get(RequestLog).subscribe(self._statistics.add)
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
