"""Files that hold somebody's work: 0600 in directories of 0700, from the first moment, whatever the umask."""

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
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        path.chmod(0o600)


def write(path: Path, data: bytes) -> None:
    """Write a whole private file; one that exists is made private before anything is in it."""
    create(path)
    path.chmod(0o600)
    path.write_bytes(data)
