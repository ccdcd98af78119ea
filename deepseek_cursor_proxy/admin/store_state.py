"""The state of the store for metrics and dashboard. Counting rows takes a while, so a count serves for a minute."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from deepseek_cursor_proxy.storage import store_size
from deepseek_cursor_proxy.storage.engine.database import Database
from deepseek_cursor_proxy.storage.engine.faults import Unusable
from deepseek_cursor_proxy.storage.store_size import StoreSize

_VALID_SECONDS = 60.0


class StoreState(NamedTuple):
    path: str
    # As of the last count that worked.
    size: StoreSize
    # Why it cannot be used; None if it can.
    fault: str | None
    fault_count: int


class StoreStates:
    """Called by the threads of the listener. The lock protects the last count, and lets one thread count."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._counted_at = float("-inf")
        self._size = StoreSize({}, 0)

    def read(self, database: Database) -> StoreState:
        with self._lock:
            if database.fault is None and self._now() - self._counted_at >= _VALID_SECONDS:
                self._count(database)
            size = self._size
        fault = database.fault
        return StoreState(database.path, size, str(fault) if fault is not None else None, database.fault_count)

    def _count(self, database: Database) -> None:
        self._counted_at = self._now()
        try:
            self._size = store_size.measure(database)
        except Unusable:
            # The next count comes in a minute; `fault` says why there is none.
            return
