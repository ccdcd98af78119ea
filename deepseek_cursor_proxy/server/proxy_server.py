"""DeepSeekProxyServer, which outside code builds: it listens, serves client connections, and stops.

Every connection has a thread, which reads requests with our own strict reader (http1), calls the app and writes its
reply. Everything a client does is bounded: the time for a head, a body and for reading our reply, their sizes, and the
number of connections. Ambiguous bytes get one error, and the connection ends. The app is built for the first request
from the two attributes that outside code assigns, `config` and `reasoning_store`.
"""

import logging
import os
import socket
import socketserver
import threading
from collections.abc import Callable
from functools import cached_property, partial
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from deepseek_cursor_proxy import proxy
from deepseek_cursor_proxy.api.routes import App
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import Overloaded
from deepseek_cursor_proxy.net.wait import Deadline
from deepseek_cursor_proxy.server.connections import ClientConnection, Connections, StopStage
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore

if TYPE_CHECKING:
    from deepseek_cursor_proxy.exchange.services import Services

_log = logging.getLogger(__name__)

_TOO_MANY = "Too many connections at once. Try again in a moment."
# A response that has to end does so within moments, and so does one whose connection was cut.
_END_SECONDS = 1.0
_ABORT_SECONDS = 1.0


class DeepSeekProxyHandler(socketserver.BaseRequestHandler):
    """One client connection, served on its thread."""

    server: "DeepSeekProxyServer"

    def handle(self) -> None:
        self.server.connections.serve(ClientConnection(self.request, self.server, self.client_address))


class DeepSeekProxyServer(ThreadingHTTPServer):
    """Runs the app for every client. Assign `config` and `reasoning_store`, then call serve_forever()."""

    config: ProxyConfig
    reasoning_store: ReasoningStore

    # The default of 5 drops connects of a burst, which then wait seconds for TCP to try again.
    request_queue_size = 1024
    # On Windows the option means "share the port with the program that has it".
    allow_reuse_address = os.name == "posix"
    # Python 3.14.0 shares the port by default: a second proxy would silently take half of the requests.
    allow_reuse_port = False

    def __init__(self, address: tuple[str, int], handler: Callable[..., Any] = DeepSeekProxyHandler) -> None:
        self.connections = Connections("client", Overloaded(_TOO_MANY, retry_after=1))
        # Protects what is built from `config`, and `config` itself, which `reconfigure` replaces while requests run.
        self._build_lock = threading.Lock()
        self._services: Services | None = None
        # Of the tunnel to us.
        self.tunnel_url = ""
        # For the page at /: where the dashboard is, if there is one.
        self.dashboard_url: str | None = None
        # Called with new services before any request uses them; again after a reload.
        self.on_services: Callable[[Services], object] = lambda services: None
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # HTTPServer would also look up our name, which can take seconds and is used for nothing.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    @cached_property
    def app(self) -> App:
        """The app, built for the first request."""
        return self._make_app(self.config)

    def _make_app(self, config: ProxyConfig) -> App:
        return App(config, self.services, proxy.ROUTES, self.dashboard_url)

    def services(self) -> "Services":
        """The services, built once, for the first request that needs them: two thirds of the program, and 10 MB."""
        if self._services is None:
            with self._build_lock:
                if self._services is None:
                    self._services = self._build_services(self.config)
        return self._services

    def _build_services(self, config: ProxyConfig) -> "Services":
        try:
            from deepseek_cursor_proxy.api import chat  # noqa: F401  (imports the rest of what a chat needs)

            former = self._services
            services = proxy.build(config, self.reasoning_store) if former is None else former.rebuild(config)
        except OSError:
            # A file of ours cannot be read, because there are no descriptors left.
            raise Overloaded(_TOO_MANY, retry_after=1) from None
        services.access.set_tunnel_host(urlsplit(self.tunnel_url).hostname or "")
        self.on_services(services)
        return services

    def set_tunnel_url(self, url: str) -> None:
        """Accept the host of this URL as ours: a tunnel to us begins there. Replaces the former host."""
        with self._build_lock:
            self.tunnel_url = url
            if self._services is not None:
                self._services.access.set_tunnel_host(urlsplit(url).hostname or "")

    def reconfigure(self, config: ProxyConfig) -> None:
        """Use this configuration for new requests; StartupError when it contradicts the environment."""
        with self._build_lock:
            # Built first: a failure changes nothing.
            former, self._services = self._services, self._build_services(config)
            self.config = config
            self.app = self._make_app(config)
        if former is not None:
            # Running exchanges may finish, then their connections are closed.
            former.upstream_client.close()

    # Accepting clients …

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        """Serve until shutdown(), which takes effect at once: the interval of the base class has no meaning here."""
        self.connections.accept(self.socket, self.process_request)

    def shutdown(self) -> None:
        self.connections.stop_accepting()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Run the handler on a thread; unlike the base class's, threads are reused, and their number is bounded."""
        serve = partial(self.process_request_thread, request, client_address)
        self.connections.start(request, self.config.max_connections, serve, self)

    def shutdown_request(self, request: Any) -> None:
        """Only close it: its connection has shut it down, and a second shutdown would raise, which takes longer."""
        self.close_request(request)

    # Stopping …

    def drain(self, seconds: float) -> None:
        """Accept no more clients, give responses and jobs `seconds` to finish, then end the rest with an error."""
        self.shutdown()
        # From here on the system refuses connections, and a new proxy can have the port already.
        self.socket.close()
        deadline = Deadline.after(seconds)
        self.connections.stop(StopStage.FINISH_RESPONSES, seconds)
        if (services := self._built_services()) is not None:
            # Before END_RESPONSES, so that clients that follow a job receive how it ended.
            services.drain(deadline.left)
        self.connections.stop(StopStage.END_RESPONSES, _END_SECONDS)

    def server_close(self) -> None:
        self.shutdown()
        super().server_close()
        self.connections.stop(StopStage.ABORT, _ABORT_SECONDS)
        self.connections.close()
        if (services := self._built_services()) is not None:
            services.close()

    def _built_services(self) -> "Services | None":
        with self._build_lock:
            return self._services
