"""The clients that are connected, and how far the end of the server has come."""

import threading
from enum import IntEnum

from deepseek_cursor_proxy.net.deadline import Deadline
from deepseek_cursor_proxy.net.wakeup import Wakeup
from deepseek_cursor_proxy.server.client_connection import ClientConnection


class Stage(IntEnum):
    """How far the end of the server has come."""

    SERVING = 0
    LAST_ANSWERS = 1
    LAST_WORDS = 2
    OVER = 3


class Connections:
    """Who is connected. Called by the accepting thread, handler threads and whoever stops the server."""

    def __init__(self) -> None:
        # Protects all below; notified whenever somebody leaves.
        self._changed = threading.Condition()
        # Counted from their admission on, because a thread may take its time to begin.
        self._count = 0
        self._open: set[ClientConnection] = set()
        self._stage = Stage.SERVING
        self.stopping = Wakeup()

    def __len__(self) -> int:
        return self._count

    def admit(self, limit: int) -> bool:
        """Whether there is room for one more, who is then counted until `leave`."""
        with self._changed:
            has_room = self._count < limit
            self._count += has_room
        return has_room

    def leave(self) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def serve(self, connection: ClientConnection) -> None:
        """Serve it, within reach of whoever stops the server."""
        with self._changed:
            self._open.add(connection)
            stage = self._stage
        _tell(connection, stage)
        try:
            connection.serve()
        finally:
            with self._changed:
                self._open.discard(connection)

    def stop(self, stage: Stage) -> None:
        """Tell everybody, also those who are only just coming in."""
        with self._changed:
            self._stage = stage
            connections = list(self._open)
        for each in connections:
            _tell(each, stage)
        self.stopping.set()

    def close(self) -> None:
        """After the last stage; what somebody still waits for is left to its thread."""
        with self._changed:
            if not self._count:
                self.stopping.close()

    def wait_until_empty(self, seconds: float) -> None:
        deadline = Deadline.after(seconds)
        with self._changed:
            while self._count and (left := deadline.left) > 0:
                self._changed.wait(left)


def _tell(connection: ClientConnection, stage: Stage) -> None:
    match stage:
        case Stage.SERVING:
            return
        case Stage.LAST_ANSWERS:
            # No request is read any more; connections in the middle of an answer end after it.
            connection.stop_after_response()
        case Stage.LAST_WORDS:
            connection.end_response()
        case Stage.OVER:
            connection.abort()
