"""The open client connections: how many there are, and the stages in which the server stops them."""

import threading
from enum import IntEnum

from deepseek_cursor_proxy.net.deadline import Deadline
from deepseek_cursor_proxy.net.wakeup import Wakeup
from deepseek_cursor_proxy.server.client_connection import ClientConnection


class StopStage(IntEnum):
    """How far the stop of the server has come."""

    SERVING = 0
    # No request is read any more; connections end after the response they send.
    FINISH_RESPONSES = 1
    # Responses end where they are, with an error for the client.
    END_RESPONSES = 2
    ABORT = 3


class Connections:
    """Called by the accepting thread, handler threads and the thread that stops the server."""

    def __init__(self) -> None:
        # Protects all below; notified when a connection ends.
        self._changed = threading.Condition()
        # Counted from `try_acquire` on, because a thread may take its time to start.
        self._count = 0
        self._open: set[ClientConnection] = set()
        self._stage = StopStage.SERVING
        self.stop_wakeup = Wakeup()

    def __len__(self) -> int:
        return self._count

    def try_acquire(self, limit: int) -> bool:
        """Whether one more connection is within the limit; it is then counted until `release`."""
        with self._changed:
            has_space = self._count < limit
            self._count += has_space
        return has_space

    def release(self) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def serve(self, connection: ClientConnection) -> None:
        """Serve a connection to its end; `stop` reaches it meanwhile."""
        with self._changed:
            self._open.add(connection)
            stage = self._stage
        _stop(connection, stage)
        try:
            connection.serve()
        finally:
            with self._changed:
                self._open.discard(connection)

    def stop(self, stage: StopStage) -> None:
        """Bring all connections to this stage, also those whose threads are about to start."""
        with self._changed:
            self._stage = stage
            connections = list(self._open)
        for each in connections:
            _stop(each, stage)
        self.stop_wakeup.set()

    def close(self) -> None:
        """After the last stage; a thread that still waits for `stop_wakeup` keeps its descriptors."""
        with self._changed:
            if not self._count:
                self.stop_wakeup.close()

    def wait_until_empty(self, seconds: float) -> None:
        deadline = Deadline.after(seconds)
        with self._changed:
            while self._count and (left := deadline.left) > 0:
                self._changed.wait(left)


def _stop(connection: ClientConnection, stage: StopStage) -> None:
    match stage:
        case StopStage.SERVING:
            return
        case StopStage.FINISH_RESPONSES:
            connection.stop_after_response()
        case StopStage.END_RESPONSES:
            connection.end_response()
        case StopStage.ABORT:
            connection.abort()
