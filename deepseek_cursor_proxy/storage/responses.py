"""Responses that clients may come back to: each a row that is whole in itself.

A row holds the response and all that was asked for it, what it inherited included. So looking one up reads one row
however long its chain is, and deleting a link breaks nothing behind it. Each caller sees its own rows only.

Once `put` or `update` returns, the response survives the death of this process. Like all of the store this never fails
an answer: what the file cannot take now is kept in memory, within bounds, is found there, and is written with the next
response that the file takes.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from deepseek_cursor_proxy.json_codec import beginnings, encode_json
from deepseek_cursor_proxy.memo import Memo
from deepseek_cursor_proxy.storage.database import Database
from deepseek_cursor_proxy.storage.faults import FaultGuard, Unusable
from deepseek_cursor_proxy.storage.pruner import Pruner
from deepseek_cursor_proxy.storage.response_rows import (
    IS_UNFINISHED,
    Change,
    PendingChanges,
    Row,
    pack,
    pack_json,
    read,
    unpack,
    unpack_json,
)

_log = logging.getLogger(__name__)

# Rows are large; forgetting some is worth a look at the edge of the table now and then, …
_WRITES_BETWEEN_PRUNINGS = 16
# … in steps after which others get the lock: a row may have megabytes.
_ROWS_PER_STEP = 20
_MOST_WAITING = 64
_MOST_BYTES_WAITING = 32 * 1024 * 1024
# Some four links of a chain of a megabyte.
_MOST_BYTES_UNPACKED = 32 * 1024 * 1024
_RESTARTED = {"code": "server_restarted", "message": "The proxy was restarted before this response was finished."}


@dataclass(frozen=True)
class StoredResponse:
    """A response object, all items it was asked with in their order, and of a background one its events as sent.

    The events are packed (see event_log): unpacked they may take a hundred times as much as the answer.
    """

    body: Mapping[str, Any]
    input: Sequence[Mapping[str, Any]]
    events: bytes | None = None
    # Of the first two as JSON, when it was read from the store.
    json_bytes: int = field(default=0, compare=False)


class _Unpacked(NamedTuple):
    """What some packed bytes stand for, how many bytes of JSON that is, and about how many all of it takes."""

    value: Any
    json_bytes: int
    size: int


@dataclass(frozen=True)
class ResponseStats:
    responses: int
    bytes: int


class ResponseStore:
    """Called by handler threads and those of jobs. Its lock is held by whoever writes, and protects `_is_told`.

    What waits for the file and the database have locks of their own, so that looking something up waits for no writer.
    """

    def __init__(
        self,
        database: Database,
        *,
        max_age_seconds: float = 30 * 24 * 3600,
        max_rows: int = 10_000,
        max_bytes: int = 1024**3,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._max_age = max_age_seconds
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._clock = clock
        self._owes_orphans = False
        self._lock = threading.Lock()
        # What this process has yet to finish, by caller and id; the lock protects it.
        self._in_work: set[tuple[bytes, str]] = set()
        self._waiting = PendingChanges(_MOST_WAITING, _MOST_BYTES_WAITING)
        # What was packed lately, by the packed bytes: a chain goes on from what was just stored, and what was made of
        # the very same items before need not be made again.
        self._unpacked: Memo[bytes, _Unpacked] = Memo(_MOST_BYTES_UNPACKED, lambda packed, each: each.size)
        self._is_told = False
        self._faults = FaultGuard(_log, "response store")
        # Whoever allows a few rows means a few.
        every = max(1, min(_WRITES_BETWEEN_PRUNINGS, max_rows // _WRITES_BETWEEN_PRUNINGS))
        self._pruner = Pruner(lambda: self.prune(), every=every, name="response-store-prune")

    # Keeping …

    def put(self, caller: bytes, response: StoredResponse) -> None:
        """Store a response, in place of the one with the same id if there is one."""
        row = self._packed(caller, response)
        with self._lock:
            self._note_work(row)
            self._change(Change(caller, row.id, row, may_insert=True))

    def update(self, caller: bytes, response: StoredResponse) -> bool:
        """Replace a stored response; whether it was there. One that was deleted meanwhile is not brought back."""
        row = self._packed(caller, response)
        with self._lock:
            self._note_work(row)
            waiting = self._waiting.find(caller, row.id)
            if waiting is not None and waiting.row is None:
                return False
            # One that the file has never seen is still to be put there.
            return self._change(Change(caller, row.id, row, may_insert=waiting is not None and waiting.may_insert))

    def _note_work(self, row: Row) -> None:
        if row.is_unfinished:
            self._in_work.add((row.caller, row.id))
        else:
            self._in_work.discard((row.caller, row.id))

    def delete(self, caller: bytes, response_id: str) -> bool:
        """Forget a response; whether there was one."""
        with self._lock:
            waiting = self._waiting.find(caller, response_id)
            row = waiting.row if waiting is not None else self._read(caller, response_id)
            if row is None:
                return False
            self._in_work.discard((caller, response_id))
            self._change(Change(caller, response_id, None))
            return self._is_current(row)

    def _packed(self, caller: bytes, response: StoredResponse) -> Row:
        # Before any lock is taken: a long one needs a while.
        body, given = self._pack(response.body), self._pack(list(response.input))
        return Row(caller, response.body["id"], response.body["status"], self._clock(), body, given, response.events)

    def _pack(self, value: Any) -> bytes:
        raw = encode_json(value)
        packed = pack(raw)
        # A value takes its text, four bytes a character at worst, and a hundred bytes for itself.
        self._unpacked.keep(packed, _Unpacked(value, len(raw), len(packed) + 4 * len(raw) + 100 * beginnings(raw)))
        return packed

    def _unpack(self, packed: bytes) -> _Unpacked:
        """What was packed, which nobody changes; ValueError when it is damaged."""
        known = self._unpacked.get(packed)
        if known is not None:
            return known
        raw = unpack(packed)
        return _Unpacked(json.loads(raw), len(raw), 0)

    def _change(self, change: Change) -> bool:
        """Make a change in the file, else in memory; whether the response was there, or is now."""
        try:
            self._catch_up()
            with self._database.transaction() as connection:
                was_there = change.make(connection)
        # Also what is not known as a fault of the file: nothing that a client was told may be lost by it.
        except Exception as error:
            return self._keep(change, error)
        self._waiting.remove(change)
        self._is_told = False
        self._pruner.count_writes()
        return was_there

    def _keep(self, change: Change, error: Exception) -> bool:
        """Let a change wait for the file; whether it has to: a response that is known to be gone stays so."""
        if not change.may_insert and change.row is not None and self._is_gone(change):
            return False
        self._waiting.add(replace(change, is_unwritable=not isinstance(error, Unusable)))
        self._faults.tell("record", error)
        if isinstance(error, Unusable) and not self._is_told:
            self._is_told = True
            _log.warning("only the latest responses are kept, in memory, until the store can be written: %s", error)
        return True

    def _is_gone(self, change: Change) -> bool:
        """Whether there is surely no such row; a file that cannot be read tells nothing."""
        with self._faults.guard("look up"), self._database.reader() as connection:
            return read(connection, change.caller, change.id, with_events=False) is None
        return False

    def _catch_up(self) -> None:
        """Have in the file what waits for it; raises Unusable. One by one, so that a hopeless one stops no other."""
        for each in self._waiting.writable():
            try:
                with self._database.transaction() as connection:
                    each.make(connection)
            except Unusable:
                raise
            except Exception as error:
                self._waiting.add(replace(each, is_unwritable=True))
                self._faults.tell("record", error)
            else:
                self._waiting.remove(each)

    # Looking up …

    def get(self, caller: bytes, response_id: str, *, with_events: bool = True) -> StoredResponse | None:
        """The response, unless it is unknown, another caller's or too old. Without its events it costs less."""
        # In this order: what is written meanwhile is found twice rather than not at all.
        waiting = self._waiting.find(caller, response_id)
        row = waiting.row if waiting is not None else self._read(caller, response_id, with_events=with_events)
        if self._owes_orphans and waiting is None and row is not None and row.is_unfinished:
            self.fail_orphans()
            row = self._read(caller, response_id, with_events=with_events)
        if row is None or not self._is_current(row):
            return None
        with self._faults.guard("look up"):
            events = row.events if with_events else None
            body, given = self._unpack(row.body), self._unpack(row.input)
            return StoredResponse(body.value, given.value, events, body.json_bytes + given.json_bytes)
        return None

    def _read(self, caller: bytes, response_id: str, *, with_events: bool = False) -> Row | None:
        """The row in the file; none when that cannot be read."""
        with self._faults.guard("look up"), self._database.reader() as connection:
            return read(connection, caller, response_id, with_events=with_events)
        return None

    def _is_current(self, row: Row) -> bool:
        return row.is_unfinished or row.created_at >= self._clock() - self._max_age

    # What a process that died left behind …

    def fail_orphans(self) -> int:
        """Tell of every response that is still to be generated, and not by this process, that it failed; how many.

        Which these are is known without a clock: what was stored while that was wrong must not be called unfinished
        for ever. Two proxies that share a file: the second calls those of the first
        failed until they end, and then their own words replace that, because `update` asks for the row, not for its
        status. A file that cannot be used at the start is asked again when somebody asks for such a response.
        """
        self._owes_orphans = True
        with self._faults.guard("end what was interrupted"), self._lock:
            with self._database.reader() as connection:
                unfinished = connection.execute(
                    f"SELECT number, caller, id, body FROM responses WHERE {IS_UNFINISHED}"
                ).fetchall()
            orphans = [(each[0], each[3]) for each in unfinished if (each[1], each[2]) not in self._in_work]
            failed = sum(self._has_failed(number, body) for number, body in orphans)
            self._owes_orphans = False
            return failed
        return 0

    def _has_failed(self, number: int, packed: bytes) -> bool:
        try:
            body = pack_json({**unpack_json(packed), "status": "failed", "error": _RESTARTED})
        except ValueError:
            # Nobody can read it any more, and it must not be called unfinished for ever.
            body = packed
        with self._database.transaction() as connection:
            return (
                connection.execute(
                    "UPDATE responses SET status = 'failed', body = ?, size = size - length(body) + ? "
                    f"WHERE number = ? AND {IS_UNFINISHED}",
                    (body, len(body), number),
                ).rowcount
                > 0
            )

    # Forgetting …

    def prune(self) -> int:
        """Forget the oldest of what is too old, too many or too large; how many. On its own thread, or by tests."""
        forgotten = 0
        with self._faults.guard("prune"):
            while not self._pruner.is_closed and (step := self._forget_some()):
                forgotten += step
                self._pruner.pause()
        return forgotten

    def _forget_some(self) -> int:
        with self._database.transaction() as connection:
            rows, size = connection.execute("SELECT count(*), coalesce(sum(size), 0) FROM responses").fetchone()
            gone = []
            for number, created_at, each in connection.execute(
                # What is still being made would be lost with its row.
                f"SELECT number, created_at, size FROM responses WHERE NOT {IS_UNFINISHED} ORDER BY created_at LIMIT ?",
                (_ROWS_PER_STEP,),
            ):
                is_old = created_at < self._clock() - self._max_age
                if not is_old and rows <= self._max_rows and size <= self._max_bytes:
                    break
                gone.append((number,))
                rows, size = rows - 1, size - each
            connection.executemany("DELETE FROM responses WHERE number = ?", gone)
        return len(gone)

    def stats(self) -> ResponseStats:
        """What the file holds; raises Unusable."""
        with self._database.reader() as connection:
            return ResponseStats(
                *connection.execute("SELECT count(*), coalesce(sum(size), 0) FROM responses").fetchone()
            )

    def close(self) -> None:
        """Idempotent; the database is its owner's to close."""
        self._pruner.close()
        with self._faults.guard("catch up"), self._lock:
            self._catch_up()
        if count := len(self._waiting):
            _log.warning("%d of the responses in memory never reached the store and are forgotten", count)
            self._waiting.clear()
