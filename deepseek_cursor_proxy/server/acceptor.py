"""Accepts clients, and rejects those beyond the limits with a reply they can read.

It runs in the event loop and never waits for a single client. A rejected client is sent a reply, and what it sends is
read for a moment, because closing a socket with unread bytes resets the connection, and the reply is lost. When no
descriptor is left, one held in reserve serves to reply. Accepting goes on whatever happens, and without spinning.
"""

import contextlib
import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from deepseek_cursor_proxy.net.deadline import Deadline
from deepseek_cursor_proxy.server.event_loop import READ, EventLoop

_log = logging.getLogger(__name__)

OnAccept = Callable[[socket.socket, Any], None]

# A burst is accepted without a poll after every single client.
_ACCEPTS_AT_ONCE = 64
# How long, and from how many rejected clients at a time, we go on reading.
_LINGER_SECONDS = 1.0
_MOST_LINGERING = 128
# How long no client is accepted when not even the reserve is left.
_PAUSE_SECONDS = 0.05
_SECONDS_BETWEEN_WARNINGS = 30.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """`run` runs once, on one thread, which alone calls the other methods; any thread may call `stop`."""

    _listener: socket.socket

    def __init__(self, loop: EventLoop, on_accept: OnAccept, rejection: bytes) -> None:
        self._loop = loop
        self._on_accept = on_accept
        self._rejection = rejection
        self._is_stopping = threading.Event()
        # Protects `_is_running`; notified when `run` is over.
        self._changed = threading.Condition()
        self._is_running = False
        self._reserve: int | None = None
        self._lingering_clients: dict[socket.socket, _LingeringClient] = {}
        self._warned_at = float("-inf")
        # When clients are accepted again.
        self.until = 0.0

    def run(self, listener: socket.socket) -> None:
        """Run the loop, and accept clients, until `stop`."""
        with self._changed:
            if self._is_stopping.is_set():
                # Stopped before it started; the listener may be closed by now.
                return
            self._is_running = True
        try:
            self._reserve = _descriptor()
            self._listener = listener
            listener.setblocking(False)
            self._loop.selector.register(listener, READ, self._accept)
            self._loop.run_until(self._is_stopping.is_set)
        finally:
            self._end()

    def stop(self) -> None:
        """Returns when no client is accepted any more; before `run`, none will be."""
        with self._changed:
            self._is_stopping.set()
            self._loop.post(lambda: None)
            self._changed.wait_for(lambda: not self._is_running)

    def reject(self, sock: socket.socket) -> None:
        """Send the rejection, and close once the client has had the time to read it."""
        if self._send_rejection(sock):
            self._lingering_clients[sock] = client = _LingeringClient(self, sock)
            self._loop.selector.register(sock, READ, client.on_input)
            self._loop.add_timed(client)
            if len(self._lingering_clients) > _MOST_LINGERING:
                self.drop(next(iter(self._lingering_clients)))

    def _accept(self, events: int) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._reject_without_descriptor(error)
                    return
                # That client has left already.
                continue
            # BSD and macOS hand the listener's mode on.
            sock.setblocking(True)
            try:
                self._on_accept(sock, address)
            except Exception as error:
                # A bug costs one client, not all that come after it.
                _log.error("unexpected %s while letting a client in", type(error).__name__)
                sock.close()

    def _pause(self, seconds: float) -> None:
        self.until = Deadline.after(seconds)
        self._loop.selector.unregister(self._listener)
        self._loop.add_timed(self)

    # Rejecting …

    def _reject_without_descriptor(self, error: OSError) -> None:
        """Free the descriptors of lingering clients, and use the reserve to reply to one client."""
        self._warn(error)
        for sock in list(self._lingering_clients):
            self.drop(sock)
        if self._reserve is not None:
            os.close(self._reserve)
            with contextlib.suppress(OSError):
                sock, _ = self._listener.accept()
                with contextlib.closing(sock):
                    if self._send_rejection(sock):
                        # Only what has arrived by now: this must not wait.
                        sock.recv(65536)
        self._reserve = _descriptor()
        if self._reserve is None:
            self._pause(_PAUSE_SECONDS)

    def on_due(self) -> None:
        """Accept clients again."""
        self._loop.timed.discard(self)
        self._loop.selector.register(self._listener, READ, self._accept)
        # Those that are still there.
        self._accept(READ)

    def _warn(self, error: OSError) -> None:
        now = time.monotonic()
        if now - self._warned_at >= _SECONDS_BETWEEN_WARNINGS:
            self._warned_at = now
            _log.warning("a client was turned away (%s); raise the limit of open files", error.strerror)

    def _send_rejection(self, sock: socket.socket) -> bool:
        """Send the rejection; if the client has left, close the socket and return False."""
        try:
            sock.setblocking(False)
            # The send buffer of a new connection is empty, and takes these few bytes at once.
            sock.send(self._rejection)
            sock.shutdown(socket.SHUT_WR)
            return True
        except OSError:
            sock.close()
            return False

    def drop(self, sock: socket.socket) -> None:
        if (client := self._lingering_clients.pop(sock, None)) is not None:
            self._loop.timed.discard(client)
            self._loop.selector.unregister(sock)
            sock.close()

    def _end(self) -> None:
        if self in self._loop.timed:
            self._loop.timed.discard(self)
        else:
            self._loop.selector.unregister(self._listener)
        for sock in list(self._lingering_clients):
            self.drop(sock)
        if self._reserve is not None:
            os.close(self._reserve)
        with self._changed:
            self._is_running = False
            self._changed.notify_all()


class _LingeringClient:
    """A rejected client that may still send: reading its bytes keeps the connection from being reset."""

    def __init__(self, acceptor: Acceptor, sock: socket.socket) -> None:
        self._acceptor = acceptor
        self._sock = sock
        self.until = Deadline.after(_LINGER_SECONDS)

    def on_due(self) -> None:
        self._acceptor.drop(self._sock)

    def on_input(self, events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                if self._sock.recv(65536):
                    return
            except ConnectionError:
                pass
            self._acceptor.drop(self._sock)


def _descriptor() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return None
