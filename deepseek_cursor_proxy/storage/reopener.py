"""Coming back to a file that cannot be used, off the way of any answer, and telling people about it once."""

import logging
import threading
import time
from collections.abc import Callable

from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.threads import started

_FIRST_DELAY_SECONDS = 0.25
_LONGEST_DELAY_SECONDS = 5.0
# A file that comes and goes is news only now and then.
_SECONDS_BETWEEN_WARNINGS = 30.0


class Reopener:
    """Runs `mend` until it succeeds, on a thread that exists only meanwhile. The lock protects thread and wish."""

    def __init__(self, mend: Callable[[], bool], *, name: str) -> None:
        self._reopen = mend
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_wanted = False
        self._closing = threading.Event()

    def wake(self) -> None:
        """There is something to mend; returns at once."""
        with self._lock:
            self._is_wanted = True
            if self._thread is None and not self._closing.is_set():
                self._thread = started(self._run, self._name)

    def wait(self, timeout: float) -> bool:
        """Whether everything is mended by then."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout)
        return thread is None or not thread.is_alive()

    def close(self) -> None:
        """Give up, and wait for a try that runs; idempotent."""
        self._closing.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        delay = _FIRST_DELAY_SECONDS
        while True:
            with self._lock:
                self._is_wanted = False
            is_mended = self._reopen()
            with self._lock:
                if self._closing.is_set() or (is_mended and not self._is_wanted):
                    self._thread = None
                    return
            if not is_mended:
                self._closing.wait(delay)
                delay = min(2 * delay, _LONGEST_DELAY_SECONDS)


class OutageLog:
    """Tells once when the file cannot be used, and once when it can again. Used by one thread at a time."""

    def __init__(self, log: logging.Logger, path: str) -> None:
        self._log = log
        self._path = path
        self._is_told = False
        self._told_at = float("-inf")
        self._written = 0

    def go_on(self, fault: Unusable) -> None:
        """Another try failed."""
        now = time.monotonic()
        if not self._is_told and now - self._told_at >= _SECONDS_BETWEEN_WARNINGS:
            self._is_told, self._told_at = True, now
            self._log.warning("reasoning is kept in memory only until %s can be used: %s", self._path, fault)

    def count(self, written: int) -> None:
        """So many of those that waited are in the file now."""
        self._written += written

    def end(self) -> None:
        """A try succeeded."""
        if self._is_told:
            self._log.warning("%s is usable again; reasonings written: %d", self._path, self._written)
        self._is_told, self._written = False, 0
