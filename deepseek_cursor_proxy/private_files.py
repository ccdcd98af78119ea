"""Files that hold somebody's work: 0600 in directories of 0700, from the first moment, whatever the umask."""

import contextlib
import os
from pathlib import Path


def make_directory(path: Path) -> None:
    """Create a directory (and its parents) that only its owner can enter; one that exists is left as it is."""
    # One by one: mkdir(parents=True) would leave the parents to the umask.
    missing = [each for each in (path, *path.parents) if not each.is_dir()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
        each.chmod(0o700)


def create(path: Path) -> None:
    """Create an empty file that only its owner can read; one that exists is left as it is."""
    if not path.exists():
        with contextlib.suppress(FileExistsError):
            os.close(_new(path))
            path.chmod(0o600)


def write(path: Path, data: bytes) -> None:
    """Write a whole private file in place of what was there, a link included: what that leads to is not ours.

    Whoever can write into the folder could lead us anywhere else by a link.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with open(_new(draft), "wb") as file:
            file.write(data)
        draft.chmod(0o600)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def _new(path: Path) -> int:
    """A descriptor of a file that nobody else has made; text is not translated on Windows."""
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o600)
