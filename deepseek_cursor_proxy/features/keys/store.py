"""The limits of named keys and groups: reserved before a call, settled after it.

A Counter adds up what one holder (`keys.ann`, `groups.lab`) has used of one limit in one period, in whole numbers:
requests, tokens, billionths of a dollar. A period is named by the Unix time at which it ends. The counter of
`concurrent` has no period (0) and nothing is ever spent of it, only reserved.

    used = spent + reserved, where reserved are the holds of requests that run

A reservation is a lease. It ends with `settle`, or LEASE_SECONDS after the last `reserve` or `renew`: what a killed
process has reserved is free again.

LimitTables, here, has them in the file; SharedLimits, in `redis_store`, on the engine, with the same methods. Every
call is one atomic step, however many processes share the file or the engine, and raises Unusable while that cannot be
used.
"""

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from deepseek_cursor_proxy.storage.database import Database, Transaction

# After this time without `renew` a reservation no longer counts.
LEASE_SECONDS = 20.0
# A request that is settled again within this time is recognised.
SETTLED_SECONDS = 24 * 3600.0

TABLES = """
-- What named keys and groups have spent and reserved of their limits, and the requests that count already.
CREATE TABLE limit_counters (
    holder TEXT NOT NULL, name TEXT NOT NULL, resets INTEGER NOT NULL, spent INTEGER NOT NULL,
    PRIMARY KEY (holder, name, resets)
) STRICT, WITHOUT ROWID;
-- The counter comes first, because every request sums up the holds of its counters.
CREATE TABLE limit_holds (
    request TEXT NOT NULL, holder TEXT NOT NULL, name TEXT NOT NULL, resets INTEGER NOT NULL, amount INTEGER NOT NULL,
    expires_at REAL NOT NULL, PRIMARY KEY (holder, name, resets, request)
) STRICT, WITHOUT ROWID;
CREATE INDEX limit_holds_by_request ON limit_holds (request);
CREATE TABLE settled_requests (request TEXT PRIMARY KEY, settled_at REAL NOT NULL) STRICT, WITHOUT ROWID;
CREATE INDEX settled_requests_by_time ON settled_requests (settled_at);
"""


class Counter(NamedTuple):
    holder: str
    # The name of the limit, as the configuration has it: usd_per_day.
    limit: str
    # The end of its period, in Unix time; 0 for a limit without one.
    resets: int = 0


class Hold(NamedTuple):
    """What a request may use of a counter, which has room for `most` in all."""

    counter: Counter
    amount: int
    most: int

    def fits(self, used: int) -> bool:
        """Whether there is room beside this; a request that may cost more than a whole budget needs all of it."""
        return not used or used + self.amount <= self.most


class Spent(NamedTuple):
    """What a request did use of a counter."""

    counter: Counter
    amount: int


class Used(NamedTuple):
    spent: int = 0
    reserved: int = 0

    @property
    def total(self) -> int:
        return self.spent + self.reserved


class Refusal(NamedTuple):
    """The first hold that has no room, and what other requests have used of its counter."""

    hold: Hold
    used: Used


# A request may be settled long after the period in which it was admitted.
_COUNTER_SECONDS = 3600.0
_SECONDS_BETWEEN_PRUNINGS = 60.0
# Processes that share the file lock it for a millisecond; without this wait a busy moment would look like a fault, and
# each process would go by what it knows alone. A request that waits twice, to reserve and to settle, and once more to
# store its turn is delayed by less than two seconds in all.
_LOCK_SECONDS = 0.8

_OF_COUNTER = "holder = ? AND name = ? AND resets = ?"
_SPENT = f"SELECT coalesce((SELECT spent FROM limit_counters WHERE {_OF_COUNTER}), 0)"
_USED = f"{_SPENT}, coalesce(sum(amount), 0) FROM limit_holds WHERE {_OF_COUNTER} AND expires_at > ?"
_IS_HELD = "SELECT 1 FROM limit_holds WHERE request = ? AND expires_at > ?"
_HOLD = (
    # A hold that has expired may still be there.
    "INSERT OR REPLACE INTO limit_holds (holder, name, resets, request, amount, expires_at) VALUES (?, ?, ?, ?, ?, ?)"
)
_ADD = (
    "INSERT INTO limit_counters (holder, name, resets, spent) VALUES (?, ?, ?, ?) "
    # A sum beyond SQLite's whole numbers would be a float, which the column refuses.
    f"ON CONFLICT (holder, name, resets) DO UPDATE SET spent = min(spent + excluded.spent, {2**63 - 1}) RETURNING spent"
)


class LimitTables:
    """The limits in the store's file, by one IMMEDIATE transaction per call. Called by any thread.

    Table `limit_counters` has what is spent, `limit_holds` what is reserved, `settled_requests` the requests that count
    already. Old rows are deleted now and then by a call that writes.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        database.require(TABLES)
        self._pruned_at = float("-inf")

    def _transaction(self) -> Transaction:
        # Also while the stores know of a fault: it may be a lock that is over by now.
        return self._database.transaction(despite_fault=True, wait=_LOCK_SECONDS)

    def reserve(self, request_id: str, holds: Sequence[Hold], now: float) -> Refusal | None:
        """Reserve all holds, or none and return the reason. A request that has its holds already keeps them."""
        with self._transaction() as connection:
            if connection.execute(_IS_HELD, (request_id, now)).fetchone() is not None:
                return None
            for hold in holds:
                used = _used(connection, hold.counter, now)
                if not hold.fits(used.total):
                    return Refusal(hold, used)
            expires_at = now + LEASE_SECONDS
            connection.executemany(_HOLD, [(*counter, request_id, amount, expires_at) for counter, amount, _ in holds])
            return None

    def settle(self, request_id: str, spent: Sequence[Spent], now: float) -> Sequence[int] | None:
        """End the request's reservation and add what it spent, even if the reservation has expired.

        Returns what each counter has spent now; None if the request was settled before, which then changes nothing.
        """
        with self._transaction() as connection:
            added = connection.execute("INSERT OR IGNORE INTO settled_requests VALUES (?, ?)", (request_id, now))
            if not added.rowcount:
                return None
            connection.execute("DELETE FROM limit_holds WHERE request = ?", (request_id,))
            totals = [int(connection.execute(_ADD, (*each.counter, each.amount)).fetchone()[0]) for each in spent]
            if abs(now - self._pruned_at) >= _SECONDS_BETWEEN_PRUNINGS:
                self._pruned_at = now
                _prune(connection, now)
            return totals

    def renew(self, request_ids: Sequence[str], now: float) -> None:
        """Extend the leases of running requests; a reservation that has expired stays so."""
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE limit_holds SET expires_at = ? WHERE request = ? AND expires_at > ?",
                [(now + LEASE_SECONDS, request_id, now) for request_id in request_ids],
            )

    def usage(self, counters: Sequence[Counter], now: float) -> Sequence[Used]:
        with self._database.reader() as connection:
            return [_used(connection, counter, now) for counter in counters]


def _prune(connection: sqlite3.Connection, now: float) -> None:
    """Delete what no longer counts, of each table a tenth at most: a clock that is wrong must not reset a budget."""
    old = {
        ("limit_holds", "holder, name, resets, request", "expires_at"): now,
        ("settled_requests", "request", "settled_at"): now - SETTLED_SECONDS,
        # Not the counters without a period.
        ("limit_counters", "holder, name, resets", "nullif(resets, 0)"): now - _COUNTER_SECONDS,
    }
    for (table, key, time), before in old.items():
        connection.execute(
            f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE {time} < ? ORDER BY {time} "
            f"LIMIT (SELECT 1 + count(*) / 10 FROM {table}))",
            (before,),
        )


def _used(connection: sqlite3.Connection, counter: Counter, now: float) -> Used:
    return Used(*connection.execute(_USED, (*counter, *counter, now)).fetchone())
