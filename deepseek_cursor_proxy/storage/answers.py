"""CachedAnswers: whole answers of upstreams by the digest of what was asked, for the response cache.

The digest has the caller in it, so that no row is ever found for another one. A row is never changed; it is deleted
when it is too old, and the oldest are when all take up too much. Sums of hits, and of the tokens and the money that
they saved, stay when rows are deleted. Hits are counted in memory and written with the next answer, after some of them,
or at the end; a process that is killed loses a few.

SQL: tables `cached_answers` and `cache_totals`. No answer ever fails because of them.
"""

import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Unpack

from deepseek_cursor_proxy.storage.sqlite.database import Database
from deepseek_cursor_proxy.storage.table import Kind, Table, TableOptions
from deepseek_cursor_proxy.storage.write_behind import WriteBehind

# What a row takes besides its answer.
_BYTES_PER_ROW = 200
# What the clock may have been set back by; how old an answer with a later time is, is not known.
_SECONDS_AHEAD = 60.0
# A hit is worth no write of its own.
_COUNTS_BETWEEN_WRITES = 32


class CachedAnswer(NamedTuple):
    """A packed answer, and what it cost when it was made: tokens, and money in a currency if that is known."""

    packed: bytes
    tokens: int = 0
    cost: float | None = None
    currency: str = ""


class CacheTotals(NamedTuple):
    """Hits and misses since the store was made, and what the hits saved."""

    hits: int = 0
    misses: int = 0
    tokens: int = 0
    money: float = 0.0

    def add(self, other: "CacheTotals") -> "CacheTotals":
        hits, misses, tokens, money = other
        return CacheTotals(self.hits + hits, self.misses + misses, self.tokens + tokens, self.money + money)


class CacheStats(NamedTuple):
    """How many answers are kept and how many bytes they take up; `totals.money` is in the currency asked for."""

    entries: int
    bytes: int
    totals: CacheTotals


class CachedAnswers(Table):
    """Called by handler threads."""

    # Rows are large: other threads get the lock after each step of a pruning.
    kind = Kind(
        "cached_answers",
        "response cache",
        ("key",),
        ("body", "tokens", "cost", "currency", "size"),
        time="created_at",
        max_age_seconds=24 * 3600,
        max_bytes=256 * 1024**2,
        writes_between_prunings=16,
        rows_per_step=20,
    )

    def __init__(
        self, database: Database, *, clock: Callable[[], float] = time.time, **options: Unpack[TableOptions]
    ) -> None:
        super().__init__(database, **options)
        # How old an answer is; when a row is deleted because of that, `pruning` says.
        self._clock = clock
        self._counts = _PendingCounts(database, _add_totals, self._faults, bound=64, batch=64)

    def find(self, key: bytes) -> CachedAnswer | None:
        """The answer for this key, unless it is too old, or so new that the clock was wrong when it came."""
        now = self._clock()
        for _, body, tokens, cost, currency, _, created_at in self._read_rows([key]):
            if now - self._max_age <= created_at <= now + _SECONDS_AHEAD:
                return CachedAnswer(body, tokens, cost, currency)
        return None

    def record(self, key: bytes, answer: CachedAnswer) -> None:
        """Store an answer in place of an older one."""
        self._write_row((key,), (*answer, len(answer.packed) + _BYTES_PER_ROW), self._clock())
        self._write_counts()

    def count_hit(self, answer: CachedAnswer) -> None:
        self._count(answer.currency, CacheTotals(1, 0, answer.tokens, answer.cost or 0.0))

    def count_miss(self) -> None:
        self._count("", CacheTotals(misses=1))

    def stats(self, currency: str) -> CacheStats:
        """Figures of the file and of what is not written yet; raises Unusable."""
        entries, size = self.totals()
        with self.database.reader() as connection:
            rows = connection.execute("SELECT currency, hits, misses, tokens, money FROM cache_totals").fetchall()
        counts = [*((name, CacheTotals(*sums)) for name, *sums in rows), *self._counts.entries()]
        totals = CacheTotals()
        for name, each in counts:
            totals = totals.add(each if name == currency else each._replace(money=0.0))
        return CacheStats(entries, size, totals)

    def close(self) -> None:
        """Write what was counted; idempotent. The database is its owner's to close."""
        super().close()
        self._write_counts()

    def _count(self, currency: str, more: CacheTotals) -> None:
        self._counts.add([(currency, more)])
        if sum(each.hits + each.misses for _, each in self._counts.entries()) >= _COUNTS_BETWEEN_WRITES:
            self._write_counts()

    def _write_counts(self) -> None:
        with self._faults.guard("count"):
            self._counts.flush(is_retry=False)


class _PendingCounts(WriteBehind[tuple[str, CacheTotals]]):
    """By currency, what is not written yet."""

    def keys(self, entry: tuple[str, CacheTotals]) -> Collection[str]:
        return [entry[0]]

    def merge(self, new: tuple[str, CacheTotals], old: tuple[str, CacheTotals]) -> tuple[str, CacheTotals]:
        return new[0], old[1].add(new[1])


def _add_totals(connection: sqlite3.Connection, counts: Sequence[tuple[str, CacheTotals]]) -> None:
    connection.executemany(
        "INSERT INTO cache_totals (currency, hits, misses, tokens, money) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (currency) DO UPDATE SET hits = hits + excluded.hits, misses = misses + excluded.misses, "
        f"tokens = min(tokens + excluded.tokens, {2**63 - 1}), money = money + excluded.money",
        [(currency, *totals) for currency, totals in counts],
    )
