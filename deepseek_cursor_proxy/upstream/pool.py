"""Kept-alive connections to DeepSeek: take one, give it back, let it expire.

Opening a connection costs two or three round trips over the internet, so a finished one is kept for the next call;
how one is opened is connecting's part.
"""

import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.net.deadline import Deadline
from deepseek_cursor_proxy.net.wait import Readiness, ReadWaiter, wait_either, wait_writable

# Servers and the boxes in between drop idle connections after a minute or so; ours goes first.
_IDLE_SECONDS = 50.0
# An editor with a few agents never needs more; the rest is closed when it comes back.
_IDLE_CONNECTIONS = 64
_RECEIVE_BYTES = 65536


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
        self.has_unsent_bytes = False
        self.idle_since = self.idle_since_wall = 0.0
        # TLS has something to write before it can read on (a key update, a renegotiation).
        self.reads_by_writing = False
        self._sock = sock
        self._sock.setblocking(False)
        # An answer that came while the request was still being sent; b"" is an end.
        self._early: bytes | None = None
        self._watch = self._idle_watch = ReadWaiter(sock)

    def send(self, data: bytes, stall_timeout: float, peer: Peer | None = None) -> None:
        """Send everything, unless the other side answers first; TimeoutError when nothing moves for that long.

        Raises ClientGone when `peer` leaves meanwhile, and what it has to be told when the proxy parts with it.
        """
        view = memoryview(data)
        deadline = Deadline.after(stall_timeout)
        while view:
            try:
                view = view[self._sock.send(view) :]
                deadline = Deadline.after(stall_timeout)
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                readiness = wait_either(self._sock, deadline.left, peer)
                if readiness is Readiness.NONE:
                    raise TimeoutError from None
                if readiness is Readiness.READABLE and self._is_answered_early():
                    # It refuses what it has seen so far; the rest would only be reset away, and its reason with it.
                    self.has_unsent_bytes = True
                    return
            except ConnectionError:
                # The same from somebody who closed at once: what they said before is still there to be read.
                if not self._is_answered_early() or not self._early:
                    raise
                self.has_unsent_bytes = True
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
        while self.wait(until, peer):
            # None: a TLS record that is not complete yet, or a wake-up for nothing.
            if (received := self.receive_now()) is not None:
                return received
        return None

    def wait(self, until: float, peer: Peer | None) -> bool:
        """Whether something arrives before that moment; raises as `receive` does."""
        if self.has_buffered_input:
            return True
        if self.reads_by_writing:
            return wait_writable(self._sock, until - time.monotonic(), peer)
        if self._watch.peer is not peer:
            self._watch = ReadWaiter(self._sock, peer)
        return self._watch.wait(until - time.monotonic())

    def receive_now(self) -> bytes | None:
        """What has arrived, b"" when the other side closed, None when there is nothing."""
        if self._early is not None:
            early, self._early = self._early, None
            return early
        self.reads_by_writing = False
        try:
            return self._sock.recv(_RECEIVE_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        except ssl.SSLWantWriteError:
            self.reads_by_writing = True
            return None

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    @property
    def is_stale(self) -> bool:
        """An idle connection that has something to say can only be saying goodbye."""
        # The one clock stands still while a computer sleeps (on Linux and macOS), the other may be set.
        slept = abs(time.time() - self.idle_since_wall)
        if max(time.monotonic() - self.idle_since, slept) > _IDLE_SECONDS:
            return True
        return self.has_input

    @property
    def has_input(self) -> bool:
        """Whether there is something to read, perhaps an end."""
        return self.has_buffered_input or self._idle_watch.wait(0)

    @property
    def has_buffered_input(self) -> bool:
        """Whether there is something that no wait would tell: it has left the system's buffers already."""
        return self._early is not None or (isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0)


Connect = Callable[[Origin, Peer | None], Connection]


class ConnectionPool:
    """Called by handler threads; the lock protects `_idle`. Connections are opened and closed outside it."""

    def __init__(self, connect: Connect, most_idle: int = _IDLE_CONNECTIONS) -> None:
        self._connect = connect
        self._most_idle = most_idle
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
        connection.idle_since, connection.idle_since_wall = time.monotonic(), time.time()
        with self._lock:
            self._idle.append(connection)
            allowed = 0 if self._is_closed else self._most_idle
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
