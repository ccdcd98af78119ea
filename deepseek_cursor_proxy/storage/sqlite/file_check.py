"""The file at the store's path: checked before SQLite may touch it, moved aside if damaged; its faults by error codes.

A file that is not ours stays as it is, to the byte. Opening it with SQLite may already write (SQLite copies a crash's
log into the file and creates side files), so this module reads the application id in the head itself, and asks SQLite
by a connection that cannot write. A damaged database is renamed to a dated name in the same folder, with its side
files; it is never deleted and nothing is overwritten.

POSIX drops all locks of a process on a file when the process closes any descriptor of it. SQLite accounts for this
among its own connections; so that no other descriptor drops their locks, a file is claimed while connections are open.
"""

import errno
import itertools
import os
import sqlite3
import stat
import struct
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from deepseek_cursor_proxy.storage import private_files
from deepseek_cursor_proxy.storage.faults import MOVE_AWAY, Damaged, Locked, Lost, ReadOnly, Unusable
from deepseek_cursor_proxy.storage.sqlite.schema import OF_ANOTHER_PROGRAM, Schema

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

# The files SQLite keeps beside a database; they move together.
SIDE_FILES = ("-wal", "-shm", "-journal")

# The head of every SQLite database: a magic, and at fixed places the version and the application id.
_MAGIC = b"SQLite format 3\0"
_HEAD_BYTES = 100
_HEAD = struct.Struct(">60xi4xi")
# Where to look for the text of our tables in a file that lost its head.
_BYTES_LOOKED_AT = 1024 * 1024
# Another process may be opening the file.
_BUSY_SECONDS = 0.2


_Inode = tuple[int, int] | None
# The files that this process has open, with their names. One file may have several databases and readers.
_claims: list[tuple[_Inode, str]] = []
# Protects the claims, and is held while a descriptor that is not SQLite's is open. One thread may take it twice.
_claim_lock = threading.RLock()


def claim(path: Path, kind: Schema, *, may_create: bool) -> Callable[[], None]:
    """Count the file as open; unless it is already, inspect it before and create it if it is not there.

    Call the result, once, after the last connection was closed.
    """
    name = os.path.realpath(path)
    with _claim_lock:
        inode = _inode(name)
        if inode is None or all(inode != claimed for claimed, _ in _claims):
            inspect(path, kind)
            if may_create:
                # SQLite gives its -wal and -shm files the mode of the main file, so creating that one is enough.
                private_files.create(path)
            inode = _inode(name)
        for claimed, other in _claims:
            if inode is not None and claimed == inode and other != name and os.stat(name).st_nlink > 1:
                # Each name would have a log of its own.
                raise Unusable(f"it is a hard link to {other}, which is open", "use one name for the file")
        _claims.append((inode, name))
    return lambda: _release(inode, name)


def _release(inode: _Inode, name: str) -> None:
    with _claim_lock:
        _claims.remove((inode, name))


def inspect(path: Path, kind: Schema) -> None:
    """Raise Unusable for a file that is not ours, Damaged for one to set aside; write nothing.

    Only `claim` calls it, because it opens the file.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    if stat.S_ISDIR(status.st_mode):
        raise Unusable("it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise Unusable("it is not a regular file")
    if status.st_size == 0:
        return
    start = _read_start(path)
    is_database, has_wal = start.startswith(_MAGIC) and len(start) >= _HEAD_BYTES, _size(f"{path}-wal") > 0
    version, application_id = _HEAD.unpack_from(start) if is_database else (0, 0)
    if application_id == kind.application_id:
        # Whether it is damaged shows when SQLite reads it under its locks: another process may write to it now.
        kind.check_ownership(application_id, version, is_empty=False)
    elif is_database or has_wal:
        try:
            application_id, version, is_empty = _read_identity(path, is_database, has_wal)
            kind.check_ownership(application_id, version, is_empty=is_empty)
        except sqlite3.DatabaseError as error:
            if not isinstance(fault_of(error), Damaged):
                raise
            if _read_start(path)[:_HEAD_BYTES] != start[:_HEAD_BYTES]:
                # Another process has just copied its log into the file.
                raise Locked from None
            raise _fault_of_unreadable(path, start, kind) from None
    else:
        raise _fault_of_unreadable(path, start, kind)


def _read_start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_BYTES_LOOKED_AT)


def _read_identity(path: Path, is_database: bool, has_wal: bool) -> tuple[int, int, bool]:
    """The application id, the version, and whether the database is empty, by SQLite.

    These connections can write neither to the file nor to its log; SQLite may add the index of the log (-shm).
    """
    names = [immutable_uri(path)] if is_database else []
    # The log may have all that was ever written, or the first page that a power cut tore.
    names += [f"{path.absolute().as_uri()}?mode=ro"] if has_wal else []
    for name in names:
        with closing(sqlite3.connect(name, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)) as connection:
            id, version = (
                connection.execute(f"PRAGMA {of}").fetchone()[0] for of in ("application_id", "user_version")
            )
            is_empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if not is_empty:
            break
    return id, version, is_empty


def _fault_of_unreadable(path: Path, start: bytes, kind: Schema) -> Unusable:
    """The fault of a file whose head is not ours and that SQLite cannot read."""
    if start.startswith(_MAGIC):
        # With its log half of a database may be healthy.
        return Unusable(OF_ANOTHER_PROGRAM) if has_log(path) else Damaged("its first page is overwritten or cut off")
    # Six letters of the magic identify a database that was cut off within it.
    is_cut_off = len(start) >= 6 and _MAGIC.startswith(start)
    if is_cut_off or not start[:_HEAD_BYTES].strip(b"\0") or kind.tables()[0].encode() in start:
        return Damaged("its first page is overwritten or cut off")
    return Unusable("it is not an SQLite database and is left alone")


def has_log(path: Path) -> bool:
    """Whether a log lies beside the file, without which the file may be half of a healthy database."""
    return _size(f"{path}-wal") > 0 or _size(f"{path}-journal") > 0


def _size(name: str) -> int:
    try:
        return os.stat(name).st_size
    except OSError:
        return 0


def immutable_uri(path: Path) -> str:
    """A URI with which SQLite reads the file, writes nothing, creates no side file and takes no lock."""
    return f"{path.absolute().as_uri()}?mode=ro&immutable=1"


def grant_side_files(path: Path) -> None:
    """Give the side files the mode of a writable main file.

    SQLite copies the mode when it creates them: those created while the file was read-only would keep it read-only.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    for end in SIDE_FILES if mode & stat.S_IWUSR else ():
        side = f"{path}{end}"
        with suppress(OSError):
            status = os.lstat(side)
            if stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) != mode:
                os.chmod(side, mode)


def set_aside(path: Path, kind: str) -> Path:
    """Rename a database and its side files to a name of this kind that no file has yet."""
    target = _reserve(f"{path}.{kind}-{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        os.replace(path, target)
    except OSError:
        target.unlink()
        raise
    for end in ("", *SIDE_FILES):
        with suppress(FileNotFoundError):
            if end:
                os.replace(f"{path}{end}", f"{target}{end}")
            os.chmod(f"{target}{end}", 0o600)
    return target


def _reserve(name: str) -> Path:
    for number in itertools.count(1):
        target = Path(name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            return target
    raise AssertionError("numbers do not end")


class FileIdentity(NamedTuple):
    """The file at the path and the log beside it, by device and inode."""

    file: tuple[int, int] | None
    log: tuple[int, int] | None


def file_identity(path: Path) -> FileIdentity:
    """Differs once the file or its log was deleted, emptied or replaced. Raises PermissionError if that is hidden."""
    name = str(path)
    return FileIdentity(_inode(name, empty_is_absent=True), _inode(name + "-wal"))


def _inode(path: str, *, empty_is_absent: bool = False) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except PermissionError:
        raise
    except OSError:
        return None
    return None if empty_is_absent and status.st_size == 0 else (status.st_dev, status.st_ino)


def remove_stray_side_files(path: Path, before: FileIdentity | None) -> None:
    """Remove side files of a database that is gone: SQLite would use them for the database there now.

    They are strays when there is no database, or when the file was replaced beside the log of `before`.
    """
    now = file_identity(path)
    was_replaced = before is not None and before.log is not None and now.log == before.log and now.file != before.file
    for end in SIDE_FILES:
        if was_replaced or not path.exists():
            with suppress(FileNotFoundError):
                os.unlink(f"{path}{end}")


def fault_of(error: BaseException) -> Unusable | None:
    """The fault of the file behind an exception; None if the exception has another cause."""
    match error:
        case Unusable():
            return error
        case OSError():
            return Unusable(error.strerror or str(error), _SYSTEM_REMEDIES.get(error.errno or 0, MOVE_AWAY))
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
        case sqlite3.SQLITE_ERROR if str(error).startswith("no such "):
            # Our tables were dropped, or another file took the place of ours.
            return Lost(str(error))
        case primary if primary in _SQLITE_FAULTS:
            return Unusable(*_SQLITE_FAULTS[primary])
        case _:
            return None
