"""Signals, turned into requests that the main thread reads from a queue.

SIGINT, SIGTERM and Windows' Ctrl-Break ask to stop; the second of them ends the process at once. A signal within a
fifth of a second of the first counts as the same: `timeout` signals the process and then its group, and so do some
runners at Ctrl-C. SIGHUP asks to reload the settings, unless it came because the terminal was closed: then it asks to
stop, as it does for every program in a terminal.

Handlers run between two instructions of the main thread. So they take no lock that it may hold and print through no
buffer: they only put a request into a SimpleQueue, which is reentrant.
"""

import contextlib
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType

from deepseek_cursor_proxy.observers import standard_streams

# SIGBREAK, Ctrl-Break, exists on Windows only.
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGBREAK] if hasattr(signal, "SIGBREAK") else []))
# Windows has no SIGHUP.
_HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)
_LAST_LINE = "deepseek-cursor-proxy: asked to stop twice, so it ends at once; running answers are cut off.\n"
# Two signals of one program are microseconds apart; a person who reads that a second Ctrl-C helps takes longer.
_DUPLICATE_SECONDS = 0.2
# The wait for a blocked log after the second signal.
_LAST_LINE_SECONDS = 0.2


class Signals:
    """A context that handles signals and restores the former handlers. Used by the main thread."""

    def __init__(self) -> None:
        self.is_stopping = False
        self._stopped_at = 0.0
        # For each request whether it is one to reload.
        self._requests: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._on_stop: Callable[[], None] | None = None
        self._before: dict[signal.Signals, object] = {}
        self._terminal: list[int] = []

    def __enter__(self) -> "Signals":
        self._terminal = [descriptor for descriptor in (0, 1, 2) if os.isatty(descriptor)]
        for number in (*_STOP_SIGNALS, *([_HANGUP] if _HANGUP else [])):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def wait(self) -> bool:
        """Wait for a request: True to reload the settings, False to stop."""
        while True:
            # With a timeout: on Windows a wait without one blocks Ctrl-C.
            with contextlib.suppress(queue.Empty):
                return self._requests.get(timeout=0.5)

    @contextlib.contextmanager
    def call_on_stop(self, on_stop: Callable[[], None]) -> Iterator[None]:
        """In this context the handler also calls `on_stop` for a request to stop."""
        self._on_stop = on_stop
        try:
            yield
        finally:
            self._on_stop = None

    # In the handler …

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == _HANGUP:
            self._hang_up()
        elif not self.is_stopping:
            self._stop()
        elif time.monotonic() - self._stopped_at >= _DUPLICATE_SECONDS:
            self._end_now(number)

    def _stop(self) -> None:
        self.is_stopping = True
        self._stopped_at = time.monotonic()
        self._requests.put(False)
        if self._on_stop is not None:
            self._on_stop()

    def _hang_up(self) -> None:
        # A closed one is no longer a terminal.
        lost = [descriptor for descriptor in self._terminal if not os.isatty(descriptor)]
        if not lost:
            self._requests.put(True)
            return
        # The shell and the system may both send SIGHUP for one closed terminal.
        self._terminal = []
        redirect_to_null(lost)
        # `nohup` ignores SIGHUP: the process stays.
        if self._before.get(signal.Signals(signal.SIGHUP)) != signal.SIG_IGN and not self.is_stopping:
            self._stop()

    def _end_now(self, number: int) -> None:
        with contextlib.suppress(Exception):
            sys.stderr.write(_LAST_LINE)
            standard_streams.drain(_LAST_LINE_SECONDS)
        # The exit code of a shell for a program that died of this signal.
        os._exit(128 + number)


def redirect_to_null(descriptors: list[int]) -> None:
    """Point descriptors of a closed terminal to the null device, because writing to them fails."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in descriptors:
            os.dup2(null, descriptor)
        os.close(null)
