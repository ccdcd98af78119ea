"""The SQL of ResponseStore: packed rows of the table `responses`, and changes that wait for the file.

Body and input are compressed JSON (a tenth of a long chat). The columns beside them answer
what is read without unpacking: caller, status, age and size.
"""

import sqlite3
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from deepseek_cursor_proxy.storage.write_behind import BoundedEntries, WriteBehind

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

    @property
    def key(self) -> tuple[bytes, str]:
        return self.caller, self.id

    def make(self, connection: sqlite3.Connection) -> bool:
        """Execute it; whether there was a row to replace or delete, or there is one now."""
        if self.row is None:
            return connection.execute("DELETE FROM responses WHERE caller = ? AND id = ?", self.key).rowcount > 0
        row = self.row
        # created_at stays: an update does not make a response younger.
        is_there = connection.execute(
            "UPDATE responses SET status = ?, size = ?, body = ?, input = ?, events = ? WHERE caller = ? AND id = ?",
            (row.status, row.size, row.body, row.input, row.events, *self.key),
        ).rowcount
        if is_there or not self.may_insert:
            return is_there > 0
        connection.execute(
            "INSERT INTO responses (caller, id, status, created_at, size, body, input, events) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*self.key, row.status, row.created_at, row.size, row.body, row.input, row.events),
        )
        return True


class LatestChanges(BoundedEntries[Change]):
    """The latest change of each response."""

    most = 64

    def latest(self, caller: bytes, response_id: str) -> Change | None:
        return next(iter(self.find([(caller, response_id)]).values()), [None])[0]

    def size(self, entry: Change) -> int:
        return _BYTES_PER_ROW + (entry.row.size if entry.row is not None else 0)

    def keys(self, entry: Change) -> Collection[tuple[bytes, str]]:
        return [entry.key]

    def merge(self, new: Change, old: Change) -> Change:
        if new.row is None or old.row is None:
            return new
        return replace(new, row=replace(new.row, created_at=old.row.created_at))


class PendingChanges(LatestChanges, WriteBehind[Change]):
    """Changes that wait for the file."""


class UnacceptedRows(LatestChanges):
    """Responses of callers that are not known yet. Those that are finished go first: the jobs of others are bounded."""

    def of(self, caller: bytes) -> list[Change]:
        return [each for each in self.entries() if each.caller == caller]

    def first_to_go(self, entries: Mapping[int, Change]) -> int:
        finished = (number for number, each in entries.items() if each.row is None or not each.row.is_unfinished)
        return next(finished, super().first_to_go(entries))
