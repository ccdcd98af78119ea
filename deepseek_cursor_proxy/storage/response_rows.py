"""A stored response as a row, and the changes of rows that wait for the file.

Rows are packed (zlib's quickest way: a tenth of the JSON of a long chat remains) and carry beside that what is asked
for without unpacking: whose it is, how it stands, how old and how large it is.
"""

import json
import sqlite3
import threading
import zlib
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

from deepseek_cursor_proxy.json_codec import encode_json

UNFINISHED = ("queued", "in_progress")
# In the words of the index, which is used for nothing else.
IS_UNFINISHED = "status IN ('queued', 'in_progress')"
_FASTEST = 1
# What a row takes up in memory besides what is packed, about.
_BYTES_PER_ROW = 500


@dataclass(frozen=True)
class Row:
    caller: bytes
    id: str
    status: str
    created_at: float
    body: bytes
    input: bytes
    events: bytes | None

    @property
    def size(self) -> int:
        return len(self.body) + len(self.input) + len(self.events or b"")

    @property
    def is_unfinished(self) -> bool:
        return self.status in UNFINISHED


def pack(data: bytes) -> bytes:
    return zlib.compress(data, _FASTEST)


def unpack(packed: bytes) -> bytes:
    """What was packed; ValueError when this is not what `pack` made."""
    try:
        return zlib.decompress(packed)
    except zlib.error as error:
        raise ValueError(f"a stored response is damaged ({error})") from None


def pack_json(value: Any) -> bytes:
    return pack(encode_json(value))


def unpack_json(packed: bytes) -> Any:
    return json.loads(unpack(packed))


def read(connection: sqlite3.Connection, caller: bytes, response_id: str, *, with_events: bool) -> Row | None:
    if not response_id.isascii():
        # Ours are; what a client makes up may not even be text for SQLite.
        return None
    row = connection.execute(
        f"SELECT status, created_at, body, input, {'events' if with_events else 'NULL'} FROM responses "
        "WHERE caller = ? AND id = ?",
        (caller, response_id),
    ).fetchone()
    return None if row is None else Row(caller, response_id, *row)


@dataclass(frozen=True)
class Change:
    """What is to become of a response: another row, or none. Unless it `may_insert`, a row that is gone stays gone."""

    caller: bytes
    id: str
    row: Row | None
    may_insert: bool = False
    # What the file refuses for other reasons than a fault that may pass is not tried again.
    is_unwritable: bool = False

    @property
    def size(self) -> int:
        return _BYTES_PER_ROW + (self.row.size if self.row is not None else 0)

    def make(self, connection: sqlite3.Connection) -> bool:
        """In the file; whether there was a row to replace or delete, or there is one now."""
        key = (self.caller, self.id)
        if self.row is None:
            return connection.execute("DELETE FROM responses WHERE caller = ? AND id = ?", key).rowcount > 0
        row = self.row
        # The time stays that of the first: a response does not get younger by going on.
        is_there = connection.execute(
            "UPDATE responses SET status = ?, size = ?, body = ?, input = ?, events = ? WHERE caller = ? AND id = ?",
            (row.status, row.size, row.body, row.input, row.events, *key),
        ).rowcount
        if is_there or not self.may_insert:
            return is_there > 0
        connection.execute(
            "INSERT INTO responses (caller, id, status, created_at, size, body, input, events) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*key, row.status, row.created_at, row.size, row.body, row.input, row.events),
        )
        return True


class PendingChanges:
    """The latest change of each response that waits for the file, oldest first; beyond the bounds the oldest go.

    Called by handler threads and those of jobs; the lock protects all of it.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._waiting: OrderedDict[tuple[bytes, str], Change] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def find(self, caller: bytes, response_id: str) -> Change | None:
        with self._lock:
            return self._waiting.get((caller, response_id))

    def add(self, change: Change) -> None:
        with self._lock:
            former = self._remove((change.caller, change.id))
            if former is not None and former.row is not None and change.row is not None:
                change = replace(change, row=replace(change.row, created_at=former.row.created_at))
            self._waiting[change.caller, change.id] = change
            self._bytes += change.size
            while len(self._waiting) > self._most or self._bytes > self._most_bytes:
                self._remove(next(iter(self._waiting)))

    def writable(self) -> list[Change]:
        """Those that the file may take by now."""
        with self._lock:
            return [each for each in self._waiting.values() if not each.is_unwritable]

    def remove(self, change: Change) -> None:
        """Forget what waits for this response, which is in the file now."""
        with self._lock:
            self._remove((change.caller, change.id))

    def clear(self) -> None:
        with self._lock:
            self._waiting.clear()
            self._bytes = 0

    def _remove(self, key: tuple[bytes, str]) -> Change | None:
        former = self._waiting.pop(key, None)
        self._bytes -= former.size if former is not None else 0
        return former
