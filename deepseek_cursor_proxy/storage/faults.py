"""What can be wrong with the store's file, in words, and how each fault may pass.

Unusable          it may pass by itself: full disk, unreadable disk, not our file
├── Locked        another process holds it
├── ReadOnly      this connection will never write, another one may
├── Lost          this connection leads nowhere: the file was moved, or is not open
└── Damaged       a database that cannot be read; waiting does not help
"""

import errno
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

CHOOSE = "move it away or choose another place with --reasoning-content-path"
_LET_IN = "make it and its folder readable and writable for you"
_FREE = "free some space"
_SECONDS_BETWEEN_WARNINGS = 30.0


class Unusable(Exception):
    """Why the file cannot be used now, and what would help."""

    def __init__(self, reason: str, remedy: str = CHOOSE) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy

    def copy(self) -> Self:
        """The same fault for another thread to raise: one exception raised by many would grow with every one."""
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


_OF_SQLITE = {
    sqlite3.SQLITE_FULL: ("the disk is full", _FREE),
    sqlite3.SQLITE_IOERR: ("the disk is full or cannot be read or written", f"{_FREE} or check the disk"),
    sqlite3.SQLITE_CANTOPEN: ("it or its side files cannot be opened", _LET_IN),
    sqlite3.SQLITE_PERM: ("it cannot be opened", _LET_IN),
    sqlite3.SQLITE_NOMEM: ("memory is short", "stop other programs"),
    sqlite3.SQLITE_PROTOCOL: ("other processes hold its log", "stop those processes"),
}
_OF_SYSTEM = {
    errno.ENOSPC: _FREE,
    errno.EDQUOT: _FREE,
    errno.EFBIG: _FREE,
    errno.EACCES: _LET_IN,
    errno.EPERM: _LET_IN,
    errno.EROFS: _LET_IN,
    errno.EMFILE: "let this process open more files (ulimit -n)",
}


def fault_of(error: BaseException) -> Unusable | None:
    """What an exception says about the file; None when it is not the file's fault."""
    match error:
        case Unusable():
            return error
        case OSError():
            return Unusable(error.strerror or str(error), _OF_SYSTEM.get(error.errno or 0, CHOOSE))
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
            return Lost("it was moved") if moved else ReadOnly("it is read-only", _LET_IN)
        case sqlite3.SQLITE_ERROR if str(error).startswith("no such "):
            # Somebody took our tables away, or put another file in the place of ours.
            return Lost(str(error))
        case primary if primary in _OF_SQLITE:
            return Unusable(*_OF_SQLITE[primary])
        case _:
            return None


class FaultGuard:
    """Swallows what goes wrong with the file. Called by handler threads; the lock protects when it last spoke."""

    def __init__(self, log: logging.Logger, store: str) -> None:
        self._log = log
        self._store = store
        self._lock = threading.Lock()
        self._warned_at = float("-inf")

    @contextmanager
    def guard(self, doing: str) -> Iterator[None]:
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
