"""Files of other programs: read, checked and replaced as a whole, with their mode, owner and links as they were.

A file that is read-only, belongs to another user or is no file at all is refused, though replacing it might work.
"""

import contextlib
import os
import stat
from functools import partial
from pathlib import Path

from deepseek_cursor_proxy.cli.setup.editors.documents import Unreadable
from deepseek_cursor_proxy.storage import private_files

# A configuration is written by hand; anything of this size is something else.
_MOST_BYTES = 10_000_000


def read(path: Path) -> bytes | None:
    """The content; None if there is no file."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable("it is no file")
        if found.st_size > _MOST_BYTES:
            raise Unreadable("it is too large for a configuration")
        return path.read_bytes()
    except FileNotFoundError:
        if path.is_symlink():
            raise Unreadable("it is a link that leads nowhere") from None
        return None
    except OSError as error:
        raise Unreadable(f"it cannot be read: {error.strerror or error}") from None


def check_writable(path: Path) -> None:
    """Raise Unreadable if a file must not be replaced."""
    real = Path(os.path.realpath(path))
    try:
        found = real.stat()
    except OSError:
        return
    if not found.st_mode & stat.S_IWUSR:
        raise Unreadable("it is read-only")
    user = os.geteuid() if hasattr(os, "geteuid") else 0
    if user not in (0, found.st_uid):
        raise Unreadable("it belongs to another user")


def replace(path: Path, data: bytes | None) -> None:
    """Write a whole file, or delete it. A link stays one, and what it leads to is replaced. Raises OSError."""
    real = Path(os.path.realpath(path))
    if data is None:
        real.unlink(missing_ok=True)
        return
    private_files.make_directory(real.parent)
    private_files.write(real, data, on_draft=partial(_finish, real))


def remove_drafts(path: Path) -> None:
    """Delete what a killed setup left beside a file."""
    real = Path(os.path.realpath(path))
    private_files.remove_drafts(real.parent, real.name)


def _finish(real: Path, draft: Path) -> None:
    """Give a draft the owner and mode of the file that it replaces; a new file is for its owner alone."""
    with draft.open("rb+") as file:
        os.fsync(file.fileno())
    with contextlib.suppress(FileNotFoundError):
        found = real.stat()
        if hasattr(os, "chown"):
            with contextlib.suppress(PermissionError):
                os.chown(draft, found.st_uid, found.st_gid)
        draft.chmod(stat.S_IMODE(found.st_mode))
