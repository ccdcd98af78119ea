"""Opening a connection: find the address, connect, ask a proxy to let us through, shake hands.

All of it together has one deadline, `connect_timeout`, and every wait watches the client as well: whoever leaves before
the call has begun costs nothing. Certificates are always verified. Failures of the network are raised as they are, for
upstream to translate; those of a proxy name the proxy.
"""

import errno
import functools
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

from deepseek_cursor_proxy.config import ProxyConfig, https_proxy
from deepseek_cursor_proxy.config.https_proxy import OutboundProxy
from deepseek_cursor_proxy.errors import StartupError, UpstreamDropped, UpstreamFailed, UpstreamTimeout
from deepseek_cursor_proxy.http1 import heads
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.net.wait import extended, wait_readable, wait_writable
from deepseek_cursor_proxy.net.wakeup import Wakeup
from deepseek_cursor_proxy.upstream.pool import Connection, Origin

# Long enough for a lost packet to be sent again; then the next address of the name gets its chance.
_ADDRESS_SECONDS = 2.0
# How a connect that is under way is called by the systems.
_UNDER_WAY = (errno.EINPROGRESS, errno.EWOULDBLOCK, getattr(errno, "WSAEWOULDBLOCK", errno.EWOULDBLOCK))

Address = tuple[int, int, int, str, tuple[object, ...]]


class ConnectTimeout(TimeoutError):
    """There was no connection in time, so nothing has been asked yet."""


@dataclass(frozen=True)
class Patience:
    """Until when to wait, and for whom."""

    until: float
    peer: Peer | None

    @property
    def left(self) -> float:
        return self.until - time.monotonic()

    def share(self, parts: int) -> "Patience":
        """The patience for one of that many tries; the last one may use up all that is left."""
        if parts == 1:
            return self
        return replace(self, until=time.monotonic() + min(_ADDRESS_SECONDS, self.left / parts))


class Connector:
    """Opens connections. Called by handler threads; the lookups are all they share."""

    def __init__(self, config: ProxyConfig, environment: Mapping[str, str] = os.environ) -> None:
        self._timeout = config.connect_timeout
        self._environment = environment if config.https_proxy == "environment" else {}
        # Loading the system's certificates takes a while, so it is done once and only for those who need it.
        self._tls = functools.cache(_tls)
        self._lookups = Resolver()

    def open(self, origin: Origin, peer: Peer | None) -> Connection:
        """A connection that a request can be sent on; OSError or a ProxyError otherwise, ClientGone if nobody waits."""
        patience = Patience(time.monotonic() + self._timeout, peer)
        try:
            return self._opened(origin, patience)
        except (TimeoutError, UpstreamTimeout):
            again = extended(patience.until, self._timeout)
            if again == patience.until:
                raise
            # This process was stopped meanwhile, and nothing has been sent.
            return self._opened(origin, replace(patience, until=again))

    def _opened(self, origin: Origin, patience: Patience) -> Connection:
        if origin.scheme != "https":
            return Connection(origin, self._reach(origin.host, origin.port, patience))
        proxy = self._proxy(origin)
        if proxy is None:
            sock = self._reach(origin.host, origin.port, patience)
        else:
            with _blaming(proxy, origin):
                sock = self._reach(proxy.host, proxy.port, patience)
                _pass_through(Connection(origin, sock), proxy, patience)
        context = self._tls()
        try:
            return Connection(origin, _secured(context, sock, origin.host, patience))
        except ssl.SSLCertVerificationError:
            # Asked only now: certificates of a directory are loaded, and counted, when one is looked for.
            if context.cert_store_stats()["x509_ca"] == 0:
                raise UpstreamFailed(_no_authorities(origin.host)) from None
            raise

    def _proxy(self, origin: Origin) -> OutboundProxy | None:
        try:
            return https_proxy.for_host(origin.host, origin.port, self._environment)
        except StartupError as error:
            raise UpstreamFailed(f"{error}.") from None

    def _reach(self, host: str, port: int, patience: Patience) -> socket.socket:
        addresses = self._lookups.find(host, port, patience)
        for parts in range(len(addresses), 1, -1):
            try:
                return _connected(addresses[-parts], patience.share(parts))
            except OSError:
                continue
        return _connected(addresses[-1], patience)


def is_permanent(error: OSError) -> bool:
    """Whether it is pointless to try again: a name that does not exist, or nobody who listens there."""
    no_name = isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN
    return no_name or isinstance(error, ConnectionRefusedError)


def _tls() -> ssl.SSLContext:
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


def _connected(address: Address, patience: Patience) -> socket.socket:
    family, kind, protocol, _, where = address
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex(where)
        if code in _UNDER_WAY:
            if not wait_writable(sock, patience.left, patience.peer):
                raise ConnectTimeout
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, _error_text(code))
    except BaseException:
        sock.close()
        raise
    return sock


def _error_text(code: int) -> str:
    """The system's text for a socket error; on Windows os.strerror() knows none of them."""
    texts: Mapping[int, str] = getattr(socket, "errorTab", {})
    return texts[code].rstrip(".") if code in texts else os.strerror(code)


def _secured(context: ssl.SSLContext, sock: socket.socket, host: str, patience: Patience) -> ssl.SSLSocket:
    try:
        secured = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    except BaseException:
        sock.close()
        raise
    try:
        while True:
            waiting: Callable[[socket.socket, float, Peer | None], bool]
            try:
                secured.do_handshake()
                return secured
            except ssl.SSLWantReadError:
                waiting = wait_readable
            except ssl.SSLWantWriteError:
                waiting = wait_writable
            if not waiting(secured, patience.left, patience.peer):
                raise ConnectTimeout
    except BaseException:
        secured.close()
        raise


# Through a proxy …


def _pass_through(connection: Connection, proxy: OutboundProxy, patience: Patience) -> None:
    """Have the proxy connect us; what it says then is TLS, or it is not what we asked for."""
    origin = connection.origin
    try:
        target = https_proxy.authority(origin.host, origin.port)
        headers = [("Host", target)]
        if proxy.authorization is not None:
            headers.append(("Proxy-Authorization", proxy.authorization))
        connection.send(heads.request_head("CONNECT", target, headers), patience.left, patience.peer)
        buffer, received = heads.HeadBuffer(heads.bad_response), b""
        while (raw := buffer.feed(received)) is None:
            more = connection.receive(patience.until, patience.peer)
            if more is None:
                raise ConnectTimeout
            if not more:
                raise ConnectionResetError(errno.ECONNRESET, "it closed the connection")
            received = more
        status = heads.parse_response_head(raw).status
        if not 200 <= status < 300:
            raise _refusal(status, proxy, origin)
        if buffer.take_rest():
            raise ValueError("it says more than it was asked")
    except BaseException:
        connection.close()
        raise


def _refusal(status: int, proxy: OutboundProxy, origin: Origin) -> UpstreamFailed:
    if status == 407:
        remedy = "Check the user and the password in HTTPS_PROXY."
    else:
        remedy = 'Ask whoever runs it, name the host in NO_PROXY, or set https_proxy = "off".'
    # Its own trouble may pass; its rules do not.
    kind = UpstreamDropped if status in (502, 503, 504) else UpstreamFailed
    return kind(f"The proxy {proxy} does not let us through to {origin.host} ({status}). {remedy}")


@contextmanager
def _blaming(proxy: OutboundProxy, origin: Origin) -> Iterator[None]:
    """What fails on the way to the proxy, or in it, said of the proxy and not of DeepSeek."""
    try:
        yield
    except TimeoutError:
        raise UpstreamTimeout(
            f"The proxy {proxy} did not connect us to {origin.host} in time. Check HTTPS_PROXY, or raise "
            "--connect-timeout."
        ) from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        kind = UpstreamFailed if is_permanent(error) else UpstreamDropped
        raise kind(f"The proxy {proxy} cannot be used ({reason}). Check network and HTTPS_PROXY.") from None
    except ValueError as error:
        raise UpstreamFailed(f"The proxy {proxy} is none: {error}. Check HTTPS_PROXY.") from None


# Finding addresses …


class _Lookup:
    """One question to the system's resolver, and who waits for its answer."""

    def __init__(self) -> None:
        self.waiters: list[Wakeup] = []
        self.addresses: list[Address] = []
        self.error: tuple[int, str] | None = None


class Resolver:
    """Called by handler threads; the lock protects `_running` and who waits for what in it.

    The resolver cannot be interrupted and may take minutes, so it is asked on a thread that nobody has to wait for:
    one per name, however many ask. Those who do are woken by a socket, which can be watched together with the client.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[tuple[str, int], _Lookup] = {}

    def find(self, host: str, port: int, patience: Patience) -> list[Address]:
        """The addresses of a host, in the order to try them."""
        try:
            return _resolved(host, port, socket.AI_NUMERICHOST)
        except (OSError, UnicodeError):
            pass  # it is a name
        with closing(Wakeup()) as wakeup:
            lookup = self._join(host, port, wakeup)
            try:
                if not wait_readable(wakeup, patience.left, patience.peer):
                    raise ConnectTimeout
            finally:
                self._leave(lookup, wakeup)
        if lookup.error is not None:
            raise socket.gaierror(*lookup.error)
        return lookup.addresses

    def _join(self, host: str, port: int, wakeup: Wakeup) -> _Lookup:
        with self._lock:
            lookup = self._running.get((host, port))
            if lookup is None:
                lookup = _Lookup()
                thread = threading.Thread(target=self._run, args=(host, port, lookup), name="lookup", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    raise OSError(errno.EAGAIN, "no thread is left to look the name up") from None
                self._running[host, port] = lookup
            lookup.waiters.append(wakeup)
        return lookup

    def _leave(self, lookup: _Lookup, wakeup: Wakeup) -> None:
        with self._lock:
            if wakeup in lookup.waiters:
                lookup.waiters.remove(wakeup)

    def _run(self, host: str, port: int, lookup: _Lookup) -> None:
        try:
            lookup.addresses = _resolved(host, port, 0)
        except socket.gaierror as error:
            lookup.error = error.errno or socket.EAI_FAIL, error.strerror or "no such name"
        except (OSError, UnicodeError):
            lookup.error = socket.EAI_NONAME, "not a name that could exist"
        # Whoever started this thread put the lookup into `_running` before the lock came free.
        with self._lock:
            del self._running[host, port]
            for wakeup in lookup.waiters:
                wakeup.set()
            lookup.waiters.clear()


def _resolved(host: str, port: int, flags: int) -> list[Address]:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags))
