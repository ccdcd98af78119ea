"""Waiting for sockets, and for the client meanwhile.

Whoever waits for DeepSeek also watches the client on the other side: somebody who leaves is noticed at once, while
nothing is being written to him, and so is our own wish to part with him. Nothing here reads or writes.
"""

import select
import socket
import time
from enum import Enum

from deepseek_cursor_proxy.errors import ClientGone
from deepseek_cursor_proxy.wire import Peer

# How often a wait that nothing can interrupt looks whether the proxy is to stop.
_LOOK_UP_SECONDS = 0.5
# Linux can tell a closing client from one that sends more; elsewhere its socket has to be looked into.
_CLIENT_LEAVES = getattr(select, "POLLRDHUP", 0)
_CAN_POLL = hasattr(select, "poll")


class Stirred(Enum):
    """What a socket turned out to be ready for."""

    NOTHING = "nothing"
    READABLE = "readable"
    WRITABLE = "writable"


class Watch:
    """Waits until one socket can be read, again and again. Used by one thread."""

    def __init__(self, sock: socket.socket, peer: Peer | None = None) -> None:
        self.peer = peer
        self._sock = sock
        self._fileno = sock.fileno()
        # Where a client that sends more has to be told from one that leaves, it is asked for anew each time.
        self._poll = _poll(sock, select.POLLIN, peer) if _CLIENT_LEAVES or (peer is None and _CAN_POLL) else None

    def readable(self, seconds: float) -> bool:
        """Whether there is something to read within that time; raises, as `pause` does, when the peer goes first."""
        if self._poll is None:
            return wait(self._sock, False, seconds, self.peer) is Stirred.READABLE
        ready = self._poll.poll(max(0.0, seconds) * 1000)
        if self.peer is not None and ready and (len(ready) > 1 or ready[0][0] != self._fileno):
            _raise_if_over(self.peer, is_closed=True)
        return bool(ready)


def pause(seconds: float, peer: Peer | None) -> None:
    """Let that time pass; raises ClientGone as soon as the peer leaves, or what it has to be told when we part."""
    wait(None, False, seconds, peer)


def wait_readable(sock: socket.socket, seconds: float, peer: Peer | None) -> bool:
    """Whether the socket has something to read within that time; raises, as `pause` does, when the peer goes first."""
    return wait(sock, False, seconds, peer) is Stirred.READABLE


def wait_writable(sock: socket.socket, seconds: float, peer: Peer | None) -> bool:
    """The same for writing; also true when the attempt to connect has failed."""
    return wait(sock, True, seconds, peer) is not Stirred.NOTHING


def can_write(sock: socket.socket, seconds: float) -> bool:
    """Whether the socket takes something within that time, whatever there is to read from it."""
    if not _CAN_POLL:
        return bool(select.select([], [sock], [], max(0.0, seconds))[1])
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def wait(sock: socket.socket | None, for_writing: bool, seconds: float, peer: Peer | None) -> Stirred:
    """What the socket is ready for within that time. The peer comes first: a busy DeepSeek must not hide its end."""
    if not _CAN_POLL:
        return _select(sock, for_writing, seconds, peer)
    poll = _poll(sock, select.POLLIN | (select.POLLOUT if for_writing else 0), peer)
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


def _poll(sock: socket.socket | None, events: int, peer: Peer | None) -> "select.poll":
    poll = select.poll()
    if sock is not None:
        poll.register(sock, events)
    if peer is not None:
        poll.register(peer.fileno(), _CLIENT_LEAVES or select.POLLIN)
    return poll


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
