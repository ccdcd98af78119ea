"""The SQL of ResponseStore: packed rows of the table `responses`, and changes that wait for the file.

Body and input are compressed JSON (a tenth of a long chat). The columns beside them answer
what is read without unpacking: caller, status, age and size.
"""

import sqlite3
import threading
import zlib
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import NamedTuple

UNFINISHED = ("queued", "in_progress")
# Exactly the condition of the partial index; SQLite uses the index for no other.
IS_UNFINISHED = "status IN ('queued', 'in_progress')"
# Roughly what a row takes in memory besides its packed fields.
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


def unpack(packed: bytes) -> bytes:
    """The packed bytes; ValueError when they are damaged."""
    try:
        return zlib.decompress(packed)
    except zlib.error as error:
        raise ValueError(f"a stored response is damaged ({error})") from None


def read(connection: sqlite3.Connection, caller: bytes, response_id: str, *, with_events: bool) -> Row | None:
    if not response_id.isascii():
        # Our ids are ASCII; a made-up one may not even be text for SQLite.
        return None
    row = connection.execute(
        f"SELECT status, created_at, body, input, {'events' if with_events else 'NULL'} FROM responses "
        "WHERE caller = ? AND id = ?",
        (caller, response_id),
    ).fetchone()
    return None if row is None else Row(caller, response_id, *row)


class Unfinished(NamedTuple):
    """An unfinished row; `body` is packed."""

    number: int
    caller: bytes
    id: str
    body: bytes


def unfinished_rows(connection: sqlite3.Connection) -> list[Unfinished]:
    rows = connection.execute(f"SELECT number, caller, id, body FROM responses WHERE {IS_UNFINISHED}")
    return [Unfinished(*row) for row in rows]


def fail(connection: sqlite3.Connection, number: int, body: bytes) -> bool:
    """Mark a row as failed, with this packed body; whether it was still unfinished."""
    changed = connection.execute(
        "UPDATE responses SET status = 'failed', body = ?, size = size - length(body) + ? "
        f"WHERE number = ? AND {IS_UNFINISHED}",
        (body, len(body), number),
    )
    return changed.rowcount > 0


class ResponseStats(NamedTuple):
    responses: int
    bytes: int


@dataclass(frozen=True)
class Change:
    """An insert, update or delete (`row` is None) of one response. Without `may_insert` a deleted row stays deleted."""

    caller: bytes
    id: str
    row: Row | None
    may_insert: bool = False
    # SQLite refuses it for a reason that does not pass, such as its size: it stays in memory only.
    is_unwritable: bool = False

    @property
    def size(self) -> int:
        return _BYTES_PER_ROW + (self.row.size if self.row is not None else 0)

    def make(self, connection: sqlite3.Connection) -> bool:
        """Execute it; whether there was a row to replace or delete, or there is one now."""
        key = (self.caller, self.id)
        if self.row is None:
            return connection.execute("DELETE FROM responses WHERE caller = ? AND id = ?", key).rowcount > 0
        row = self.row
        # created_at stays: an update does not make a response younger.
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
    """The latest pending change of each response, oldest first; beyond the bounds the oldest go.

    Called by handler threads, background jobs and the reopener; the lock protects all fields.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._changes: OrderedDict[tuple[bytes, str], Change] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._changes)

    def find(self, caller: bytes, response_id: str) -> Change | None:
        with self._lock:
            return self._changes.get((caller, response_id))

    def add(self, change: Change) -> None:
        with self._lock:
            former = self._remove((change.caller, change.id))
            if former is not None and former.row is not None and change.row is not None:
                change = replace(change, row=replace(change.row, created_at=former.row.created_at))
            self._changes[change.caller, change.id] = change
            self._bytes += change.size
            while len(self._changes) > self._most or self._bytes > self._most_bytes:
                self._remove(self._first_to_go())

    def _first_to_go(self) -> tuple[bytes, str]:
        return next(iter(self._changes))

    def writable(self) -> list[Change]:
        """The changes worth trying again."""
        with self._lock:
            return [each for each in self._changes.values() if not each.is_unwritable]

    def remove(self, change: Change) -> None:
        """Forget the pending change of this response: the file has it, or a newer one, now."""
        with self._lock:
            self._remove((change.caller, change.id))

    def clear(self) -> None:
        with self._lock:
            self._changes.clear()
            self._bytes = 0

    def _remove(self, key: tuple[bytes, str]) -> Change | None:
        former = self._changes.pop(key, None)
        self._bytes -= former.size if former is not None else 0
        return former


class UnacceptedRows(PendingChanges):
    """Responses of callers that are not known yet. Those that are finished go first: the jobs of others are bounded."""

    def of(self, caller: bytes) -> list[Change]:
        with self._lock:
            return [each for each in self._changes.values() if each.caller == caller]

    def _first_to_go(self) -> tuple[bytes, str]:
        finished = (key for key, each in self._changes.items() if each.row is None or not each.row.is_unfinished)
        return next(finished, super()._first_to_go())
