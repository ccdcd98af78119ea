"""ResponseStore: stored responses of the Responses API, each a row that needs no other.

A row holds the response and all its input, including what it inherited. So a lookup reads one row however long the
chain is, and deleting a response breaks nothing that continues it. Each caller sees its own rows only.

Once `put` or `update` returns, the response survives a crash. A change that cannot be written waits in memory, within
bounds, is found there, and is written when the file can be used.

As long as `access` does not know a caller, its responses are in memory alone, for some minutes and within bounds that
all these callers share; `accept` writes them.
"""

import contextlib
import json
import logging
import sqlite3
import threading
import zlib
from bisect import bisect_right
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Unpack

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import Memo
from deepseek_cursor_proxy.exchange.feature import Stored
from deepseek_cursor_proxy.json_codec import count_value_starts, encode_json
from deepseek_cursor_proxy.storage.database import Database
from deepseek_cursor_proxy.storage.table import Table, TableOptions, compress
from deepseek_cursor_proxy.storage.write_behind import WriteBehind

_log = logging.getLogger(__name__)

# Roughly what a row takes in memory besides its packed fields.
_BYTES_PER_ROW = 500
# Limit for all unknown callers together: the running jobs that `background_jobs` admits, plus some finished ones.
_MOST_OF_UNKNOWN_CALLERS = 64
_MOST_BYTES_OF_UNKNOWN_CALLERS = 48 * 1024 * 1024
_SECONDS_OF_UNKNOWN_CALLERS = 900.0
# Some four responses of a chain of 1 MB.
_MOST_BYTES_UNPACKED = 32 * 1024 * 1024
# Compressed together, and decompressed together to read any byte of them.
_BLOCK_BYTES = 64 * 1024
# Compressed bytes that `unpack_events` takes at once: events shrink to a twentieth.
_READ_BYTES = 8 * 1024
_END_OF_EVENT = b"\n\n"
# Exactly the condition of the partial index; SQLite uses the index for no other.
_IS_UNFINISHED = "status IN ('queued', 'in_progress')"
_RESTARTED = {"code": "server_restarted", "message": "The proxy was restarted before this response was finished."}


@dataclass(frozen=True)
class StoredResponse:
    """A response object, all its input items in order, and a background response's events, packed by an EventLog."""

    body: Mapping[str, Any]
    input: Sequence[Mapping[str, Any]]
    events: bytes | None = None
    # The size of body and input as JSON, when read from the store.
    json_bytes: int = field(default=0, compare=False)


_TABLES = """
-- One row per stored response, whole in itself: nothing in it leads to another row.
CREATE TABLE responses (
    number INTEGER PRIMARY KEY, caller BLOB NOT NULL, id TEXT NOT NULL, status TEXT NOT NULL, created_at REAL NOT NULL,
    size INTEGER NOT NULL, body BLOB NOT NULL, input BLOB NOT NULL, events BLOB, UNIQUE (caller, id)
) STRICT;
-- Pruning asks for the oldest rows and the sum of all sizes, and must not read the large rows for it.
CREATE INDEX responses_by_age ON responses (created_at, size);
CREATE INDEX responses_unfinished ON responses (status) WHERE status IN ('queued', 'in_progress');
"""


class ResponseRow(NamedTuple):
    """A response; body and input are compressed JSON (a tenth of a long chat), the other fields are read without it."""

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
        return self.status in ("queued", "in_progress")


class ResponseChange(NamedTuple):
    """An insert, update or delete (`row` is None) of one response. Without `may_insert` a deleted row stays deleted."""

    caller: bytes
    id: str
    row: ResponseRow | None
    may_insert: bool = False


class _Unpacked(NamedTuple):
    """A value, its size as JSON, and roughly the memory it takes."""

    value: Any
    json_bytes: int
    size: int


class WaitingChanges(WriteBehind[ResponseChange]):
    """The latest change of each response that waits for the file."""

    bound = 32 * 1024 * 1024
    # So short a transaction that no caller waits noticeably for the lock.
    batch = 512 * 1024

    def latest(self, caller: bytes, response_id: str) -> ResponseChange | None:
        return next(iter(self.find([(caller, response_id)]).values()), [None])[0]

    def size(self, entry: ResponseChange) -> int:
        return _BYTES_PER_ROW + (entry.row.size if entry.row is not None else 0)

    def keys(self, entry: ResponseChange) -> Collection[tuple[bytes, str]]:
        return [entry[:2]]

    def merge(self, new: ResponseChange, old: ResponseChange) -> ResponseChange:
        if new.row is None or old.row is None:
            return new
        return new._replace(row=new.row._replace(created_at=old.row.created_at))


class ResponseStore(Table[ResponseChange]):
    """Called by any thread.

    The lock lets one thread write at a time and protects `_in_work`. Changes that wait and the database have locks of
    their own, so that a lookup waits for no writer.
    """

    name = "responses"
    title = "response store"
    statements = _TABLES
    waiting_type = WaitingChanges
    _waiting: WaitingChanges
    id = "number"
    time = "created_at"
    size = "size"
    # An unfinished response would be lost with its row.
    prunable = f"NOT {_IS_UNFINISHED}"
    # As long as OpenAI keeps them.
    max_age_seconds = 30 * 24 * 3600
    max_rows = 10_000
    max_bytes = 1024**3
    # Rows are large, so pruning runs often, in steps after which other threads get the lock.
    writes_between_prunings = 16
    rows_per_step = 20

    def __init__(self, database: Database, **options: Unpack[TableOptions]) -> None:
        super().__init__(database, **options)
        # A low limit is kept closely.
        self.writes_between_prunings = max(1, min(self.writes_between_prunings, int(self.max_rows) // 16))
        self._lock = threading.Lock()
        # The responses that this process has yet to finish, by caller and id.
        self._in_work: set[tuple[bytes, str]] = set()
        # By caller and id, oldest first: responses of callers that are not known yet.
        self._of_unknown_callers: dict[tuple[bytes, str], ResponseRow] = {}
        # Values packed lately, by their packed bytes: a chain continues from what was just stored, and the chat memory
        # recognises the same objects.
        self._unpacked: Memo[bytes, _Unpacked] = Memo(_MOST_BYTES_UNPACKED, lambda packed, each: each.size)
        # The same responses on an engine, which other proxies find.
        self._shared: Any = None

    def share(self, shared: Any) -> None:
        """Store on the engine too, before a change returns, and find what other proxies stored."""
        self._shared = shared

    def in_work(self) -> set[tuple[bytes, str]]:
        """Caller and id of the responses that this process has yet to finish."""
        return self._in_work.copy()

    # Changes …

    def put(self, caller: bytes, response: StoredResponse, *, is_known: bool = True) -> None:
        """Store a response, or replace the one with the same id; in memory for a caller that is not known."""
        row = self._to_row(caller, response)
        with self._lock:
            if is_known:
                self._note_work(row)
                self._change(ResponseChange(caller, row.id, row, may_insert=True))
            else:
                self._hold(row)

    def _hold(self, row: ResponseRow) -> None:
        """Keep a response in memory. Beyond the limits those that are finished go first: the jobs are bounded."""
        held, key = self._of_unknown_callers, (row.caller, row.id)
        held[key] = row._replace(created_at=held.get(key, row).created_at)
        while (
            len(held) > _MOST_OF_UNKNOWN_CALLERS
            or sum(each.size for each in held.values()) > _MOST_BYTES_OF_UNKNOWN_CALLERS
        ):
            finished = (key for key, each in held.items() if not each.is_unfinished)
            del held[next(finished, next(iter(held)))]

    def accept(self, caller: bytes) -> None:
        """Store the responses that a caller made before an upstream accepted its key."""
        if not self._of_unknown_callers:
            return
        with self._lock:
            for key, row in [item for item in self._of_unknown_callers.items() if item[0][0] == caller]:
                if self._is_alive(row):
                    self._note_work(row)
                    self._change(ResponseChange(*key, row, may_insert=True))
                # Only now, so that it is found at any moment.
                del self._of_unknown_callers[key]

    def _is_alive(self, row: ResponseRow) -> bool:
        return row.is_unfinished or self.clock() - row.created_at < _SECONDS_OF_UNKNOWN_CALLERS

    def update(self, caller: bytes, response: StoredResponse) -> None:
        """Replace a stored response; a deleted one stays deleted."""
        row = self._to_row(caller, response)
        with self._lock:
            if (caller, row.id) in self._of_unknown_callers:
                self._hold(row)
                return
            self._note_work(row)
            waiting = self._waiting.latest(caller, row.id)
            if waiting is None or waiting.row is not None:
                # A waiting insert stays an insert.
                may_insert = waiting is not None and waiting.may_insert
                self._change(ResponseChange(caller, row.id, row, may_insert))

    def _note_work(self, row: ResponseRow) -> None:
        if row.is_unfinished:
            # Before it is in the file, where another process would take it for an orphan.
            self._in_work.add((row.caller, row.id))
        else:
            self._in_work.discard((row.caller, row.id))

    def delete(self, caller: bytes, response_id: str) -> bool:
        """Delete a response. True if it was stored."""
        with self._lock:
            if (held := self._of_unknown_callers.pop((caller, response_id), None)) is not None:
                return self._is_alive(held)
            waiting = self._waiting.latest(caller, response_id)
            row = waiting.row if waiting is not None else self._find(caller, response_id)
            if row is None:
                return False
            self._in_work.discard((caller, response_id))
            self._change(ResponseChange(caller, response_id, None))
            return self._is_current(row)

    def _to_row(self, caller: bytes, response: StoredResponse) -> ResponseRow:
        # Before any lock is taken: packing a long one takes a while.
        body, items = self._pack(response.body), self._pack(list(response.input))
        id, status = response.body["id"], response.body["status"]
        return ResponseRow(caller, id, status, self.clock(), body, items, response.events)

    def _pack(self, value: Any) -> bytes:
        raw = encode_json(value)
        packed = compress(raw)
        # A value takes its text, four bytes a character at worst, and a hundred bytes for itself.
        memory = len(packed) + 4 * len(raw) + 100 * count_value_starts(raw)
        self._unpacked.put(packed, _Unpacked(value, len(raw), memory))
        return packed

    def _unpack(self, packed: bytes) -> _Unpacked:
        """The packed value, which no caller may change. Raises ValueError if it is damaged."""
        known = self._unpacked.get(packed)
        if known is not None:
            return known
        raw = _decompress(packed)
        return _Unpacked(json.loads(raw), len(raw), 0)

    def _change(self, change: ResponseChange) -> None:
        """Make a change in the file, or keep it waiting."""
        is_shared = self._shared.change(change) if self._shared is not None else None
        if is_shared is False and change.row is not None:
            # Another proxy has deleted it.
            change = change._replace(row=None)
        is_written = self._waiting.write([change]) or is_shared
        if not (is_written or change.may_insert or change.row is None):
            with self._faults.guard("look up"):
                if self._select(change.caller, change.id, with_events=False) is None:
                    self._waiting.discard([(change.caller, change.id)])

    def _write_entry(self, connection: sqlite3.Connection, entry: ResponseChange) -> None:
        caller, id, row, may_insert = entry
        if row is None:
            connection.execute("DELETE FROM responses WHERE caller = ? AND id = ?", (caller, id))
            return
        # created_at stays: an update does not make a response younger.
        is_there = connection.execute(
            "UPDATE responses SET status = ?, size = ?, body = ?, input = ?, events = ? WHERE caller = ? AND id = ?",
            (row.status, row.size, row.body, row.input, row.events, caller, id),
        ).rowcount
        if not is_there and may_insert:
            connection.execute(
                "INSERT INTO responses (caller, id, status, created_at, body, input, events, size) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, row.size),
            )

    # Lookup …

    def get(self, caller: bytes, response_id: str, *, with_events: bool = True) -> StoredResponse | None:
        """The response, unless it is unknown, another caller's or too old. Without its events it costs less."""
        # Memory first: a row that is just being written is found twice rather than not at all.
        row = self._of_unknown_callers.get((caller, response_id))
        if row is None or not self._is_alive(row):
            waiting = self._waiting.latest(caller, response_id)
            row = waiting.row if waiting is not None else self._find(caller, response_id, with_events=with_events)
        if row is None or not self._is_current(row):
            return None
        with self._faults.guard("look up"):
            events = row.events if with_events else None
            body, items = self._unpack(row.body), self._unpack(row.input)
            return StoredResponse(body.value, items.value, events, body.json_bytes + items.json_bytes)
        return None

    def _find(self, caller: bytes, response_id: str, *, with_events: bool = False) -> ResponseRow | None:
        """The row on the engine, or in the file: the newer one, and the file's own if the engine has an older state."""
        if not response_id.isascii():
            # Our ids are ASCII; one that a client invented may be no valid text for SQLite.
            return None
        if self._shared is None:
            return self._read(caller, response_id, with_events=with_events)
        if self._shared.has_backlog and (row := self._read(caller, response_id, with_events=with_events)) is not None:
            return row
        row = self._shared.find(caller, response_id, with_events=with_events)
        if row is None or row.status not in ("completed", "deleted"):
            own = self._read(caller, response_id, with_events=with_events)
            row = own if row is None or (own is not None and not own.is_unfinished) else row
        return None if row is None or row.status == "deleted" else row

    def _read(self, caller: bytes, response_id: str, *, with_events: bool = False) -> ResponseRow | None:
        """The row in the file; None if there is none or the file cannot be read."""
        with self._faults.guard("look up"):
            return self._select(caller, response_id, with_events=with_events)
        return None

    def _select(self, caller: bytes, id: str, *, with_events: bool) -> ResponseRow | None:
        """The row in the file. Raises Unusable."""
        found = self.database.select(
            f"SELECT caller, id, status, created_at, body, input, {'events' if with_events else 'NULL'} "
            "FROM responses WHERE caller = ? AND id = ?",
            *(caller, id),
        )
        return ResponseRow._make(found[0]) if found else None

    def _is_current(self, row: ResponseRow) -> bool:
        return row.is_unfinished or row.created_at >= self.clock() - self.max_age_seconds

    # Orphans: responses that a process which died left unfinished …

    def fail_orphans(self) -> int:
        """Mark unfinished responses that this process does not work on as failed. Returns how many.

        No clock is involved, which may have been wrong when they were stored. If two proxies share a file, the second
        marks the first's running responses failed; `update` overwrites that.
        """
        failed, query = 0, f"SELECT number, caller, id, body FROM responses WHERE {_IS_UNFINISHED}"
        with self._faults.guard("end what was interrupted"), self._lock:
            for number, caller, id, packed in self.database.select(query):
                if (caller, id) not in self._in_work:
                    failed += self._fail(number, failed_body(packed))
        return failed

    def _fail(self, number: int, body: bytes) -> bool:
        """Mark a response as failed, with this packed body. True if it was still unfinished."""
        with self.database.transaction() as connection:
            changed = connection.execute(
                "UPDATE responses SET status = 'failed', body = ?, size = size - length(body) + ? "
                f"WHERE number = ? AND {_IS_UNFINISHED}",
                (body, len(body), number),
            )
            return changed.rowcount > 0

    def close(self) -> int:
        """Write waiting changes; idempotent. The owner of the database closes it."""
        if self._shared is not None:
            self._shared.close()
        count = super().close()
        if count:
            _log.warning("%d of the responses in memory never reached the store and are forgotten", count)
        return count


def failed_body(packed: bytes) -> bytes:
    """The packed body of a response whose process died; an unreadable one must not stay unfinished for ever."""
    with contextlib.suppress(ValueError):
        return compress(encode_json({**json.loads(_decompress(packed)), "status": "failed", "error": _RESTARTED}))
    return packed


def _decompress(packed: bytes) -> bytes:
    try:
        return zlib.decompress(packed)
    except zlib.error as error:
        raise ValueError(f"a stored response is damaged ({error})") from None


class EventLog:
    """The events of a stream, compressed: an answer of 1 MB has 100 MB of nearly equal events.

    A log can be read from any byte on while its answer is streamed. Not thread-safe: a background job guards it with
    its own lock.
    """

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        # The offset of each block.
        self._starts: list[int] = []
        self._tail = bytearray()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, piece: bytes) -> None:
        self._tail += piece
        self._size += len(piece)
        if len(self._tail) >= _BLOCK_BYTES:
            self._starts.append(self._size - len(self._tail))
            self._blocks.append(compress(self._tail))
            self._tail = bytearray()

    def read(self, start: int) -> bytes:
        """The bytes from offset `start` up to the end of its block."""
        tail_start = self._size - len(self._tail)
        if start >= tail_start:
            return bytes(self._tail[start - tail_start :])
        index = bisect_right(self._starts, start) - 1
        return zlib.decompress(self._blocks[index])[start - self._starts[index] :]

    def pack(self, last: bytes = b"") -> bytes:
        """The whole log and a last piece, for `unpack`."""
        return b"".join([*self._blocks, compress(self._tail + last)])


def unpack_events(data: bytes) -> Generator[bytes, None, None]:
    """Yield the packed events, whole ones, several at a time. Raises ValueError if the data is damaged."""
    reader, rest = zlib.decompressobj(), bytearray()
    for start in range(0, len(data), _READ_BYTES):
        compressed = data[start : start + _READ_BYTES]
        while compressed:
            try:
                rest += reader.decompress(compressed)
            except zlib.error as error:
                raise ValueError(f"stored events are damaged ({error})") from None
            compressed = reader.unused_data
            if reader.eof:
                # The next block may begin.
                reader = zlib.decompressobj()
        if end := rest.rfind(_END_OF_EVENT) + 1:
            yield bytes(rest[: end + 1])
            del rest[: end + 1]


def stored(database: Database, config: ProxyConfig) -> Stored:
    """Raises Unusable."""
    with contextlib.closing(ResponseStore(database)) as store:
        count, size = store.totals()
    return Stored("responses", count, {"responses": f"{count:,}, {size:,} bytes"})
