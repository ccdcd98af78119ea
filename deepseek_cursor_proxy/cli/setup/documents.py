"""Configuration files of other programs: as text and back to the same bytes, read and replaced as a whole.

UTF-8 with or without a byte order mark and any line ends stay as they are; so do mode, owner and links of a file. One
that is read-only, belongs to another user or is not a regular file is refused, though replacing it might work.

An editor gets text and returns text. It raises Unreadable for what it cannot parse or must not touch, and ChangedLines
when what setup wrote is no longer as it wrote it; both say why in words for the user.
"""

import codecs
import contextlib
import os
import re
import stat
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from deepseek_cursor_proxy.storage import private_files

Json = Any
# A recorded change of a JSON file, for undo.
Record = list[dict[str, Json]]


class Unreadable(Exception):
    """A file that setup cannot edit."""


class ChangedLines(Exception):
    """Lines of setup that the user has changed since."""


class EditResult(NamedTuple):
    """The new text, and the record that `revert` needs."""

    text: str
    record: Record


class Editor(Protocol):
    """One edit of one file. `revert` takes it out of a text that may have changed elsewhere since."""

    def apply(self, text: str) -> EditResult: ...

    def revert(self, text: str, record: Record) -> str: ...

    def by_hand(self) -> str:
        """The lines for a user who adds them."""


class Document(NamedTuple):
    text: str
    has_mark: bool

    def encode(self, text: str) -> bytes:
        """Another text in the form of this document."""
        return (codecs.BOM_UTF8 if self.has_mark else b"") + text.encode("utf-8", "surrogatepass")


def decode(data: bytes) -> Document:
    has_mark = data.startswith(codecs.BOM_UTF8)
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(f"it is not UTF-8 (byte {error.start})") from None
    if "\0" in text:
        raise Unreadable("it contains NUL bytes, so it is not text")
    return Document(text, has_mark)


def split_lines(text: str) -> list[str]:
    """The lines with their ends. Only a line feed ends one: others of `splitlines` may stand inside a value."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def line_end(text: str) -> str:
    """The line end of the first line."""
    return "\r\n" if text[: text.find("\n") + 1].endswith("\r\n") else "\n"


@dataclass(frozen=True)
class WholeFile:
    """An edit of a file that is setup's alone, such as a catalogue: its whole text; `title` says what it is."""

    text: str
    title: str = "a file of setup"

    def apply(self, text: str) -> EditResult:
        return EditResult(self.text, [])

    def revert(self, text: str, record: Record) -> str:
        """Delete a file that setup made; refuse one that was changed since."""
        if text not in ("", self.text):
            raise ChangedLines("it is no longer as setup wrote it")
        return ""

    def by_hand(self) -> str:
        return self.text


# Files …

# A configuration is written by hand; anything of this size is something else.
_MOST_BYTES = 10_000_000


def read(path: Path) -> bytes | None:
    """The content; None if there is no file."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable("it is not a regular file")
        if found.st_size > _MOST_BYTES:
            raise Unreadable("it is too large for a configuration")
        return path.read_bytes()
    except FileNotFoundError:
        if path.is_symlink():
            raise Unreadable("it is a broken link") from None
        return None
    except OSError as error:
        raise Unreadable(f"it cannot be read: {error.strerror or error}") from None


def read_text(path: Path) -> str:
    """The content as text; empty if there is no file."""
    return decode(read(path) or b"").text


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
