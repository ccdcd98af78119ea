"""What every store does around its tables: keep the file's faults from the answers, and forget in the background.

A store is a cache with a promise: it never fails an answer, and what it no longer needs is deleted by a thread that no
answer waits for. Both are the same for every table, so they are written here once. This file knows no table.
"""

import threading
from collections.abc import Callable

from deepseek_cursor_proxy.threads import started

# Long enough for a thread that waits to wake up and be first; Python switches threads every 5 ms.
_SECONDS_BETWEEN_STEPS = 0.01


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

    def count_writes(self, count: int = 1) -> None:
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
