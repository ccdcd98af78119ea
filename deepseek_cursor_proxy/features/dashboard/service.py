"""AdminService: the admin listener of one proxy, from its start to its end; AdminContext: what its endpoints look at.

`cli` opens it after the proxy's own listener and closes it after that one has stopped, so that a page can watch the
last answers. Opening it imports little: `app`, which answers, comes with the first request. The listener shares no
thread, connection or limit with the proxy's own. It reads requests as the proxy does (`server/connections`) and
has few connections, so that slow or hostile clients of it cost the proxy nothing. It is bound to this machine unless
`admin_host` says otherwise, and no tunnel leads to it.
"""

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepseek_cursor_proxy.api.routes import load
from deepseek_cursor_proxy.cli import running_proxy
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.https_proxy import local_url
from deepseek_cursor_proxy.config.loaded_config import LoadedConfig
from deepseek_cursor_proxy.errors import Overloaded, StartupError
from deepseek_cursor_proxy.exchange.feature import Recent
from deepseek_cursor_proxy.net.threads import start_thread
from deepseek_cursor_proxy.server.connections import ClientConnection, Connections, StopStage
from deepseek_cursor_proxy.server.proxy_server import DeepSeekProxyServer
from deepseek_cursor_proxy.storage.database import StoreSize
from deepseek_cursor_proxy.storage.faults import Unusable

if TYPE_CHECKING:
    from deepseek_cursor_proxy.exchange.services import Services
    from deepseek_cursor_proxy.features.dashboard.metrics import Statistics


# A browser opens six for a page, and some pages may be open; Prometheus needs one.
MOST_CONNECTIONS = 64
_TOO_MANY = "Too many connections to the dashboard at once."
# Nothing is posted here.
_MOST_BODY_BYTES = 64 * 1024
# A dashboard in a sleeping laptop does not read.
_WRITE_SECONDS = 10.0
# After the wanted port so many more are tried, then any.
_MORE_PORTS = 20
_BACKLOG = 64
_STOP_SECONDS = 1.0
# How the systems say that a port is taken. Windows says EACCES for those that it reserves.
_BUSY = frozenset({errno.EADDRINUSE, errno.EACCES} if os.name == "nt" else {errno.EADDRINUSE})
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
            with contextlib.suppress(Unusable):
                self._store_size = database.size()
            return True

        if database.fault is None:
            self._counts.read("", count)
        return self._store_size


class AdminService:
    """Opened, reloaded and closed by the main thread; the threads of its connections read `config` and `app`."""

    def __init__(
        self,
        server: DeepSeekProxyServer,
        loaded: LoadedConfig,
        config_path: Path,
        routes: Sequence[tuple[str, str]] = (),
        *,
        is_of_run: bool = False,
    ) -> None:
        """`routes`: see AdminApp; `is_of_run` if a client of `run` is served.

        StartupError if `admin_host` is no address of this machine.
        """
        config = loaded.config
        # First: a failure leaves nothing behind.
        self._listener = listen(config.admin_host, config.admin_port)
        host, port, *_ = self._listener.getsockname()
        # For a browser on this machine.
        self.url = local_url(host, port)
        self.config = replace(config, max_request_body_bytes=_MOST_BODY_BYTES, write_timeout=_WRITE_SECONDS)
        self.context = AdminContext(server, loaded, config_path, self.url)
        # Protects `_app`: one thread builds it.
        self._build_lock = threading.Lock()
        self._app: Any = None
        self._routes = routes
        self._connections = Connections("admin-client", Overloaded(_TOO_MANY, retry_after=1))
        thread = start_thread(partial(self._connections.accept, self._listener, self._accept), "admin-accept")
        if thread is None:
            self._listener.close()
            self._connections.close()
            raise StartupError("cannot serve the dashboard: the system allows no more threads")
        self._thread = thread
        self._files = contextlib.ExitStack()
        self._files.enter_context(
            running_proxy.address_file(config.reasoning_content_path, self.url, is_of_run=is_of_run)
        )

    @property
    def link(self) -> str:
        """The address of the dashboard, with the key if it is known. For the owner's eyes only."""
        return f"{self.url}/#key={self.context.own_key}" if self.context.own_key else f"{self.url}/"

    @property
    def app(self) -> Any:
        """The AdminApp, imported with the first request."""
        if self._app is None:
            with self._build_lock:
                self._app = self._app or load("features.dashboard.app:AdminApp")(self.context, self._routes)
        return self._app

    def reload(self, loaded: LoadedConfig) -> None:
        """Use these settings from now on."""
        with self._build_lock:
            self.context.reload(loaded)
            if self._app is not None:
                self._app.reload()

    def close(self) -> None:
        """Accept no more, end all responses, and give the port back."""
        self._files.close()
        self._connections.stop_accepting()
        self._thread.join()
        self._listener.close()
        for stage in (StopStage.END_RESPONSES, StopStage.ABORT):
            self._connections.stop(stage, _STOP_SECONDS)
        self._connections.close()

    def _accept(self, sock: socket.socket, address: tuple[Any, ...]) -> None:
        serve = partial(self._connections.serve, ClientConnection(sock, self, address))
        self._connections.start(sock, MOST_CONNECTIONS, serve, self)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket at the port, or the next free one. StartupError for a host that is not this machine's."""
    try:
        return _listen_at_first(host, port)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is no address of this machine"
        raise StartupError(
            f"cannot serve the dashboard at {host}: {why}; choose another --admin-host, or turn it off with "
            "--admin-port 0"
        ) from None


def _listen_at_first(host: str, port: int) -> socket.socket:
    failure: OSError | None = None
    for address in _addresses(host):
        for candidate in (*range(port, min(port + _MORE_PORTS, 65535) + 1), 0):
            try:
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                return socket.create_server((address, candidate), family=family, backlog=_BACKLOG)
            except OSError as error:
                failure = error
                if error.errno not in _BUSY:
                    break
    assert failure is not None
    raise failure


def _addresses(host: str) -> Iterator[str]:
    if host.lower() == "localhost":
        # Not by name: a hosts file may say anything. The second is for machines without IPv4.
        yield from ("127.0.0.1", "::1")
    else:
        yield from dict.fromkeys(str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
