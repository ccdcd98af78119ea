"""Signals, as requests that the main thread reads one after the other.

SIGINT, SIGTERM and Windows' Ctrl-Break ask to stop; the second of them ends the process where it is. One that comes
within a second of the first is the same wish: `timeout` signals the process and then its group, and so do some
runners at Ctrl-C. SIGHUP asks to read the settings again, unless it came because the terminal was closed: then it asks
to stop, as it does for every program that runs in one.
Handlers run between two instructions of the main thread. So they take no lock that it may hold, and print nothing by
way of its buffers: they put a word into a queue that allows for that.
"""

import contextlib
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterator
from enum import Enum
from types import FrameType, TracebackType

from deepseek_cursor_proxy.observers import log_lines

# Ctrl-Break exists on Windows only.
_STOPPING = (signal.SIGINT, signal.SIGTERM, *([signal.SIGBREAK] if hasattr(signal, "SIGBREAK") else []))
# Windows knows no such signal.
_HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)
_LAST_LINE = "deepseek-cursor-proxy: asked to stop twice, so it ends at once; running answers are cut off.\n"
# Two signals of one program are microseconds apart; a person who wants it to end now asks again.
_SAME_WISH_SECONDS = 1.0
# For a log that stands still nobody waits who has asked twice.
_LAST_LINE_SECONDS = 0.2


class Asked(Enum):
    STOP = "stop"
    RELOAD = "reload"


class Signals:
    """As a context: what signals did before is put back afterwards. Used by the main thread."""

    def __init__(self) -> None:
        self.is_stopping = False
        self._stopped_at = 0.0
        # Called before the process ends at once; from a handler, so they must neither wait nor take locks.
        self.last_resorts: list[Callable[[], None]] = []
        self._asked: queue.SimpleQueue[Asked] = queue.SimpleQueue()
        self._give_up: Callable[[], None] = _nothing
        self._before: dict[signal.Signals, object] = {}
        self._terminal: list[int] = []

    def __enter__(self) -> "Signals":
        self._terminal = [descriptor for descriptor in (0, 1, 2) if _is_terminal(descriptor)]
        for number in (*_STOPPING, *([_HANGUP] if _HANGUP else [])):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def wait(self) -> Asked:
        """What is asked for next."""
        while True:
            # In turns: on Windows a wait without an end lets no Ctrl-C through.
            with contextlib.suppress(queue.Empty):
                return self._asked.get(timeout=0.5)

    @contextlib.contextmanager
    def interrupting(self, give_up: Callable[[], None]) -> Iterator[None]:
        """Whoever asks to stop while this lasts does not wait for it: `give_up` is called from the handler."""
        self._give_up = give_up
        try:
            yield
        finally:
            self._give_up = _nothing

    # From the handler …

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == _HANGUP:
            self._hang_up()
        elif not self.is_stopping:
            self._stop()
        elif time.monotonic() - self._stopped_at >= _SAME_WISH_SECONDS:
            self._end_now(number)

    def _stop(self) -> None:
        self.is_stopping = True
        self._stopped_at = time.monotonic()
        self._asked.put(Asked.STOP)
        self._give_up()

    def _hang_up(self) -> None:
        lost = [descriptor for descriptor in self._terminal if not _is_terminal(descriptor)]
        if not lost:
            self._asked.put(Asked.RELOAD)
            return
        # A shell and the system may both tell, but there is only one terminal to lose.
        self._terminal = []
        point_nowhere(lost)
        # Whoever started us with `nohup` wanted us to stay.
        if self._before.get(signal.Signals(signal.SIGHUP)) != signal.SIG_IGN and not self.is_stopping:
            self._stop()

    def _end_now(self, number: int) -> None:
        for each in self.last_resorts:
            with contextlib.suppress(Exception):
                each()
        with contextlib.suppress(Exception):
            sys.stderr.write(_LAST_LINE)
            log_lines.drain(_LAST_LINE_SECONDS)
        # What a shell says of a program that died of this signal.
        os._exit(128 + number)


def _nothing() -> None:
    """What the first signal does besides, most of the time."""


def _is_terminal(descriptor: int) -> bool:
    """False for one that was hung up, too: nothing can be asked of it any more."""
    return os.isatty(descriptor)


def point_nowhere(descriptors: list[int]) -> None:
    """Writing to a terminal that is gone fails; there is nobody left to read it anyway."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in descriptors:
            os.dup2(nowhere, descriptor)
        os.close(nowhere)
