"""CachedAnswers: whole answers of upstreams by the digest of what was asked, for the response cache.

The digest has the caller in it, so that no row is ever found for another one. A row is never changed; it is deleted
when it is too old, and the oldest are when all take up too much. Sums of hits, and of the tokens and the money that
they saved, stay when rows are deleted. Hits are counted in memory and written with the next answer, after some of them,
or at the end; a process that is killed loses a few.

SQL: tables `cached_answers` and `cache_totals`. No answer ever fails because of them.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from deepseek_cursor_proxy.storage.engine.database import Database
from deepseek_cursor_proxy.storage.engine.faults import FaultGuard
from deepseek_cursor_proxy.storage.engine.pruner import Pruner
from deepseek_cursor_proxy.storage.steady_clock import PruningClock, tolerance_for

_log = logging.getLogger(__name__)

_WRITES_BETWEEN_PRUNINGS = 16
# Rows are large: other threads get the lock after each step.
_ROWS_PER_STEP = 20
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


class CachedAnswers:
    """Called by handler threads. The lock protects `_counts`; the database has its own."""

    def __init__(
        self,
        database: Database,
        *,
        max_age_seconds: float = 24 * 3600,
        max_bytes: int = 256 * 1024**2,
        clock: Callable[[], float] = time.time,
        pruning: PruningClock | None = None,
    ) -> None:
        self._database = database
        self._max_age = max_age_seconds
        self._max_bytes = max_bytes
        # How old an answer is; when a row is deleted because of that, `_pruning` says.
        self._clock = clock
        self._pruning = pruning or PruningClock(tolerance_for(max_age_seconds))
        self._lock = threading.Lock()
        # By currency, what is not written yet.
        self._counts: dict[str, CacheTotals] = {}
        self._faults = FaultGuard(_log, "response cache")
        self._pruner = Pruner(lambda: self.prune(), every=_WRITES_BETWEEN_PRUNINGS, name="response-cache-prune")

    def find(self, key: bytes) -> CachedAnswer | None:
        """The answer for this key, unless it is too old, or so new that the clock was wrong when it came."""
        now = self._clock()
        with self._faults.guard("look up"), self._database.reader() as connection:
            row = connection.execute(
                "SELECT body, tokens, cost, currency FROM cached_answers WHERE key = ? AND created_at BETWEEN ? AND ?",
                (key, now - self._max_age, now + _SECONDS_AHEAD),
            ).fetchone()
            return CachedAnswer(*row) if row is not None else None
        return None

    def record(self, key: bytes, answer: CachedAnswer) -> None:
        """Store an answer in place of an older one."""
        with self._faults.guard("record"), self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO cached_answers (key, created_at, size, body, tokens, cost, currency) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET created_at = excluded.created_at, "
                "size = excluded.size, body = excluded.body, tokens = excluded.tokens, cost = excluded.cost, "
                "currency = excluded.currency",
                (key, self._clock(), len(answer.packed) + _BYTES_PER_ROW, *answer),
            )
        self._pruner.count_writes()
        self._write_counts()

    def count_hit(self, answer: CachedAnswer) -> None:
        self._count(answer.currency, CacheTotals(1, 0, answer.tokens, answer.cost or 0.0))

    def count_miss(self) -> None:
        self._count("", CacheTotals(misses=1))

    def prune(self) -> int:
        """Delete what is too old or too much; how many."""
        with self._faults.guard("prune"):
            return self._pruner.delete_in_steps(self._delete_oldest)
        return 0

    def stats(self, currency: str) -> CacheStats:
        """Figures of the file and of what is not written yet; raises Unusable."""
        with self._database.reader() as connection:
            entries, size = connection.execute("SELECT count(*), coalesce(sum(size), 0) FROM cached_answers").fetchone()
            rows = connection.execute("SELECT currency, hits, misses, tokens, money FROM cache_totals").fetchall()
        with self._lock:
            counts = [*((name, CacheTotals(*sums)) for name, *sums in rows), *self._counts.items()]
        totals = CacheTotals()
        for name, each in counts:
            totals = totals.add(each if name == currency else each._replace(money=0.0))
        return CacheStats(entries, size, totals)

    def close(self) -> None:
        """Write what was counted; idempotent. The database is its owner's to close."""
        self._pruner.close()
        self._write_counts()

    def _count(self, currency: str, more: CacheTotals) -> None:
        with self._lock:
            self._counts[currency] = self._counts.get(currency, CacheTotals()).add(more)
            is_due = sum(each.hits + each.misses for each in self._counts.values()) >= _COUNTS_BETWEEN_WRITES
        if is_due:
            self._write_counts()

    def _write_counts(self) -> None:
        with self._lock:
            counts, self._counts = self._counts, {}
        if not counts:
            return
        with self._faults.guard("count"), self._database.transaction() as connection:
            connection.executemany(
                "INSERT INTO cache_totals (currency, hits, misses, tokens, money) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (currency) DO UPDATE SET hits = hits + excluded.hits, misses = misses + excluded.misses, "
                f"tokens = min(tokens + excluded.tokens, {2**63 - 1}), money = money + excluded.money",
                [(currency, *totals) for currency, totals in counts.items()],
            )

    def _delete_oldest(self) -> int:
        with self._database.transaction() as connection:
            size = connection.execute("SELECT coalesce(sum(size), 0) FROM cached_answers").fetchone()[0]
            gone, oldest_kept = [], self._pruning.oldest_kept(self._max_age)
            future = self._pruning.latest_plausible() if size > self._max_bytes else float("inf")
            oldest = "SELECT id, created_at, size FROM cached_answers ORDER BY created_at > ? DESC, created_at LIMIT ?"
            for row, created_at, each in connection.execute(oldest, (future, _ROWS_PER_STEP)):
                if created_at >= oldest_kept and size <= self._max_bytes:
                    break
                gone.append((row,))
                size -= each
            connection.executemany("DELETE FROM cached_answers WHERE id = ?", gone)
        return len(gone)
