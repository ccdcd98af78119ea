"""Whole answers for the response cache, by the digest of the question.

No answer to a client ever fails because of this store: what cannot be written waits in memory.
"""

import time
from collections.abc import Callable, Collection
from typing import NamedTuple, Unpack

from deepseek_cursor_proxy.storage.entries import CacheTotals, Kind, Row
from deepseek_cursor_proxy.storage.sqlite.database import Database
from deepseek_cursor_proxy.storage.sqlite.rows import AnswerRows
from deepseek_cursor_proxy.storage.table import Table, TableOptions
from deepseek_cursor_proxy.storage.write_behind import WriteBehind

# What a row takes besides its answer.
_BYTES_PER_ROW = 200
# How far the clock may have been set back. The age of an answer dated further in the future is unknown.
_SECONDS_AHEAD = 60.0
# A hit is worth no write of its own.
_COUNTS_BETWEEN_WRITES = 32


class CachedAnswer(NamedTuple):
    """A packed answer, and what it cost when it was made: tokens, and money in a currency if that is known."""

    packed: bytes
    tokens: int = 0
    cost: float | None = None
    currency: str = ""


class CacheStats(NamedTuple):
    """How many answers are kept and how many bytes they take up; `totals.money` is in the currency asked for."""

    entries: int
    bytes: int
    totals: CacheTotals


class _WaitingTotals(WriteBehind[CacheTotals]):
    """The counts of each currency that are not written yet."""

    keeps_refused = False

    def keys(self, entry: CacheTotals) -> Collection[str]:
        return [entry.currency]

    def merge(self, new: CacheTotals, old: CacheTotals) -> CacheTotals:
        return old.add(new)


class CachedAnswers(Table[Row]):
    """Whole answers of upstreams by the digest of what was asked. Called by workers.

    The digest has the caller in it, so that no row is ever found for another one. A row is never changed; it is deleted
    when it is too old, and the oldest are when all take up too much. Sums of hits, and of the tokens and the money that
    they saved, stay when rows are deleted. Hits are counted in memory and written with the next answer, after some of
    them, or at the end; a process that is killed loses a few.
    """

    rows: AnswerRows
    # Rows are large: other threads get the lock after each step of a pruning.
    kind = Kind(
        "cached_answers",
        "response cache",
        ("key",),
        ("body", "tokens", "cost", "currency", "size"),
        max_age_seconds=24 * 3600,
        max_bytes=256 * 1024**2,
        writes_between_prunings=16,
        rows_per_step=20,
    )

    def __init__(
        self, database: Database, *, clock: Callable[[], float] = time.time, **options: Unpack[TableOptions]
    ) -> None:
        super().__init__(database, **options)
        # Decides whether an answer is fresh; `pruning` decides when its row is deleted.
        self._clock = clock
        self._totals = _WaitingTotals(database, self.rows.add_totals, self._faults)

    def find(self, key: bytes) -> CachedAnswer | None:
        """The answer for this key, unless it is too old, or so new that the clock was wrong when it came."""
        now = self._clock()
        for _, body, tokens, cost, currency, _, created_at in self.get_many([key]):
            if now - self.kind.max_age_seconds <= created_at <= now + _SECONDS_AHEAD:
                return CachedAnswer(body, tokens, cost, currency)
        return None

    def record(self, key: bytes, answer: CachedAnswer) -> None:
        """Store an answer in place of an older one."""
        self.write(Row((key,), (*answer, len(answer.packed) + _BYTES_PER_ROW), self._clock()))
        self._write_totals()

    def count_hit(self, answer: CachedAnswer) -> None:
        self._count(CacheTotals(answer.currency, 1, 0, answer.tokens, answer.cost or 0.0))

    def count_miss(self) -> None:
        self._count(CacheTotals(misses=1))

    def stats(self, currency: str) -> CacheStats:
        """Figures of the file and of the counts not written yet. Raises Unusable."""
        totals = CacheTotals(currency)
        for counted in [*self.rows.read_totals(), *self._totals.entries()]:
            totals = totals.add(counted if counted.currency == currency else counted._replace(money=0.0))
        return CacheStats(*self.totals(), totals)

    def close(self) -> None:
        """Write the counts; idempotent. The owner of the database closes it."""
        super().close()
        self._write_totals()

    def _count(self, more: CacheTotals) -> None:
        self._totals.add([more])
        if sum(each.hits + each.misses for each in self._totals.entries()) >= _COUNTS_BETWEEN_WRITES:
            self._write_totals()

    def _write_totals(self) -> None:
        with self._faults.guard("count"):
            self._totals.flush(is_retry=False)
