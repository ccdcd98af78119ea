"""One streamed answer on its way to a client: by the client's own thread or, in a crowd, by the pump.

Whoever drives it, a piece is one write. What the client's thread may wait for (a reader, DeepSeek, the disk), the pump
leaves to it.
"""

from collections.abc import Callable
from typing import Protocol

from deepseek_cursor_proxy.http1 import bodies
from deepseek_cursor_proxy.http1.messages import Body, Peer, WaitHandle
from deepseek_cursor_proxy.server.stream_loop import StreamLoop

# One that never pauses is left to its own thread, so that it does not keep others waiting.
_MOST_PIECES = 8


class Client(Peer, Protocol):
    """Who the answer goes to."""

    def send(self, data: bytes) -> None:
        """Send everything, however long that takes."""
        ...

    def send_now(self, data: bytes) -> int:
        """Send what can be sent without waiting; how much that was."""
        ...


class StreamSender:
    """Used by one thread at a time: the client's, or the pump's while that one sleeps."""

    def __init__(self, client: Client, body: Body, head: bytes, *, is_chunked: bool) -> None:
        self.peer: Client = client
        self._head = head
        self._body = body
        self._pieces = iter(body)
        self._framed: Callable[[bytes], bytes] = bodies.chunk if is_chunked else bytes
        self._end = bodies.LAST_CHUNK if is_chunked else b""
        self._unsent = b""

    def run(self, pump: StreamLoop) -> None:
        """Pass on the whole answer. Called by the client's thread."""
        # What goes out with the next piece.
        held = self._head
        if self._body.wait_handle is None:
            # The first piece may take its time, and the client shall know by then that there will be one.
            self.peer.send(held)
            held = b""
        with pump.counting() as is_crowded:
            for piece in self._pieces:
                if self._body.is_over:
                    held += self._framed(b"".join([piece, *self._pieces]))
                    break
                if held or piece:
                    self.peer.send(held + self._framed(piece))
                    held = b""
                wait_handle = self._body.wait_handle
                if wait_handle is not None and (not piece or wait_handle.is_drained):
                    if is_crowded:
                        self._leave_to(pump, wait_handle)
                    else:
                        wait_handle.wait()
        if held or self._end:
            self.peer.send(held + self._end)

    def _leave_to(self, pump: StreamLoop, wait_handle: WaitHandle) -> None:
        pump.drive(self, wait_handle)
        unsent, self._unsent = self._unsent, b""
        self.peer.send(unsent)

    def advance(self) -> WaitHandle | None:
        """Pass on what there is, waiting for nobody; what to wait for then, None when the client's thread has to."""
        for _ in range(_MOST_PIECES):
            piece = next(self._pieces, None)
            if piece is None:
                return None
            data = self._framed(piece) if piece else b""
            if (sent := self.peer.send_now(data) if data else 0) < len(data):
                self._unsent = data[sent:]
                return None
            wait_handle = self._body.wait_handle
            if wait_handle is None or not piece or wait_handle.is_drained:
                return wait_handle
        return None
