"""The waits for sockets: for DeepSeek, which watch the client meanwhile, and for a client that reads slowly.

A thread that waits for DeepSeek also watches the client (the `peer`) that its call is for: when the client leaves, or
the proxy ends its answer, the wait raises at once. Nothing here reads or writes.

A Deadline is the moment at which a wait ends; how long waits are is not decided here: timeouts are settings (`config`),
or constants of the module that waits. A Wakeup ends the waits of other threads, on every system: a wait takes it in
place of a socket (it ends) or of its client (it raises). Shutting down a socket wakes the threads that wait for it as
well, but not on Windows.
"""

import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from deepseek_cursor_proxy.errors import ClientGone, ProxyError
from deepseek_cursor_proxy.http1.messages import Peer

# How long a single wait lasts where nothing can interrupt it (Windows, where a `close_reason` wakes no wait), and how
# long a client is not watched after an event that did not mean that it left.
_RECHECK_SECONDS = 0.5
# The event by which Linux distinguishes a client that closes from one that sends more, also where Python has no name
# for it (PyPy). Elsewhere Peer.has_left() looks into the socket.
_CLIENT_LEAVES = getattr(select, "POLLRDHUP", 0x2000 if sys.platform == "linux" else 0)
_CAN_POLL = hasattr(select, "poll")


# What a call has to do before its first wait, such as noting that it was made.
Action = Callable[[], None]


def no_action() -> None: ...


class HasFileno(Protocol):
    """A socket or a Wakeup."""

    def fileno(self) -> int: ...


class Readiness(Enum):
    """What a socket turned out to be ready for."""

    NONE = "none"
    READABLE = "readable"
    WRITABLE = "writable"


class ReadWaiter:
    """Waits until one socket can be read, again and again. Used by one thread."""

    def __init__(self, sock: HasFileno, peer: Peer | None = None) -> None:
        self.peer = peer
        self._sock = sock
        self._fileno = sock.fileno()
        # Without _CLIENT_LEAVES a client that sends more would end every wait of the same poll object.
        self._poll = _poll(sock, select.POLLIN, peer) if _CLIENT_LEAVES or (peer is None and _CAN_POLL) else None

    def wait(self, seconds: float) -> bool:
        """Whether there is something to read within `seconds`; raises as `pause` does."""
        if self._poll is None:
            return wait_readable(self._sock, seconds, self.peer)
        ready = self._poll.poll(seconds * 1000 if seconds > 0 else 0)
        if len(ready) == 1 and ready[0][0] == self._fileno:
            return True
        # The client has left, or the event meant nothing.
        return bool(ready) and wait_readable(self._sock, seconds, self.peer)


def pause(seconds: float, peer: Peer | None) -> None:
    """Wait for `seconds`; raises ClientGone when the peer leaves, its `close_reason` when the proxy ends its answer."""
    _wait(None, seconds, peer)


def wait_readable(sock: HasFileno, seconds: float, peer: Peer | None) -> bool:
    """Whether the socket has something to read within `seconds`; raises as `pause` does."""
    return _wait(sock, seconds, peer) is Readiness.READABLE


def wait_writable(sock: HasFileno, seconds: float, peer: Peer | None) -> bool:
    """Whether the socket can be written to, or has failed to connect, within `seconds`; raises as `pause` does."""
    return wait_either(sock, seconds, peer) is not Readiness.NONE


def wait_either(sock: HasFileno, seconds: float, peer: Peer | None) -> Readiness:
    """What the socket is ready for within `seconds`, reading before writing; raises as `pause` does."""
    return _wait(sock, seconds, peer, for_writing=True)


def wait_until_client_reads(client: Peer, seconds: float) -> bool:
    """Whether the client takes more bytes within `seconds`; raises ClientGone when it leaves."""
    if not _CAN_POLL:
        return bool(select.select([], [client.fileno()], [], max(0.0, seconds))[1])
    # When the proxy ends the answer it closes its own side for reading, which looks as if the client had left.
    leaves = 0 if client.close_reason is not None else _CLIENT_LEAVES
    poll = select.poll()
    poll.register(client.fileno(), select.POLLOUT | leaves)
    ready = poll.poll(max(0.0, seconds) * 1000)
    if ready and ready[0][1] & leaves and client.close_reason is None:
        raise ClientGone
    return bool(ready)


def wait_until(changed: threading.Condition, condition: Callable[[], object], seconds: float) -> None:
    """Wait for a condition, `seconds` at most, also on the main thread: handlers of signals run there meanwhile.

    The system may give a signal to another thread, after a SIGSTOP for example, which does not wake this one.
    """
    deadline = Deadline.after(seconds)
    while not condition() and not deadline.is_over:
        changed.wait(min(deadline.left, _RECHECK_SECONDS))


def has_left(peer: Peer) -> bool:
    """Whether the client closed its connection or half of it; reads the socket, because an event may be old."""
    if not _CLIENT_LEAVES:
        return peer.has_left()
    # Unlike Peer.has_left(), this also sees that a client closed after it sent another request.
    return bool(_poll(None, 0, peer).poll(0))


def _wait(sock: HasFileno | None, seconds: float, peer: Peer | None, *, for_writing: bool = False) -> Readiness:
    """Look at the peer before the socket: a busy DeepSeek must not hide that a client left.

    The socket is looked at once more after the time is over: what has arrived is read, however late.
    """
    until = time.monotonic() + seconds
    watched = peer
    while True:
        left = until - time.monotonic()
        can_be_interrupted = _CAN_POLL and watched is peer
        ready = _select_once(sock, for_writing, left if can_be_interrupted else min(left, _RECHECK_SECONDS), watched)
        if peer is not None and (ready.peer or peer.close_reason is not None):
            _raise_if_over(peer)
        # The client sent its next request early, or the event meant nothing: watch it again in a while.
        watched = None if ready.peer else peer
        if ready.sock is not Readiness.NONE or left <= 0:
            return ready.sock


class _Ready(NamedTuple):
    sock: Readiness
    # Whether there was an event for the peer.
    peer: bool


def _select_once(sock: HasFileno | None, for_writing: bool, seconds: float, peer: Peer | None) -> _Ready:
    if not _CAN_POLL:
        return _select_on_windows(sock, for_writing, seconds, peer)
    poll = _poll(sock, select.POLLIN | (select.POLLOUT if for_writing else 0), peer)
    ready = dict(poll.poll(max(0.0, seconds) * 1000))
    events = ready.get(sock.fileno(), 0) if sock is not None else 0
    readiness = Readiness.NONE if not events else Readiness.WRITABLE if events == select.POLLOUT else Readiness.READABLE
    return _Ready(readiness, peer is not None and peer.fileno() in ready)


def _poll(sock: HasFileno | None, events: int, peer: Peer | None) -> "select.poll":
    poll = select.poll()
    if sock is not None:
        poll.register(sock, events)
    if peer is not None:
        poll.register(peer.fileno(), _CLIENT_LEAVES or select.POLLIN)
    return poll


def _select_on_windows(sock: HasFileno | None, for_writing: bool, seconds: float, peer: Peer | None) -> _Ready:
    own = [sock.fileno()] if sock is not None else []
    reading, writing = own + ([peer.fileno()] if peer is not None else []), own if for_writing else []
    if not reading and not writing:
        # Windows refuses to wait for nothing.
        time.sleep(max(0.0, seconds))
        return _Ready(Readiness.NONE, False)
    # Windows reports a failed connect as an exceptional condition.
    reads, writes, failed = select.select(reading, writing, writing, max(0.0, seconds))
    readiness = Readiness.READABLE if any(each in reads for each in own) else Readiness.NONE
    if readiness is Readiness.NONE and (writes or failed):
        readiness = Readiness.WRITABLE
    return _Ready(readiness, peer is not None and peer.fileno() in reads)


def _raise_if_over(peer: Peer) -> None:
    if peer.close_reason is not None:
        raise peer.close_reason
    if has_left(peer):
        raise ClientGone


class Deadline(float):
    """A moment of `time.monotonic`. Streams, which compute one for every chunk, use the plain number: `until`."""

    __slots__ = ()

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        return cls(time.monotonic() + seconds)

    @property
    def left(self) -> float:
        """The seconds until then; negative when it is over."""
        return self - time.monotonic()

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self


class Wakeup:
    """Called by any thread; the lock protects how it was set, which it is once and for good."""

    def __init__(self) -> None:
        """Raises OSError when no descriptors are left."""
        self._reader, self._writer = socket.socketpair()
        self._lock = threading.Lock()
        self._is_set = self._has_left = False
        self._reason: Callable[[], ProxyError] | None = None

    def set(self, reason: Callable[[], ProxyError] | None = None) -> bool:
        """End all waits, now and later, as a client that leaves does, or with that error; whether it is the first."""
        with self._lock:
            is_first = not self._is_set
            if is_first:
                self._is_set, self._has_left, self._reason = True, reason is None, reason
        self._writer.close()
        return is_first

    def close(self) -> None:
        """Give the descriptors back; only when no thread can wait for them any more. `set` returns False then."""
        with self._lock:
            self._is_set = True
        self._writer.close()
        self._reader.close()

    # As the peer of a wait …

    @property
    def close_reason(self) -> ProxyError | None:
        # A new one for every thread: one that several raise would hold the frames of all of them.
        return self._reason() if self._reason is not None else None

    def fileno(self) -> int:
        return self._reader.fileno()

    def has_left(self) -> bool:
        return self._has_left
