"""Private files: mode 0600 in directories of 0700, from the first moment, whatever the umask.

One of them is the installation secret: 32 random bytes in secret.key beside the store, created on first use. It is not
in the database, so that sealed items open again after the database was lost.
"""

import contextlib
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from io import FileIO
from pathlib import Path

from deepseek_cursor_proxy.config.declaration import SECRET_VARIABLE
from deepseek_cursor_proxy.errors import StartupError

_log = logging.getLogger(__name__)

SECRET_NAME = "secret.key"
SECRET_BYTES = 32
# Windows locks bytes, and a locked byte cannot be read: this one lies behind the content of any file of ours.
_FAR_BYTE = 2**40


def make_directory(path: Path) -> None:
    """Create a directory and its parents that only its owner can enter; existing ones stay as they are."""
    # One by one: mkdir(parents=True) would create the parents by the umask.
    missing = [each for each in (path, *path.parents) if not each.is_dir()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
        each.chmod(0o700)


def create(path: Path) -> None:
    """Create an empty file that only its owner can read; an existing one stays as it is."""
    if not path.exists():
        with contextlib.suppress(FileExistsError):
            os.close(_create_exclusive(path))
            path.chmod(0o600)


def write(path: Path, data: bytes, *, on_draft: Callable[[Path], object] | None = None) -> None:
    """Write a whole private file, in a private folder if there is none yet.

    Replaces a link instead of following it: a link could lead to any other file.

    `on_draft` gets the draft that will replace the file.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    make_directory(path.parent)
    try:
        with open(_create_exclusive(draft), "wb") as file:
            file.write(data)
        draft.chmod(0o600)
        if on_draft is not None:
            on_draft(draft)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def read_or_create(path: Path, new: Callable[[], bytes], is_valid: Callable[[bytes], bool]) -> bytes:
    """The content of a small private file. A missing or invalid one is written anew, by one process at a time."""
    with contextlib.suppress(FileNotFoundError):
        if is_valid(found := path.read_bytes()):
            return found
    make_directory(path.parent)
    create(path)
    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    with open(descriptor, "r+b", buffering=0) as file:
        # On a file system without locks, two processes that start at once may use different contents until the next
        # start. Closing the file releases the lock.
        with contextlib.suppress(OSError):
            _lock(file)
        # Another process may have written it before we got the lock.
        found = file.readall()
        if not is_valid(found):
            found = new()
            file.seek(0)
            file.truncate()
            file.write(found)
            os.fsync(descriptor)
    return found


def _lock(file: FileIO) -> None:
    """Hold an exclusive lock on the file until it is closed; the system releases it if the process dies."""
    if sys.platform == "win32":
        import msvcrt

        file.seek(_FAR_BYTE)
        try:
            # LK_LOCK tries for ten seconds.
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        finally:
            file.seek(0)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)


def _create_exclusive(path: Path) -> int:
    """A descriptor of a new file, without Windows' translation of line ends; FileExistsError if there is one."""
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o600)


class InstallationSecret:
    """The secret beside a store. Called by any thread; the lock lets one of them load it.

    If the file cannot be written, the secret is in memory; items sealed with it do not open after a restart.
    """

    def __init__(self, store: Path, given: bytes | None = None) -> None:
        """`given` is used in place of the file: the secret that several proxies share."""
        self._store = store
        self._lock = threading.Lock()
        self._secret = given

    def read(self) -> bytes:
        if self._secret is None:
            with self._lock:
                self._secret = self._secret or self._load()
        return self._secret

    def _load(self) -> bytes:
        """The secret in the file, which is created if absent; in memory if the store is, or if the file fails."""
        new = os.urandom(SECRET_BYTES)
        if str(self._store) == ":memory:":
            return new
        path = _secret_path(self._store)
        try:
            return read_or_create(path, lambda: new, lambda found: len(found) == SECRET_BYTES)
        except OSError as error:
            _log.warning(
                "%s cannot be read or written: %s; reasoning that clients keep sealed will not open after a restart",
                path,
                error.strerror,
            )
            return new


def given_secret(environment: Mapping[str, str] = os.environ) -> bytes | None:
    """The secret of DEEPSEEK_CURSOR_PROXY_SECRET; None if that is not set. Raises StartupError."""
    text = environment.get(SECRET_VARIABLE, "").strip()
    if text and not re.fullmatch(r"[0-9A-Fa-f]{64}", text):
        why = "does not hold a secret: 64 hexadecimal digits, as `store secret` prints them"
        raise StartupError(f"{SECRET_VARIABLE} {why}")
    return bytes.fromhex(text) or None


def read_secret(store: Path) -> bytes | None:
    """The secret beside a store, if a proxy has created one and it can be read."""
    with contextlib.suppress(OSError, RuntimeError):
        found = _secret_path(store).read_bytes()
        return found if len(found) == SECRET_BYTES else None
    return None


def _secret_path(store: Path) -> Path:
    return store.expanduser().absolute().with_name(SECRET_NAME)
