"""One SQLite file: how it is opened, shared by threads, watched for faults and found usable again.

WAL with synchronous=NORMAL: what was committed survives the death of this process at any moment; a power cut may
lose the last commits, never the file. With durability "full" a commit counts only once the disk has it. One connection
writes and one reads, each for one thread at a time, so that nobody who looks something up waits for a writer;
`:memory:` is seen by one connection only, which does both.

A fault is met once: whoever meets it waits a moment at most, and from then on every call fails at once with the same
Unusable, until `open` and `confirm`, called by whoever mends, find the file usable again. Reading and writing are
judged apart: a file that is locked, or on a full disk, can still be read.
"""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from deepseek_cursor_proxy import private_files
from deepseek_cursor_proxy.storage import file_check, schema
from deepseek_cursor_proxy.storage.faults import Damaged, Locked, Lost, ReadOnly, Unusable, fault_of
from deepseek_cursor_proxy.storage.sqlite_connection import Connection, connect, free_statements

_log = logging.getLogger(__name__)

# Another process may hold the file for a moment. One request may meet one wait for reading and one for writing, its own
# or behind another thread; both stay below the half second that an answer may wait for the store.
_BUSY_SECONDS = 0.2
# After a wait in vain nobody waits for this long: a lock that comes and goes costs one wait, not one per request.
_SECONDS_BETWEEN_WAITS = 60.0
# The log is worked into the file when it has this many pages (of 4 kB), and keeps no more bytes than this. So many
# that the disk is seldom waited for, so few that a few hundred turns are not on the disk half as much again.
_LOG_PAGES = 250
_LOG_BYTES = 4 * 1024 * 1024


class Database:
    """Called by handler threads and by whoever mends.

    `_lock` protects the connection that writes, `_reading` the one that reads. What both use changes under both, except
    the faults: whoever meets one holds one of the locks, and the last word is as good as any. `_lock` is taken first.
    """

    def __init__(
        self, path: str | Path, *, durability: str = "normal", on_fault: Callable[[], None] = lambda: None
    ) -> None:
        """Touches nothing before `open`. `on_fault` is called by the thread that meets a fault, and must not wait."""
        self.path = str(path)
        self._durability = durability
        self._on_fault = on_fault
        self._lock = threading.RLock()
        self._read_lock = self._lock if self.path == ":memory:" else threading.RLock()
        self._writer: Connection | None = None
        self._reader: Connection | None = None
        self._file_identity: file_check.FileIdentity | None = None
        self._read_fault: Unusable | None = _NOT_OPEN
        self._write_fault: Unusable | None = None
        self._waited_at = float("-inf")
        self._is_closed = False

    # Using it …

    @contextmanager
    def transaction(self, *, is_retry: bool = False) -> Iterator[sqlite3.Connection]:
        """The connection, in a transaction that commits at the end and rolls back on any exception.

        Raises Unusable for every fault of the file. `mending` tries although the last try failed.
        """
        with self._lock:
            if self._write_fault is not None and not is_retry:
                raise self._write_fault.copy()
            connection = self._usable_connection(self._writer)
            try:
                self._check_unmoved()
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
            except BaseException as error:
                _roll_back(connection)
                self._raise_fault(error, connection, is_writing=True)
                raise

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """A connection for statements that only look; raises Unusable for every fault of the file."""
        with self._read_lock:
            connection = self._usable_connection(self._reader)
            try:
                yield connection
            except Exception as error:
                self._raise_fault(error, connection, is_writing=False)
                raise

    def close(self) -> None:
        with self._lock, self._read_lock:
            self._is_closed = True
            self._disconnect(_NOT_OPEN)

    # Judging …

    def _usable_connection(self, connection: Connection | None) -> Connection:
        if self._read_fault is not None or connection is None:
            raise (self._read_fault or _NOT_OPEN).copy()
        may_wait = self._write_fault is None and time.monotonic() - self._waited_at >= _SECONDS_BETWEEN_WAITS
        self._set_busy_timeout(connection, _BUSY_SECONDS if may_wait else 0.0)
        return connection

    def _raise_fault(self, error: BaseException, connection: Connection, *, is_writing: bool) -> None:
        """Raises Unusable for a fault of the file, which is met at once by everybody from then on."""
        fault = fault_of(error)
        if fault is None:
            return
        if isinstance(fault, Locked) and connection.busy_seconds:
            self._waited_at = time.monotonic()
        self._set_fault(fault.copy(), is_writing=is_writing)
        raise fault from None

    def _set_fault(self, fault: Unusable, *, is_writing: bool) -> None:
        if isinstance(fault, Damaged) and self._file_identity is None:
            # What was read past SQLite's locks may have changed meanwhile, and proves nothing.
            fault = Lost(fault.reason)
        self._write_fault = fault
        if not is_writing or isinstance(fault, (Lost, Damaged)):
            self._read_fault = fault
        self._on_fault()

    def _set_busy_timeout(self, connection: Connection, seconds: float) -> None:
        if seconds != connection.busy_seconds:
            connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")
            connection.busy_seconds = seconds

    def _check_unmoved(self) -> None:
        """A file that was deleted or replaced can still be written by us, and nobody would ever read it."""
        if self._file_identity is None:
            return
        try:
            is_unmoved = file_check.file_identity(self._name) == self._file_identity
        except PermissionError:
            # A folder that was closed to us keeps the file, and what is open already stays open.
            return
        if not is_unmoved:
            raise Lost("it was deleted, emptied or replaced", "it is begun anew")

    # Mending …

    def open(self, *, may_set_aside: bool = True) -> None:
        """Have a connection that reads; raises Unusable. Begins a file where there is none or a damaged one was."""
        with self._lock, self._read_lock:
            fault, file_identity = self._read_fault or self._write_fault, self._file_identity
            if self._is_closed:
                raise _NOT_OPEN.copy()
            if fault is None or (self._read_fault is None and not isinstance(fault, ReadOnly)):
                return
            self._disconnect(fault)
            is_readable = isinstance(fault, ReadOnly)
            if is_readable:
                # Under the lock, so that nobody misses it meanwhile.
                self._reopen(fault, file_identity, may_set_aside)
        if not is_readable:
            # Without it: a slow disk holds nobody up.
            self._reopen(fault, file_identity, may_set_aside)

    def confirm(self) -> None:
        """Find out by writing whether the file can be written again; raises Unusable."""
        with self.transaction(is_retry=True) as connection:
            schema.write_version(connection)
        with self._lock:
            self._write_fault = None

    def _reopen(self, fault: Unusable, file_identity: file_check.FileIdentity | None, may_set_aside: bool) -> None:
        try:
            if isinstance(fault, Damaged) and file_identity is not None:
                self._set_aside(fault, file_identity, may_set_aside)
            if self.path != ":memory:":
                file_check.remove_stray_side_files(self._file, file_identity)
            self._adopt(self._connect_or_set_aside(may_set_aside, may_wait=fault is _NOT_OPEN))
        except (sqlite3.Error, OSError, Unusable) as error:
            if (found := fault_of(error)) is None:
                raise
            self._open_immutable(found.copy())
            raise found from None
        if isinstance(fault, Lost) and fault is not _NOT_OPEN:
            _log.warning("%s: %s; what is there now is used instead", self.path, fault.reason)

    def _connect_or_set_aside(self, may_set_aside: bool, may_wait: bool) -> "_Connections":
        file_identity = file_check.file_identity(self._file)
        try:
            return self._connect(may_wait)
        except (Damaged, sqlite3.DatabaseError) as error:
            fault = fault_of(error)
            if not isinstance(fault, Damaged):
                raise
            self._set_aside(fault, file_identity, may_set_aside)
        return self._connect(may_wait)

    def _connect(self, may_wait: bool) -> "_Connections":
        if self.path != ":memory:":
            private_files.make_directory(self._file.parent)
            file_check.inspect(self._file, len(schema.MIGRATIONS))
            # SQLite gives its -wal and -shm files the mode of the main file, so creating that one is enough.
            private_files.create(self._file)
            file_check.grant_side_files(self._file)
        connection = connect(":memory:" if self.path == ":memory:" else str(self._file))
        try:
            self._set_busy_timeout(connection, _BUSY_SECONDS if may_wait else 0.0)
            # Before anything is written: a file that is not ours stays as it is.
            schema.check(connection)
            connection.execute("PRAGMA journal_mode=WAL")
            self._set_durability(connection)
            connection.execute("PRAGMA foreign_keys=ON")
            connection.execute(f"PRAGMA wal_autocheckpoint={_LOG_PAGES}")
            connection.execute(f"PRAGMA journal_size_limit={_LOG_BYTES}")
            schema.migrate(connection)
            return _Connections(connection, connection if self.path == ":memory:" else self._connect_reader())
        except BaseException:
            connection.close()
            raise

    def _connect_reader(self) -> Connection:
        """For reading only; it must not wait for the disk longer than the first one, should it ever write."""
        connection = connect(str(self._file))
        self._set_durability(connection)
        return connection

    def _set_durability(self, connection: Connection) -> None:
        connection.execute(f"PRAGMA synchronous={self._durability}")
        # The fsync() of macOS leaves data in the drive's cache; these ask it for F_FULLFSYNC. The copy from the log
        # into the file always needs it, or a power cut could damage the file. Other systems ignore both.
        connection.execute("PRAGMA checkpoint_fullfsync=ON")
        connection.execute(f"PRAGMA fullfsync={'ON' if self._durability == 'full' else 'OFF'}")

    def _open_immutable(self, fault: Unusable) -> None:
        """Without the right or the room to write, SQLite does not even read; but a file without a log is whole."""
        with self._lock, self._read_lock:
            self._read_fault = self._write_fault = fault
        if self.path == ":memory:" or isinstance(fault, (Locked, Damaged)) or file_check.has_log(self._file):
            return
        with suppress(sqlite3.Error, OSError, Unusable):
            file_check.inspect(self._file, len(schema.MIGRATIONS))
            connection = connect(file_check.immutable_uri(self._file), uri=True)
            try:
                schema.check(connection)
                if schema.version(connection) != len(schema.MIGRATIONS):
                    raise fault
            except BaseException:
                connection.close()
                raise
            self._adopt(_Connections(connection, connection), ReadOnly(fault.reason, fault.remedy))

    def _adopt(self, connections: "_Connections", write_fault: Unusable | None = None) -> None:
        with self._lock, self._read_lock:
            self._writer, self._reader, self._read_fault = connections.writer, connections.reader, None
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

    def _set_aside(self, damage: Damaged, file_identity: file_check.FileIdentity, is_allowed: bool) -> None:
        if not is_allowed:
            raise damage
        if file_check.file_identity(self._file).file != file_identity.file:
            # Another process was faster: what is there now is not what was damaged.
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
        """Where SQLite keeps the file and its side files: behind any links."""
        return Path(os.path.realpath(Path(self.path).expanduser()))

    @cached_property
    def _name(self) -> str:
        return str(self._file)


_NOT_OPEN = Lost("it is not open", "open it")


class _Connections(NamedTuple):
    writer: Connection
    reader: Connection


def _roll_back(connection: sqlite3.Connection) -> None:
    # SQLite has done so itself after some faults; what cannot be rolled back is a fault that is told already.
    if connection.in_transaction:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
