"""UsageLedger: one row for every request that ended, written within a second by the thread of the file.

A request whose key no upstream has accepted has none (see `access`): it cost nothing, and strangers could fill the file
with them. Rows wait in memory while the file cannot be used, up to a bound; beyond it the oldest are lost, with one
warning. A process that is killed loses the rows of its last second.

Table `usage` has one row per request, `usage_days` the sums of each day, which stay for ever. Both are written
together, so that a process that dies leaves them in step. There is no text of a request in them: only figures, names of
models, and digests. A day is one of this machine's own clock. The functions at the end read both, also for other
processes.
"""

import logging
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from operator import add
from typing import Any, NamedTuple, Unpack

from deepseek_cursor_proxy.deepseek.prices import Cost
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.features.request_log.feature import RequestRecord
from deepseek_cursor_proxy.observers.events import Result
from deepseek_cursor_proxy.storage.database import Database
from deepseek_cursor_proxy.storage.table import Table, TableOptions
from deepseek_cursor_proxy.storage.write_behind import WriteBehind

_log = logging.getLogger(__name__)

# The average of many answers changes slowly.
_SECONDS_BETWEEN_AVERAGES = 60.0

_TABLES = """
-- One row per request, figures only; and the sums of each day, which stay when its rows are deleted.
CREATE TABLE usage (
    id INTEGER PRIMARY KEY, ended_at REAL NOT NULL, number INTEGER NOT NULL, api TEXT NOT NULL, key TEXT NOT NULL,
    session TEXT NOT NULL, requested_model TEXT NOT NULL, model TEXT NOT NULL, upstream TEXT NOT NULL,
    stream INTEGER NOT NULL, outcome TEXT NOT NULL, status INTEGER NOT NULL, hit INTEGER, miss INTEGER, output INTEGER,
    thinking INTEGER, searches INTEGER NOT NULL, cost REAL, saved REAL, divergence_cost REAL, currency TEXT NOT NULL,
    price_version TEXT NOT NULL, is_cost_unknown INTEGER NOT NULL, seconds REAL NOT NULL, queue_seconds REAL,
    connect_seconds REAL, first_token_seconds REAL, retries INTEGER NOT NULL, filled INTEGER NOT NULL,
    kept INTEGER NOT NULL, empty INTEGER NOT NULL, missing INTEGER NOT NULL, recovered INTEGER NOT NULL,
    divergence TEXT, messages INTEGER NOT NULL, tools INTEGER NOT NULL, body_bytes INTEGER NOT NULL,
    client TEXT NOT NULL
) STRICT;
CREATE INDEX usage_by_end ON usage (ended_at);
CREATE TABLE usage_days (
    day TEXT NOT NULL, model TEXT NOT NULL, key TEXT NOT NULL, api TEXT NOT NULL, currency TEXT NOT NULL,
    requests INTEGER NOT NULL, failed INTEGER NOT NULL, unknown_costs INTEGER NOT NULL, hit INTEGER NOT NULL,
    miss INTEGER NOT NULL, output INTEGER NOT NULL, thinking INTEGER NOT NULL, searches INTEGER NOT NULL,
    cost REAL NOT NULL, saved REAL NOT NULL, divergence_cost REAL NOT NULL,
    PRIMARY KEY (day, model, key, api, currency)
) STRICT, WITHOUT ROWID;
"""


class UsageRow(NamedTuple):
    """A request that ended; None stands for an unknown figure."""

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


# What the ledger is read from; other folders only pass it on.
Reader = sqlite3.Connection
# More groups of one day are added up under this name: clients may choose the names of models.
OTHER = "other"
_MAX_GROUPS_PER_DAY = 500
_MAX_ANSWERED_KEYS = 10_000
# Read in about a millisecond.
_ROWS_OF_AVERAGE = 2000


_COLUMNS = UsageRow._fields[1:]
_INSERT = f"INSERT INTO usage ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_SELECT = f"SELECT {', '.join(UsageRow._fields)} FROM usage"
_SUMS = DaySums._fields
_GROUP = DayGroup._fields
_HAS_GROUP = f"SELECT 1 FROM usage_days WHERE {' AND '.join(f'{name} = ?' for name in _GROUP)}"
_DAY_COLUMNS = (*_GROUP, *_SUMS)
_ADD = (
    f"INSERT INTO usage_days ({', '.join(_DAY_COLUMNS)}) VALUES ({', '.join('?' * len(_DAY_COLUMNS))}) "
    f"ON CONFLICT ({', '.join(_GROUP)}) DO UPDATE SET "
    # A sum beyond SQLite's whole numbers would be a float, which the column refuses, and with it all rows.
    + ", ".join(f"{name} = min({name} + excluded.{name}, {2**63 - 1})" for name in _SUMS)
)


class WaitingRequests(WriteBehind[RequestRecord]):
    # A kilobyte each, while the file cannot be used; and more than are answered between two batches.
    bound = 10_000
    # So short a transaction that no turn waits noticeably for the writer.
    batch = 64
    # Figures that SQLite refuses cost their own request.
    keeps_refused = False
    # What a killed process loses; a batch costs about the same for one row as for many.
    seconds_between_batches = 1.0


class UsageLedger(Table[RequestRecord]):
    """`add` is called by any thread, the rest by its own."""

    name = "usage"
    title = "usage"
    statements = _TABLES
    waiting_type = WaitingRequests
    time = "ended_at"
    # Daily sums stay.
    max_age_seconds = 90 * 24 * 3600
    max_rows = 200_000
    # Pruning counts the rows, which takes milliseconds when there are many.
    writes_between_prunings = 1024

    def __init__(self, database: Database, **options: Unpack[TableOptions]) -> None:
        super().__init__(database, **options)
        # The keys of callers that got an answer in earlier runs; None until they are read.
        self._earlier_keys: frozenset[str] | None = None
        # Clients may choose the names of models.
        self._mean_output = lru_cache(64)(self._read_mean)

    def add(self, record: RequestRecord) -> None:
        """Queue the record of a request; returns at once."""
        if record.facts.key:
            self._waiting.write_later([record])

    def was_accepted_before(self, key: str) -> bool:
        """True if a caller got an answer before this run; False while the file cannot be read."""
        if self._earlier_keys is None:
            with self._faults.guard("look up"), self.database.reader() as connection:
                self._earlier_keys = read_answered_keys(connection)
        return self._earlier_keys is not None and key in self._earlier_keys

    def mean_output_tokens(self, model: str) -> int:
        """How many tokens an answer of this model has on average; 0 if there is none, or the file cannot be read."""
        return self._mean_output(model, time.monotonic() // _SECONDS_BETWEEN_AVERAGES)

    def _read_mean(self, model: str, period: float) -> int:
        with self._faults.guard("look up"), self.database.reader() as connection:
            # Among the last rows of all models.
            query = "SELECT avg(nullif(output, 0)) FROM usage WHERE id > (SELECT max(id) FROM usage) - ? AND model = ?"
            return round(connection.execute(query, (_ROWS_OF_AVERAGE, model)).fetchone()[0] or 0)
        return 0

    def _write(self, connection: sqlite3.Connection, entries: Sequence[RequestRecord]) -> None:
        connection.executemany(_INSERT, map(_values, entries))
        for group, added in sum_by_day(entries).items():
            connection.execute(_ADD, (*_bounded(connection, group), *added))
        self._count_writes(len(entries))
        if lost := self._waiting.take_lost():
            _log.warning("usage could not be written; requests whose figures are lost: %d", lost)


def sum_by_day(records: Iterable[RequestRecord]) -> dict[DayGroup, DaySums]:
    """The sums of these requests; unknown figures count as 0."""
    sums: dict[tuple[str, ...], tuple[Any, ...]] = {}
    days: dict[float, str] = {}
    for record in records:
        facts, minute = record.facts, record.ended_at // 60
        day = days.get(minute) or days.setdefault(minute, day_of(record.ended_at))
        *cost, currency, _ = record.cost or _NO_COST
        added = (1, record.result.is_failure, record.is_cost_unknown, *(record.tokens or _NO_TOKENS), *cost)
        group = day, facts.model, facts.key, facts.api, currency
        sums[group] = tuple(map(add, sums.get(group, _NO_SUMS), added))
    return {DayGroup(*group): DaySums(*each) for group, each in sums.items()}


_NO_SUMS, _NO_TOKENS, _NO_COST = DaySums(), Tokens(0, 0, 0, 0, 0), Cost(0.0, 0.0, 0.0, "", "")
FAILURES = tuple(result for result in Result if result.is_failure)


def day_of(moment: float) -> str:
    """The day of a Unix time on this machine's clock."""
    return datetime.fromtimestamp(moment).date().isoformat()


def _values(record: RequestRecord) -> tuple[Any, ...]:
    """The columns of a request, but for the id."""
    number, _, api, key, requested_model, model, stream, messages, tools, body_bytes, chat, client, _ = record.facts
    seconds, first_token, queue, connect = record.timing
    hit, miss, output, thinking, searches = record.tokens or (None, None, None, None, 0)
    cost, saved, divergence, currency, version = record.cost or (None, None, None, "", "")
    return (
        record.ended_at, number, api, key, chat, requested_model, model, record.upstream, int(stream),
        str(record.result), record.status, hit, miss, output, thinking, searches, cost, saved, divergence, currency,
        version, int(record.is_cost_unknown), seconds, queue, connect, first_token, record.retries, *record.turns,
        record.divergence, messages, tools, body_bytes, client,
    )  # fmt: skip


# Rows of sums stay, so one that was found or added is not looked for again.
@lru_cache(64)
def _bounded(connection: sqlite3.Connection, group: DayGroup) -> DayGroup:
    """The group itself, or the one for all others if the day has too many groups."""
    if connection.execute(_HAS_GROUP, group).fetchone() is not None:
        return group
    count = connection.execute("SELECT count(*) FROM usage_days WHERE day = ?", (group.day,)).fetchone()[0]
    return group if count < _MAX_GROUPS_PER_DAY else group._replace(model=OTHER, key=OTHER)


def read_days(connection: Reader, since: str, until: str) -> list[tuple[DayGroup, DaySums]]:
    """The sums of these days, both included, oldest first."""
    found = connection.execute(
        f"SELECT {', '.join(_DAY_COLUMNS)} FROM usage_days WHERE day BETWEEN ? AND ? ORDER BY day", (since, until)
    )
    return [(DayGroup(*row[: len(_GROUP)]), DaySums(*row[len(_GROUP) :])) for row in found]


def read_answered_keys(connection: Reader) -> frozenset[str]:
    """The keys of callers that got answers; of very many, those of the last days."""
    found = connection.execute(
        "SELECT key FROM usage_days WHERE requests > failed GROUP BY key ORDER BY max(day) DESC LIMIT ?",
        (_MAX_ANSWERED_KEYS,),
    )
    return frozenset(key for (key,) in found)


def read_key_names(connection: Reader) -> dict[bytes, str]:
    """The names of keys by their namespaces."""
    found = connection.execute("SELECT namespace, substr(name, 6) FROM key_names WHERE name LIKE 'keys.%'")
    return dict(found.fetchall())


def sum_by(
    connection: Reader, column: str, since: float, until: float, failures: Sequence[str]
) -> list[tuple[str, str, DaySums]]:
    """A column, the currency and sums of the requests that ended in this time, of which these outcomes are failures."""
    added = ("hit", "miss", "output", "thinking", "searches", "cost", "saved", "divergence_cost")
    sums = ", ".join(f"total({name})" for name in added)
    found = connection.execute(
        f"SELECT {column}, currency, count(*), total(outcome IN (?, ?)), total(is_cost_unknown), {sums} FROM usage "
        f"WHERE ended_at >= ? AND ended_at < ? GROUP BY {column}, currency",
        (*failures, since, until),
    )
    return [(row[0], row[1], DaySums(*map(int, row[2:10]), *row[10:])) for row in found]


def sum_switched(connection: Reader, since: float, until: float, currency: str) -> list[tuple[Any, ...]]:
    """Requested model, model, hour since 1970, requests, hit, miss, output, searches and cost of the requests of known
    cost that another model answered than they name."""
    sums = ", ".join(f"total({name})" for name in ("hit", "miss", "output", "searches", "cost"))
    return connection.execute(
        f"SELECT requested_model, model, CAST(ended_at / 3600 AS INTEGER), count(*), {sums} FROM usage "
        "WHERE ended_at >= ? AND ended_at < ? AND currency = ? AND requested_model != model AND cost IS NOT NULL "
        "GROUP BY 1, 2, 3",
        (since, until, currency),
    ).fetchall()


def read_times(
    connection: Reader, since: float, until: float, column: str, outcome: str
) -> Iterable[tuple[Any, float, float | None]]:
    """A column, the seconds and those until the first token of requests that ended in this time with this outcome."""
    columns = f"{column}, seconds, first_token_seconds"
    where = "ended_at >= ? AND ended_at < ? AND outcome = ?"
    return connection.execute(f"SELECT {columns} FROM usage WHERE {where}", (since, until, outcome))


def read_page(connection: Reader, limit: int, before_id: int | None, wanted: Mapping[str, str]) -> Sequence[UsageRow]:
    """Rows newest first: those below an id, with these values in columns."""
    where = ["id < ?", *(f"{name} = ?" for name in UsageRow._fields if name in wanted)]
    values = [wanted[name] for name in UsageRow._fields if name in wanted]
    found = connection.execute(
        f"{_SELECT} WHERE {' AND '.join(where)} ORDER BY id DESC LIMIT ?",
        (before_id if before_id is not None else 2**62, *values, limit),
    )
    return [UsageRow._make(row) for row in found]


def find(connection: Reader, id: int) -> UsageRow | None:
    found = connection.execute(f"{_SELECT} WHERE id = ?", (id,)).fetchone()
    return UsageRow._make(found) if found is not None else None


def find_id(connection: Reader, number: int, since: float) -> int | None:
    """The id of the newest row with this number, of a request that ended after a time."""
    query = "SELECT max(id) FROM usage WHERE ended_at >= ? AND number = ?"
    found: int | None = connection.execute(query, (since, number)).fetchone()[0]
    return found
