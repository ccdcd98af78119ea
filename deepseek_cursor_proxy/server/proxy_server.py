"""Bytes ⇄ HttpRequest / HttpReply: the server that outside code builds, and who is connected to it.

A thread per connection reads requests with our own strict reader (http1), asks the app, writes the reply. Everything
a client does is bounded: how long it may take for a head, a body, or to read what we write; how large these may be;
how many clients there are. Ambiguous bytes are answered once and the connection ends.
The app is built on the first request from the two attributes the outside assigns, `config` and `reasoning_store`.
"""

import contextlib
import logging
import os
import socket
import socketserver
import threading
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from deepseek_cursor_proxy.api.routes import App
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import Overloaded
from deepseek_cursor_proxy.net.deadline import Deadline
from deepseek_cursor_proxy.server.acceptor import Acceptor
from deepseek_cursor_proxy.server.client_connection import ClientConnection, refusal
from deepseek_cursor_proxy.server.connections import Connections, Stage
from deepseek_cursor_proxy.server.stream_loop import StreamLoop
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore

if TYPE_CHECKING:
    from deepseek_cursor_proxy.exchange.services import Services

_log = logging.getLogger(__name__)


_OVERFULL = "Too many connections at once. Try again in a moment."


_NO_ROOM = refusal(Overloaded(_OVERFULL, retry_after=1))


# An answer that was told to end does so within moments, and so does one whose connection was cut; nobody waits longer.
_LAST_WORDS_SECONDS = 1.0


_LAST_MOMENTS_SECONDS = 1.0


class DeepSeekProxyHandler(socketserver.BaseRequestHandler):
    """One client connection, on its own thread."""

    server: "DeepSeekProxyServer"

    def handle(self) -> None:
        self.server.connections.serve(ClientConnection(self.request, self.server))


class DeepSeekProxyServer(ThreadingHTTPServer):
    """Listens, and runs the app for whoever connects. Assign `config` and `reasoning_store`, then serve_forever()."""

    config: ProxyConfig
    reasoning_store: ReasoningStore

    # The default of 5 drops connects of a burst, which then wait seconds for TCP to try again.
    request_queue_size = 1024
    daemon_threads = True
    # On Windows the option means "share the port with whoever has it".
    allow_reuse_address = os.name == "posix"
    # Python 3.14.0 shares the port by default: a second proxy would take half of the requests without a word.
    allow_reuse_port = False

    def __init__(self, address: tuple[str, int], handler: Callable[..., Any] = DeepSeekProxyHandler) -> None:
        self.connections = Connections()
        self.stopping = self.connections.stopping
        self.pump = StreamLoop()
        # Protects what is built from `config`, which another one may replace while requests run.
        self._building = threading.Lock()
        self._services: Services | None = None
        self._app: App | None = None
        self._tunnel_host = ""
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)
        self._acceptor = Acceptor(self.socket, self.process_request, _NO_ROOM)

    def server_bind(self) -> None:
        # HTTPServer would also ask the network for our name, which can take seconds and is used for nothing.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    @property
    def app(self) -> App:
        """The app, built by whichever handler thread comes first; one that two threads build is the same twice."""
        if self._app is None:
            self._app = App(self.config, self.services)
        return self._app

    def services(self) -> "Services":
        """The services, built once, for the first request that needs them: they are most of the program."""
        if self._services is None:
            with self._building:
                if self._services is None:
                    self._services = self._build_services(self.config)
        return self._services

    def warm_up(self) -> None:
        """Build the services before a request needs them; a failure meets that request again, which tells it."""
        with contextlib.suppress(Exception):
            self.services()

    def _build_services(self, config: ProxyConfig) -> "Services":
        try:
            from deepseek_cursor_proxy.api import chat  # noqa: F401  (imports the rest of what a chat needs)
            from deepseek_cursor_proxy.exchange.services import Services
        except OSError:
            # A file of ours cannot be read, because there are no descriptors left.
            raise Overloaded(_OVERFULL, retry_after=1) from None
        services = Services.build(config, self.reasoning_store, self._services)
        services.access.set_tunnel_host(self._tunnel_host)
        return services

    def set_tunnel_url(self, url: str) -> None:
        """Take the host of this URL for one of ours: a tunnel to us begins there. Replaces the one before."""
        with self._building:
            self._tunnel_host = urlsplit(url).hostname or ""
            if self._services is not None:
                self._services.access.set_tunnel_host(self._tunnel_host)

    def reconfigure(self, config: ProxyConfig) -> None:
        """Another configuration for every request from now on; those that run keep theirs to the end.

        Raises StartupError when it does not go together with the environment.
        """
        with self._building:
            # Built first: what cannot be built changes nothing.
            former, self._services = self._services, self._build_services(config)
            self.config = config
            self._app = App(config, self.services)
        if former is not None:
            former.retire()

    # Letting clients in …

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        """Serve until shutdown(), which is heard at once: the interval of the base class has no meaning here."""
        self._acceptor.run()

    def shutdown(self) -> None:
        self._acceptor.stop()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.connections.admit(self.config.max_connections):
            self._acceptor.reject(request)
            return
        try:
            super().process_request(request, client_address)
        except (RuntimeError, MemoryError):
            # No more threads to be had.
            self.connections.leave()
            self._acceptor.reject(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.leave()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """One line in place of the base class's traceback; a verbose run shows it in full."""
        _log.error("a connection failed unexpectedly", exc_info=_log.isEnabledFor(logging.DEBUG))

    # Stopping …

    def drain(self, seconds: float) -> None:
        """After shutdown(): let answers and jobs finish for that long, then end what is left and tell its clients."""
        # Whoever comes now is refused by the system, and a new proxy can have the port already.
        self.socket.close()
        deadline = Deadline.after(seconds)
        self.connections.stop(Stage.LAST_ANSWERS)
        self.connections.wait_until_empty(seconds)
        with self._building:
            services = self._services
        if services is not None:
            # Before the clients that follow them have to go, so that these hear how it ended.
            services.jobs.stop(deadline.left)
        self.connections.stop(Stage.LAST_WORDS)
        self.connections.wait_until_empty(_LAST_WORDS_SECONDS)

    def server_close(self) -> None:
        super().server_close()
        self.connections.stop(Stage.OVER)
        self.connections.wait_until_empty(_LAST_MOMENTS_SECONDS)
        self.connections.close()
        self.pump.close()
        with self._building:
            services = self._services
        if services is not None:
            services.close()
