"""One SQLite file: how it is opened, locked, kept private and brought up to date.

WAL with synchronous=NORMAL: what was committed survives the death of this process at any moment; a power cut may
lose the last commits, never the file. One connection serves all threads, one at a time; `:memory:` works the same.
The schema version is SQLite's user_version; MIGRATIONS is the list of steps that lead from each to the next.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from deepseek_cursor_proxy import private_files
from deepseek_cursor_proxy.errors import StartupError

# Another process may hold the file for a moment; an answer may not wait for it longer than this.
_BUSY_TIMEOUT_SECONDS = 0.5
# Marks the file as ours ("DScp"), so that a file of somebody else is never migrated.
_APPLICATION_ID = 0x44536370


class Database:
    """Called by handler threads; the lock protects the connection."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._lock = threading.RLock()
        self._connection = self._open()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """The connection, in a transaction that commits at the end and rolls back on any exception."""
        with self._lock, self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection, for statements that only look."""
        with self._lock:
            yield self._connection

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _open(self) -> sqlite3.Connection:
        is_file = self.path != ":memory:"
        if is_file:
            self.path = str(Path(self.path).expanduser())
        try:
            if is_file:
                private_files.make_directory(Path(self.path).parent)
                # SQLite gives its -wal and -shm files the mode of the main file, so creating that one is enough.
                private_files.create(Path(self.path))
            return _connect(self.path)
        except (OSError, sqlite3.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise StartupError(
                f"cannot use {self.path} as the reasoning store: {reason}; move it away or choose another place with "
                "--reasoning-content-path (:memory: keeps nothing on disk)"
            ) from None


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        # Before anything is written: a file that is not ours stays as it is.
        _check_ours(connection)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")
        _migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _m001_reasonings(connection: sqlite3.Connection) -> None:
    """One row per reasoning; the keys that lead to it are small rows of their own."""
    connection.execute(
        "CREATE TABLE reasonings (id INTEGER PRIMARY KEY, text BLOB NOT NULL, used_at REAL NOT NULL) STRICT"
    )
    # Pruning asks for the longest unused, by age and by rank.
    connection.execute("CREATE INDEX reasonings_by_use ON reasonings (used_at)")
    connection.execute(
        "CREATE TABLE keys (key BLOB NOT NULL, reasoning INTEGER NOT NULL REFERENCES reasonings ON DELETE CASCADE, "
        "PRIMARY KEY (key, reasoning)) STRICT, WITHOUT ROWID"
    )
    # Deleting a reasoning has to find its keys.
    connection.execute("CREATE INDEX keys_by_reasoning ON keys (reasoning)")


def _m002_tool_orders(connection: sqlite3.Connection) -> None:
    """How the tools of a chat last went out; a chat with several agents has a row for each different order."""
    connection.execute(
        "CREATE TABLE tool_orders (id INTEGER PRIMARY KEY, conversation BLOB NOT NULL, names TEXT NOT NULL, "
        "used_at REAL NOT NULL) STRICT"
    )
    connection.execute("CREATE INDEX tool_orders_by_conversation ON tool_orders (conversation)")
    connection.execute("CREATE INDEX tool_orders_by_use ON tool_orders (used_at)")


MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [_m001_reasonings, _m002_tool_orders]


def _check_ours(connection: sqlite3.Connection) -> None:
    version = _version(connection)
    if version > len(MIGRATIONS):
        raise sqlite3.DatabaseError(f"it was written by a newer version of this program (schema {version})")
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
        raise sqlite3.DatabaseError("it is a database of another program")


def _migrate(connection: sqlite3.Connection) -> None:
    if _version(connection) == len(MIGRATIONS):
        return
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        # Another process may have been first; only what it left undone is done.
        for migrate in MIGRATIONS[_version(connection) :]:
            migrate(connection)
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
