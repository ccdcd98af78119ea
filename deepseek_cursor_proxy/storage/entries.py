"""What the stores and the engine exchange: kinds of rows, and the values that are read and written.

This is the contract of an engine. There is one, `sqlite/`; another one in its place offers the same calls. They raise
Unusable for a fault of the file, and Refused for an entry that the engine does not take. Keys and values are bytes,
text and numbers: columns for SQLite, to be packed by an engine that knows bytes alone. What several proxies share is
also on a server, by the same rules (`shared/`).

The file (`sqlite.database.Database`)
    path, fault, fault_count     `fault` is the known one, or None; until `reopen`, what it stops raises it at once
    open(may_set_aside), close() connect or create the file; move a damaged one away only if that is allowed
    request_reopen()             ask for a `reopen` soon; from any thread
    on_reopen(write_waiting)     register a function that writes the waiting entries of one table, True if none is left
    reopen()                     `open`, call these functions, then `confirm` by a write that the file is usable
    size(), file_size()          rows by table and bytes; bytes alone. `shrink()` returns the space of deleted rows
    newest_time(until)           functions of `sqlite.rows`: the newest time in any table, not after `until`;
    delete_all()                 delete all rows but usage, totals of the cache and learned values

The rows of one kind (`sqlite.rows.open_rows`)
    every kind    write(entries, is_retry)     one transaction, durable when it returns; one result per entry
                  prune(go_on), totals()       see below; number and bytes of rows
                  measure(), is_nearly_full    the same as `totals`, but cheap; near a limit
    by key        read(keys, prefix), read_all(most). Entry: Row; result: the values that the row has now
    reasonings    find(keys): key and text, oldest first; stats(). Entry: ReasoningEntry; its result is not used
    responses     find(caller, id, with_events), unfinished(), fail(number, body, is_retry) with a number
                  from `unfinished`. Entry: ResponseChange; result: True if a row was replaced, deleted or inserted
    answers       by key; add_totals(totals, is_retry), read_totals()
    usage         add(rows, sums, is_retry), the sums being those that `usage.ledger` computed; answered_keys(). Reports
                  read with SQL (`sqlite.usage_rows`)

`is_retry` means two things: write despite a known fault, and the file may be a new one, which lacks earlier entries.

Reasonings: a row is addressed by the digest of its text, so that writing it again changes nothing. A key leads to up to
16 texts in the order in which they were written; further ones are not added to it.

Pruning: first the rows beyond `max_rows` and `max_bytes`, then those older than `max_age_seconds` by the PruningClock,
of which one pruning deletes at most `share_by_age` of all rows. The least recently used go first, but rows dated in the
future before them, as their age is unknown; an unfinished response never goes. A lookup of a reasoning counts as use,
which is written with the next entry if the stored time is a day old, or a minute if the table is nearly full. Answers
and responses have the time of their creation, usage that of the end of the request.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """A table, its columns, and the limits that hold unless others are given.

    key, values        the columns by which a row is found, and those that it holds
    writes_between_prunings    0: never pruned (small tables without a time column)
    share_by_age       the largest share of rows that one pruning deletes because of age
    rows_per_step      rows deleted in one transaction, so short that no turn waits noticeably for the writer
    rows_per_sum       rows whose sizes are added up while other threads wait for the connection; None: all
    """

    table: str
    title: str
    key: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    max_age_seconds: float = 30 * 24 * 3600
    max_rows: float = math.inf
    max_bytes: float = math.inf
    share_by_age: float = 1.0
    writes_between_prunings: int = 64
    rows_per_step: int = 200
    rows_per_sum: int | None = None


class Row(NamedTuple):
    """A row to write. With `keeps_first` an existing row keeps its values; only its time is updated.

    `time` is None in small tables without a time column.
    """

    key: tuple[Any, ...]
    values: tuple[Any, ...]
    time: float | None = None
    keeps_first: bool = False


class ReasoningEntry(NamedTuple):
    """A reasoning, and keys that lead to it."""

    keys: tuple[bytes, ...]
    text: bytes


class StoreStats(NamedTuple):
    reasonings: int
    keys: int
    bytes: int
    oldest_use: float | None


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


class BacklogEntry(NamedTuple):
    """A script that the engine has not run: its name, its key, and its arguments, packed."""

    script: str
    key: bytes
    arguments: bytes


class CacheTotals(NamedTuple):
    """Hits and misses of the response cache since the store was made, and what the hits saved."""

    currency: str = ""
    hits: int = 0
    misses: int = 0
    tokens: int = 0
    money: float = 0.0

    def add(self, other: "CacheTotals") -> "CacheTotals":
        _, hits, misses, tokens, money = other
        return self._replace(
            hits=self.hits + hits, misses=self.misses + misses, tokens=self.tokens + tokens, money=self.money + money
        )


class UsageRow(NamedTuple):
    """A request that ended; None stands for an unknown figure."""

    # Of the row; 0 before it is written.
    id: int
    ended_at: float
    # Counts from 1 in every run of the proxy.
    number: int
    api: str
    key: str
    session: str
    requested_model: str
    model: str
    upstream: str
    stream: int
    outcome: str
    status: int
    hit: int | None
    miss: int | None
    output: int | None
    thinking: int | None
    searches: int
    cost: float | None
    saved: float | None
    divergence_cost: float | None
    currency: str
    price_version: str
    # Whether it cost something that is not known.
    is_cost_unknown: int
    seconds: float
    queue_seconds: float | None
    connect_seconds: float | None
    first_token_seconds: float | None
    retries: int
    filled: int
    kept: int
    empty: int
    missing: int
    recovered: int
    divergence: str | None
    messages: int
    tools: int
    body_bytes: int
    client: str = ""


class DayGroup(NamedTuple):
    """The columns by which the sums of a day are grouped."""

    day: str
    model: str
    key: str
    api: str
    currency: str


class DaySums(NamedTuple):
    requests: int = 0
    failed: int = 0
    unknown_costs: int = 0
    hit: int = 0
    miss: int = 0
    output: int = 0
    thinking: int = 0
    searches: int = 0
    cost: float = 0.0
    saved: float = 0.0
    divergence_cost: float = 0.0


def add_sums(each: Iterable[DaySums]) -> DaySums:
    return DaySums(*map(sum, zip(DaySums(), *each, strict=True)))


def encode_text(text: str) -> bytes:
    # A lone surrogate is legal in JSON and has no UTF-8 form.
    return text.encode("utf-8", "surrogatepass")


def decode_text(blob: bytes) -> str:
    return blob.decode("utf-8", "surrogatepass")
