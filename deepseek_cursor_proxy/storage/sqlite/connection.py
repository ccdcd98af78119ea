"""SQLite connections whose statements end in time on every Python.

CPython with a GIL frees a statement with its last reference. Two others free it later, and until then it holds on: on
PyPy an unfinished statement blocks every commit, on free-threaded CPython a closed connection keeps its locks.
"""

import gc
import sqlite3
import sys
from collections.abc import Iterator
from typing import Any

_IS_FREE_THREADED = "free-threading build" in sys.version


class StoreConnection(sqlite3.Connection):
    """A connection that knows how long it waits for a lock."""

    busy_seconds = 0.0

    if sys.implementation.name == "pypy":

        def execute(self, *statement: Any) -> Any:
            return Rows(super().execute(*statement))


class Rows:
    """All rows of a statement that has ended.

    PyPy ends a statement with rows that were not fetched, such as those of PRAGMA journal_mode, when it collects
    garbage; until then a commit fails ("SQL statements in progress").
    """

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self.rowcount, self.lastrowid = cursor.rowcount, cursor.lastrowid
        self._rows = iter(cursor.fetchall())

    def __iter__(self) -> Iterator[Any]:
        return self._rows

    def fetchone(self) -> Any:
        return next(self._rows, None)

    def fetchall(self) -> list[Any]:
        return list(self._rows)


def connect(name: str, *, uri: bool = False) -> StoreConnection:
    return sqlite3.connect(
        name, timeout=0, isolation_level=None, check_same_thread=False, uri=uri, factory=StoreConnection
    )


def free_statements() -> None:
    """Free the statements of closed connections, and with them the locks on their files.

    Without a GIL, a statement that another thread made is freed when that thread next runs Python, or by garbage
    collection: the first run frees the connection's statement cache, the second the statements in it.
    """
    if _IS_FREE_THREADED:
        gc.collect()
        gc.collect()
