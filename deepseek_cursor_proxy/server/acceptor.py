"""Accepts clients, and rejects those beyond the limits with a reply they can read.

One thread runs the loop and never waits for a single client. A rejected client is sent a reply, and what it sends is
read for a moment, because closing a socket with unread bytes resets the connection, and the reply is lost. When no
descriptor is left, one held in reserve serves to reply. The loop goes on whatever happens, and without spinning.
"""

import contextlib
import errno
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from deepseek_cursor_proxy.net.deadline import Deadline
from deepseek_cursor_proxy.net.wakeup import Wakeup

_log = logging.getLogger(__name__)

OnAccept = Callable[[socket.socket, Any], None]

# A burst is accepted without a poll after every single client.
_ACCEPTS_AT_ONCE = 64
# How long, and from how many rejected clients at a time, we go on reading.
_LINGER_SECONDS = 1.0
_MOST_LINGERING = 128
# How long the loop sleeps when not even the reserve is left.
_PAUSE_SECONDS = 0.05
_SECONDS_BETWEEN_WARNINGS = 30.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """`run` runs once, on one thread, and calls `on_accept`, which may call `reject`; any thread may call `stop`."""

    def __init__(self, listener: socket.socket, on_accept: OnAccept, rejection: bytes) -> None:
        self._listener = listener
        self._on_accept = on_accept
        self._rejection = rejection
        self._is_stopping = threading.Event()
        self._is_running = False
        # Protects `_wakeup` and `_is_running`; notified when `run` is over.
        self._changed = threading.Condition()
        self._wakeup: Wakeup | None = None
        self._reserve: int | None = None
        self._lingering_clients: dict[socket.socket, Deadline] = {}
        self._warned_at = float("-inf")

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            selector = stack.enter_context(selectors.DefaultSelector())
            wakeup = stack.enter_context(contextlib.closing(Wakeup()))
            stack.callback(self._end)
            with self._changed:
                if self._is_stopping.is_set():
                    # Stopped before it started; the listener may be closed by now.
                    return
                self._wakeup, self._is_running = wakeup, True
            self._reserve = _descriptor()
            self._listener.setblocking(False)
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(wakeup, selectors.EVENT_READ)
            self._selector = selector
            while not self._is_stopping.is_set():
                self._poll_once()

    def stop(self) -> None:
        """Returns when no client is accepted any more; before `run`, none will be."""
        with self._changed:
            self._is_stopping.set()
            if self._wakeup is not None:
                self._wakeup.set()
            self._changed.wait_for(lambda: not self._is_running)

    def reject(self, sock: socket.socket) -> None:
        """Send the rejection, and close once the client has had the time to read it."""
        if self._send_rejection(sock):
            self._lingering_clients[sock] = Deadline.after(_LINGER_SECONDS)
            self._selector.register(sock, selectors.EVENT_READ)
            if len(self._lingering_clients) > _MOST_LINGERING:
                self._drop(next(iter(self._lingering_clients)))

    def _poll_once(self) -> None:
        timeout = max(0.0, min(self._lingering_clients.values()).left) if self._lingering_clients else None
        for key, _ in self._selector.select(timeout):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj in self._lingering_clients:
                self._discard_input(key.fileobj)
        for sock in [sock for sock, deadline in self._lingering_clients.items() if deadline.is_over]:
            self._drop(sock)

    def _accept(self) -> None:
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

    # Rejecting …

    def _reject_without_descriptor(self, error: OSError) -> None:
        """Free the descriptors of lingering clients, and use the reserve to reply to one client."""
        self._warn(error)
        for sock in list(self._lingering_clients):
            self._drop(sock)
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
            self._is_stopping.wait(_PAUSE_SECONDS)

    def _warn(self, error: OSError) -> None:
        now = time.monotonic()
        if now - self._warned_at >= _SECONDS_BETWEEN_WARNINGS:
            self._warned_at = now
            _log.warning("a client was turned away (%s); raise the limit of open files", error.strerror)

    def _send_rejection(self, sock: socket.socket) -> bool:
        """Whether the client was still there; closes the socket otherwise."""
        try:
            sock.setblocking(False)
            # The empty send buffer of a new connection takes so few bytes.
            sock.send(self._rejection)
            sock.shutdown(socket.SHUT_WR)
            return True
        except OSError:
            sock.close()
            return False

    def _discard_input(self, sock: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                if sock.recv(65536):
                    return
            except ConnectionError:
                pass
            self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        del self._lingering_clients[sock]
        self._selector.unregister(sock)
        sock.close()

    def _end(self) -> None:
        for sock in list(self._lingering_clients):
            self._drop(sock)
        if self._reserve is not None:
            os.close(self._reserve)
        with self._changed:
            self._wakeup, self._is_running = None, False
            self._changed.notify_all()


def _descriptor() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return None
