"""Private files: mode 0600 in directories of 0700, from the first moment, whatever the umask."""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

_DRAFT = re.compile(r"(.+)\.([0-9]+)\.[0-9a-f]{8}")
_LOCKED_BYTE = 4096
# After the content of any file of ours.
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


def write(
    path: Path, data: bytes, *, on_draft: Callable[[Path], object] | None = None, is_new_name: bool = False
) -> None:
    """Write a whole private file. Replaces a link instead of following it: a link could lead to any other file.

    `on_draft` gets the draft that will replace the file. `is_new_name`: no process can have left a draft of the file.
    """
    if not is_new_name:
        remove_drafts(path.parent, path.name)
    draft = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
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


def remove_drafts(folder: Path, name: str | None = None) -> None:
    """Delete the drafts, of one file or of all in a folder of ours, that killed processes left."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            found = _DRAFT.fullmatch(path.name)
            if found is not None and found[1] == (name or found[1]) and not _is_running(int(found[2])):
                with contextlib.suppress(OSError):
                    path.unlink()


def _is_running(process: int) -> bool:
    if os.name == "nt":
        # There os.kill would end it; a draft that it has open cannot be deleted.
        return process == os.getpid()
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def read_or_create(path: Path, new: Callable[[], bytes], is_valid: Callable[[bytes], bool]) -> bytes:
    """The content of a small private file. A missing or invalid one is written anew, by one process at a time."""
    with contextlib.suppress(FileNotFoundError):
        if is_valid(found := path.read_bytes()):
            return found
    make_directory(path.parent)
    create(path)
    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    with open(descriptor, "r+b", buffering=0) as file, _exclusive_lock(file):
        # Another process may have written it before we got the lock.
        found = file.read(_LOCKED_BYTE) or b""
        if not is_valid(found):
            found = new()
            file.seek(0)
            file.truncate()
            file.write(found)
            os.fsync(descriptor)
    return found


def try_lock(file: FileIO) -> bool:
    """Lock a file for this process until it is closed; False if another has locked it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            position = file.tell()
            file.seek(_FAR_BYTE)
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            finally:
                file.seek(position)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _exclusive_lock(file: FileIO) -> Iterator[None]:
    """Hold an exclusive lock on the file; the system releases it if the process dies.

    On a file system without locks, two processes that start at once may use different contents until the next start.
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


def _create_exclusive(path: Path) -> int:
    """A descriptor of a new file, without Windows' translation of line ends; FileExistsError if there is one."""
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o600)
