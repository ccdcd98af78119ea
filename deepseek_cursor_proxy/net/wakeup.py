"""A wake-up for any number of threads that wait for sockets, on every system.

On Linux and macOS it is enough to shut down a socket to wake the thread that waits for it; on Windows nobody notices.
"""

import socket


class Wakeup:
    """Ends the waits that watch it, as a client that leaves does: once and for good. Called by any thread."""

    close_reason = None

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._is_set = False

    def fileno(self) -> int:
        return self._near.fileno()

    def has_left(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._far.close()

    def close(self) -> None:
        """Give the descriptors back; only when nobody can wait for them any more."""
        self._far.close()
        self._near.close()
