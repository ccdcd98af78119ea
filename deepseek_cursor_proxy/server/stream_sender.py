"""StreamSender: sends one streamed reply to its client, driven by the client's own thread or by the StreamLoop.

A piece is one write. The client's thread may block (a slow client, DeepSeek, the disk); the loop must not, and leaves
every step that may block to the client's thread.
"""

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from deepseek_cursor_proxy.errors import ClientGone, ProxyError
from deepseek_cursor_proxy.http1 import bodies
from deepseek_cursor_proxy.http1.lull import Lull, WaitHandle
from deepseek_cursor_proxy.http1.messages import Body, Peer
from deepseek_cursor_proxy.net.wait import ReadWaiter
from deepseek_cursor_proxy.server.stream_loop import StreamLoop

# A stream that never pauses is left to its own thread, so that it does not keep the others waiting.
_MAX_PIECES = 8


class StreamClient(Peer, Protocol):
    """The client that gets the reply; `send_now` does not block, and returns how many bytes it sent."""

    def send(self, data: bytes) -> None: ...

    def send_now(self, data: bytes) -> int: ...


class StreamSender:
    """Used by one thread at a time: the client's, or the loop's while that one sleeps."""

    def __init__(self, client: StreamClient, body: Body, head: bytes, *, is_chunked: bool) -> None:
        self.peer: StreamClient = client
        self._head = head
        self._body = body
        self._pieces = iter(body)
        self._frame: Callable[[bytes], bytes] = bodies.chunk if is_chunked else bytes
        self._end = bodies.LAST_CHUNK if is_chunked else b""
        self._unsent = b""
        self._handle: WaitHandle | None = None
        self._waiter: ReadWaiter

    def run(self, loop: StreamLoop) -> None:
        """Send the whole reply. Called by the client's thread."""
        # What goes out with the next piece.
        unsent = self._head
        with loop.count_stream() as is_crowded:
            wait = self._leave_to if is_crowded else self._wait
            for piece in self._pieces:
                if isinstance(piece, Lull):
                    if unsent:
                        self.peer.send(unsent)
                        unsent = b""
                    if piece.handle is not None:
                        wait(loop, piece.handle)
                elif self._body.is_finished:
                    unsent += self._frame(b"".join([piece, *self._rest()]))
                    break
                else:
                    self.peer.send(unsent + self._frame(piece))
                    unsent = b""
        if unsent or self._end:
            self.peer.send(unsent + self._end)

    def _rest(self) -> Iterator[bytes]:
        return (piece for piece in self._pieces if not isinstance(piece, Lull))

    def _wait(self, loop: StreamLoop, handle: WaitHandle) -> None:
        """Wait for the handle; an error that ends the wait is raised by the body, which has to store what it has."""
        if self._handle is not handle:
            self._handle, self._waiter = handle, ReadWaiter(handle, self.peer)
        try:
            self._waiter.wait(handle.until - time.monotonic())
        except (ClientGone, ProxyError) as error:
            handle.interrupt(error)

    def _leave_to(self, loop: StreamLoop, handle: WaitHandle) -> None:
        if not loop.drive(self, handle):
            self._wait(loop, handle)
        unsent, self._unsent = self._unsent, b""
        self.peer.send(unsent)

    def advance(self) -> WaitHandle | None:
        for _ in range(_MAX_PIECES):
            piece = next(self._pieces, None)
            if piece is None:
                return None
            if isinstance(piece, Lull):
                return piece.handle
            data = self._frame(piece)
            if (sent := self.peer.send_now(data)) < len(data):
                self._unsent = data[sent:]
                return None
        return None
