"""The secret of this installation: 32 random bytes in a private file beside the store, made on first need.

It is no part of the database, so that what was sealed with it opens again when that is gone. Without a place for it the
proxy runs all the same, with a secret of its own for as long as it runs: what it seals then, a later one ignores.
"""

import contextlib
import logging
import os
import secrets
import sys
import threading
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from deepseek_cursor_proxy import private_files

_log = logging.getLogger(__name__)

NAME = "secret.key"
_BYTES = 32
_LOCKED_BYTE = 4096


class InstallationSecret:
    """The secret that belongs to a store. Called by handler threads; the lock is for whoever needs it first."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._found: bytes | None = None

    def read(self) -> bytes:
        if self._found is None:
            with self._lock:
                self._found = self._found or _load(self._store)
        return self._found


def _load(store: Path) -> bytes:
    """A store that lives in memory has a secret that does."""
    if str(store) == ":memory:":
        return secrets.token_bytes(_BYTES)
    path = store.expanduser().absolute().with_name(NAME)
    try:
        return _read(path) or _create(path)
    except OSError as error:
        _log.warning(
            "%s cannot be read or written: %s; reasoning that clients keep sealed will not open after a restart",
            path,
            error.strerror,
        )
        return secrets.token_bytes(_BYTES)


def _read(path: Path) -> bytes | None:
    """What the file holds; None when there is none, or not as much as there should be."""
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        return None
    return found if len(found) == _BYTES else None


def _create(path: Path) -> bytes:
    """The secret in a file that may have to be made or mended, by one process at a time."""
    private_files.make_directory(path.parent)
    private_files.create(path)
    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    with open(descriptor, "r+b", buffering=0) as file, _exclusive_lock(file):
        # Whoever had the lock before us may have made it.
        found = file.read(_BYTES + 1) or b""
        if len(found) != _BYTES:
            found = secrets.token_bytes(_BYTES)
            file.seek(0)
            file.truncate()
            file.write(found)
            os.fsync(descriptor)
    return found


@contextlib.contextmanager
def _exclusive_lock(file: FileIO) -> Iterator[None]:
    """Nobody else is in here with the same file; the system ends the lock of a process that dies.

    Where a file system knows no locks, whoever comes at the same moment may get another secret until the next start.
    """
    if sys.platform == "win32":
        import msvcrt

        # A byte behind all that is in the file: those before it could not be read meanwhile.
        file.seek(_LOCKED_BYTE)
        # Tries for ten seconds.
        msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        file.seek(0)
        try:
            yield
        finally:
            file.seek(_LOCKED_BYTE)
            msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
    else:
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        # Closing the file ends it.
        yield
