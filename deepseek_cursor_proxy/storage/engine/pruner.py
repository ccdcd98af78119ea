"""Pruning in the background: a store deletes what it no longer needs on a thread that no answer waits for.

This module decides when to prune; what to delete is the store's own `prune`. It knows no table.
"""

import threading
from collections.abc import Callable

from deepseek_cursor_proxy.net.threads import start_thread

# Long enough for a waiting thread to wake up and take the lock; Python switches threads every 5 ms.
_SECONDS_BETWEEN_STEPS = 0.01


class Pruner:
    """Runs `prune` once per `every` writes on its own thread. The lock protects count, `_is_due_again` and thread."""

    def __init__(self, prune: Callable[[], object], *, every: int, name: str) -> None:
        self._prune = prune
        self.every = every
        self._name = name
        self._lock = threading.Lock()
        self._writes = 0
        # Set by writes during a pruning, which may have added too much again.
        self._is_due_again = False
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def count_writes(self, count: int = 1) -> None:
        with self._lock:
            before, self._writes = self._writes, self._writes + count
            if before // self.every == self._writes // self.every or self._closing.is_set():
                return
            if self._thread is not None:
                self._is_due_again = True
            else:
                self._thread = start_thread(self._run, self._name)

    def close(self) -> None:
        """Start no more prunings and wait for a running one; idempotent."""
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
        """Call between two steps: a thread that retakes a lock at once starves those that wait for it."""
        self._closing.wait(_SECONDS_BETWEEN_STEPS)

    def _run(self) -> None:
        try:
            self._prune()
            while self._has_more():
                self._prune()
        except BaseException:
            with self._lock:
                self._thread = None
            raise

    def _has_more(self) -> bool:
        """Whether to prune once more; if not, the next due write starts another thread."""
        with self._lock:
            has_more, self._is_due_again = self._is_due_again and not self._closing.is_set(), False
            if not has_more:
                self._thread = None
            return has_more
