"""What setup did to the files of each client, in a private folder of the proxy: a record and one backup per file.

The record has the digest of what was written, so that an undo can tell whether the file was changed since; if not,
the backup is put back to the byte. It also has what JSON files held before, which their text cannot tell.

The record is written before the files, and again after them. Between the two it also has what setup found in each
file, so a setup that is killed at any moment leaves a record that fits the file, old or new.
"""

import contextlib
import hashlib
import json
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from deepseek_cursor_proxy.cli.setup.editors.documents import Record
from deepseek_cursor_proxy.storage import private_files


class FileState(NamedTuple):
    """A content that setup wrote or found: its digest, and the recorded changes that led to it."""

    digest: str
    record: Record


class FileEntry(NamedTuple):
    """One file: its content before setup (None: there was no file), and the states in which it may be now."""

    before: bytes | None
    states: tuple[FileState, ...]


class SetupHistory:
    """Used by one command, on one thread."""

    def __init__(self, folder: Path, today: date) -> None:
        self._folder = folder
        self._today = today

    def entry(self, client: str, path: Path) -> FileEntry | None:
        """What is known about a file; None if that is nothing or damaged."""
        found = self._read(client).get(str(path)) or {}
        with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
            backup = found["backup"]
            before = None if backup is None else (self._folder / backup).read_bytes()
            states = (found, *found.get("former", ()))
            return FileEntry(before, tuple(FileState(str(each["digest"]), list(each["changes"])) for each in states))
        return None

    def write(self, client: str, entries: dict[Path, FileEntry], *, keeps_backups: bool = False) -> list[Path]:
        """Replace the record of a client; the backups, one for each file that was there. Raises OSError."""
        private_files.make_directory(self._folder)
        old = set() if keeps_backups else set(self.backups(client))
        record: dict[str, Any] = {}
        backups = []
        for path, entry in entries.items():
            backup = None
            if entry.before is not None:
                backup = self._write_backup(f"{client}.{self._today.isoformat()}.{path.name.lstrip('.')}", entry.before)
                backups.append(self._folder / backup)
            state, *former = ({"digest": each.digest, "changes": each.record} for each in entry.states)
            record[str(path)] = {**state, "backup": backup, **({"former": former} if former else {})}
        private_files.write(self._record(client), json.dumps(record, indent=1).encode())
        self._delete(old - set(backups))
        return backups

    def _write_backup(self, name: str, data: bytes) -> str:
        """Write a backup beside those that the present record names; its name."""
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

    def remove_drafts(self) -> None:
        """Delete what a killed setup left here."""
        private_files.remove_drafts(self._folder)

    def _read(self, client: str) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(self._record(client).read_bytes())
            return found if isinstance(found, dict) else {}
        return {}

    def _record(self, client: str) -> Path:
        return self._folder / f"{client}.json"

    def _delete(self, paths: set[Path]) -> None:
        for path in paths:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
