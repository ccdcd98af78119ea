"""The changes that setup or its undo makes to the files of a client: first all are worked out, then all are made.

Setup takes out what it wrote earlier before it writes anew, so a second run changes nothing. Undo puts back the backup
if the file is still as setup left it; otherwise it takes out its own part alone, and refuses if that was changed.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deepseek_cursor_proxy.cli.setup import files
from deepseek_cursor_proxy.cli.setup.clients import Target
from deepseek_cursor_proxy.cli.setup.editors.documents import ChangedLines, Document, Record, Unreadable, decode
from deepseek_cursor_proxy.cli.setup.history import FileEntry, FileState, SetupHistory, digest


class Refusal(Exception):
    """A file that stays as it is, with the reason; `target` has what a user can add by hand."""

    def __init__(self, target: Target, reason: str) -> None:
        super().__init__(f"{target.path}: {reason}")
        self.target = target


@dataclass(frozen=True)
class FileChange:
    """A file as it is, as it would be without setup, and as it shall be; None where there is no file."""

    path: Path
    now: bytes | None
    before: bytes | None
    after: bytes | None
    record: Record

    @property
    def is_needed(self) -> bool:
        return self.now != self.after


def plan_setup(client: str, targets: Sequence[Target], history: SetupHistory) -> list[FileChange]:
    """Raises Refusal; so does `plan_undo`."""
    return _plan_all(client, targets, history, is_undo=False)


def plan_undo(client: str, targets: Sequence[Target], history: SetupHistory) -> list[FileChange]:
    return _plan_all(client, targets, history, is_undo=True)


def make(client: str, changes: Sequence[FileChange], history: SetupHistory) -> list[Path]:
    """Make the changes of a setup, all or none; the backups. Raises Refusal and OSError."""
    _check(changes)
    former = {change.path: entry for change in changes if (entry := history.entry(client, change.path)) is not None}
    entries = {
        change.path: FileEntry(change.before, (FileState(digest(change.after), change.record),))
        for change in changes
        if change.after is not None
    }
    # First, so that there is no moment without a record that fits the files and a backup.
    history.write(client, {path: _with_former(entries[path], former.get(path)) for path in entries}, keeps_backups=True)
    try:
        _replace_all(changes)
    except OSError:
        history.write(client, former)
        raise
    return history.write(client, entries)


def _with_former(entry: FileEntry, former: FileEntry | None) -> FileEntry:
    return entry._replace(states=(*entry.states, *former.states)) if former is not None else entry


def undo(client: str, changes: Sequence[FileChange], history: SetupHistory) -> None:
    """Make the changes of an undo, all or none, and forget about them. Raises Refusal and OSError."""
    _check(changes)
    _replace_all(changes)
    history.forget(client)


def _plan_all(client: str, targets: Sequence[Target], history: SetupHistory, *, is_undo: bool) -> list[FileChange]:
    history.remove_drafts()
    for target in targets:
        files.remove_drafts(target.path)
    return [_plan(target, history.entry(client, target.path), is_undo=is_undo) for target in targets]


def _plan(target: Target, entry: FileEntry | None, *, is_undo: bool) -> FileChange:
    try:
        now = files.read(target.path)
        before = _before(target, now, entry)
        if is_undo:
            _refuse_unknown(target, now, entry)
            change = FileChange(target.path, now, before, before, [])
        else:
            document = decode(before or b"")
            result = target.editor.apply(document.text)
            change = FileChange(target.path, now, before, document.encode(result.text), result.record)
        if change.is_needed:
            files.check_writable(target.path)
        return change
    except Unreadable as reason:
        raise Refusal(target, str(reason)) from None
    except ChangedLines as reason:
        remedy = (
            "put them back as they were, or remove them by hand, with the comment of setup above them if there is one"
        )
        raise Refusal(target, f"{reason}; {remedy}") from None


def _refuse_unknown(target: Target, now: bytes | None, entry: FileEntry | None) -> None:
    """Refuse to undo what is there word for word but was never recorded, if no mark in it tells the way back."""
    text = decode(now or b"").text
    if not text or entry is not None or target.editor.revert(text, []) != text:
        return
    with contextlib.suppress(Unreadable):
        if target.editor.apply(text).text == text:
            raise ChangedLines("it has these settings, and nothing tells what was there before")


def _before(target: Target, now: bytes | None, entry: FileEntry | None) -> bytes | None:
    """The content without our part."""
    if now is None:
        return None
    if entry is not None and (now == entry.before or digest(now) in [state.digest for state in entry.states]):
        return entry.before
    document: Document = decode(now)
    text = _revert(target, document.text, [state.record for state in entry.states] if entry is not None else [[]])
    is_new = entry is None or entry.before is None
    if is_new and text != document.text and text.strip() in ("", "{}"):
        return None
    return document.encode(text)


def _revert(target: Target, text: str, records: Sequence[Record]) -> str:
    """The text without our part, by the first record that fits it. Raises ChangedLines."""
    for record in records[:-1]:
        with contextlib.suppress(ChangedLines):
            return target.editor.revert(text, record)
    return target.editor.revert(text, records[-1])


def _check(changes: Sequence[FileChange]) -> None:
    """Raise OSError if a file is no longer as it was when the changes were worked out."""
    for change in changes:
        with contextlib.suppress(Unreadable):
            if files.read(change.path) == change.now:
                continue
        raise OSError(None, f"{change.path} was changed just now; run the command again")


def _replace_all(changes: Sequence[FileChange]) -> None:
    done: list[FileChange] = []
    try:
        for change in changes:
            if change.is_needed:
                files.replace(change.path, change.after)
                done.append(change)
    except OSError:
        for change in done:
            files.replace(change.path, change.now)
        raise
