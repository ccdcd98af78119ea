"""The faults of the store's file, and the guard that keeps them away from answers.

Unusable          may pass by itself: full disk, unreadable disk, a file of another program
├── Locked        another process holds the file
├── ReadOnly      this connection will never write, a new one may
├── Lost          this connection no longer reaches the file: it was moved, or is not open
└── Damaged       a database that cannot be read; waiting does not help
    └── Outdated  one of an earlier version of this program

Refused: no fault of the file; SQLite does not take an entry or a statement.

The stores handle Unusable and Refused alone; the subclasses are for the database. Locked is also for a store that
closes, which gives the other process a second.
"""

import errno
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

_MOVE_AWAY = "move it away or choose another place with --reasoning-content-path"
_SECONDS_BETWEEN_WARNINGS = 30.0
_GRANT_ACCESS = "make it and its folder readable and writable for you"
_FREE_SPACE = "free some space"
_SQLITE_FAULTS = {
    sqlite3.SQLITE_FULL: ("the disk is full", _FREE_SPACE),
    sqlite3.SQLITE_IOERR: ("the disk is full or cannot be read or written", f"{_FREE_SPACE} or check the disk"),
    sqlite3.SQLITE_CANTOPEN: ("it or its side files cannot be opened", _GRANT_ACCESS),
    sqlite3.SQLITE_PERM: ("it cannot be opened", _GRANT_ACCESS),
    sqlite3.SQLITE_NOMEM: ("memory is short", "stop other programs"),
    sqlite3.SQLITE_PROTOCOL: ("other processes hold its log", "stop those processes"),
}
_SYSTEM_REMEDIES = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.EFBIG: _FREE_SPACE,
    errno.EACCES: _GRANT_ACCESS,
    errno.EPERM: _GRANT_ACCESS,
    errno.EROFS: _GRANT_ACCESS,
    errno.EMFILE: "let this process open more files (ulimit -n)",
}


class Unusable(Exception):
    """The reason why the file cannot be used now, and the remedy."""

    def __init__(self, reason: str, remedy: str = _MOVE_AWAY) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy

    def copy(self) -> Self:
        """The same fault for another thread to raise: a shared exception would grow its traceback with every raise."""
        other = type(self).__new__(type(self), *self.args)
        other.__dict__.update(self.__dict__)
        return other


class Locked(Unusable):
    def __init__(self) -> None:
        super().__init__("another process holds it locked", "stop that process if it does not end by itself")


class ReadOnly(Unusable):
    pass


class Lost(Unusable):
    pass


class Damaged(Unusable):
    def __init__(self, damage: str) -> None:
        super().__init__(f"it is damaged ({damage})", "the proxy sets it aside when it runs, or move it away yourself")
        self.damage = damage


class Outdated(Damaged):
    def __init__(self, version: int) -> None:
        super().__init__(f"it was made by an earlier version, schema {version}")
        self.reason = self.damage


class Refused(ValueError):
    pass


def fault_of(error: BaseException) -> Unusable | None:
    """The fault of the file behind an exception; None if the exception has another cause."""
    match error:
        case Unusable():
            return error
        case OSError():
            return Unusable(error.strerror or str(error), _SYSTEM_REMEDIES.get(error.errno or 0, _MOVE_AWAY))
        case sqlite3.Error():
            return _fault_of_sqlite(error, getattr(error, "sqlite_errorcode", 0))
        case _:
            return None


def _fault_of_sqlite(error: sqlite3.Error, code: int) -> Unusable | None:
    match code & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Locked()
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return Damaged(str(error))
        case sqlite3.SQLITE_READONLY:
            moved = code == sqlite3.SQLITE_READONLY_DBMOVED
            return Lost("it was moved") if moved else ReadOnly("it is read-only", _GRANT_ACCESS)
        case primary if primary in _SQLITE_FAULTS:
            return Unusable(*_SQLITE_FAULTS[primary])
        case _:
            return None


# What a guard swallows. ValueError: a damaged row does not decode any more.
FAULTS = (Unusable, OSError, ValueError)


class FaultGuard:
    """Swallows the file's faults and warns now and then. Called by any thread; the lock protects `_warned_at`."""

    def __init__(self, log: logging.Logger, store: str) -> None:
        self._log = log
        self._store = store
        self._lock = threading.Lock()
        self._warned_at = float("-inf")

    @contextmanager
    def guard(self, action: str) -> Iterator[None]:
        """Run the body. A fault of the file ends the body and is swallowed; any other exception propagates."""
        try:
            yield
        except FAULTS as error:
            self.warn(action, error)

    def warn(self, action: str, error: Exception) -> None:
        """Warn, unless a warning was logged in the last 30 seconds or the OutageLog warns, as it does for Unusable."""
        if isinstance(error, Unusable):
            return
        now = time.monotonic()
        with self._lock:
            if now - self._warned_at < _SECONDS_BETWEEN_WARNINGS:
                return
            self._warned_at = now
        self._log.warning("%s: could not %s (%s); answers are not affected", self._store, action, error)
