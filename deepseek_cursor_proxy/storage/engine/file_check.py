"""Checks of the file at the store's path, before SQLite may touch it; and moving a damaged one aside.

A file that is not ours stays as it is, to the byte. Opening it with SQLite may already write (SQLite copies a crash's
log into the file and creates side files), so this module reads the bytes itself. A damaged database is renamed to a
dated name in the same folder, with its side files; it is never deleted and nothing is overwritten.

POSIX drops all locks of a process on a file when the process closes any descriptor of it. SQLite minds that for its own
connections; so that no other descriptor takes their locks away, a file is claimed as long as connections are open.
"""

import itertools
import os
import sqlite3
import stat
import struct
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from deepseek_cursor_proxy import private_files
from deepseek_cursor_proxy.storage.engine.faults import Damaged, Unusable

# The files SQLite keeps beside a database; they move together.
SIDE_FILES = ("-wal", "-shm", "-journal")

# The page size of our own files: where to look for pages in one that lost its head.
_PAGE_BYTES = 4096
_PAGES_LOOKED_AT = 256


class FileKind(Protocol):
    """What a file of ours is known by: the number in its head, and the newest version that we can read."""

    @property
    def application_id(self) -> int: ...

    @property
    def newest_version(self) -> int: ...


_Inode = tuple[int, int] | None
# By device and inode: the names under which files are open. A file may have several databases and readers.
_claims: dict[_Inode, list[str]] = {}
# Protects the claims, and is held while a descriptor that is not SQLite's is open. One thread may take it twice.
_claim_lock = threading.RLock()


class Claim:
    """A file that this process has open, until `release`."""

    def __init__(self, inode: _Inode, name: str) -> None:
        self._inode = inode
        self._name = name
        _claims.setdefault(inode, []).append(name)

    def release(self) -> None:
        """Call it after the last connection was closed; once."""
        with _claim_lock:
            _claims[self._inode].remove(self._name)
            if not _claims[self._inode]:
                del _claims[self._inode]


def claim(path: Path, kind: FileKind, *, may_create: bool) -> Claim:
    """Count the file as open; unless it is already, inspect it before and create it if it is not there."""
    name = os.path.realpath(path)
    with _claim_lock:
        if (inode := _inode(name)) is None or inode not in _claims:
            inspect(path, kind)
            if may_create:
                # SQLite gives its -wal and -shm files the mode of the main file, so creating that one is enough.
                private_files.create(path)
            inode = _inode(name)
        other = next((each for each in _claims.get(inode, ()) if each != name), None)
        if inode is not None and other is not None and os.stat(name).st_nlink > 1:
            # Each name would have a log of its own.
            raise Unusable(f"it is a hard link to {other}, which is open", "use one name for the file")
        return Claim(inode, name)


def inspect(path: Path, kind: FileKind) -> None:
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
    # SQLite reads the log first: a page that a power cut tore while it was copied is still whole in there.
    newest = _Head(_newest_in_log(path) or _head(path))
    if newest.application_id != kind.application_id and not newest.is_empty:
        _check_readable(path)
    check_ownership(newest.application_id, newest.version, kind, is_empty=newest.is_empty)


def check_ownership(application_id: int, version: int, kind: FileKind, *, is_empty: bool) -> None:
    """Raise Unusable unless the database is of this kind; an empty one may become it."""
    if application_id != kind.application_id and not is_empty:
        raise Unusable("it is a database of another program, which is left alone")
    if version > kind.newest_version:
        raise Unusable(f"it was written by a newer version of this program (schema {version}) and is left alone")


class _Head:
    """The fields that we need from the first page of a database."""

    MAGIC = b"SQLite format 3\0"
    BYTES = 108
    # The same three numbers in every SQLite database.
    FRACTIONS = bytes((64, 32, 32))
    # The first page is always a table's inner page or leaf.
    KINDS = (0x05, 0x0D)

    def __init__(self, data: bytes) -> None:
        self.is_sane = len(data) >= self.BYTES and data[21:24] == self.FRACTIONS and data[100] in self.KINDS
        if self.is_sane:
            self.version, self.application_id = (struct.unpack_from(">i", data, at)[0] for at in (60, 68))
            self.is_empty = data[100] == self.KINDS[1] and data[103:105] == b"\0\0"


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        head = file.read(_Head.BYTES)
        # Six letters of the magic identify a database that was cut off within it.
        if head[:16] == _Head.MAGIC[: max(6, len(head))]:
            if not _Head(head).is_sane:
                raise Damaged("its first page is overwritten or cut off")
            return head
        if not head.strip(b"\0"):
            raise Damaged("its first page is empty")
        if _has_pages(file):
            raise Damaged("its first page is overwritten")
    raise Unusable("it is not an SQLite database and is left alone")


def _has_pages(file: BinaryIO) -> bool:
    """Whether a file that lost its first page has other pages of a database."""
    for number in range(1, _PAGES_LOOKED_AT):
        file.seek(number * _PAGE_BYTES)
        page = file.read(_PAGE_BYTES)
        if len(page) < _PAGE_BYTES:
            return False
        if _is_page(page):
            return True
    return False


def _is_page(page: bytes) -> bool:
    """Whether these bytes are a b-tree page: a valid kind, and cells where their pointers say."""
    kind, _, cells, start, fragments = struct.unpack_from(">BHHHB", page)
    if kind not in (0x02, 0x05, 0x0A, 0x0D) or fragments > 60:
        return False
    begin = 12 if kind < 0x0A else 8
    if not begin + 2 * cells <= start <= _PAGE_BYTES:
        return False
    return all(start <= pointer < _PAGE_BYTES for pointer in struct.unpack_from(f">{cells}H", page, begin))


def _newest_in_log(path: Path) -> bytes | None:
    """The head that the last committed transaction left in the -wal file; None when it is not in there."""
    found = candidate = None
    with suppress(FileNotFoundError), Path(f"{path}-wal").open("rb") as log:
        header = log.read(32)
        if len(header) < 32:
            return None
        page_bytes, salts = struct.unpack_from(">I", header, 8)[0], header[16:24]
        while len(frame := log.read(24 + _Head.BYTES)) == 24 + _Head.BYTES and frame[8:16] == salts:
            number, pages_after_commit = struct.unpack_from(">II", frame)
            candidate = frame[24:] if number == 1 else candidate
            found = candidate if pages_after_commit else found
            log.seek(page_bytes - _Head.BYTES, os.SEEK_CUR)
    return found if found is not None and _Head(found).is_sane else None


def _check_readable(path: Path) -> None:
    """Raise Damaged when another program's database cannot be read: then that program cannot use it either."""
    if has_log(path):
        return
    with closing(sqlite3.connect(immutable_uri(path), uri=True)) as connection:
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise Damaged(str(error)) from None


def has_log(path: Path) -> bool:
    """Whether a log lies beside the file, without which the file may be half of a healthy database."""
    for side in ("-wal", "-journal"):
        with suppress(OSError):
            if os.stat(f"{path}{side}").st_size:
                return True
    return False


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


def set_aside(path: Path) -> Path:
    """Rename a damaged database and its side files to a name that no file has yet."""
    target = _reserve(f"{path}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}")
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
    """Differs once the file or its log was deleted, emptied or replaced; PermissionError when that cannot be seen."""
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
    """Remove side files of a database that is gone: SQLite would use them for the one that is there now.

    They are strays when there is no database, or when the file was replaced beside the log of `before`.
    """
    now = file_identity(path)
    was_replaced = before is not None and before.log is not None and now.log == before.log and now.file != before.file
    for end in SIDE_FILES:
        if was_replaced or not path.exists():
            with suppress(FileNotFoundError):
                os.unlink(f"{path}{end}")
