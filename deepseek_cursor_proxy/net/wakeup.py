"""Wakeup: any thread ends the waits of others for sockets, on every system.

A wait takes a Wakeup in place of a socket (it ends) or of its client (it raises). Shutting down a socket
wakes the threads that wait for it as well, but not on Windows.
"""

import socket
import threading
from collections.abc import Callable

from deepseek_cursor_proxy.errors import ProxyError


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
