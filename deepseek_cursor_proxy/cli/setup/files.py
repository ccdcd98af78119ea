"""Configuration files of other programs, and the changes to them: first all are planned, then all are made.

UTF-8 with or without a byte order mark and any line ends stay as they are; so do mode, owner and links of a file. One
that is read-only, belongs to another user or is not a regular file is refused, though replacing it might work.

An editor gets text and returns text. It raises Unreadable for what it cannot parse or must not touch, and ChangedLines
when what setup wrote is no longer as it wrote it; both say why in words for the user.

Setup removes its earlier lines before it writes new ones, so a second run changes nothing. Undo restores the backup if
the file was not changed since; otherwise it removes only setup's own part, and refuses if that was changed.

The history, in a private folder of the proxy, has a record and one backup per file. The record has the digest of the
written file, by which an undo notices changes, and the former values of JSON files, which have no room for marks. It is
written before the files. A second setup first restores each file to its state before the first one: that fits the old
record and the new one, so a setup that is killed at any moment can be repeated or undone.
"""

import codecs
import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
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


class Refusal(Exception):
    """A file that stays as it is, with the reason."""


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


class Target(NamedTuple):
    """A file of a client and the edit that it gets."""

    path: Path
    editor: Editor


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


def write(path: Path, data: bytes | None) -> None:
    """Write a whole file, or delete it. A link stays one, and what it leads to is replaced. Raises OSError."""
    real = Path(os.path.realpath(path))
    if data is None:
        real.unlink(missing_ok=True)
        return
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


# Changes …


@dataclass(frozen=True)
class FileChange:
    """A file as it is, as it would be without setup, and as it will be; None where there is no file."""

    path: Path
    now: bytes | None
    before: bytes | None
    after: bytes | None
    record: Record
    # What the file is, if setup alone writes it and there is nothing in it to compare.
    title: str = ""

    @property
    def is_needed(self) -> bool:
        return self.now != self.after


def plan(client: str, targets: Sequence[Target], history: "SetupHistory", *, is_undo: bool = False) -> list[FileChange]:
    """Work out the changes of a setup or an undo. Raises Refusal."""
    return [_plan_file(target, history.entry(client, target.path), is_undo=is_undo) for target in targets]


def make(client: str, changes: Sequence[FileChange], history: "SetupHistory") -> list[Path]:
    """Make the changes of a setup, all or none; the backups. Raises OSError."""
    _check(changes)
    former = {change.path: entry for change in changes if (entry := history.entry(client, change.path)) is not None}
    entries = {
        change.path: FileEntry(change.before, digest(change.after), change.record)
        for change in changes
        if change.after is not None
    }
    _replace_all([replace(change, after=change.before) for change in changes])
    try:
        backups = history.write(client, entries)
        _replace_all([replace(change, now=change.before) for change in changes])
    except OSError:
        history.write(client, former)
        _replace_all([replace(change, now=change.before, after=change.now) for change in changes])
        raise
    return backups


def undo(client: str, changes: Sequence[FileChange], history: "SetupHistory") -> None:
    """Make the changes of an undo, all or none, and forget about them. Raises OSError."""
    _check(changes)
    _replace_all(changes)
    history.forget(client)


def _plan_file(target: Target, entry: "FileEntry | None", *, is_undo: bool) -> FileChange:
    title = target.editor.title if isinstance(target.editor, WholeFile) else ""
    try:
        now = read(target.path)
        before = _before(target, now, entry)
        if is_undo:
            if now and entry is None:
                _refuse_unknown(target, decode(now).text)
            change = FileChange(target.path, now, before, before, [], title)
        else:
            document = decode(before or b"")
            result = target.editor.apply(document.text)
            after = document.encode(result.text)
            change = FileChange(target.path, now, before, after, result.record, title)
        if change.is_needed:
            check_writable(target.path)
        return change
    except Unreadable as reason:
        raise Refusal(f"{target.path}: {reason}") from None
    except ChangedLines as reason:
        remedy = "restore them, or remove them by hand, with setup's comment above them if there is one"
        raise Refusal(f"{target.path}: {reason}; {remedy}") from None


def _refuse_unknown(target: Target, text: str) -> None:
    """Refuse to undo settings of ours whose former values neither a record nor a mark tells."""
    with contextlib.suppress(Unreadable):
        if target.editor.revert(text, []) == text == target.editor.apply(text).text:
            raise ChangedLines("it has these settings, and there is no record of their former values")


def _before(target: Target, now: bytes | None, entry: "FileEntry | None") -> bytes | None:
    """The content without our part. Raises ChangedLines."""
    if now is None:
        return None
    if entry is not None and (now == entry.before or digest(now) == entry.digest):
        return entry.before
    document = decode(now)
    text = target.editor.revert(document.text, entry.record if entry is not None else [])
    is_new = entry is None or entry.before is None
    if is_new and text != document.text and text.strip() in ("", "{}", "[]"):
        return None
    return document.encode(text)


def _check(changes: Sequence[FileChange]) -> None:
    """Raise OSError if a file has changed since the plan was made."""
    for change in changes:
        with contextlib.suppress(Unreadable):
            if read(change.path) == change.now:
                continue
        raise OSError(None, f"{change.path} was changed just now; run the command again")


def _replace_all(changes: Sequence[FileChange]) -> None:
    done: list[FileChange] = []
    try:
        for change in changes:
            if change.is_needed:
                write(change.path, change.after)
                done.append(change)
    except OSError:
        for change in done:
            write(change.path, change.now)
        raise


# The history …


class FileEntry(NamedTuple):
    """One file: its content before setup (None: there was no file), the digest of what was written, and the record."""

    before: bytes | None
    digest: str
    record: Record


class SetupHistory:
    """Used by one command, on one thread."""

    def __init__(self, folder: Path, today: date) -> None:
        self._folder = folder
        self._today = today

    def entry(self, client: str, path: Path) -> FileEntry | None:
        """What is known about a file; None if that is nothing or damaged."""
        with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
            found = json.loads(self._record(client).read_bytes())[str(path)]
            backup = found["backup"]
            before = None if backup is None else (self._folder / backup).read_bytes()
            return FileEntry(before, str(found["digest"]), list(found["changes"]))
        return None

    def write(self, client: str, entries: dict[Path, FileEntry]) -> list[Path]:
        """Replace the record of a client; the backups, one for each file that was there. Raises OSError."""
        old = set(self.backups(client))
        record: dict[str, Any] = {}
        backups = []
        for path, entry in entries.items():
            backup = None
            if entry.before is not None:
                # Two files of a client may have one name.
                number = digest(entry.before)[:8]
                backup = f"{client}.{self._today.isoformat()}.{number}.{path.name.lstrip('.')}"
                private_files.write(self._folder / backup, entry.before)
                backups.append(self._folder / backup)
            record[str(path)] = {"digest": entry.digest, "changes": entry.record, "backup": backup}
        private_files.write(self._record(client), json.dumps(record, indent=1).encode())
        self._delete(old - set(backups))
        return backups

    def backups(self, client: str) -> list[Path]:
        return sorted(self._folder.glob(f"{client}.[0-9][0-9][0-9][0-9]-*"))

    def forget(self, client: str) -> None:
        """Delete the record and the backups of a client."""
        # The record first: without a backup it would not fit the file.
        self._delete({self._record(client)})
        self._delete(set(self.backups(client)))

    def _record(self, client: str) -> Path:
        return self._folder / f"{client}.json"

    def _delete(self, paths: set[Path]) -> None:
        for path in paths:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
