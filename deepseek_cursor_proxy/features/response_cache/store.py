"""CachedAnswers: whole answers for the response cache, by the digest of the question, and what their use has saved.

The digest has the caller in it, so that no row is ever found for another one. A row is never changed; it is deleted
when it is too old, and the oldest are when all take up too much. Sums of hits, and of the tokens and the money that
they saved, stay when rows are deleted; a process that is killed loses those of its last second.
"""

import contextlib
import sqlite3
from collections.abc import Collection, Sequence
from typing import NamedTuple, Unpack

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.deepseek.prices import format_amount
from deepseek_cursor_proxy.exchange.feature import Stored
from deepseek_cursor_proxy.storage.database import Database
from deepseek_cursor_proxy.storage.table import Table, TableOptions
from deepseek_cursor_proxy.storage.write_behind import WriteBehind

# What a row takes besides its answer.
_BYTES_PER_ROW = 200
# How far the clock may have been set back. The age of an answer dated further in the future is unknown.
_SECONDS_AHEAD = 60.0

_TABLES = """
-- By digest of caller and request, whole answers; and what their use has saved, by currency.
CREATE TABLE cached_answers (
    id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, created_at REAL NOT NULL, size INTEGER NOT NULL,
    body BLOB NOT NULL, tokens INTEGER NOT NULL, cost REAL, currency TEXT NOT NULL
) STRICT;
-- Pruning asks for the oldest and for the sum of all sizes.
CREATE INDEX cached_answers_by_age ON cached_answers (created_at, size);
CREATE TABLE cache_totals (
    currency TEXT PRIMARY KEY, hits INTEGER NOT NULL, misses INTEGER NOT NULL, tokens INTEGER NOT NULL,
    money REAL NOT NULL
) STRICT, WITHOUT ROWID;
"""


class CachedAnswer(NamedTuple):
    """A packed answer, and what it cost when it was made: tokens, and money in a currency if that is known."""

    packed: bytes
    tokens: int = 0
    cost: float | None = None
    currency: str = ""


class CacheTotals(NamedTuple):
    """Hits and misses of the response cache since the store was made, and what the hits saved."""

    currency: str = ""
    hits: int = 0
    misses: int = 0
    tokens: int = 0
    money: float = 0.0


class CacheStats(NamedTuple):
    """How many answers are kept and how many bytes they take up; `totals.money` is in the currency asked for."""

    entries: int
    bytes: int
    totals: CacheTotals


class _Answer(NamedTuple):
    key: bytes
    created_at: float
    answer: CachedAnswer


class _WaitingAnswers(WriteBehind[_Answer]):
    bound = 4 * 1024 * 1024
    batch = 256 * 1024
    # An integer over 2**63 from an upstream: no later try would write it.
    keeps_refused = False

    def size(self, entry: _Answer) -> int:
        return _BYTES_PER_ROW + len(entry.answer.packed)

    def keys(self, entry: _Answer) -> Collection[bytes]:
        return [entry.key]


class _WaitingTotals(WriteBehind[CacheTotals]):
    """Counts that are not written yet. They are not added up: a part of the sum may be on its way to the file."""

    # Some megabytes.
    bound = 10_000
    keeps_refused = False
    # A hit is worth no write of its own.
    seconds_between_batches = 1.0


class CachedAnswers(Table[_Answer]):
    """Called by any thread."""

    name = "cached_answers"
    title = "response cache"
    statements = _TABLES
    waiting_type = _WaitingAnswers
    time = "created_at"
    size = "size"
    max_age_seconds = 24 * 3600
    max_bytes = 256 * 1024**2
    # Rows are large: other threads get the lock after each step of a pruning.
    writes_between_prunings = 16
    rows_per_step = 20

    def __init__(self, database: Database, **options: Unpack[TableOptions]) -> None:
        super().__init__(database, **options)
        self._totals = _WaitingTotals(database, self._add_totals, self._faults)

    def find(self, key: bytes) -> CachedAnswer | None:
        """The answer for this key, unless it is too old, or so new that the clock was wrong when it came."""
        found = self._waiting.find([key]).get(key, [])
        with self._faults.guard("look up"):
            query = "SELECT created_at, body, tokens, cost, currency FROM cached_answers WHERE key = ?"
            found = found or [
                _Answer(key, created_at, CachedAnswer(*answer))
                for created_at, *answer in self.database.select(query, key)
            ]
        now = self.clock()
        is_fresh = found and now - self.max_age_seconds <= found[0].created_at <= now + _SECONDS_AHEAD
        return found[0].answer if is_fresh else None

    def record(self, key: bytes, answer: CachedAnswer) -> None:
        """Store an answer in place of an older one."""
        self._waiting.write([_Answer(key, self.clock(), answer)])

    def _write_entry(self, connection: sqlite3.Connection, entry: _Answer) -> None:
        connection.execute(
            "INSERT OR REPLACE INTO cached_answers (key, created_at, body, tokens, cost, currency, size) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (entry.key, entry.created_at, *entry.answer, len(entry.answer.packed) + _BYTES_PER_ROW),
        )

    def count_hit(self, answer: CachedAnswer) -> None:
        self._totals.write_later([CacheTotals(answer.currency, 1, 0, answer.tokens, answer.cost or 0.0)])

    def count_miss(self) -> None:
        self._totals.write_later([CacheTotals(misses=1)])

    def stats(self, currency: str) -> CacheStats:
        """Figures of the file and of the counts not written yet. Raises Unusable."""
        written = self.database.select("SELECT currency, hits, misses, tokens, money FROM cache_totals")
        counts = [CacheTotals(), *map(CacheTotals._make, written), *self._totals.entries()]
        _, *columns = zip(*counts, strict=True)
        totals = CacheTotals(currency, *map(sum, columns))
        money = sum(each.money for each in counts if each.currency == currency)
        return CacheStats(*self.totals(), totals._replace(money=money))

    def close(self) -> int:
        """Write the counts; idempotent. The owner of the database closes it."""
        self._totals.close()
        return super().close()

    def _add_totals(self, connection: sqlite3.Connection, totals: Sequence[CacheTotals]) -> None:
        connection.executemany(
            "INSERT INTO cache_totals (currency, hits, misses, tokens, money) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (currency) DO UPDATE SET hits = hits + excluded.hits, misses = misses + excluded.misses, "
            # A sum beyond SQLite's whole numbers would be a float, which the column refuses.
            f"tokens = min(tokens + excluded.tokens, {2**63 - 1}), money = money + excluded.money",
            totals,
        )


def stored(database: Database, config: ProxyConfig) -> Stored:
    """Raises Unusable."""
    with contextlib.closing(CachedAnswers(database)) as answers:
        found = answers.stats(config.currency)
    totals, saved = found.totals, format_amount(found.totals.money, config.currency)
    use = f"{totals.hits:,} hits, {totals.misses:,} misses; {totals.tokens:,} tokens, {saved} saved"
    lines = {"cache": f"{found.entries:,} answers, {found.bytes:,} bytes", "cache use": use}
    return Stored("cached answers", found.entries, lines)
