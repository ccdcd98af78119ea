"""Private files: mode 0600 in directories of 0700, from the first moment, whatever the umask."""

import contextlib
import os
from pathlib import Path


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


def write(path: Path, data: bytes) -> None:
    """Write a whole private file. Replaces a link instead of following it: a link could lead to any other file."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with open(_create_exclusive(draft), "wb") as file:
            file.write(data)
        draft.chmod(0o600)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def _create_exclusive(path: Path) -> int:
    """A descriptor of a new file, without Windows' translation of line ends; FileExistsError if there is one."""
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o600)
