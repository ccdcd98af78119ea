"""Store: opens the file of all tables, opens it again after a fault, and closes it.

The policy for a file that cannot be used, the same for every table: a write that fails is kept in memory, within
bounds, and is found there (`write_behind`); a thread retries with growing delays until the file can be written; then
each table writes what it kept (`Database.on_reopen`). No answer waits for any of it.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from deepseek_cursor_proxy.net.threads import BackgroundTask
from deepseek_cursor_proxy.storage.database import Database
from deepseek_cursor_proxy.storage.faults import FaultGuard, Unusable
from deepseek_cursor_proxy.storage.schema import Schema

_log = logging.getLogger(__name__)

_FIRST_DELAY_SECONDS = 0.25
_LONGEST_DELAY_SECONDS = 5.0
# Avoids flooding the log when the file flaps.
_SECONDS_BETWEEN_WARNINGS = 30.0


class Store:
    """Called by workers and the reopener's."""

    def __init__(
        self,
        path: str | Path,
        durability: str = "normal",
        *,
        must_open: bool,
        title: str = "reasoning",
        tables: Schema | None = None,
    ) -> None:
        """With `must_open` a fault is raised, here and later, and no damaged file is moved."""
        self.reopener = Reopener(self.reopen, name=f"{title}-reopen")
        self._must_open = must_open
        on_fault = (lambda: None) if must_open else self.reopener.wake
        self.database = Database(path, durability=durability, on_fault=on_fault, tables=tables)
        self.outage = OutageLog(_log, str(path), title)
        self._faults = FaultGuard(_log, title)

    def open(self) -> None:
        if self._must_open:
            self.database.open(may_set_aside=False)
        elif not self.reopen():
            self.reopener.wake()

    def reopen(self) -> bool:
        """Try once to open the file and write all waiting entries. True if none is left."""
        with self._faults.guard("catch up"):
            try:
                is_done = self.database.reopen()
            except Unusable as fault:
                self.outage.report_fault(fault)
                return False
            self.outage.report_end()
            return is_done
        return False


class Reopener(BackgroundTask):
    """Runs `reopen` on a thread, with growing delays, until it returns True. Any thread may wake it."""

    def __init__(self, reopen: Callable[[], bool], *, name: str) -> None:
        super().__init__(self._try, name)
        self._reopen = reopen
        self._delay = 0.0

    def _try(self) -> float | None:
        if self._reopen():
            self._delay = 0.0
            return None
        self._delay = min(2 * self._delay, _LONGEST_DELAY_SECONDS) or _FIRST_DELAY_SECONDS
        return self._delay


class OutageLog:
    """Warns once when the file cannot be used and once when it can again. Called by one thread at a time."""

    def __init__(self, log: logging.Logger, path: str, title: str) -> None:
        self._log = log
        self._path = path
        self._title = title
        self._has_warned = False
        self._warned_at = float("-inf")
        self._written = 0

    def report_fault(self, fault: Unusable) -> None:
        """Call after each failed try."""
        now = time.monotonic()
        if not self._has_warned and now - self._warned_at >= _SECONDS_BETWEEN_WARNINGS:
            self._has_warned, self._warned_at = True, now
            self._log.warning("%s is kept in memory until %s is usable again: %s", self._title, self._path, fault)

    def count(self, written: int) -> None:
        """Count entries that waited and are in the file now."""
        self._written += written

    def report_end(self) -> None:
        """Call after a try that succeeded."""
        if self._has_warned:
            self._log.warning("%s is usable again; entries written: %d", self._path, self._written)
        self._has_warned, self._written = False, 0
