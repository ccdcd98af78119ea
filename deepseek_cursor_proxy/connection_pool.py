"""Kept-alive connections to DeepSeek: take one, give it back, let it expire.

Opening a connection costs two or three round trips over the internet, so a finished one is kept for the next call;
how one is opened is connecting's part.
Waiting for data also watches the client: somebody who left is noticed at once, while nothing is being written to him.
"""

import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from deepseek_cursor_proxy.errors import ClientGone
from deepseek_cursor_proxy.wire import Peer

# Servers and the boxes in between drop idle connections after a minute or so; ours goes first.
_IDLE_SECONDS = 50.0
# An editor with a few agents never needs more; the rest is closed when it comes back.
_IDLE_CONNECTIONS = 64
_RECEIVE_BYTES = 65536
# How often a wait that nothing can interrupt looks whether the proxy is to stop.
_LOOK_UP_SECONDS = 0.5
# Linux can tell a closing client from one that sends more; elsewhere its socket has to be looked into.
_CLIENT_LEAVES = getattr(select, "POLLRDHUP", 0)


class Stirred(Enum):
    """What a socket turned out to be ready for."""

    NOTHING = "nothing"
    READABLE = "readable"
    WRITABLE = "writable"


@dataclass(frozen=True)
class Origin:
    scheme: str
    host: str
    port: int


class Connection:
    """One connection to one origin. Used by one thread at a time."""

    def __init__(self, origin: Origin, sock: socket.socket) -> None:
        self.origin = origin
        self.is_reused = False
        # A request was not sent in full: this connection can carry no other.
        self.is_out_of_step = False
        self.idle_since = 0.0
        self._sock = sock
        self._sock.setblocking(False)
        # An answer that came while the request was still being sent; b"" is an end.
        self._early: bytes | None = None

    def send(self, data: bytes, stall_timeout: float, peer: Peer | None = None) -> None:
        """Send everything, unless the other side answers first; TimeoutError when nothing moves for that long.

        Raises ClientGone when `peer` leaves meanwhile, and what it has to be told when the proxy parts with it.
        """
        view = memoryview(data)
        give_up_at = time.monotonic() + stall_timeout
        while view:
            try:
                view = view[self._sock.send(view) :]
                give_up_at = time.monotonic() + stall_timeout
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                stirred = _wait(self._sock, True, give_up_at - time.monotonic(), peer)
                if stirred is Stirred.NOTHING:
                    raise TimeoutError from None
                if stirred is Stirred.READABLE and self._is_answered_early():
                    # It refuses what it has seen so far; the rest would only be reset away, and its reason with it.
                    self.is_out_of_step = True
                    return

    def _is_answered_early(self) -> bool:
        try:
            self._early = self._sock.recv(_RECEIVE_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            # TLS speaks for itself now and then (session tickets); left unread, that would wake us for ever.
            return False
        return True

    def receive(self, until: float, peer: Peer | None) -> bytes | None:
        """What arrives, b"" when the other side closed, None when the moment `until` came first.

        Raises ClientGone when `peer` leaves meanwhile, and what it has to be told when the proxy parts with it.
        """
        if self._early is not None:
            early, self._early = self._early, None
            return early
        while True:
            if self._has_buffered() or wait_readable(self._sock, until - time.monotonic(), peer):
                try:
                    return self._sock.recv(_RECEIVE_BYTES)
                except (BlockingIOError, ssl.SSLWantReadError):
                    # A TLS record that is not complete yet, or a wake-up for nothing.
                    continue
            return None

    def close(self) -> None:
        self._sock.close()

    @property
    def is_stale(self) -> bool:
        """An idle connection that has something to say can only be saying goodbye."""
        if time.monotonic() - self.idle_since > _IDLE_SECONDS:
            return True
        return self._has_buffered() or wait_readable(self._sock, 0, None)

    def _has_buffered(self) -> bool:
        return isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0


Connect = Callable[[Origin, Peer | None], Connection]


class ConnectionPool:
    """Called by handler threads; the lock protects `_idle`. Connections are opened and closed outside it."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._is_closed = False

    def take(self, origin: Origin, peer: Peer | None = None, *, fresh: bool = False) -> Connection:
        """A connection to the origin: a live one from before, or (always, when `fresh`) a new one.

        Raises ClientGone when `peer` leaves while one is being opened.
        """
        while not fresh and (kept := self._take_idle(origin)):
            if not kept.is_stale:
                kept.is_reused = True
                return kept
            kept.close()
        return self._connect(origin, peer)

    def give_back(self, connection: Connection) -> None:
        connection.idle_since = time.monotonic()
        with self._lock:
            self._idle.append(connection)
            allowed = 0 if self._is_closed else _IDLE_CONNECTIONS
            superfluous = self._idle[: max(0, len(self._idle) - allowed)]
            del self._idle[: len(superfluous)]
        for each in superfluous:
            each.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for each in idle:
            each.close()

    def _take_idle(self, origin: Origin) -> Connection | None:
        with self._lock:
            # The one used last is the one most likely to be alive.
            for index in range(len(self._idle) - 1, -1, -1):
                if self._idle[index].origin == origin:
                    return self._idle.pop(index)
        return None


def pause(seconds: float, peer: Peer | None) -> None:
    """Let that time pass; raises ClientGone as soon as the peer leaves, or what it has to be told when we part."""
    _wait(None, False, seconds, peer)


def wait_readable(sock: socket.socket, seconds: float, peer: Peer | None) -> bool:
    """Whether the socket has something to read within that time; raises, as `pause` does, when the peer goes first."""
    return _wait(sock, False, seconds, peer) is Stirred.READABLE


def wait_writable(sock: socket.socket, seconds: float, peer: Peer | None) -> bool:
    """The same for writing; also true when the attempt to connect has failed."""
    return _wait(sock, True, seconds, peer) is not Stirred.NOTHING


def _wait(sock: socket.socket | None, for_writing: bool, seconds: float, peer: Peer | None) -> Stirred:
    """What the socket is ready for within that time. The peer comes first: a busy DeepSeek must not hide its end."""
    if not hasattr(select, "poll"):
        return _select(sock, for_writing, seconds, peer)
    poll = select.poll()
    if sock is not None:
        poll.register(sock, select.POLLIN | (select.POLLOUT if for_writing else 0))
    if peer is not None:
        poll.register(peer.fileno(), _CLIENT_LEAVES or select.POLLIN)
    deadline = time.monotonic() + seconds
    while True:
        ready = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
        if peer is not None and peer.fileno() in ready:
            _raise_if_over(peer, is_closed=bool(_CLIENT_LEAVES))
            # It sent the next request early; its socket says nothing more until that is read.
            poll.unregister(peer.fileno())
        if sock is not None and sock.fileno() in ready:
            return Stirred.WRITABLE if ready[sock.fileno()] == select.POLLOUT else Stirred.READABLE
        if not ready:
            return Stirred.NOTHING


def _select(sock: socket.socket | None, for_writing: bool, seconds: float, peer: Peer | None) -> Stirred:
    """The same for systems without poll (Windows), where our own shutdown of a socket wakes nobody who waits for it."""
    own = [sock.fileno()] if sock is not None else []
    watched = own + ([peer.fileno()] if peer is not None else [])
    deadline = time.monotonic() + seconds
    while True:
        left = max(0.0, deadline - time.monotonic())
        reads, writes = _selected(watched, own if for_writing else [], min(left, _LOOK_UP_SECONDS))
        if peer is not None and (peer.parting or peer.fileno() in reads):
            _raise_if_over(peer)
            watched = own
        if any(each in reads for each in own):
            return Stirred.READABLE
        if writes:
            return Stirred.WRITABLE
        if not reads and left <= _LOOK_UP_SECONDS:
            return Stirred.NOTHING


def _selected(reading: list[int], writing: list[int], seconds: float) -> tuple[list[int], list[int]]:
    if not reading and not writing:
        # Windows refuses to wait for nothing.
        time.sleep(seconds)
        return [], []
    # Windows tells a connect that failed as something exceptional.
    reads, writes, failed = select.select(reading, writing, writing, seconds)
    return reads, writes + failed


def _raise_if_over(peer: Peer, *, is_closed: bool = False) -> None:
    if peer.parting is not None:
        raise peer.parting
    if is_closed or peer.has_left():
        raise ClientGone
