"""ResponseStore: stored responses of the Responses API, each a row that needs no other.

A row holds the response and all its input, including what it inherited. So a lookup reads one row however long the
chain is, and deleting a response breaks nothing that continues it. Each caller sees its own rows only.

Once `put` or `update` returns, the response survives the death of this process. No answer ever fails because of the
file: a change that cannot be written is pending in memory, within bounds, is found there, and is written when the file
can be used (see `store`).

A response of a caller that `access` does not know yet is in memory, with those of all such callers, for some minutes or
until others take its place; `accept` has it written.

This module is the policy; the SQL of the table `responses` is in `response_rows`.
"""

import json
import logging
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Unpack

from deepseek_cursor_proxy.compression import compress
from deepseek_cursor_proxy.conversation.memo import Memo
from deepseek_cursor_proxy.json_codec import count_value_starts, encode_json
from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.storage.sqlite import response_rows
from deepseek_cursor_proxy.storage.sqlite.database import Database
from deepseek_cursor_proxy.storage.sqlite.response_rows import (
    Change,
    PendingChanges,
    ResponseStats,
    Row,
    UnacceptedRows,
)
from deepseek_cursor_proxy.storage.table import Kind, Table, TableOptions

_log = logging.getLogger(__name__)

_MOST_BYTES_PENDING = 32 * 1024 * 1024
# Pending changes are written in transactions so short that no caller waits noticeably for the lock.
_BYTES_PER_BATCH = 512 * 1024
# Of callers that are not known yet, all together: the jobs that `background_jobs` admits for them, and some that ended.
_MOST_BYTES_UNACCEPTED = 48 * 1024 * 1024
_SECONDS_UNACCEPTED = 900.0
# Some four responses of a chain of 1 MB.
_MOST_BYTES_UNPACKED = 32 * 1024 * 1024
_RESTARTED = {"code": "server_restarted", "message": "The proxy was restarted before this response was finished."}


@dataclass(frozen=True)
class StoredResponse:
    """A response object, all its input items in order, and a background response's events, packed by `event_log`."""

    body: Mapping[str, Any]
    input: Sequence[Mapping[str, Any]]
    events: bytes | None = None
    # The size of body and input as JSON, when read from the store.
    json_bytes: int = field(default=0, compare=False)


class _Unpacked(NamedTuple):
    """A value, its size as JSON, and roughly the memory it takes."""

    value: Any
    json_bytes: int
    size: int


class ResponseStore(Table):
    """Called by handler threads, background jobs and the reopener.

    The lock lets one thread write at a time and protects `_in_work`, `_has_warned` and `_has_orphans`. Pending changes
    and the database have locks of their own, so that a lookup waits for no writer.
    """

    kind = Kind(
        "responses",
        "response store",
        id="number",
        time="created_at",
        # An unfinished response would be lost with its row.
        may_go=f"NOT {response_rows.IS_UNFINISHED}",
        max_rows=10_000,
        max_bytes=1024**3,
        # Rows are large, so pruning runs often, in steps after which other threads get the lock.
        writes_between_prunings=16,
        rows_per_step=20,
    )

    def __init__(self, database: Database, **options: Unpack[TableOptions]) -> None:
        super().__init__(database, **options)
        # A low limit is kept closely.
        self._pruner.every = int(max(1, min(self._pruner.every, self._max_rows // self._pruner.every)))
        # Whether responses of a process that died may still be unfinished in the file.
        self._has_orphans = False
        self._lock = threading.Lock()
        # The responses that this process has yet to finish, by caller and id.
        self._in_work: set[tuple[bytes, str]] = set()
        self._pending = PendingChanges(
            database, _make_changes, self._faults, bound=_MOST_BYTES_PENDING, batch=_BYTES_PER_BATCH
        )
        self._unaccepted = UnacceptedRows(_MOST_BYTES_UNACCEPTED)
        # Values packed lately, by their packed bytes: a chain continues from what was just stored, and the chat memory
        # recognises the same objects.
        self._unpacked: Memo[bytes, _Unpacked] = Memo(_MOST_BYTES_UNPACKED, lambda packed, each: each.size)
        self._has_warned = False
        database.on_reopen(self._fail_owed_orphans)

    # Changes …

    def put(self, caller: bytes, response: StoredResponse, *, is_known: bool = True) -> None:
        """Store a response, or replace the one with the same id; in memory for a caller that is not known."""
        row = self._to_row(caller, response)
        change = Change(caller, row.id, row, may_insert=True)
        with self._lock:
            if is_known:
                self._note_work(row)
                self._change(change)
            else:
                self._unaccepted.add([change])

    def accept(self, caller: bytes) -> None:
        """Store the responses that a caller made before an upstream accepted its key."""
        if not len(self._unaccepted):
            return
        with self._lock:
            for change in self._unaccepted.of(caller):
                assert change.row is not None
                if self._is_alive(change.row):
                    self._note_work(change.row)
                    self._change(change)
                # Only now, so that it is found at any moment.
                self._unaccepted.discard(change.key)

    def _is_alive(self, row: Row) -> bool:
        return row.is_unfinished or self.pruning.use_time() - row.created_at < _SECONDS_UNACCEPTED

    def update(self, caller: bytes, response: StoredResponse) -> bool:
        """Replace a stored response; whether it was there. One that was deleted meanwhile stays deleted."""
        row = self._to_row(caller, response)
        with self._lock:
            if self._unaccepted.latest(caller, row.id) is not None:
                self._unaccepted.add([Change(caller, row.id, row, may_insert=True)])
                return True
            self._note_work(row)
            pending = self._pending.latest(caller, row.id)
            if pending is not None and pending.row is None:
                return False
            # A pending insert stays an insert.
            return self._change(Change(caller, row.id, row, may_insert=pending is not None and pending.may_insert))

    def _note_work(self, row: Row) -> None:
        if row.is_unfinished:
            self._in_work.add((row.caller, row.id))
        else:
            self._in_work.discard((row.caller, row.id))

    def delete(self, caller: bytes, response_id: str) -> bool:
        """Delete a response; whether there was one."""
        with self._lock:
            if (unaccepted := self._unaccepted.latest(caller, response_id)) is not None:
                self._unaccepted.discard(unaccepted.key)
                return unaccepted.row is not None and self._is_alive(unaccepted.row)
            pending = self._pending.latest(caller, response_id)
            row = pending.row if pending is not None else self._read(caller, response_id)
            if row is None:
                return False
            self._in_work.discard((caller, response_id))
            self._change(Change(caller, response_id, None))
            return self._is_current(row)

    def _to_row(self, caller: bytes, response: StoredResponse) -> Row:
        # Before any lock is taken: packing a long one takes a while.
        body, items = self._pack(response.body), self._pack(list(response.input))
        return Row(
            caller, response.body["id"], response.body["status"], self.pruning.use_time(), body, items, response.events
        )

    def _pack(self, value: Any) -> bytes:
        raw = encode_json(value)
        packed = compress(raw)
        # A value takes its text, four bytes a character at worst, and a hundred bytes for itself.
        memory = len(packed) + 4 * len(raw) + 100 * count_value_starts(raw)
        self._unpacked.keep(packed, _Unpacked(value, len(raw), memory))
        return packed

    def _unpack(self, packed: bytes) -> _Unpacked:
        """The packed value, which no caller may change; ValueError when it is damaged."""
        known = self._unpacked.get(packed)
        if known is not None:
            return known
        raw = response_rows.unpack(packed)
        return _Unpacked(json.loads(raw), len(raw), 0)

    def _change(self, change: Change) -> bool:
        """Make a change in the file, or else keep it pending; whether the response was there, or is now."""
        try:
            with self._pending.replaced(change.key), self.database.transaction() as connection:
                was_there = change.make(connection)
        # Any exception, also one that is no fault of the file: no response that a client knows may be lost by it.
        except Exception as error:
            return self._queue(change, error)
        self._has_warned = False
        self._pruner.count_writes()
        return was_there

    def _queue(self, change: Change, error: Exception) -> bool:
        """Keep a change pending; False when there is no such response to update."""
        if not change.may_insert and change.row is not None and self._is_gone(change):
            return False
        is_unusable = isinstance(error, Unusable)
        self._pending.add([change])
        self._faults.warn("record", error)
        if is_unusable and not self._has_warned:
            self._has_warned = True
            _log.warning("only the latest responses are kept, in memory, until the store can be written: %s", error)
        if is_unusable:
            self.database.request_reopen()
        return True

    def _is_gone(self, change: Change) -> bool:
        """Whether there is surely no such row; a file that cannot be read proves nothing."""
        with self._faults.guard("look up"), self.database.reader() as connection:
            return response_rows.read(connection, change.caller, change.id, with_events=False) is None
        return False

    # Lookup …

    def get(self, caller: bytes, response_id: str, *, with_events: bool = True) -> StoredResponse | None:
        """The response, unless it is unknown, another caller's or too old. Without its events it costs less."""
        # In memory first: a row that is written meanwhile is found twice rather than not at all.
        if (unaccepted := self._unaccepted.latest(caller, response_id)) is not None:
            row = unaccepted.row if unaccepted.row is not None and self._is_alive(unaccepted.row) else None
        else:
            pending = self._pending.latest(caller, response_id)
            row = pending.row if pending is not None else self._read(caller, response_id, with_events=with_events)
        if row is None or not self._is_current(row):
            return None
        with self._faults.guard("look up"):
            events = row.events if with_events else None
            body, items = self._unpack(row.body), self._unpack(row.input)
            return StoredResponse(body.value, items.value, events, body.json_bytes + items.json_bytes)
        return None

    def _read(self, caller: bytes, response_id: str, *, with_events: bool = False) -> Row | None:
        """The row in the file; None when the file cannot be read."""
        with self._faults.guard("look up"), self.database.reader() as connection:
            return response_rows.read(connection, caller, response_id, with_events=with_events)
        return None

    def _is_current(self, row: Row) -> bool:
        return row.is_unfinished or row.created_at >= self.pruning.oldest_kept(self._max_age)

    # Orphans: responses that a process which died left unfinished …

    def fail_orphans(self) -> int:
        """Mark every response as failed that is unfinished and not in work in this process; how many.

        No clock is involved, which may have been wrong when they were stored. Of two proxies that share a file, the
        second marks the running responses of the first; when these end, `update` replaces that, because it looks for
        the row, not its status. A file that cannot be used at the start is searched when it reopens.
        """
        self._has_orphans = True
        with self._faults.guard("end what was interrupted"):
            return self._fail_orphans()
        return 0

    def _fail_owed_orphans(self) -> None:
        if self._has_orphans:
            self._fail_orphans(is_retry=True)

    def _fail_orphans(self, *, is_retry: bool = False) -> int:
        with self._lock:
            with self.database.reader() as connection:
                unfinished = response_rows.unfinished_rows(connection)
            orphans = [each for each in unfinished if (each.caller, each.id) not in self._in_work]
            failed = sum(self._fail_orphan(each, is_retry) for each in orphans)
            self._has_orphans = False
            return failed

    def _fail_orphan(self, orphan: response_rows.Unfinished, is_retry: bool) -> bool:
        try:
            body = json.loads(response_rows.unpack(orphan.body))
            packed = compress(encode_json({**body, "status": "failed", "error": _RESTARTED}))
        except ValueError:
            # Unreadable, but it must not stay unfinished for ever.
            packed = orphan.body
        with self.database.transaction(is_retry=is_retry) as connection:
            return response_rows.fail(connection, orphan.number, packed)

    def stats(self) -> ResponseStats:
        """The number and bytes of stored responses; raises Unusable."""
        return ResponseStats(*self.totals())

    def close(self) -> None:
        """Write what is pending; idempotent. The database is its owner's to close."""
        super().close()
        count = self._pending.close()
        with self._faults.guard("catch up"):
            self._fail_owed_orphans()
        if count:
            _log.warning("%d of the responses in memory never reached the store and are forgotten", count)


def _make_changes(connection: sqlite3.Connection, changes: Sequence[Change]) -> None:
    for change in changes:
        change.make(connection)
