"""Bytes ⇄ HttpRequest / HttpReply: the only file that touches clients' sockets.

A thread per connection reads requests with our own strict reader (http1), asks the app, writes the reply. Everything
a client does is bounded: how long it may take for a head, a body, or to read what we write; how large these may be;
how many clients there are. Ambiguous bytes are answered once and the connection ends.
The app is built on the first request from the two attributes the outside assigns, `config` and `reasoning_store`.
"""

import logging
import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from typing import Any

from deepseek_cursor_proxy.app import App
from deepseek_cursor_proxy.client_connection import ClientConnection
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import Overloaded
from deepseek_cursor_proxy.reasoning_store import ReasoningStore
from deepseek_cursor_proxy.services import Services

_log = logging.getLogger(__name__)

# Each costs a thread; an editor uses a handful.
_MAX_CONNECTIONS = 1024


class DeepSeekProxyHandler(socketserver.BaseRequestHandler):
    """One client connection, on its own thread."""

    server: "DeepSeekProxyServer"

    def handle(self) -> None:
        connection = ClientConnection(self.request, self.server.app, self.server.config)
        with self.server.connections.joined(connection):
            connection.serve()


class DeepSeekProxyServer(ThreadingHTTPServer):
    """Listens, and runs the app for whoever connects. Assign `config` and `reasoning_store`, then serve_forever()."""

    config: ProxyConfig
    reasoning_store: ReasoningStore

    # The default of 5 drops connects of a burst, which then wait seconds for TCP to try again.
    request_queue_size = 1024
    daemon_threads = True
    # On Windows the option means "share the port with whoever has it".
    allow_reuse_address = os.name == "posix"

    def __init__(self, address: tuple[str, int], handler: Callable[..., Any] = DeepSeekProxyHandler) -> None:
        self.connections = Connections()
        self._building = threading.Lock()
        self._services: Services | None = None
        self._app: App | None = None
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # HTTPServer would also ask the network for our name, which can take seconds and is used for nothing.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    @property
    def app(self) -> App:
        """The app, built once, by whichever handler thread comes first."""
        if self._app is None:
            with self._building:
                if self._app is None:
                    self._services = Services.build(self.config, self.reasoning_store)
                    self._app = App(self._services)
        return self._app

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self.connections) >= _MAX_CONNECTIONS:
            self._turn_away(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            # No more threads to be had.
            self._turn_away(request)

    def _turn_away(self, request: Any) -> None:
        error = Overloaded("Too many connections at once. Try again in a moment.", retry_after=1)
        ClientConnection(request, None, self.config).refuse(error, linger=False)
        self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """One line in place of the base class's traceback; a verbose run shows it in full."""
        _log.error("a connection failed unexpectedly", exc_info=_log.isEnabledFor(logging.DEBUG))

    def drain(self, seconds: float) -> None:
        """After shutdown(): let running answers finish for that long, then end what is left."""
        self.connections.close_idle()
        self.connections.wait_until_empty(seconds)

    def server_close(self) -> None:
        super().server_close()
        self.connections.close_all()
        with self._building:
            services = self._services
        if services is not None:
            services.close()


class Connections:
    """Who is connected. Called by the accepting thread, handler threads and whoever stops the server."""

    # A connection that was told to end does so within moments; nobody waits for one that does not.
    _LAST_MOMENTS_SECONDS = 2.0

    def __init__(self) -> None:
        # Protects `_open`; notified whenever somebody leaves.
        self._changed = threading.Condition()
        self._open: set[ClientConnection] = set()

    def __len__(self) -> int:
        return len(self._open)

    def joined(self, connection: ClientConnection) -> "_Joined":
        return _Joined(self, connection)

    def add(self, connection: ClientConnection) -> None:
        with self._changed:
            self._open.add(connection)

    def remove(self, connection: ClientConnection) -> None:
        with self._changed:
            self._open.discard(connection)
            self._changed.notify_all()

    def close_idle(self) -> None:
        """No request is read any more; connections in the middle of an answer end after it."""
        for each in self._snapshot():
            each.stop_after_answer()

    def close_all(self) -> None:
        for each in self._snapshot():
            each.abort()
        self.wait_until_empty(self._LAST_MOMENTS_SECONDS)

    def wait_until_empty(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._open and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)

    def _snapshot(self) -> list[ClientConnection]:
        with self._changed:
            return list(self._open)


class _Joined:
    """A connection is counted for as long as its thread serves it."""

    def __init__(self, connections: Connections, connection: ClientConnection) -> None:
        self._connections = connections
        self._connection = connection

    def __enter__(self) -> None:
        self._connections.add(self._connection)

    def __exit__(self, *_: object) -> None:
        self._connections.remove(self._connection)
