"""The changes that setup or its undo makes to the files of a client: first all are planned, then all are made.

Setup removes its earlier lines before it writes new ones, so a second run changes nothing. Undo restores the backup if
the file was not changed since; otherwise it removes only setup's own part, and refuses if that was changed.

The history, in a private folder of the proxy, has a record and one backup per file. The record has the digest of the
written file, by which an undo notices changes, and the former values of JSON files, which have no room for marks. It is
written before the files. A second setup first restores each file to its state before the first one: that fits the old
record and the new one, so a setup that is killed at any moment can be repeated or undone.
"""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from deepseek_cursor_proxy.cli.setup import documents
from deepseek_cursor_proxy.cli.setup.clients import Target
from deepseek_cursor_proxy.cli.setup.documents import ChangedLines, Record, Unreadable, decode
from deepseek_cursor_proxy.storage import private_files


class Refusal(Exception):
    """A file that stays as it is, with the reason."""


@dataclass(frozen=True)
class FileChange:
    """A file as it is, as it would be without setup, and as it shall be; None where there is no file."""

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
    title = target.editor.title if isinstance(target.editor, documents.WholeFile) else ""
    try:
        now = documents.read(target.path)
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
            documents.check_writable(target.path)
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
            if documents.read(change.path) == change.now:
                continue
        raise OSError(None, f"{change.path} was changed just now; run the command again")


def _replace_all(changes: Sequence[FileChange]) -> None:
    done: list[FileChange] = []
    try:
        for change in changes:
            if change.is_needed:
                documents.replace(change.path, change.after)
                done.append(change)
    except OSError:
        for change in done:
            documents.replace(change.path, change.now)
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
        private_files.make_directory(self._folder)
        old = set(self.backups(client))
        record: dict[str, Any] = {}
        backups = []
        for path, entry in entries.items():
            backup = None
            if entry.before is not None:
                backup = self._write_backup(f"{client}.{self._today.isoformat()}.{path.name.lstrip('.')}", entry.before)
                backups.append(self._folder / backup)
            record[str(path)] = {"digest": entry.digest, "changes": entry.record, "backup": backup}
        private_files.write(self._record(client), json.dumps(record, indent=1).encode())
        self._delete(old - set(backups))
        return backups

    def _write_backup(self, name: str, data: bytes) -> str:
        """Write a backup without overwriting one that the present record names; its name."""
        for number in count():
            chosen = f"{name}.{number}" if number else name
            try:
                if (self._folder / chosen).read_bytes() == data:
                    return chosen
            except FileNotFoundError:
                private_files.write(self._folder / chosen, data)
                return chosen
        raise AssertionError

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
