"""Connections to upstreams: the Destination of a call, the Connection that carries it, the pool of idle ones, and the
Connector, which opens them: it resolves the name, connects, passes through an HTTPS proxy if there is one and does the
TLS handshake, which takes two or three round trips over the internet.

All steps of opening have one deadline, `connect_timeout`, and every wait ends if the client leaves: a call that has not
begun costs nothing. Certificates are always verified. Failures of the network are raised as they are, for `client` to
translate; those of a proxy name the proxy.
"""

import errno
import mmap
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache, lru_cache, partial
from typing import NamedTuple
from urllib.parse import urlsplit

from deepseek_cursor_proxy.config import ProxyConfig, https_proxy
from deepseek_cursor_proxy.config.https_proxy import OutboundProxy
from deepseek_cursor_proxy.errors import ConnectionTimeout, StartupError, UpstreamDropped, UpstreamFailed
from deepseek_cursor_proxy.http1 import heads
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.net.threads import start_thread
from deepseek_cursor_proxy.net.wait import (
    Action,
    Deadline,
    Readiness,
    ReadWaiter,
    Wakeup,
    no_action,
    wait_either,
    wait_readable,
    wait_writable,
)

# Servers and middleboxes drop idle connections after a minute or so; we close ours before.
_IDLE_SECONDS = 50.0
# An editor with a few agents never needs more.
_IDLE_CONNECTIONS = 64
_RECEIVE_BYTES = 65536
# Most events have 300 bytes.
_FEW_BYTES = 4096
# Long enough for TCP to send a lost packet again; then the next address of the name is tried.
_ADDRESS_SECONDS = 2.0
# What the systems call a connect that is under way.
_UNDER_WAY = (errno.EINPROGRESS, errno.EWOULDBLOCK, getattr(errno, "WSAEWOULDBLOCK", errno.EWOULDBLOCK))

Address = tuple[int, int, int, str, tuple[object, ...]]


class Origin(NamedTuple):
    scheme: str
    host: str
    port: int


class Destination(NamedTuple):
    """The URL and method of a call, the name of the other side in error messages, the setting that these point to."""

    url: str
    name: str = "DeepSeek"
    setting: str = "--base-url"
    method: str = "POST"

    @property
    def origin(self) -> Origin:
        return _origin(self.url)


@lru_cache(64)
def _origin(url: str) -> Origin:
    parts = urlsplit(url)
    assert parts.hostname is not None
    return Origin(parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))


class Connection:
    """One connection to one origin. Used by one thread at a time."""

    def __init__(self, origin: Origin, sock: socket.socket) -> None:
        self.origin = origin
        self.is_reused = False
        # How long it took to open.
        self.connect_seconds = 0.0
        # The rest of a request that was not sent in full: this connection can carry no other.
        self.has_unsent_bytes = False
        self.idle_since = self.idle_since_wall = 0.0
        self._sock = sock
        # TLS may have input that no wait sees, because it has left the system's buffers already.
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        self._sock.setblocking(False)
        # `recv` allocates all that it may return, and then shrinks that to 300 bytes for an event: with 400 streams the
        # rests are spread over 10 MB of glibc's memory. After as many bytes as this has, more are expected.
        self._buffer = mmap.mmap(-1, _FEW_BYTES)
        self._expects_more = False
        # What arrived while the request was still being sent; b"" when the server closed.
        self._early: bytes | None = None
        self._waiter = self._idle_waiter = ReadWaiter(sock)

    def send(self, data: bytes, stall_timeout: float, peer: Peer | None, before_wait: Action = no_action) -> None:
        """Send everything, unless the server answers first; TimeoutError after a stall. Raises as `net.wait.pause`."""
        view = memoryview(data)
        deadline: Deadline | None = None
        while view:
            try:
                view = view[self._sock.send(view) :]
                deadline = None
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                before_wait()
                deadline = deadline or Deadline.after(stall_timeout)
                readiness = wait_either(self._sock, deadline.left, peer)
                if readiness is Readiness.NONE:
                    raise TimeoutError from None
                if readiness is Readiness.READABLE and self._has_early_response():
                    # The server refuses what it has read so far. After the rest it would reset the connection, and
                    # its response would be lost.
                    self.has_unsent_bytes = True
                    return
            except ConnectionError:
                # The same from a server that closed at once: its response can still be read.
                if not self._has_early_response() or not self._early:
                    raise
                self.has_unsent_bytes = True
                return

    def _has_early_response(self) -> bool:
        try:
            self._early = self._sock.recv(_RECEIVE_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            # A message of TLS itself (session tickets), read here because it would end every later wait at once.
            return False
        return True

    def receive(self, until: float, peer: Peer | None) -> bytes | None:
        """What arrives, b"" when the server closed, None when `until` came first. Raises as `net.wait.pause`."""
        if self._early is not None:
            early, self._early = self._early, None
            return early
        if self._waiter.peer is not peer:
            # One poll object as long as the peer is the same.
            self._waiter = ReadWaiter(self._sock, peer)
        wait = self._waiter.wait
        while (self._tls is not None and self._tls.pending()) or wait(until - time.monotonic()):
            try:
                if self._expects_more:
                    data = self._sock.recv(_RECEIVE_BYTES)
                else:
                    data = self._buffer[: self._sock.recv_into(self._buffer)]
                self._expects_more = len(data) >= _FEW_BYTES
                return data
            except (BlockingIOError, ssl.SSLWantReadError):
                # A TLS record that is not complete yet, or a spurious event.
                wait = self._waiter.wait
            except ssl.SSLWantWriteError:
                # TLS has something to write before it can read on (a key update, a renegotiation).
                wait = partial(wait_writable, self._sock, peer=peer)
        return None

    def close(self) -> None:
        self._sock.close()

    @property
    def is_stale(self) -> bool:
        """Whether an idle connection is too old, or has input, which can only be its end."""
        # The monotonic clock stands still while a computer sleeps (Linux, macOS); the wall clock may be set.
        slept = abs(time.time() - self.idle_since_wall)
        if max(time.monotonic() - self.idle_since, slept) > _IDLE_SECONDS:
            return True
        return self.has_input

    @property
    def has_input(self) -> bool:
        """Whether there is something to read, perhaps the end."""
        is_pending = self._tls is not None and self._tls.pending() > 0
        return is_pending or self._early is not None or self._idle_waiter.wait(0)


Connect = Callable[[Origin, Peer | None], Connection]


class ConnectionPool:
    """Called by any thread; the lock protects all fields. Connections are opened and closed outside it."""

    def __init__(self, connect: Connect, most_idle: int = _IDLE_CONNECTIONS) -> None:
        self._connect = connect
        self._most_idle = most_idle
        self._lock = threading.Lock()
        self._idle: list[Connection] = []

    def take(self, origin: Origin, peer: Peer | None, before_wait: Action, *, is_new: bool = False) -> Connection:
        """A live connection to the origin, pooled or new; raises as `connect`."""
        while not is_new and (idle := self._take_idle(origin)):
            if not idle.is_stale:
                idle.is_reused = True
                return idle
            idle.close()
        before_wait()
        started = time.monotonic()
        connection = self._connect(origin, peer)
        connection.connect_seconds = time.monotonic() - started
        return connection

    def give_back(self, connection: Connection) -> None:
        connection.idle_since, connection.idle_since_wall = time.monotonic(), time.time()
        with self._lock:
            self._idle.append(connection)
            excess = self._idle.pop(0) if len(self._idle) > self._most_idle else None
        if excess is not None:
            excess.close()

    def close(self) -> None:
        with self._lock:
            self._most_idle = 0
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take_idle(self, origin: Origin) -> Connection | None:
        with self._lock:
            # The one used last is most likely to be alive.
            for index in range(len(self._idle) - 1, -1, -1):
                if self._idle[index].origin == origin:
                    return self._idle.pop(index)
        return None


# Opening …


class ConnectTimeout(TimeoutError):
    """There was no connection in time, so nothing has been sent yet."""


class Connector:
    """Opens connections. Called by any thread."""

    def __init__(self, config: ProxyConfig, environment: Mapping[str, str] = os.environ) -> None:
        self._timeout = config.connect_timeout
        self._environment = environment
        # Cached and made on demand: loading the system's certificates takes a while.
        self._tls_context = cache(_tls_context)

    def open(self, origin: Origin, peer: Peer | None = None) -> Connection:
        """A connection that a request can be sent on; OSError or a ProxyError otherwise. Raises as `net.wait.pause`."""
        deadline = Deadline.after(self._timeout)
        if origin.scheme != "https":
            return Connection(origin, _connect(origin.host, origin.port, deadline, peer))
        try:
            proxy = https_proxy.for_host(origin.host, origin.port, self._environment)
        except StartupError as error:
            raise UpstreamFailed(f"{error}.") from None
        if proxy is None:
            sock = _connect(origin.host, origin.port, deadline, peer)
        else:
            with _errors_of(proxy, origin):
                sock = _connect(proxy.host, proxy.port, deadline, peer)
                _open_tunnel(Connection(origin, sock), proxy, deadline, peer)
        context = self._tls_context()
        try:
            return Connection(origin, _tls_handshake(context, sock, origin.host, deadline, peer))
        except ssl.SSLCertVerificationError:
            # Counted only now: the certificates of a directory are loaded when one is looked up.
            if context.cert_store_stats()["x509_ca"] == 0:
                raise UpstreamFailed(_no_authorities(origin.host)) from None
            raise


def _connect(host: str, port: int, deadline: Deadline, peer: Peer | None) -> socket.socket:
    addresses = resolve(host, port, deadline, peer)
    for left in range(len(addresses), 1, -1):
        # This address leaves time for the others.
        share = Deadline.after(min(_ADDRESS_SECONDS, deadline.left / left))
        try:
            return _connect_to(addresses[-left], share, peer)
        except OSError:
            continue
    return _connect_to(addresses[-1], deadline, peer)


def is_permanent(error: OSError) -> bool:
    """Whether it is pointless to try again: the name does not exist, or no server listens there."""
    no_name = isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN
    return no_name or isinstance(error, ConnectionRefusedError)


def _tls_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _no_authorities(host: str) -> str:
    """The message for an empty trust store: python.org's macOS build before its last step, or a slim container."""
    chosen = [f"{name} ({os.environ[name]})" for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(name)]
    if chosen:
        remedy = f"There are none in {' and '.join(chosen)}: correct or unset it."
    elif sys.platform == "darwin":
        remedy = (
            'Run "Install Certificates.command" in the Python folder of your Applications, or name a file of '
            "certificates in SSL_CERT_FILE."
        )
    else:
        remedy = "Install your system's package ca-certificates, or name a file of certificates in SSL_CERT_FILE."
    return f"Python has no certificate authority to check {host} with, so nothing was sent to it. {remedy}"


def _connect_to(address: Address, deadline: Deadline, peer: Peer | None) -> socket.socket:
    family, kind, protocol, _, where = address
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex(where)
        if code in _UNDER_WAY:
            if not wait_writable(sock, deadline.left, peer):
                raise ConnectTimeout
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, _error_text(code))
    except BaseException:
        sock.close()
        raise
    return sock


def _error_text(code: int) -> str:
    """The system's text for a socket error; on Windows os.strerror() has none."""
    texts: Mapping[int, str] = getattr(socket, "errorTab", {})
    return texts[code].rstrip(".") if code in texts else os.strerror(code)


def _tls_handshake(
    context: ssl.SSLContext, sock: socket.socket, host: str, deadline: Deadline, peer: Peer | None
) -> ssl.SSLSocket:
    try:
        tls_sock = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    except BaseException:
        sock.close()
        raise
    try:
        while True:
            try:
                tls_sock.do_handshake()
                return tls_sock
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                wait = wait_writable if isinstance(error, ssl.SSLWantWriteError) else wait_readable
            if not wait(tls_sock, deadline.left, peer):
                raise ConnectTimeout
    except BaseException:
        tls_sock.close()
        raise


def _open_tunnel(connection: Connection, proxy: OutboundProxy, deadline: Deadline, peer: Peer | None) -> None:
    """Have the proxy connect us (CONNECT); every byte after its answer belongs to TLS."""
    origin = connection.origin
    try:
        target = https_proxy.authority(origin.host, origin.port)
        headers = [("Host", target)]
        if proxy.authorization is not None:
            headers.append(("Proxy-Authorization", proxy.authorization))
        connection.send(heads.request_head("CONNECT", target, headers), deadline.left, peer)
        response = heads.read_response_head(partial(connection.receive, deadline, peer))
        if not 200 <= response.head.status < 300:
            raise _refusal(response.head.status, proxy, origin)
        if response.rest:
            raise ValueError("it sent data after its CONNECT response")
    except heads.IncompleteHead as error:
        connection.close()
        if error.is_late:
            raise ConnectTimeout from None
        raise ConnectionResetError(errno.ECONNRESET, "it closed the connection") from None
    except BaseException:
        connection.close()
        raise


def _refusal(status: int, proxy: OutboundProxy, origin: Origin) -> UpstreamFailed:
    if status == 407:
        remedy = "Check the user and the password in HTTPS_PROXY."
    else:
        remedy = "Ask its administrator, or name the host in NO_PROXY."
    # A failure of the proxy may pass; its rules do not.
    kind = UpstreamDropped if status in (502, 503, 504) else UpstreamFailed
    return kind(f"The proxy {proxy} does not let us through to {origin.host} ({status}). {remedy}")


@contextmanager
def _errors_of(proxy: OutboundProxy, origin: Origin) -> Iterator[None]:
    """Failures on the way to the proxy, or in it, as errors that name the proxy and not DeepSeek."""
    try:
        yield
    except TimeoutError:
        raise ConnectionTimeout(
            f"The proxy {proxy} did not connect us to {origin.host} in time. Check HTTPS_PROXY, or try again."
        ) from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        kind = UpstreamFailed if is_permanent(error) else UpstreamDropped
        raise kind(f"The proxy {proxy} cannot be used ({reason}). Check network and HTTPS_PROXY.") from None
    except ValueError as error:
        raise UpstreamFailed(
            f"The proxy {proxy} does not answer as an HTTP proxy: {error}. Check HTTPS_PROXY."
        ) from None


def resolve(host: str, port: int, deadline: Deadline, peer: Peer | None) -> list[Address]:
    """The addresses of a host, in the order to try them.

    The system's resolver cannot be interrupted and may take minutes, so a thread calls it, and this one waits.
    """
    try:
        return _resolve(host, port, socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        pass  # it is a name, not an address
    found: list[list[Address] | socket.gaierror] = []

    def look_up() -> None:
        try:
            found.append(_resolve(host, port, 0))
        except (OSError, UnicodeError) as error:
            known = error if isinstance(error, socket.gaierror) else None
            found.append(known or socket.gaierror(socket.EAI_NONAME, "not a name that could exist"))
        wakeup.set()

    with closing(Wakeup()) as wakeup:
        if start_thread(look_up, "lookup") is None:
            raise OSError(errno.EAGAIN, "no thread is left to look the name up")
        wait_readable(wakeup, deadline.left, peer)
    if not found:
        raise ConnectTimeout
    if isinstance(found[0], socket.gaierror):
        raise found[0]
    return found[0]


def _resolve(host: str, port: int, flags: int) -> list[Address]:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags))
