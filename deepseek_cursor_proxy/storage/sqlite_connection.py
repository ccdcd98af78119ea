"""A connection to SQLite whose statements end when they should, on every Python.

CPython with a GIL frees a statement with its last reference. Two others do not, and until it is freed SQLite keeps
something of it: PyPy an unfinished statement, so that nothing can be committed; free-threaded CPython the locks of a
connection that was closed.
"""

import gc
import sqlite3
import sys
from collections.abc import Iterator
from typing import Any

_IS_FREE_THREADED = "free-threading build" in sys.version


class Connection(sqlite3.Connection):
    """With how long it waits for a lock, in seconds."""

    busy_seconds = 0.0

    if sys.implementation.name == "pypy":

        def execute(self, *statement: Any) -> Any:
            return Rows(super().execute(*statement))


class Rows:
    """All rows of a statement, which has ended.

    PyPy ends a statement with rows nobody fetched, such as those of PRAGMA journal_mode, when its garbage is collected;
    until then a commit fails ("SQL statements in progress").
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


def connect(name: str, *, uri: bool = False) -> Connection:
    return sqlite3.connect(name, timeout=0, isolation_level=None, check_same_thread=False, uri=uri, factory=Connection)


def free_statements() -> None:
    """Free the statements of connections that were closed, and with them the locks on their files.

    Without a GIL, a statement that another thread has made is freed by that thread, when it next runs Python, or by a
    collection of the garbage: the first frees the connection's cache of statements, the second what was in it.
    """
    if _IS_FREE_THREADED:
        gc.collect()
        gc.collect()
