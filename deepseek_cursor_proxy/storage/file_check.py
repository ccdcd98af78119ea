"""What lies at the store's path: looked at before SQLite may touch it, and set aside when it is beyond use.

A file that is not ours stays as it is, to the byte. Even opening one with SQLite may write (a log left by a crash is
worked in, side files appear), so a file is judged by reading it. A damaged database is moved to a dated name beside
its place, side files and all; it is never deleted and nothing is overwritten.
"""

import itertools
import os
import sqlite3
import stat
import struct
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from deepseek_cursor_proxy.storage.faults import Damaged, Unusable

# Marks the file as ours ("DScp").
APPLICATION_ID = 0x44536370
# What SQLite keeps beside a database; they belong together wherever it goes.
SIDE_FILES = ("-wal", "-shm", "-journal")

# The page size of our own files, and so where pages begin in one that lost its head.
_PAGE_BYTES = 4096
_PAGES_LOOKED_AT = 256


# Looking …


def inspect(path: Path, newest_version: int) -> None:
    """Raises Unusable for what is not ours to touch, Damaged for what has to be set aside; writes nothing.

    Not while this process has the file open: POSIX drops all locks on a file when any descriptor of it is closed.
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
    # SQLite believes the log first: a page that a power cut tore while it was worked in is still whole in there.
    newest = _Head(_newest_in_log(path) or _head(path))
    if newest.application_id != APPLICATION_ID and not newest.is_empty:
        _check_readable(path)
    check_ownership(newest.application_id, newest.version, newest_version, is_empty=newest.is_empty)


def check_ownership(application_id: int, version: int, newest_version: int, *, is_empty: bool) -> None:
    """Raises Unusable unless a database is ours to use; one that is still empty may become ours."""
    if application_id != APPLICATION_ID and not is_empty:
        raise Unusable("it is a database of another program, which is left alone")
    if version > newest_version:
        raise Unusable(f"it was written by a newer version of this program (schema {version}) and is left alone")


class _Head:
    """The fields we need of a database's first page."""

    MAGIC = b"SQLite format 3\0"
    BYTES = 108
    # The same three numbers in every database there is.
    FRACTIONS = bytes((64, 32, 32))
    # A table's inner page and leaf: what the first page always is.
    KINDS = (0x05, 0x0D)

    def __init__(self, data: bytes) -> None:
        self.is_sane = len(data) >= self.BYTES and data[21:24] == self.FRACTIONS and data[100] in self.KINDS
        if self.is_sane:
            self.version, self.application_id = (struct.unpack_from(">i", data, at)[0] for at in (60, 68))
            self.is_empty = data[100] == self.KINDS[1] and data[103:105] == b"\0\0"


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        head = file.read(_Head.BYTES)
        # Six letters of the magic are enough to know a database that was cut off within it.
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
    """Whether a file without a head has a database's pages behind it."""
    for number in range(1, _PAGES_LOOKED_AT):
        file.seek(number * _PAGE_BYTES)
        page = file.read(_PAGE_BYTES)
        if len(page) < _PAGE_BYTES:
            return False
        if _is_page(page):
            return True
    return False


def _is_page(page: bytes) -> bool:
    """Whether these bytes are a page of a b-tree: its kind, and cells that lie where their pointers say."""
    kind, _, cells, start, fragments = struct.unpack_from(">BHHHB", page)
    if kind not in (0x02, 0x05, 0x0A, 0x0D) or fragments > 60:
        return False
    begin = 12 if kind < 0x0A else 8
    if not begin + 2 * cells <= start <= _PAGE_BYTES:
        return False
    return all(start <= pointer < _PAGE_BYTES for pointer in struct.unpack_from(f">{cells}H", page, begin))


def _newest_in_log(path: Path) -> bytes | None:
    """The head as the last committed transaction in the -wal file left it; None when it is not in there."""
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
    """Raises Damaged when a database of somebody else cannot be read; then nobody uses it."""
    if has_log(path):
        return
    with closing(sqlite3.connect(immutable_uri(path), uri=True)) as connection:
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise Damaged(str(error)) from None


def has_log(path: Path) -> bool:
    """Whether something lies beside the file without which it may be only half of a healthy database."""
    for side in ("-wal", "-journal"):
        with suppress(OSError):
            if os.stat(f"{path}{side}").st_size:
                return True
    return False


def immutable_uri(path: Path) -> str:
    """A name under which SQLite reads a file and writes nothing, not even beside it; it takes no lock either."""
    return f"{path.absolute().as_uri()}?mode=ro&immutable=1"


# Sharing …


def grant_side_files(path: Path) -> None:
    """Give the side files the rights of a file that can be written.

    SQLite gives them its mode when it makes them: those made while the file was read-only would keep it so for ever.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    for end in SIDE_FILES if mode & stat.S_IWUSR else ():
        side = f"{path}{end}"
        with suppress(OSError):
            status = os.lstat(side)
            if stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) != mode:
                os.chmod(side, mode)


# Moving …


def set_aside(path: Path) -> Path:
    """Move a damaged database out of the way, side files and all, under a name that nothing has yet."""
    target = _reserved(f"{path}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}")
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


def _reserved(name: str) -> Path:
    for number in itertools.count(1):
        target = Path(name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            return target
    raise AssertionError("numbers do not end")


# Knowing it again …


class FileIdentity(NamedTuple):
    """Which file lies at the path, and which log beside it."""

    file: tuple[int, int] | None
    log: tuple[int, int] | None


def file_identity(path: Path | str) -> FileIdentity:
    """Another one when the file or its log was deleted, emptied or replaced; PermissionError when nobody can tell."""
    return FileIdentity(_identity(str(path), is_emptied_gone=True), _identity(f"{path}-wal"))


def _identity(path: str, *, is_emptied_gone: bool = False) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except PermissionError:
        raise
    except OSError:
        return None
    return None if is_emptied_gone and status.st_size == 0 else (status.st_dev, status.st_ino)


def remove_stray_side_files(path: Path, before: FileIdentity | None) -> None:
    """Remove side files of a database that is gone: they would be taken for those of the one that is there now.

    That is so when there is none, or another one than `before` beside the log from before.
    """
    now = file_identity(path)
    was_replaced = before is not None and before.log is not None and now.log == before.log and now.file != before.file
    for end in SIDE_FILES:
        if was_replaced or not path.exists():
            with suppress(FileNotFoundError):
                os.unlink(f"{path}{end}")
