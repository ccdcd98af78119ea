"""The clients of one listener: accepted in a loop, each served on a thread of its own, all stopped in stages.

A client beyond the limit gets a refusal, and the time to read it. When no descriptors are left, clients wait in the
system's queue.
"""

import errno
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from typing import Any

from deepseek_cursor_proxy.errors import ClientGone, Overloaded
from deepseek_cursor_proxy.net.threads import ReusedThreads
from deepseek_cursor_proxy.net.wait import ReadWaiter, Wakeup, pause
from deepseek_cursor_proxy.server.client_connection import ClientConnection, ServerContext, StopStage, encode_refusal

_log = logging.getLogger(__name__)

_FOR_EVER_SECONDS = 86400.0
# How many clients beyond the limit have a thread that waits until they have read the refusal.
_MOST_REFUSED = 128
# How long no client is accepted when that fails, as it does without descriptors.
_PAUSE_SECONDS = 0.05
_SECONDS_BETWEEN_WARNINGS = 30.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# An aborted connection ends within moments.
_CLOSE_SECONDS = 1.0


class Connections:
    """One thread accepts, those of the connections serve, any thread stops them.

    `_changed` protects all fields, and is notified when a connection ends and when `accept` is over.
    """

    def __init__(self, name: str, too_many: Overloaded) -> None:
        """`too_many` is what a client beyond the limit reads. Raises OSError when no descriptors are left."""
        self._threads = ReusedThreads(name)
        self._too_many = too_many
        # Set, it ends `accept`.
        self._end = Wakeup()
        self._changed = threading.Condition()
        self._is_accepting = False
        self._open: set[ClientConnection] = set()
        self._stage = StopStage.SERVING
        self._warned_at = float("-inf")

    def __len__(self) -> int:
        return self._threads.busy

    # Accepting …

    def accept(self, listener: socket.socket, on_accept: Callable[[socket.socket, Any], object]) -> None:
        """Accept clients until `stop_accepting`; whatever happens to one, the next is accepted."""
        with self._changed:
            if self._end.has_left():
                # Stopped before it started; the listener may be closed by now.
                return
            self._is_accepting = True
        try:
            listener.setblocking(False)
            waiter = ReadWaiter(listener, self._end)
            with suppress(ClientGone):
                while True:
                    if waiter.wait(_FOR_EVER_SECONDS):
                        self._accept_one(listener, on_accept)
        finally:
            with self._changed:
                self._is_accepting = False
                self._changed.notify_all()

    def stop_accepting(self) -> None:
        """Returns when no client is accepted any more; before `accept`, none will be."""
        with self._changed:
            self._end.set()
            self._changed.wait_for(lambda: not self._is_accepting)

    def _accept_one(self, listener: socket.socket, on_accept: Callable[[socket.socket, Any], object]) -> None:
        try:
            sock, address = listener.accept()
        except (BlockingIOError, ConnectionError):
            # That client has left already.
            return
        except OSError as error:
            if error.errno in _EXHAUSTED and time.monotonic() - self._warned_at >= _SECONDS_BETWEEN_WARNINGS:
                self._warned_at = time.monotonic()
                _log.warning("no client can be accepted (%s); raise the limit of open files", error.strerror)
            pause(_PAUSE_SECONDS, self._end)
            return
        try:
            on_accept(sock, address)
        except Exception as error:
            # A bug costs one client, not all that come after it.
            _log.error("unexpected %s while accepting a client", type(error).__name__)
            sock.close()

    # Serving …

    def start(self, sock: socket.socket, most: int, serve: Callable[[], None], server: ServerContext) -> None:
        """Have a thread call `serve` for an accepted client, or refuse the client if there are `most` already."""
        count = len(self)
        if count < most:
            has_thread = self._threads.start(serve)
        else:
            refuse = partial(self.serve, ClientConnection(sock, server), self._too_many)
            has_thread = count < most + _MOST_REFUSED and self._threads.start(refuse)
        if not has_thread:
            with closing(sock), suppress(OSError):
                sock.send(encode_refusal(self._too_many))

    def serve(self, connection: ClientConnection, refusal: Overloaded | None = None) -> None:
        """Serve the connection until it ends; on its thread."""
        with self._changed:
            self._open.add(connection)
            if self._stage:
                connection.stop(self._stage)
        try:
            connection.serve(refusal)
        finally:
            connection.close()
            with self._changed:
                self._open.discard(connection)
                self._changed.notify_all()

    def stop(self, stage: StopStage, seconds: float) -> None:
        """Bring all connections to this stage, and wait for their ends, for `seconds` at most."""
        with self._changed:
            self._stage = stage
            for connection in self._open:
                connection.stop(stage)
            self._changed.wait_for(lambda: not self._open, max(0.0, seconds))

    def close(self) -> None:
        """After the last stage."""
        self._threads.close(_CLOSE_SECONDS)
        self._end.close()
