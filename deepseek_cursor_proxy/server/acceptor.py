"""The door: lets clients in, and turns away politely those for whom there is no room.

One thread stands here and never waits for a single client. Whoever is turned away is told so and listened to for a
moment, because TCP resets a reply away when it is closed on top of unread bytes. Out of descriptors, the one held in
reserve serves to tell; the loop goes on whatever happens, and without spinning.
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

Admit = Callable[[socket.socket, Any], None]

# A burst is let in without a look around after every single one.
_AT_ONCE = 64
# How long, and how many at a time, clients are listened to after they were turned away.
_LINGER_SECONDS = 1.0
_LINGERING = 128
# Nothing left to answer with: until somebody leaves.
_PAUSE_SECONDS = 0.05
_SECONDS_BETWEEN_WARNINGS = 30.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """`run` once, on one thread, which calls `admit` and may from there call `turn_away`; any may call `stop`."""

    def __init__(self, listener: socket.socket, admit: Admit, refusal: bytes) -> None:
        self._listener = listener
        self._admit = admit
        self._refusal = refusal
        self._is_stopping = threading.Event()
        self._is_running = False
        # Protects `_wakeup` and `_is_running`; notified when `run` is over.
        self._changed = threading.Condition()
        self._wakeup: Wakeup | None = None
        self._reserve: int | None = None
        self._lingering: dict[socket.socket, Deadline] = {}
        self._warned_at = float("-inf")

    def run(self) -> None:
        """Let clients in until `stop`."""
        with contextlib.ExitStack() as stack:
            selector = stack.enter_context(selectors.DefaultSelector())
            wakeup = stack.enter_context(contextlib.closing(Wakeup()))
            stack.callback(self._end)
            with self._changed:
                if self._is_stopping.is_set():
                    # Whoever stops before the start has closed the listener by now, too.
                    return
                self._wakeup, self._is_running = wakeup, True
            self._reserve = _descriptor()
            self._listener.setblocking(False)
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(wakeup, selectors.EVENT_READ)
            self._selector = selector
            while not self._is_stopping.is_set():
                self._look_around()

    def stop(self) -> None:
        """Returns when nobody is let in any more; before `run`, it will let nobody in."""
        with self._changed:
            self._is_stopping.set()
            if self._wakeup is not None:
                self._wakeup.set()
            self._changed.wait_for(lambda: not self._is_running)

    def reject(self, sock: socket.socket) -> None:
        """Answer with the refusal, and close once the client has had the time to read it."""
        if self._said_no(sock):
            self._lingering[sock] = Deadline.after(_LINGER_SECONDS)
            self._selector.register(sock, selectors.EVENT_READ)
            if len(self._lingering) > _LINGERING:
                self._let_go(next(iter(self._lingering)))

    def _look_around(self) -> None:
        # The first to have come is the first to go.
        patience = max(0.0, min(self._lingering.values()).left) if self._lingering else None
        for key, _ in self._selector.select(patience):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj in self._lingering:
                self._hear(key.fileobj)
        for sock in [sock for sock, deadline in self._lingering.items() if deadline.is_over]:
            self._let_go(sock)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._run_dry(error)
                    return
                # That client has left already; there may be others.
                continue
            # The systems that descend from BSD hand the listener's mode on.
            sock.setblocking(True)
            try:
                self._admit(sock, address)
            except Exception as error:
                # A bug of ours costs one client, not all who come after it.
                _log.error("unexpected %s while letting a client in", type(error).__name__)
                sock.close()

    # Turning away …

    def _run_dry(self, error: OSError) -> None:
        """No descriptor for another client: those who linger give theirs, and the reserve serves to say so."""
        self._warn(error)
        for sock in list(self._lingering):
            self._let_go(sock)
        if self._reserve is not None:
            os.close(self._reserve)
            with contextlib.suppress(OSError):
                sock, _ = self._listener.accept()
                with contextlib.closing(sock):
                    if self._said_no(sock):
                        # What has arrived by now; there is no room for waiting.
                        sock.recv(65536)
        self._reserve = _descriptor()
        if self._reserve is None:
            self._is_stopping.wait(_PAUSE_SECONDS)

    def _warn(self, error: OSError) -> None:
        now = time.monotonic()
        if now - self._warned_at >= _SECONDS_BETWEEN_WARNINGS:
            self._warned_at = now
            _log.warning("a client was turned away (%s); raise the limit of open files", error.strerror)

    def _said_no(self, sock: socket.socket) -> bool:
        """Whether there was anybody to say it to; closes the socket otherwise."""
        try:
            sock.setblocking(False)
            # A fresh connection has room for so little.
            sock.send(self._refusal)
            sock.shutdown(socket.SHUT_WR)
            return True
        except OSError:
            sock.close()
            return False

    def _hear(self, sock: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                if sock.recv(65536):
                    return
            except ConnectionError:
                pass
            self._let_go(sock)

    def _let_go(self, sock: socket.socket) -> None:
        del self._lingering[sock]
        self._selector.unregister(sock)
        sock.close()

    def _end(self) -> None:
        for sock in list(self._lingering):
            self._let_go(sock)
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
