"""The engine of the store: one SQLite file, opened, shared by threads, and opened again after a fault.

WAL with synchronous=NORMAL: a commit survives the death of this process at any moment; a power cut may lose the last
commits, never the file. With durability "full" a commit returns once the disk has it. One connection writes and one
reads, each for one thread at a time, so that a lookup never waits for a writer; `:memory:` has one for both.

The first call that meets a fault waits a moment at most. From then on every call raises the same Unusable at once,
until `reopen` succeeds, which the reopener's thread calls. Reading and writing have separate faults: a file that is
locked, or on a full disk, can still be read.

This module knows connections and transactions, no table.
"""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from deepseek_cursor_proxy.storage import private_files
from deepseek_cursor_proxy.storage.faults import Damaged, Locked, Lost, ReadOnly, Refused, Unusable, fault_of
from deepseek_cursor_proxy.storage.sqlite import file_check, schema
from deepseek_cursor_proxy.storage.sqlite.connection import StoreConnection, connect, free_statements

_log = logging.getLogger(__name__)

# Another process may hold the file for a moment. A request may meet one wait for reading and one for writing, its own
# or behind another thread; together they stay below the half second that an answer may wait for the store.
_BUSY_SECONDS = 0.2
# After a wait in vain no call waits for this long: a lock that comes and goes costs one wait, not one per request.
_SECONDS_BETWEEN_WAITS = 60.0
# SQLite copies the log into the file at this many pages (of 4 kB), and truncates the log to this many bytes. More would
# keep a few hundred turns on the disk half as much again; fewer would wait for the disk more often.
_LOG_PAGES = 250
_LOG_BYTES = 4 * 1024 * 1024


class StoreSize(NamedTuple):
    rows: dict[str, int]
    bytes: int


class Database:
    """Called by handler threads and by the reopener's thread.

    `_lock` protects the writing connection, `_read_lock` the reading one; `_lock` is taken first. Fields that both use
    change under both, except the faults: the thread that meets one holds one of the locks, and the last one counts.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        durability: str = "normal",
        on_fault: Callable[[], None] = lambda: None,
        tables: schema.Schema | None = None,
    ) -> None:
        """No file is touched before `open`. The thread that meets a fault calls `on_fault`, which must not wait."""
        self.path = str(path)
        self._durability = durability
        self._schema = tables or schema.STORE
        # Also called by a store that has something pending, to have the file opened again soon.
        self.request_reopen = on_fault
        self._lock = threading.RLock()
        self._read_lock = self._lock if self.path == ":memory:" else threading.RLock()
        self._writer: StoreConnection | None = None
        self._reader: StoreConnection | None = None
        self._file_identity: file_check.FileIdentity | None = None
        self._claim: file_check.Claim | None = None
        self._read_fault: Unusable | None = _NOT_OPEN
        self._write_fault: Unusable | None = None
        # How often a fault was met; never reset, for metrics.
        self.fault_count = 0
        self._waited_at = float("-inf")
        self._is_closed = False
        self._waiting_writers: list[Callable[[], bool]] = []

    # Transactions …

    def transaction(self, *, is_retry: bool = False) -> "_Transaction":
        """The connection in a transaction; Unusable for a fault of the file. With `is_retry` a past one is ignored."""
        return _Transaction(self, is_retry)

    def _begin(self, is_retry: bool) -> StoreConnection:
        if self._write_fault is not None and not is_retry:
            raise self._write_fault.copy()
        connection = self._usable_connection(self._writer)
        try:
            self._check_unmoved()
            connection.execute("BEGIN IMMEDIATE")
        except BaseException as error:
            self._abort(connection, error)
            raise
        return connection

    def _commit(self, connection: StoreConnection) -> None:
        try:
            connection.execute("COMMIT")
        except BaseException as error:
            self._abort(connection, error)
            raise

    def _abort(self, connection: StoreConnection, error: BaseException) -> None:
        _roll_back(connection)
        self._raise_fault(error, connection, is_writing=True)

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """A connection for SELECT; raises Unusable for every fault of the file."""
        with self._read_lock:
            connection = self._usable_connection(self._reader)
            try:
                yield connection
            except Exception as error:
                self._raise_fault(error, connection, is_writing=False)
                raise

    def shrink(self) -> None:
        """Give the space of deleted rows back to the disk; raises Unusable."""
        with self.reader() as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def size(self) -> "StoreSize":
        """Rows of every table, and bytes of the file; raises Unusable."""
        # The connection is given back after every table: counting half a million keys takes 10 ms, and lookups wait.
        rows = {table: self._number(f"SELECT count(*) FROM {table}") for table in sorted(self._schema.tables())}
        return StoreSize(rows, self._number("PRAGMA page_count") * self._number("PRAGMA page_size"))

    def _number(self, query: str) -> int:
        with self.reader() as connection:
            return int(connection.execute(query).fetchone()[0])

    def empty_log(self) -> None:
        """Copy the log into the file and cut it off: it still has the pages of deleted rows. Raises Unusable."""
        # A transaction of another thread would leave the log as it is.
        with self._lock, self.reader() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        with self._lock, self._read_lock:
            self._is_closed = True
            self._disconnect(_NOT_OPEN)

    # Faults …

    @property
    def fault(self) -> Unusable | None:
        """Why the file cannot be read or written at the moment; None if it can."""
        return self._read_fault or self._write_fault

    def _usable_connection(self, connection: StoreConnection | None) -> StoreConnection:
        if self._read_fault is not None or connection is None:
            raise (self._read_fault or _NOT_OPEN).copy()
        may_wait = self._write_fault is None and time.monotonic() - self._waited_at >= _SECONDS_BETWEEN_WAITS
        self._set_busy_timeout(connection, _BUSY_SECONDS if may_wait else 0.0)
        return connection

    def _raise_fault(self, error: BaseException, connection: StoreConnection, *, is_writing: bool) -> None:
        """Raise Unusable, now and from every call from now on, if the file is at fault; Refused for SQLite's errors."""
        fault = fault_of(error)
        if fault is None:
            if isinstance(error, sqlite3.Error):
                raise Refused(str(error)) from error
            return
        if isinstance(fault, Locked) and connection.busy_seconds:
            self._waited_at = time.monotonic()
        self._set_fault(fault.copy(), is_writing=is_writing)
        raise fault from None

    def _set_fault(self, fault: Unusable, *, is_writing: bool) -> None:
        if isinstance(fault, Damaged) and self._file_identity is None:
            # An immutable connection takes no locks: the file may have changed meanwhile, which proves no damage.
            fault = Lost(fault.reason)
        self._write_fault = fault
        self.fault_count += 1
        if not is_writing or isinstance(fault, (Lost, Damaged)):
            self._read_fault = fault
        self.request_reopen()

    def _set_busy_timeout(self, connection: StoreConnection, seconds: float) -> None:
        if seconds != connection.busy_seconds:
            connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")
            connection.busy_seconds = seconds

    def _check_unmoved(self) -> None:
        """Raise Lost for a file that was deleted or replaced: writes to it would succeed and never be read again."""
        if self._file_identity is None:
            return
        try:
            is_unmoved = file_check.file_identity(self._file) == self._file_identity
        except PermissionError:
            # The folder was closed to us; the file in it stays open.
            return
        if not is_unmoved:
            raise Lost("it was deleted, emptied or replaced", "it is begun anew")

    # Opening …

    def on_reopen(self, write_waiting: Callable[[], bool]) -> None:
        """Register a store's function that writes what waited for the file; whether all of it is written.

        It uses `transaction(is_retry=True)`.
        """
        self._waiting_writers.append(write_waiting)

    def reopen(self) -> bool:
        """Open the file, let every store write what waited, and only then let other writes through; raises Unusable.

        Whether all is written; SQLite may refuse an entry.
        """
        self.open()
        is_written = [write_waiting() for write_waiting in self._waiting_writers]
        self.confirm()
        return all(is_written)

    def open(self, *, may_set_aside: bool = True) -> None:
        """Connect for reading; raises Unusable. Creates the file if there is none or a damaged one was set aside."""
        with self._lock, self._read_lock:
            fault, before = self._read_fault or self._write_fault, self._file_identity
            if self._is_closed:
                raise _NOT_OPEN.copy()
            if fault is None or (self._read_fault is None and not isinstance(fault, ReadOnly)):
                return
            self._disconnect(fault)
            is_readable = isinstance(fault, ReadOnly)
            if is_readable:
                # Under the lock, so that no reader finds it closed meanwhile.
                self._connect_again(fault, before, may_set_aside)
        if not is_readable:
            # Without the lock: a slow disk holds up no reader.
            self._connect_again(fault, before, may_set_aside)

    def confirm(self) -> None:
        """Find out by writing whether the file can be written again, and let other writes through; raises Unusable."""
        with self.transaction(is_retry=True) as connection:
            self._schema.write_version(connection)
        with self._lock:
            self._write_fault = None

    def _connect_again(self, fault: Unusable, before: file_check.FileIdentity | None, may_set_aside: bool) -> None:
        try:
            if isinstance(fault, Damaged) and before is not None:
                self._set_aside(fault, before, may_set_aside)
            if self.path != ":memory:":
                file_check.remove_stray_side_files(self._file, before)
            self._adopt(self._connect_or_set_aside(may_set_aside, may_wait=fault is _NOT_OPEN))
        except (sqlite3.Error, OSError, Unusable) as error:
            if (found := fault_of(error)) is None:
                raise
            self._open_immutable(found.copy())
            raise found from None
        if isinstance(fault, Lost) and fault is not _NOT_OPEN:
            _log.warning("%s: %s; what is there now is used instead", self.path, fault.reason)

    def _connect_or_set_aside(self, may_set_aside: bool, may_wait: bool) -> "_Connections":
        before = file_check.file_identity(self._file)
        try:
            return self._connect(may_wait)
        except (Damaged, sqlite3.DatabaseError) as error:
            fault = fault_of(error)
            if not isinstance(fault, Damaged):
                raise
            self._set_aside(fault, before, may_set_aside)
        return self._connect(may_wait)

    def _connect(self, may_wait: bool) -> "_Connections":
        is_file, claim = self.path != ":memory:", None
        with ExitStack() as undo:
            if is_file:
                private_files.make_directory(self._file.parent)
                claim = file_check.claim(self._file, self._schema, may_create=True)
                undo.callback(claim.release)
                file_check.grant_side_files(self._file)
            connection = connect(str(self._file) if is_file else ":memory:")
            undo.callback(connection.close)
            self._set_busy_timeout(connection, _BUSY_SECONDS if may_wait else 0.0)
            # Before any write: a file that is not ours stays as it is.
            self._schema.check(connection)
            connection.execute("PRAGMA journal_mode=WAL")
            self._set_durability(connection)
            connection.execute("PRAGMA foreign_keys=ON")
            connection.execute(f"PRAGMA wal_autocheckpoint={_LOG_PAGES}")
            connection.execute(f"PRAGMA journal_size_limit={_LOG_BYTES}")
            self._schema.migrate(connection)
            connections = _Connections(connection, self._connect_reader() if is_file else connection, claim)
            undo.pop_all()
        return connections

    def _connect_reader(self) -> StoreConnection:
        """For reading only; should it ever write, it waits for the disk no longer than the writer."""
        connection = connect(str(self._file))
        self._set_durability(connection)
        return connection

    def _set_durability(self, connection: StoreConnection) -> None:
        connection.execute(f"PRAGMA synchronous={self._durability}")
        # The fsync() of macOS leaves data in the drive's cache; these ask it for F_FULLFSYNC. The copy from the log
        # into the file always needs it, or a power cut could damage the file. Other systems ignore both.
        connection.execute("PRAGMA checkpoint_fullfsync=ON")
        connection.execute(f"PRAGMA fullfsync={'ON' if self._durability == 'full' else 'OFF'}")

    def _open_immutable(self, fault: Unusable) -> None:
        """Connect for reading past SQLite's locks: without permission or space to write, SQLite does not even read.

        Only a file without a log is whole by itself.
        """
        with self._lock, self._read_lock:
            self._read_fault = self._write_fault = fault
        if self.path == ":memory:" or isinstance(fault, (Locked, Damaged)) or file_check.has_log(self._file):
            return
        with suppress(sqlite3.Error, OSError, Unusable), ExitStack() as undo:
            claim = file_check.claim(self._file, self._schema, may_create=False)
            undo.callback(claim.release)
            connection = connect(file_check.immutable_uri(self._file), uri=True)
            undo.callback(connection.close)
            self._schema.check(connection)
            if schema.version(connection) == self._schema.newest_version:
                undo.pop_all()
                self._adopt(_Connections(connection, connection, claim), ReadOnly(fault.reason, fault.remedy))

    def _adopt(self, connections: "_Connections", write_fault: Unusable | None = None) -> None:
        with self._lock, self._read_lock:
            self._writer, self._reader, self._claim = connections
            self._read_fault = None
            if write_fault is not None:
                self._write_fault = write_fault
            elif self.path != ":memory:":
                self._file_identity = file_check.file_identity(self._file)

    def _disconnect(self, fault: Unusable) -> None:
        for connection in (self._reader, self._writer):
            if connection is not None:
                with suppress(sqlite3.Error):
                    connection.close()
        self._writer, self._reader, self._read_fault, self._file_identity = None, None, fault, None
        free_statements()
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def _set_aside(self, damage: Damaged, before: file_check.FileIdentity, is_allowed: bool) -> None:
        if not is_allowed:
            raise damage
        if file_check.file_identity(self._file).file != before.file:
            # Another process was faster: the file there now is not the damaged one.
            return
        try:
            place = file_check.set_aside(self._file)
        except OSError as error:
            raise Unusable(f"{damage.reason} and cannot be moved away ({error.strerror})") from None
        _log.warning(
            "%s is damaged (%s): it was set aside as %s and a fresh one begun", self.path, damage.damage, place
        )

    @cached_property
    def _file(self) -> Path:
        """The file behind any links, where SQLite also keeps its side files."""
        return Path(os.path.realpath(Path(self.path).expanduser()))


_NOT_OPEN = Lost("it is not open", "open it")


class _Transaction:
    """One transaction of a Database, whose lock its thread holds meanwhile. A generator would take twice the time."""

    def __init__(self, database: Database, is_retry: bool) -> None:
        self._database = database
        self._is_retry = is_retry

    def __enter__(self) -> sqlite3.Connection:
        self._database._lock.acquire()
        try:
            self._connection = self._database._begin(self._is_retry)
        except BaseException:
            self._database._lock.release()
            raise
        return self._connection

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if error is None:
                self._database._commit(self._connection)
            else:
                self._database._abort(self._connection, error)
        finally:
            self._database._lock.release()


class _Connections(NamedTuple):
    writer: StoreConnection
    reader: StoreConnection
    claim: file_check.Claim | None


def _roll_back(connection: sqlite3.Connection) -> None:
    # SQLite has rolled back by itself after some faults; a failing ROLLBACK adds nothing to the fault that is raised.
    if connection.in_transaction:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
