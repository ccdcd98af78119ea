"""What every store does around its tables: keep the file's faults from the answers, and forget in the background.

A store is a cache with a promise: it never fails an answer, and what it no longer needs is deleted by a thread that no
answer waits for. Both are the same for every table, so they are written here once. This file knows no table.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.threads import started

_SECONDS_BETWEEN_WARNINGS = 30.0


# Long enough for a thread that waits to wake up and be first; Python switches threads every 5 ms.
_SECONDS_BETWEEN_STEPS = 0.01


class Faults:
    """Swallows what goes wrong with the file. Called by handler threads; the lock protects when it last spoke."""

    def __init__(self, log: logging.Logger, store: str) -> None:
        self._log = log
        self._store = store
        self._lock = threading.Lock()
        self._warned_at = float("-inf")

    @contextmanager
    def kept_from_answers(self, doing: str) -> Iterator[None]:
        """Whatever the file does in here, the caller goes on behind it; a warning says so now and then."""
        try:
            yield
        # ValueError: a damaged row is no text any more, or not the one we wrote.
        except (Unusable, sqlite3.Error, OSError, ValueError) as error:
            self.tell(doing, error)

    def tell(self, doing: str, error: Exception) -> None:
        """A warning about what went wrong, unless there was one lately."""
        # Whoever mends the file tells about what makes it unusable.
        if not isinstance(error, Unusable) and self._is_due():
            self._log.warning("%s: could not %s (%s); answers go on without it", self._store, doing, error)

    def _is_due(self) -> bool:
        now = time.monotonic()
        with self._lock:
            is_due = now - self._warned_at >= _SECONDS_BETWEEN_WARNINGS
            self._warned_at = now if is_due else self._warned_at
        return is_due


class Pruner:
    """Runs `prune` once for many writes, on a thread of its own. The lock protects the count, the wish, the thread."""

    def __init__(self, prune: Callable[[], object], *, every: int, name: str) -> None:
        self._prune = prune
        self._every = every
        self._name = name
        self._lock = threading.Lock()
        self._writes = 0
        # What is written while it prunes may be too much as well.
        self._is_due_again = False
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def count_a_write(self, count: int = 1) -> None:
        with self._lock:
            before, self._writes = self._writes, self._writes + count
            if before // self._every == self._writes // self._every or self._closing.is_set():
                return
            if self._thread is not None:
                self._is_due_again = True
            else:
                self._thread = started(self._run, self._name)

    def close(self) -> None:
        """Start no more, and wait for one that runs; idempotent."""
        with self._lock:
            self._closing.set()
            thread = self._thread
        if thread is not None:
            thread.join()

    @property
    def is_closed(self) -> bool:
        """Whether a running pruning should stop after its current step."""
        return self._closing.is_set()

    def pause(self) -> None:
        """Between two steps: whoever takes a lock again at once leaves others waiting for it, for many steps."""
        self._closing.wait(_SECONDS_BETWEEN_STEPS)

    def _run(self) -> None:
        try:
            self._prune()
            while self._goes_on():
                self._prune()
        except BaseException:
            with self._lock:
                self._thread = None
            raise

    def _goes_on(self) -> bool:
        """Whether there is more to prune; if not, whoever writes next starts another thread."""
        with self._lock:
            goes_on, self._is_due_again = self._is_due_again and not self._closing.is_set(), False
            if not goes_on:
                self._thread = None
            return goes_on
