"""InstallationSecret: 32 random bytes in the private file secret.key beside the store, created on first use.

The secret is not in the database, so that sealed items open again after the database was lost. If the file cannot be
written, the proxy uses a secret in memory; items sealed with it do not open after a restart.
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
    """The secret beside a store. Called by handler threads; the lock lets one of them load it."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._secret: bytes | None = None

    def read(self) -> bytes:
        if self._secret is None:
            with self._lock:
                self._secret = self._secret or _load(self._store)
        return self._secret


def _load(store: Path) -> bytes:
    """The secret in the file, created if there is none; in memory for a store in memory or a file that fails."""
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
    """The secret in the file; None when there is none or it has another length."""
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        return None
    return found if len(found) == _BYTES else None


def _create(path: Path) -> bytes:
    """Create the file, or replace a secret of another length, by one process at a time; the secret."""
    private_files.make_directory(path.parent)
    private_files.create(path)
    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    with open(descriptor, "r+b", buffering=0) as file, _exclusive_lock(file):
        # Another process may have written it before we got the lock.
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
    """Hold an exclusive lock on the file; the system releases it if the process dies.

    On a file system without locks, two processes that start at once may use different secrets until the next start.
    """
    if sys.platform == "win32":
        import msvcrt

        # A byte after the content, which others could not read while it is locked.
        file.seek(_LOCKED_BYTE)
        # LK_LOCK tries for ten seconds.
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
        # Closing the file releases it.
        yield
