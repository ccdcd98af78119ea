"""What setup did to the files of each client, in a private folder of the proxy: a record and one backup per file.

The record has the digest of what was written, so that an undo can tell whether the file was changed since; if not,
the backup is put back to the byte. It also has what JSON files held before, which their text cannot tell.
"""

import contextlib
import hashlib
import json
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from deepseek_cursor_proxy import private_files
from deepseek_cursor_proxy.setup.editors.documents import Record


class Entry(NamedTuple):
    """One file: the digest of what setup wrote, its content before (None: there was no file), the recorded changes."""

    digest: str
    before: bytes | None
    record: Record


class History:
    """Used by one command, on one thread."""

    def __init__(self, folder: Path, today: date) -> None:
        self._folder = folder
        self._today = today

    def entry(self, client: str, path: Path) -> Entry | None:
        """What is known about a file; None if that is nothing or damaged."""
        found = self._read(client).get(str(path)) or {}
        with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
            backup = found["backup"]
            before = None if backup is None else (self._folder / backup).read_bytes()
            return Entry(str(found["digest"]), before, list(found["changes"]))
        return None

    def write(self, client: str, entries: dict[Path, Entry]) -> list[Path]:
        """Replace the record of a client; the backups, one for each file that was there. Raises OSError."""
        private_files.make_directory(self._folder)
        old = set(self.backups(client))
        record: dict[str, Any] = {}
        backups = []
        for path, entry in entries.items():
            backup = None
            if entry.before is not None:
                backup = f"{client}.{self._today.isoformat()}.{path.name.lstrip('.')}"
                private_files.write(self._folder / backup, entry.before)
                backups.append(self._folder / backup)
            record[str(path)] = {"digest": entry.digest, "backup": backup, "changes": entry.record}
        private_files.write(self._record(client), json.dumps(record, indent=1).encode())
        self._delete(old - set(backups))
        return backups

    def backups(self, client: str) -> list[Path]:
        return sorted(self._folder.glob(f"{client}.[0-9][0-9][0-9][0-9]-*"))

    def forget(self, client: str) -> None:
        """Delete the record and the backups of a client."""
        self._delete({*self.backups(client), self._record(client)})

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
