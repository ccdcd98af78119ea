"""Connections to upstreams: the Destination of a call, the Connection that carries it, the pool that keeps idle ones.

Opening a connection costs two or three round trips over the internet; `connect` does it.
"""

import socket
import ssl
import threading
import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple
from urllib.parse import urlsplit

from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.net.wait import Deadline, Readiness, ReadWaiter, wait_either, wait_writable

# Servers and middleboxes drop idle connections after a minute or so; we close ours before.
_IDLE_SECONDS = 50.0
# An editor with a few agents never needs more.
_IDLE_CONNECTIONS = 64
_RECEIVE_BYTES = 65536


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
        # What arrived while the request was still being sent; b"" when the server closed.
        self._early: bytes | None = None
        self._waiter = self._idle_waiter = ReadWaiter(sock)

    def send(self, data: bytes, stall_timeout: float, peer: Peer | None = None) -> None:
        """Send everything, unless the server answers first; TimeoutError after a stall. Raises as `net.wait.pause`."""
        view = memoryview(data)
        deadline: Deadline | None = None
        while view:
            try:
                view = view[self._sock.send(view) :]
                deadline = None
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
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
                return self._sock.recv(_RECEIVE_BYTES)
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
    """Called by any thread; the lock protects `_idle`. Connections are opened and closed outside it."""

    def __init__(self, connect: Connect, most_idle: int = _IDLE_CONNECTIONS) -> None:
        self._connect = connect
        self._most_idle = most_idle
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._is_closed = False

    def take(self, origin: Origin, peer: Peer | None = None, *, is_new: bool = False) -> Connection:
        """A live connection to the origin, pooled or new; raises as `connect`."""
        while not is_new and (idle := self._take_idle(origin)):
            if not idle.is_stale:
                idle.is_reused = True
                return idle
            idle.close()
        started = time.monotonic()
        connection = self._connect(origin, peer)
        connection.connect_seconds = time.monotonic() - started
        return connection

    def give_back(self, connection: Connection) -> None:
        connection.idle_since, connection.idle_since_wall = time.monotonic(), time.time()
        with self._lock:
            self._idle.append(connection)
            allowed = 0 if self._is_closed else self._most_idle
            excess = self._idle[: max(0, len(self._idle) - allowed)]
            del self._idle[: len(excess)]
        for connection in excess:
            connection.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
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
