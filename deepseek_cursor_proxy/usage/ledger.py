"""UsageLedger: one row for every request that ended, written about a second later by a thread that ends when idle.

A request whose key no upstream has accepted has none (see `access`): it cost nothing, and strangers could fill the file
with them. Rows wait in memory while the file cannot be used, up to a bound; beyond it the oldest are lost, with one
warning. A process that is killed loses the rows of its last second. Nothing here delays or fails an answer.
"""

import logging
import threading
import time
from collections.abc import Sequence
from datetime import date, datetime
from functools import lru_cache
from typing import Unpack

from deepseek_cursor_proxy.observers.events import Result
from deepseek_cursor_proxy.observers.request_log import RequestRecord
from deepseek_cursor_proxy.storage.entries import DayGroup, DaySums, Kind, UsageRow
from deepseek_cursor_proxy.storage.sqlite.database import Database
from deepseek_cursor_proxy.storage.sqlite.rows import UsageRows
from deepseek_cursor_proxy.storage.table import Table, TableOptions
from deepseek_cursor_proxy.storage.write_behind import WriteBehind

_log = logging.getLogger(__name__)

# What a killed process loses; a batch costs about the same for one row as for many.
_SECONDS_BETWEEN_BATCHES = 1.0
# The average of many answers changes slowly.
_SECONDS_BETWEEN_AVERAGES = 60.0


class WaitingRequests(WriteBehind[RequestRecord]):
    # A kilobyte each, while the file cannot be used.
    bound = 2000
    # So short a transaction that no turn waits noticeably for the writer.
    batch = 64
    # Figures that SQLite refuses cost their own request.
    keeps_refused = False


class UsageLedger(Table[RequestRecord]):
    """`add` is called by workers, the rest by its own. `_lock` protects `_lost` and `_has_warned`."""

    # Pruning counts the rows, which takes milliseconds when there are many.
    # Daily sums stay.
    kind = Kind("usage", "usage", max_age_seconds=90 * 24 * 3600, max_rows=200_000, writes_between_prunings=1024)
    rows: UsageRows
    waiting_type = WaitingRequests

    def __init__(self, database: Database, **options: Unpack[TableOptions]) -> None:
        super().__init__(database, **options)
        self._lock = threading.Lock()
        # Of requests that are lost since the last one was written.
        self._lost = 0
        self._has_warned = False
        # The keys of callers that got an answer in earlier runs; None until they are read.
        self._earlier_keys: frozenset[str] | None = None
        # Clients may choose the names of models.
        self._mean_output = lru_cache(64)(self._read_mean)

    def add(self, record: RequestRecord) -> None:
        """Queue the record of a request; returns at once."""
        if not record.facts.key:
            return
        self.write_later([record])

    def was_accepted_before(self, key: str) -> bool:
        """True if a caller got an answer before this run; False while the file cannot be read."""
        if self._earlier_keys is None:
            with self._faults.guard("look up"):
                self._earlier_keys = self.rows.answered_keys()
        return self._earlier_keys is not None and key in self._earlier_keys

    def mean_output_tokens(self, model: str) -> int:
        """How many tokens an answer of this model has on average; 0 if there is none, or the file cannot be read."""
        return self._mean_output(model, time.monotonic() // _SECONDS_BETWEEN_AVERAGES)

    def _read_mean(self, model: str, period: float) -> int:
        with self._faults.guard("look up"):
            return self.rows.mean_output(model)
        return 0

    def close(self) -> None:
        """Write waiting records, if the file is usable; idempotent. The owner of the database closes it."""
        self._writer.close()
        self.flush()
        super().close()

    def flush(self) -> bool:
        """Write waiting records. True if all of them are in the file now."""
        is_written = False
        with self._faults.guard("record"):
            self._waiting.flush(is_retry=False)
            is_written = True
        with self._lock:
            self._lost += self._waiting.take_lost()
            if self._lost and not self._has_warned:
                self._has_warned = True
                reason = self.database.fault or "a row was refused"
                _log.warning("usage cannot be written (%s); figures of requests are lost", reason)
            if is_written and self._has_warned:
                _log.warning("usage is written again; requests whose figures are lost: %d", self._lost)
                self._has_warned, self._lost = False, 0
        return is_written

    def _write_batch(self) -> float | None:
        # Others join the batch.
        self._writer.pause(_SECONDS_BETWEEN_BATCHES)
        self.flush()
        return 0.0 if self._waiting else None

    def _write_entries(self, entries: Sequence[RequestRecord], is_retry: bool) -> Sequence[UsageRow]:
        rows = list(map(_row, entries))
        self.rows.add(rows, sum_by_day(rows), is_retry)
        self._pruner.count_writes(len(rows))
        return rows


def sum_by_day(rows: Sequence[UsageRow]) -> dict[DayGroup, DaySums]:
    groups: dict[DayGroup, list[UsageRow]] = {}
    for row in rows:
        group = DayGroup(day_of(row.ended_at), row.model, row.key, row.api, row.currency)
        groups.setdefault(group, []).append(row)
    return {group: _add_up(members) for group, members in groups.items()}


def _add_up(rows: Sequence[UsageRow]) -> DaySums:
    """The sums of these rows, column by column; unknown figures count as 0."""
    columns = dict(zip(UsageRow._fields, zip(*rows, strict=True), strict=True))
    failed = sum([outcome in FAILURES for outcome in columns["outcome"]])
    added = [sum(filter(None, columns[name]), zero) for name, zero in _ADDED.items()]
    return DaySums(len(rows), failed, sum(columns["is_cost_unknown"]), *added)


FAILURES = tuple(result.value for result in Result if result.is_failure)
# The sums that have the name of their column, and what they begin with.
_ADDED = {name: DaySums._field_defaults[name] for name in DaySums._fields if name in UsageRow._fields}


def day_of(moment: float) -> str:
    """The day of a Unix time on this machine's clock."""
    try:
        return datetime.fromtimestamp(moment).date().isoformat()
    except (OverflowError, ValueError, OSError):
        # A clock that is set to nonsense.
        return date.min.isoformat()


def _row(record: RequestRecord) -> UsageRow:
    number, _, api, key, requested_model, model, stream, messages, tools, body_bytes, session, client = record.facts
    seconds, first_token, queue, connect = record.timing
    return UsageRow._make(
        (
            *(0, record.ended_at, number, api, key, session, requested_model, model, record.upstream, int(stream)),
            *(record.result.value, record.status),
            *(record.tokens if record.tokens is not None else (None, None, None, None, 0)),
            *(record.cost if record.cost is not None else (None, None, None, "", "")),
            *(int(record.is_cost_unknown), seconds, queue, connect, first_token, record.retries),
            *(*record.turns, record.divergence, messages, tools, body_bytes, client),
        )
    )
