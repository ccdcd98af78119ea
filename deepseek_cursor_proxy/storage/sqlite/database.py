"""The engine of the store: one SQLite file, opened, shared by threads, and opened again after a fault.

WAL with synchronous=NORMAL: a commit survives the death of this process at any moment; a power cut may lose the last
commits, never the file. With durability "full" a commit returns once the disk has it. One connection writes and one
reads, each for one thread at a time, so that a lookup never waits for a writer; `:memory:` has one for both.

The first call that meets a fault waits a moment at most. From then on every call raises the same Unusable at once,
until `reopen` succeeds, which the reopener's thread calls. Reading and writing have separate faults: a file that is
locked, or on a full disk, can still be read.

CPython with a GIL frees a statement with its last reference; PyPy and free-threaded CPython free it later. Until then
an unfinished statement blocks every commit on PyPy, and a closed connection keeps its locks on free-threaded CPython.

This module knows connections and transactions, no table.
"""

import gc
import logging
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from deepseek_cursor_proxy.storage import private_files
from deepseek_cursor_proxy.storage.faults import Damaged, Locked, Lost, Outdated, ReadOnly, Refused, Unusable
from deepseek_cursor_proxy.storage.sqlite import file_check, schema
from deepseek_cursor_proxy.storage.sqlite.file_check import fault_of

_log = logging.getLogger(__name__)

# Another process may hold the file for a moment. A request may meet one wait for reading and one for writing, its own
# or behind another thread; together they stay below the half second that an answer may wait for the store.
_BUSY_SECONDS = 0.2
# After a wait in vain no call waits for this long: a lock that comes and goes costs one wait, not one per request.
_SECONDS_BETWEEN_WAITS = 60.0
# SQLite copies the log into the file at this many pages (of 4 kB), and truncates the log to this many bytes. A smaller
# one would wait for the disk more often: at 250 pages every thirty turns, and a turn took a quarter more of CPU.
_LOG_PAGES = 1000
_LOG_BYTES = 4 * 1024 * 1024

# Writers never keep a reader waiting; only another program that holds the whole file does.
_READ_ONLY_BUSY_MILLISECONDS = 1000
_IS_FREE_THREADED = "free-threading build" in sys.version


class StoreConnection(sqlite3.Connection):
    """A connection that knows how long it waits for a lock."""

    busy_seconds = 0.0

    if sys.implementation.name == "pypy":

        def execute(self, *statement: Any) -> Any:
            return FetchedRows(super().execute(*statement))


class FetchedRows:
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


class StoreSize(NamedTuple):
    rows: dict[str, int]
    bytes: int


class Database:
    """Called by workers and by the reopener's thread.

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
        """`open` first touches the file. The thread that meets a fault calls `on_fault`, which must not wait."""
        self.path = str(path)
        self._is_file = self.path != ":memory:"
        self._durability = durability
        self._schema = tables or schema.STORE
        # Also called by a store with waiting entries, to have the file opened again soon.
        self.request_reopen = on_fault
        self._lock = threading.RLock()
        self._read_lock = threading.RLock() if self._is_file else self._lock
        self._writer: StoreConnection | None = None
        self._reader: StoreConnection | None = None
        self._file_identity: file_check.FileIdentity | None = None
        # Closes the connections, then gives the claim on the file back.
        self._resources = ExitStack()
        self._read_fault: Unusable | None = _NOT_OPEN
        self._write_fault: Unusable | None = None
        # How often a fault was met; never reset, for metrics.
        self.fault_count = 0
        self._waited_at = float("-inf")
        self._is_closed = False
        self._waiting_writers: list[Callable[[], bool]] = []

    # Transactions …

    def transaction(self, *, is_retry: bool = False, wait: float | None = None) -> "_Transaction":
        """The connection in a transaction, with `is_retry` despite a known fault. Raises Unusable for a fault.

        It waits for another process as long as any call may, or for `wait` seconds.
        """
        return _Transaction(self, is_retry, wait)

    def _abort(self, connection: StoreConnection, error: BaseException) -> None:
        """Roll back and raise the fault behind an error, if there is one."""
        # SQLite has rolled back by itself after some faults; a failing ROLLBACK adds nothing to the fault.
        if connection.in_transaction:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        self._raise_fault(error, connection, is_writing=True)

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """A connection for SELECT. Raises Unusable for every fault of the file."""
        with self._read_lock:
            connection = self._usable_connection(self._reader)
            try:
                yield connection
            except Exception as error:
                self._raise_fault(error, connection, is_writing=False)
                raise

    def shrink(self) -> None:
        """Return the space of deleted rows to the disk. Raises Unusable."""
        with self.reader() as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def size(self) -> StoreSize:
        """Returns the rows of every table and the bytes of the file. Raises Unusable."""
        # The connection is given back after every table: counting half a million keys takes 10 ms, and lookups wait.
        rows = {table: self.number(f"SELECT count(*) FROM {table}") for table in sorted(self._schema.tables())}
        return StoreSize(rows, self.file_size())

    def file_size(self) -> int:
        return self.number("PRAGMA page_count") * self.number("PRAGMA page_size")

    def number(self, query: str, *values: float) -> int:
        """The single integer that a query returns. Raises Unusable."""
        with self.reader() as connection:
            return int(connection.execute(query, values).fetchone()[0])

    def empty_log(self) -> None:
        """Copy the log, which still has the pages of deleted rows, into the file and truncate it. Raises Unusable."""
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

    def _usable_connection(self, connection: StoreConnection | None, wait: float | None = None) -> StoreConnection:
        if self._read_fault is not None or connection is None:
            raise (self._read_fault or _NOT_OPEN).copy()
        has_waited = time.monotonic() - self._waited_at < _SECONDS_BETWEEN_WAITS
        may_wait = self._write_fault is None and not has_waited
        self._set_busy_timeout(connection, wait if wait is not None else _BUSY_SECONDS if may_wait else 0.0)
        return connection

    def _raise_fault(self, error: BaseException, connection: StoreConnection, *, is_writing: bool) -> None:
        """Raise Unusable if the file is at fault, here and from every later call; raise Refused for SQLite's errors."""
        fault = fault_of(error)
        if fault is None:
            if isinstance(error, sqlite3.Error):
                raise Refused(str(error)) from error
            return
        if isinstance(fault, Locked) and connection.busy_seconds:
            self._waited_at = time.monotonic()
        self._write_fault = fault.copy()
        if isinstance(fault, Damaged) and self._file_identity is None:
            # An immutable connection takes no locks: a file that another process changed looks damaged.
            self._write_fault = Lost(fault.reason)
        if not is_writing or isinstance(fault, (Lost, Damaged)):
            self._read_fault = self._write_fault
        self.fault_count += 1
        self.request_reopen()
        raise fault from None

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
            raise Lost("it was deleted, emptied or replaced", "the proxy opens it again, or creates a new one")

    # Opening …

    def on_reopen(self, write_waiting: Callable[[], bool]) -> None:
        """Register a function of a store that writes the entries that waited, and returns True if all are written.

        It uses `transaction(is_retry=True)`.
        """
        self._waiting_writers.append(write_waiting)

    def reopen(self) -> bool:
        """Open the file, let every store write what waited, and only then let other writes through. Raises Unusable.

        True if all is written; SQLite may refuse an entry.
        """
        self.open()
        is_written = [write_waiting() for write_waiting in self._waiting_writers]
        self.confirm()
        return all(is_written)

    def open(self, *, may_set_aside: bool = True) -> None:
        """Connect after a fault. Creates the file if there is none or a damaged one was set aside. Raises Unusable.

        Nothing to do if the file can be read and only writing failed, unless the connection itself is read-only.
        """
        with self._lock, self._read_lock:
            fault, before = self._read_fault or self._write_fault, self._file_identity
            if self._is_closed:
                raise _NOT_OPEN.copy()
            is_read_only = isinstance(fault, ReadOnly)
            can_keep_connection = self._read_fault is None and not is_read_only
            if fault is None or can_keep_connection:
                return
            self._disconnect(fault)
            if is_read_only:
                # It can be read: under the lock, so that no reader finds the connection closed.
                self._connect_again(fault, before, may_set_aside)
        if not is_read_only:
            # Without the lock: a slow disk holds up no reader.
            self._connect_again(fault, before, may_set_aside)

    def confirm(self) -> None:
        """Prove by a write that the file is writable, and let other writes through. Raises Unusable."""
        with self.transaction(is_retry=True) as connection:
            self._schema.write_version(connection)
        with self._lock:
            self._write_fault = None

    def _connect_again(self, fault: Unusable, before: file_check.FileIdentity | None, may_set_aside: bool) -> None:
        is_first_open = fault is _NOT_OPEN
        try:
            if isinstance(fault, Damaged) and before is not None:
                # Found damaged while it was in use.
                self._set_aside(fault, before, may_set_aside)
            if self._is_file:
                file_check.remove_stray_side_files(self._file, before)
            before = file_check.file_identity(self._file)
            try:
                self._connect(may_wait=is_first_open)
            except (Damaged, sqlite3.DatabaseError) as error:
                damage = fault_of(error)
                if not isinstance(damage, Damaged):
                    raise
                self._set_aside(damage, before, may_set_aside)
                self._connect(may_wait=is_first_open)
        except (sqlite3.Error, OSError, Unusable) as error:
            if (found := fault_of(error)) is None:
                raise
            self._connect_immutable(found.copy())
            raise found from None
        if isinstance(fault, Lost) and not is_first_open:
            _log.warning("%s: %s; what is there now is used instead", self.path, fault.reason)

    def _connect(self, *, may_wait: bool) -> None:
        with ExitStack() as resources:
            if self._is_file:
                private_files.make_directory(self._file.parent)
            writer, is_empty = self._open_connection(resources, str(self._file), may_create=True, may_wait=may_wait)
            writer.execute("PRAGMA journal_mode=WAL")
            self._set_durability(writer)
            writer.execute("PRAGMA foreign_keys=ON")
            writer.execute(f"PRAGMA wal_autocheckpoint={_LOG_PAGES}")
            writer.execute(f"PRAGMA journal_size_limit={_LOG_BYTES}")
            if is_empty:
                self._schema.create(writer)
            reader = writer
            if self._is_file:
                reader = connect(str(self._file))
                resources.callback(reader.close)
                # Should it ever write, it waits for the disk no longer than the writer.
                self._set_durability(reader)
            with self._lock, self._read_lock:
                self._writer, self._reader, self._resources = writer, reader, resources.pop_all()
                self._read_fault = None
                self._file_identity = file_check.file_identity(self._file) if self._is_file else None

    def _connect_immutable(self, fault: Unusable) -> None:
        """Connect for reading past SQLite's locks: without permission or space to write, SQLite does not even read.

        Only a file without a log is whole by itself.
        """
        with self._lock, self._read_lock:
            self._read_fault = self._write_fault = fault
        if not self._is_file or isinstance(fault, (Locked, Damaged)) or file_check.has_log(self._file):
            return
        with suppress(sqlite3.Error, OSError, Unusable), ExitStack() as resources:
            uri = file_check.immutable_uri(self._file)
            connection, is_empty = self._open_connection(resources, uri, may_create=False)
            if not is_empty:
                with self._lock, self._read_lock:
                    self._writer, self._reader, self._resources = connection, connection, resources.pop_all()
                    self._read_fault, self._write_fault = None, ReadOnly(fault.reason, fault.remedy)

    def _open_connection(
        self, resources: ExitStack, name: str, *, may_create: bool, may_wait: bool = False
    ) -> tuple[StoreConnection, bool]:
        """A connection to the file, and whether that is empty. A file that is not ours stays as it is."""
        if self._is_file:
            resources.callback(file_check.claim(self._file, self._schema, may_create=may_create))
            if may_create:
                file_check.grant_side_files(self._file)
        resources.callback(free_statements)
        connection = connect(name, uri=not may_create)
        resources.callback(connection.close)
        self._set_busy_timeout(connection, _BUSY_SECONDS if may_wait else 0.0)
        return connection, self._schema.check(connection)

    def _set_durability(self, connection: StoreConnection) -> None:
        connection.execute(f"PRAGMA synchronous={self._durability}")
        # The fsync() of macOS leaves data in the drive's cache; these ask it for F_FULLFSYNC. The copy from the log
        # into the file always needs it, or a power cut could damage the file. Other systems ignore both.
        connection.execute("PRAGMA checkpoint_fullfsync=ON")
        connection.execute(f"PRAGMA fullfsync={'ON' if self._durability == 'full' else 'OFF'}")

    def _disconnect(self, fault: Unusable) -> None:
        with suppress(sqlite3.Error):
            self._resources.close()
        self._writer, self._reader, self._read_fault, self._file_identity = None, None, fault, None

    def _set_aside(self, damage: Damaged, before: file_check.FileIdentity, is_allowed: bool) -> None:
        if not is_allowed:
            raise damage
        if file_check.file_identity(self._file).file != before.file:
            # Another process was faster: the file there now is not the damaged one.
            return
        try:
            place = file_check.set_aside(self._file, "old" if isinstance(damage, Outdated) else "corrupt")
        except OSError as error:
            raise Unusable(f"{damage.reason} and cannot be moved away ({error.strerror})") from None
        _log.warning("%s: %s; it was set aside as %s and a new one begun", self.path, damage.reason, place)

    @cached_property
    def _file(self) -> Path:
        """The file behind any links, where SQLite also keeps its side files."""
        return Path(os.path.realpath(Path(self.path).expanduser()) if self._is_file else self.path)


_NOT_OPEN = Lost("it is not open", "open it")


class _Transaction:
    """One transaction of a Database, whose lock its thread holds. A generator would take twice the time."""

    def __init__(self, database: Database, is_retry: bool, wait: float | None) -> None:
        self._database = database
        self._is_retry = is_retry
        self._wait = wait

    def __enter__(self) -> sqlite3.Connection:
        database = self._database
        database._lock.acquire()
        try:
            if database._write_fault is not None and not self._is_retry:
                raise database._write_fault.copy()
            self._connection = connection = database._usable_connection(database._writer, self._wait)
            try:
                database._check_unmoved()
                connection.execute("BEGIN IMMEDIATE")
            except BaseException as error:
                database._abort(connection, error)
                raise
        except BaseException:
            database._lock.release()
            raise
        return connection

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if error is not None:
                self._database._abort(self._connection, error)
                return
            try:
                self._connection.execute("COMMIT")
            except BaseException as failure:
                self._database._abort(self._connection, failure)
                raise
        finally:
            self._database._lock.release()


@contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the file of the store. Raises FileNotFoundError or Unusable."""
    # Behind any links, where SQLite keeps its side files.
    path = Path(os.path.realpath(path.expanduser()))
    if not path.exists():
        raise FileNotFoundError(path)
    # SQLite would create side files to lock a file that no process has open.
    is_in_use = any(Path(f"{path}{side}").exists() for side in file_check.SIDE_FILES)
    uri = f"{path.absolute().as_uri()}?mode=ro" if is_in_use else file_check.immutable_uri(path)
    try:
        with ExitStack() as resources:
            # Before SQLite touches it: a file that is not ours stays as it is.
            resources.callback(file_check.claim(path, schema.STORE, may_create=False))
            connection = resources.enter_context(closing(connect(uri, uri=True)))
            connection.execute(f"PRAGMA busy_timeout = {_READ_ONLY_BUSY_MILLISECONDS}")
            if schema.STORE.check(connection):
                raise FileNotFoundError(path)
            yield connection
    except FileNotFoundError:
        raise
    except (sqlite3.Error, OSError) as error:
        if (fault := fault_of(error)) is None:
            raise
        raise fault from None
