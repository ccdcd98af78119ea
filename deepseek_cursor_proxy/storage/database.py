"""Database: one SQLite file, shared by threads. Store: opens it, and opens it again after a fault.

WAL with synchronous=NORMAL: a commit survives a crash of this process at any moment; a power cut may lose the last
commits, never the file. With durability "full" a commit returns once the disk has it. One connection writes and one
reads, each for one thread at a time, so that a lookup never waits for a writer; `:memory:` has one for both.

The first call that meets a fault waits a moment at most. From then on every call raises the same Unusable at once,
until the thread of the Store has opened it again, with growing delays between its tries, and every table has written
what it kept meanwhile (`on_reopen`). Reading and writing have separate faults: a file that is
locked, or on a full disk, can still be read.

A file that is not ours is left alone. One of ours that is damaged or of an earlier version is renamed to a dated name
in the same folder, with its side files.

This module knows connections and transactions, no table: every table names its own (`require`).
"""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from deepseek_cursor_proxy.net.threads import BackgroundThread
from deepseek_cursor_proxy.storage import private_files, schema
from deepseek_cursor_proxy.storage.faults import (
    Damaged,
    FaultGuard,
    Locked,
    Lost,
    Outdated,
    ReadOnly,
    Refused,
    Unusable,
    fault_of,
)

_log = logging.getLogger(__name__)

# Another process may hold the file for a moment. A request may meet one wait for reading and one for writing; together
# they stay below the half second that an answer may wait for the store.
_BUSY_SECONDS = 0.2
# Between two tries to begin a transaction: others are over in a millisecond, unless their process hangs.
_FIRST_TRY_SECONDS = 0.001
_LONGEST_TRY_SECONDS = 0.02
# SQLite copies the log into the file at this many pages (of 4 kB), and truncates the log to this many bytes. A smaller
# one would wait for the disk more often: at 250 pages every thirty turns, and a turn took a quarter more of CPU.
_LOG_PAGES = 1000
_LOG_BYTES = 4 * 1024 * 1024
# Commands that read the file of a running proxy wait longer for a program that holds the whole file.
_READ_ONLY_BUSY_SECONDS = 1.0

# The files SQLite keeps beside a database; they move together.
_SIDE_FILES = ("-wal", "-shm", "-journal")
_MAGIC = b"SQLite format 3\0"
# SQLite takes a smaller file for an empty database.
_SMALLEST_BYTES = 512
_NO_DATABASE = "it is not an SQLite database and is left alone"

# Between two tries to open the file again.
_FIRST_DELAY_SECONDS = 0.25
_LONGEST_DELAY_SECONDS = 5.0
# Avoids flooding the log when the file flaps.
_SECONDS_BETWEEN_WARNINGS = 30.0

_Inode = tuple[int, int] | None
_NOT_OPEN = Lost("it is not open", "open it")


class StoreSize(NamedTuple):
    rows: dict[str, int]
    bytes: int


class Database:
    """Called by any thread.

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
        # Behind any links, where SQLite also keeps its side files.
        self._file = os.path.realpath(Path(self.path).expanduser()) if self._is_file else self.path
        self._durability = durability
        self._schema = tables or schema.STORE
        # The CREATE statements of the tables that features need.
        self._required = ""
        # Also called by a store with waiting entries, to have the file opened again soon.
        self.request_reopen = on_fault
        self._lock = threading.RLock()
        self._read_lock = threading.RLock() if self._is_file else self._lock
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        # Of the file that is open, and of its log.
        self._inode: _Inode = None
        self._log_inode: _Inode = None
        self._read_fault: Unusable | None = _NOT_OPEN
        self._write_fault: Unusable | None = None
        # How often a fault was met; never reset, for metrics.
        self.fault_count = 0
        self._is_closed = False
        self._waiting_writers: list[Callable[[], bool]] = []
        # Writes what waits in the tables, deletes what is too much in them, and opens the file again after a fault.
        self.background = BackgroundThread("storage-write")
        # What writes waiting entries of all tables (`write_behind`), and how many it wrote despite a fault.
        self.flusher: Any = None
        self.written_late = 0

    # Reading and writing …

    def transaction(self, *, despite_fault: bool = False, wait: float | None = None) -> "Transaction":
        """The connection in a transaction, with `despite_fault` despite a known fault. Raises Unusable for a fault.

        It waits for another process as long as any call may, or for `wait` seconds, without holding up other threads.
        """
        return Transaction(self, despite_fault, _BUSY_SECONDS if wait is None else wait)

    def reader(self) -> "Reading":
        """A connection for SELECT. Raises Unusable for every fault of the file."""
        return Reading(self)

    def select(self, query: str, *values: Any) -> list[Any]:
        """The rows that a query finds. Raises Unusable."""
        with Reading(self) as connection:
            return connection.execute(query, values).fetchall()

    def number(self, query: str, *values: float) -> int:
        """The single integer that a query returns. Raises Unusable."""
        return int(self.select(query, *values)[0][0])

    def size(self) -> StoreSize:
        """Returns the rows of every table and the bytes of the file. Raises Unusable."""
        # The connection is given back after every table: counting half a million keys takes 10 ms, and lookups wait.
        tables = sorted(schema.table_names(self._schema.statements + self._required))
        rows = {table: self.number(f"SELECT count(*) FROM {table}") for table in tables}
        return StoreSize(rows, self.file_size())

    def file_size(self) -> int:
        return self.number("PRAGMA page_count") * self.number("PRAGMA page_size")

    def shrink(self) -> None:
        """Return the space of deleted rows to the disk. Raises Unusable."""
        self.select("VACUUM")
        self.empty_log()

    def empty_log(self) -> None:
        """Copy the log, which still has the pages of deleted rows, into the file and truncate it. Raises Unusable."""
        # A transaction of another thread would leave the log as it is.
        with self._lock:
            self.select("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self.background.close()
        with self._lock, self._read_lock:
            self._is_closed = True
            self._disconnect(_NOT_OPEN)

    # Faults …

    @property
    def fault(self) -> Unusable | None:
        """Why the file cannot be read or written at the moment; None if it can."""
        return self._read_fault or self._write_fault

    def _raise_fault(self, error: BaseException, *, is_writing: bool) -> None:
        """Raise Unusable if the file is at fault, here and from every later call; raise Refused for SQLite's errors."""
        fault = fault_of(error)
        if fault is None:
            if isinstance(error, sqlite3.Error):
                if self._write_fault is not None and "no such table" in str(error):
                    # It could not be created (`require`).
                    raise self._write_fault.copy() from None
                raise Refused(str(error)) from error
            return
        self._write_fault = fault.copy()
        if not is_writing or isinstance(fault, (Lost, Damaged)):
            self._read_fault = self._write_fault
        self.fault_count += 1
        self.request_reopen()
        raise fault from None

    def _check_unmoved(self) -> None:
        """Raise Lost for a file that was deleted or replaced: writes to it would succeed and never be read again."""
        try:
            if not self._is_file or _inode(self._file) == self._inode:
                return
        except PermissionError:
            # A folder that was closed to us leaves the file in it open.
            return
        raise Lost("it was deleted, emptied or replaced", "the proxy opens it again, or creates a new one")

    # Opening …

    def on_reopen(self, write_waiting: Callable[[], bool]) -> None:
        """Register a function of a store that writes the entries that waited, and returns True if all are written.

        It uses `transaction(despite_fault=True)`.
        """
        self._waiting_writers.append(write_waiting)

    def require(self, statements: str) -> None:
        """Have the file have these tables; one that cannot be written now gets them when it is opened again."""
        with self._lock:
            self._required += statements
        if self._read_fault is None:
            with suppress(Unusable):
                self._create_missing()

    def _create_missing(self) -> None:
        """Create the required tables that the file does not have. Raises Unusable."""
        found = {name for (name,) in self.select("SELECT name FROM sqlite_master")}
        if found.issuperset(schema.table_names(self._required)):
            return
        with self.transaction(despite_fault=True) as connection:
            schema.execute(connection, schema.if_missing(self._required))

    def reopen(self) -> bool:
        """Open the file, let every store write what waited, and only then let other writes through. Raises Unusable.

        True if all is written; SQLite may refuse an entry.
        """
        self.open()
        self._create_missing()
        is_written = [write_waiting() for write_waiting in self._waiting_writers]
        self.confirm()
        return all(is_written)

    def open(self, *, may_set_aside: bool = True) -> None:
        """Connect after a fault. Creates the file if there is none or one was set aside. Raises Unusable.

        Nothing to do if the file can be read and only writing failed, unless the connection itself is read-only.
        """
        with self._lock, self._read_lock:
            if self._is_closed:
                raise _NOT_OPEN.copy()
            fault = self._read_fault or self._write_fault
            if fault is None or (self._read_fault is None and not isinstance(fault, ReadOnly)):
                return
            damage = fault if isinstance(fault, Damaged) and self._inode is not None else None
            damaged = self._inode
            # Meanwhile a call that finds the fault does not wait for the locks.
            self._disconnect(fault)
            try:
                self._remove_stale_log()
                if damage is not None:
                    # Found damaged while it was in use.
                    self._set_aside(damage, damaged, may_set_aside)
                self._connect_to_usable(may_set_aside)
            except (sqlite3.Error, OSError, Unusable) as error:
                if (found := fault_of(error)) is None:
                    raise
                self._read_fault = self._write_fault = found.copy()
                raise found from None
        if isinstance(fault, Lost) and fault is not _NOT_OPEN:
            _log.warning("%s: %s; what is there now is used instead", self.path, fault.reason)

    def confirm(self) -> None:
        """Prove that the file is writable, after a fault by a write, and let other writes through. Raises Unusable."""
        with self.transaction(despite_fault=True) as connection:
            # A start does not wait for the disk, which takes 3 ms.
            if self._write_fault is not None:
                self._schema.write_version(connection)
        with self._lock:
            self._write_fault = None

    def _connect_to_usable(self, may_set_aside: bool) -> None:
        """Connect, if need be to a new file in place of one that is damaged or of an earlier version."""
        before = _inode(self._file) if self._is_file else None
        try:
            self._connect()
        except (sqlite3.DatabaseError, Damaged) as error:
            fault = _fault_at_opening(error, self._file)
            if not isinstance(fault, Damaged):
                raise (fault or error) from None
            self._set_aside(fault, before, may_set_aside)
            self._connect()

    def _connect(self) -> None:
        if self._is_file:
            private_files.make_directory(Path(self._file).parent)
            # SQLite gives its -wal and -shm files the mode of the main file, so creating that one is enough.
            private_files.create(Path(self._file))
            _check_regular(self._file)
            for end in _SIDE_FILES:
                # Those that SQLite created while the file was read-only would keep it read-only.
                with suppress(OSError):
                    os.chmod(self._file + end, 0o600)
        writer = _connect(self._file, _BUSY_SECONDS)
        try:
            # Before any write: a file that is not ours stays as it is.
            is_empty = self._schema.check(writer)
            writer.execute("PRAGMA journal_mode=WAL")
            self._set_durability(writer)
            writer.execute("PRAGMA foreign_keys=ON")
            writer.execute(f"PRAGMA wal_autocheckpoint={_LOG_PAGES}")
            writer.execute(f"PRAGMA journal_size_limit={_LOG_BYTES}")
            if is_empty:
                self._schema.create(writer)
            # From here on a transaction waits by itself, without the lock.
            writer.execute("PRAGMA busy_timeout=0")
            reader = _connect(self._file, _BUSY_SECONDS) if self._is_file else writer
        except BaseException:
            writer.close()
            raise
        # Should it ever write, it waits for the disk no longer than the writer.
        self._set_durability(reader)
        self._writer, self._reader, self._read_fault = writer, reader, None
        if self._is_file:
            self._inode, self._log_inode = _inode(self._file), _inode(self._file + "-wal", may_be_empty=True)

    def _set_durability(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA synchronous={self._durability}")
        # The fsync() of macOS leaves data in the drive's cache; these ask it for F_FULLFSYNC. The copy from the log
        # into the file always needs it, or a power cut could damage the file. Other systems ignore both.
        connection.execute("PRAGMA checkpoint_fullfsync=ON")
        connection.execute(f"PRAGMA fullfsync={'ON' if self._durability == 'full' else 'OFF'}")

    def _disconnect(self, fault: Unusable) -> None:
        for connection in (self._reader, self._writer):
            if connection is not None:
                with suppress(sqlite3.Error):
                    connection.close()
        self._writer = self._reader = None
        if not isinstance(fault, ReadOnly):
            self._read_fault = fault

    def _remove_stale_log(self) -> None:
        """Remove the log of a file that was replaced: SQLite would use it for the file there now."""
        was_replaced = self._inode is not None and _inode(self._file) not in (self._inode, None)
        # Else another process has begun a log for the new file.
        if was_replaced and self._log_inode == _inode(self._file + "-wal", may_be_empty=True):
            for end in _SIDE_FILES:
                with suppress(FileNotFoundError):
                    os.unlink(self._file + end)
        self._inode = self._log_inode = None

    def _set_aside(self, damage: Damaged, before: _Inode, is_allowed: bool) -> None:
        if not is_allowed:
            raise damage
        if _inode(self._file) != before:
            # Another process was faster: the file there now is not the damaged one.
            return
        kind = "old" if isinstance(damage, Outdated) else "corrupt"
        name = f"{self._file}.{kind}-{time.strftime('%Y%m%d-%H%M%S')}"
        target = next(each for each in (f"{name}{n or ''}" for n in count(0, -1)) if not os.path.exists(each))
        try:
            for end in ("", *_SIDE_FILES):
                with suppress(FileNotFoundError):
                    os.rename(self._file + end, target + end)
                    os.chmod(target + end, 0o600)
        except OSError as error:
            raise Unusable(f"{damage.reason} and cannot be moved away ({error.strerror})") from None
        _log.warning("%s: %s; it was set aside as %s and a new one begun", self.path, damage.reason, target)


class Reading:
    """The reading connection of a Database, whose lock its thread holds. A generator would take twice the time."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> sqlite3.Connection:
        database = self._database
        # First without the lock, which `open` may hold for a while.
        if database._read_fault is None:
            database._read_lock.acquire()
            if database._read_fault is None and database._reader is not None:
                return database._reader
            database._read_lock.release()
        raise (database._read_fault or _NOT_OPEN).copy()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if error is not None:
                self._database._raise_fault(error, is_writing=False)
        finally:
            self._database._read_lock.release()


class Transaction:
    """One transaction of a Database, whose lock its thread holds."""

    def __init__(self, database: Database, despite_fault: bool, wait: float) -> None:
        self._database = database
        self._is_retry = despite_fault
        self._wait = wait

    def __enter__(self) -> sqlite3.Connection:
        delay, until = _FIRST_TRY_SECONDS, None
        while (connection := self._try_to_begin(may_wait=until is None or time.monotonic() < until)) is None:
            until = time.monotonic() + self._wait if until is None else until
            time.sleep(delay)
            delay = min(2 * delay, _LONGEST_TRY_SECONDS)
        return connection

    def _try_to_begin(self, *, may_wait: bool) -> sqlite3.Connection | None:
        """Begin, and keep the lock; None if another process holds the file, unless there is no time left to wait."""
        database = self._database
        self._raise_known_fault()
        database._lock.acquire()
        try:
            self._raise_known_fault()
            if (connection := database._writer) is None:
                raise _NOT_OPEN.copy()
            self._connection = connection
            try:
                database._check_unmoved()
                connection.execute("BEGIN IMMEDIATE")
            except BaseException as error:
                if not may_wait or not isinstance(fault_of(error), Locked):
                    self._abort(error)
                    raise
                database._lock.release()
                return None
        except BaseException:
            database._lock.release()
            raise
        return connection

    def _raise_known_fault(self) -> None:
        fault = self._database._read_fault or (None if self._is_retry else self._database._write_fault)
        if fault is not None:
            raise fault.copy()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if error is not None:
                self._abort(error)
                return
            try:
                self._connection.execute("COMMIT")
            except BaseException as failure:
                self._abort(failure)
                raise
        finally:
            self._database._lock.release()

    def _abort(self, error: BaseException) -> None:
        """Roll back and raise the fault behind an error, if there is one."""
        # SQLite has rolled back by itself after some faults; a failing ROLLBACK adds nothing to the fault.
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
        self._database._raise_fault(error, is_writing=True)


def _connect(name: str, wait: float) -> sqlite3.Connection:
    return sqlite3.connect(name, timeout=wait, isolation_level=None, check_same_thread=False)


def _check_regular(path: str) -> None:
    """Raise Unusable for what SQLite must not open."""
    if not os.path.isfile(path):
        raise Unusable("it is a folder" if os.path.isdir(path) else "it is not a regular file")
    if 0 < os.path.getsize(path) < _SMALLEST_BYTES:
        raise Unusable(_NO_DATABASE)


def _fault_at_opening(error: Exception, path: str) -> Unusable | None:
    """The fault behind an error. A file that SQLite cannot read is damaged only if it was a database."""
    fault = fault_of(error)
    if not isinstance(fault, Damaged) or isinstance(fault, Outdated):
        return fault
    with open(path, "rb") as file:
        head = file.read(len(_MAGIC))
    return fault if head == _MAGIC or not head.strip(b"\0") else Unusable(_NO_DATABASE)


def _inode(path: str, *, may_be_empty: bool = False) -> _Inode:
    """Device and inode of a file; None if there is none, or only an empty one. Raises PermissionError."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (status.st_dev, status.st_ino) if status.st_size or may_be_empty else None


@contextmanager
def open_read_only(path: Path, table: str = "reasonings") -> Iterator[sqlite3.Connection]:
    """Open the file of the store. Raises FileNotFoundError, also for one without this table, or Unusable."""
    path = path.expanduser()
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        _check_regular(str(path))
        with closing(_connect(str(path), _READ_ONLY_BUSY_SECONDS)) as connection:
            connection.execute("PRAGMA query_only=ON")
            is_empty = schema.STORE.check(connection)
            query = "SELECT 1 FROM sqlite_master WHERE name = ?"
            is_empty = is_empty or connection.execute(query, (table,)).fetchone() is None
            if not is_empty:
                yield connection
    except (sqlite3.Error, OSError) as error:
        raise (_fault_at_opening(error, str(path)) or error) from None
    if is_empty:
        raise FileNotFoundError(path)


class Store:
    """The lifecycle of a Database. Called by any thread."""

    def __init__(
        self,
        path: str | Path,
        durability: str = "normal",
        *,
        must_open: bool,
        title: str = "reasoning",
        tables: schema.Schema | None = None,
    ) -> None:
        """With `must_open` a fault is raised, here and later, and no damaged file is moved."""
        self._must_open = must_open
        on_fault = (lambda: None) if must_open else (lambda: self.reopener.wake())
        self.database = Database(path, durability=durability, on_fault=on_fault, tables=tables)
        self.reopener: Reopener = Reopener(self.reopen, self.database.background)
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
            self.outage.report_end(self.database.written_late)
            return is_done
        return False


class Reopener:
    """Has `reopen` run on a thread, with growing delays, until it returns True. Any thread may wake it."""

    def __init__(self, reopen: Callable[[], bool], thread: BackgroundThread) -> None:
        self._reopen = reopen
        self._thread = thread
        self._delay = 0.0

    def wake(self) -> None:
        self._thread.run(self._try, self._delay)

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

    def report_end(self, written: int) -> None:
        """Call after a try that succeeded, with how many entries that waited were ever written."""
        if self._has_warned:
            self._log.warning("%s is usable again; entries written: %d", self._path, written - self._written)
        self._has_warned, self._written = False, written
