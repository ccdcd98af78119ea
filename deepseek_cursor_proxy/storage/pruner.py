"""Pruning in the background: a store deletes what it no longer needs on a thread that no answer waits for.

This module decides when to prune; what to delete is the store's own `prune`. It knows no table.
"""

from collections.abc import Callable

from deepseek_cursor_proxy.net.threads import BackgroundTask

# Long enough for a waiting thread to wake up and take the lock; Python switches threads every 5 ms.
_SECONDS_BETWEEN_STEPS = 0.01


class Pruner(BackgroundTask):
    """Runs `prune` once per `every` writes on its own thread."""

    def __init__(self, prune: Callable[[], object], *, every: int, name: str) -> None:
        super().__init__(self._prune_once, name)
        self._prune = prune
        self.every = every
        self._writes = 0

    def count_writes(self, count: int = 1) -> None:
        with self._lock:
            before, self._writes = self._writes, self._writes + count
        if before // self.every != self._writes // self.every:
            # During a pruning, too: it may have passed over what was written.
            self.wake()

    def pause_step(self) -> None:
        """Call between two steps: a thread that retakes a lock at once starves those that wait for it."""
        self.pause(_SECONDS_BETWEEN_STEPS)

    def _prune_once(self) -> None:
        self._prune()
