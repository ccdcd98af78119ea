"""Waiting for sockets, and for the client meanwhile.

Whoever waits for DeepSeek also watches the client on the other side: somebody who leaves is noticed at once, while
nothing is being written to him, and so is our own wish to part with him. Nothing here reads or writes.
"""

import select
import socket
import sys
import time
from enum import Enum
from typing import Protocol

from deepseek_cursor_proxy.errors import ClientGone
from deepseek_cursor_proxy.http1.messages import Peer

# How often a wait that nothing can interrupt looks whether the proxy is to stop, and how long a client is not watched
# after an event that did not mean that it left.
_LOOK_UP_SECONDS = 0.5
# A process that runs sees its deadlines pass within moments. One that sees them so much later was stopped, or slept
# with its computer; then the other side gets some time to send what it could not send meanwhile.
_STOPPED_SECONDS = 0.25
_GRACE_SECONDS = 5.0
# Linux can tell a closing client from one that sends more, also where Python has no name for it (PyPy); elsewhere its
# socket has to be looked into.
_CLIENT_LEAVES = getattr(select, "POLLRDHUP", 0x2000 if sys.platform == "linux" else 0)
_CAN_POLL = hasattr(select, "poll")


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

    def __init__(self, sock: socket.socket, peer: Peer | None = None) -> None:
        self.peer = peer
        self._sock = sock
        self._fileno = sock.fileno()
        # Where a client that sends more has to be told from one that leaves, it is asked for anew each time.
        self._poll = _poll(sock, select.POLLIN, peer) if _CLIENT_LEAVES or (peer is None and _CAN_POLL) else None

    def wait(self, seconds: float) -> bool:
        """Whether there is something to read within that time; raises, as `pause` does, when the peer goes first."""
        if self._poll is None:
            return wait(self._sock, False, seconds, self.peer) is Readiness.READABLE
        until = time.monotonic() + seconds
        ready = self._poll.poll(max(0.0, seconds) * 1000)
        if len(ready) == 1 and ready[0][0] == self._fileno:
            return True
        if not ready and seconds <= 0:
            return False
        left = extended(until, seconds) - time.monotonic()
        return wait(self._sock, False, left, self.peer) is Readiness.READABLE


def extended(deadline: float, seconds: float) -> float:
    """The deadline of a wait of so many seconds; a later one if this process was stopped when it passed."""
    late = time.monotonic() - deadline
    return deadline if late < _STOPPED_SECONDS else deadline + late + min(seconds, _GRACE_SECONDS)


def pause(seconds: float, peer: Peer | None) -> None:
    """Let that time pass; raises ClientGone as soon as the peer leaves, or what it has to be told when we part."""
    wait(None, False, seconds, peer)


def wait_readable(sock: HasFileno, seconds: float, peer: Peer | None) -> bool:
    """Whether the socket has something to read within that time; raises, as `pause` does, when the peer goes first."""
    return wait(sock, False, seconds, peer) is Readiness.READABLE


def wait_writable(sock: socket.socket, seconds: float, peer: Peer | None) -> bool:
    """The same for writing; also true when the attempt to connect has failed."""
    return wait(sock, True, seconds, peer) is not Readiness.NONE


def can_write(sock: socket.socket, seconds: float) -> bool:
    """Whether the socket takes something within that time, whatever there is to read from it."""
    if not _CAN_POLL:
        return bool(select.select([], [sock], [], max(0.0, seconds))[1])
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def wait(sock: HasFileno | None, for_writing: bool, seconds: float, peer: Peer | None) -> Readiness:
    """What the socket is ready for within that time. The peer comes first: a busy DeepSeek must not hide its end.

    The socket is looked at once more after the time is over: a process that was stopped finds there what has arrived.
    """
    until, left = time.monotonic() + seconds, seconds
    watched = peer
    while True:
        is_whole = _CAN_POLL and watched is peer
        stirred, has_peer_stirred = _look(sock, for_writing, left if is_whole else min(left, _LOOK_UP_SECONDS), watched)
        if peer is not None and (has_peer_stirred or peer.close_reason is not None):
            _raise_if_over(peer)
        # It sent the next request early, or this was a wake-up for nothing: it is watched again in a while.
        watched = None if has_peer_stirred else peer
        if stirred is not Readiness.NONE or left <= 0:
            return stirred
        until = extended(until, seconds)
        left = until - time.monotonic()


def _look(sock: HasFileno | None, for_writing: bool, seconds: float, peer: Peer | None) -> tuple[Readiness, bool]:
    """What the socket is ready for within that time, and whether something happened to the peer."""
    if not _CAN_POLL:
        return _select(sock, for_writing, seconds, peer)
    poll = _poll(sock, select.POLLIN | (select.POLLOUT if for_writing else 0), peer)
    ready = dict(poll.poll(max(0.0, seconds) * 1000))
    events = ready.get(sock.fileno(), 0) if sock is not None else 0
    stirred = Readiness.NONE if not events else Readiness.WRITABLE if events == select.POLLOUT else Readiness.READABLE
    return stirred, peer is not None and peer.fileno() in ready


def _poll(sock: HasFileno | None, events: int, peer: Peer | None) -> "select.poll":
    poll = select.poll()
    if sock is not None:
        poll.register(sock, events)
    if peer is not None:
        poll.register(peer.fileno(), _CLIENT_LEAVES or select.POLLIN)
    return poll


def _select(sock: HasFileno | None, for_writing: bool, seconds: float, peer: Peer | None) -> tuple[Readiness, bool]:
    """The same for systems without poll (Windows)."""
    own = [sock.fileno()] if sock is not None else []
    reading, writing = own + ([peer.fileno()] if peer is not None else []), own if for_writing else []
    if not reading and not writing:
        # Windows refuses to wait for nothing.
        time.sleep(max(0.0, seconds))
        return Readiness.NONE, False
    # Windows tells a connect that failed as something exceptional.
    reads, writes, failed = select.select(reading, writing, writing, max(0.0, seconds))
    stirred = Readiness.READABLE if any(each in reads for each in own) else Readiness.NONE
    if stirred is Readiness.NONE and (writes or failed):
        stirred = Readiness.WRITABLE
    return stirred, peer is not None and peer.fileno() in reads


def has_left(peer: Peer) -> bool:
    """Whether the client closed its connection or half of it; its socket is asked, whatever an event said before."""
    if not _CLIENT_LEAVES:
        return peer.has_left()
    # Unlike a look at what there is to read, this also knows of one that closed after sending another request.
    return bool(_poll(None, 0, peer).poll(0))


def _raise_if_over(peer: Peer) -> None:
    if peer.close_reason is not None:
        raise peer.close_reason
    if has_left(peer):
        raise ClientGone
