"""The limits of keys in the store's file: an engine for `storage.limits`. Each call is one IMMEDIATE transaction.

Table `limit_counters` has what is spent, `limit_holds` what is reserved, `settled_requests` the requests that count
already. Old rows are deleted now and then by a call that writes.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager

from deepseek_cursor_proxy.storage.limits import LEASE_SECONDS, SETTLED_SECONDS, Counter, Hold, Refusal, Spent, Used
from deepseek_cursor_proxy.storage.sqlite.database import Database

# A request may be settled long after the period in which it was admitted.
_COUNTER_SECONDS = 3600.0
_SECONDS_BETWEEN_PRUNINGS = 60.0
# Processes that share the file lock it for a millisecond; without this wait a busy moment would look like a fault, and
# each process would go by what it knows alone.
_LOCK_SECONDS = 2.0

_OF_COUNTER = "holder = ? AND name = ? AND resets = ?"
_SPENT = f"SELECT coalesce((SELECT spent FROM limit_counters WHERE {_OF_COUNTER}), 0)"
_USED = f"{_SPENT}, coalesce(sum(amount), 0) FROM limit_holds WHERE {_OF_COUNTER} AND expires_at > ?"
_IS_HELD = "SELECT 1 FROM limit_holds WHERE request = ? AND expires_at > ?"
_HOLD = (
    # A hold that has lapsed may still be there.
    "INSERT OR REPLACE INTO limit_holds (holder, name, resets, request, amount, expires_at) VALUES (?, ?, ?, ?, ?, ?)"
)
_ADD = (
    "INSERT INTO limit_counters (holder, name, resets, spent) VALUES (?, ?, ?, ?) "
    # A sum beyond SQLite's whole numbers would be a float, which the column refuses.
    f"ON CONFLICT (holder, name, resets) DO UPDATE SET spent = min(spent + excluded.spent, {2**63 - 1}) RETURNING spent"
)


class SqliteLimits:
    """Called by workers and the thread that renews; the database has its own locks."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._pruned_at = float("-inf")

    def _transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        # Also while the stores know of a fault: it may be a lock that is over by now.
        return self._database.transaction(is_retry=True, wait=_LOCK_SECONDS)

    def reserve(self, request_id: str, holds: Sequence[Hold], now: float) -> Refusal | None:
        with self._transaction() as connection:
            if connection.execute(_IS_HELD, (request_id, now)).fetchone() is not None:
                return None
            for hold in holds:
                used = _used(connection, hold.counter, now).total
                if used and used + hold.amount > hold.most:
                    return Refusal(hold, used)
            expires_at = now + LEASE_SECONDS
            connection.executemany(_HOLD, [(*counter, request_id, amount, expires_at) for counter, amount, _ in holds])
            return None

    def settle(self, request_id: str, spent: Sequence[Spent], now: float) -> Sequence[int] | None:
        with self._transaction() as connection:
            added = connection.execute("INSERT OR IGNORE INTO settled_requests VALUES (?, ?)", (request_id, now))
            if not added.rowcount:
                return None
            connection.execute("DELETE FROM limit_holds WHERE request = ?", (request_id,))
            totals = [int(connection.execute(_ADD, (*each.counter, each.amount)).fetchone()[0]) for each in spent]
            if abs(now - self._pruned_at) >= _SECONDS_BETWEEN_PRUNINGS:
                self._pruned_at = now
                connection.execute("DELETE FROM limit_holds WHERE expires_at <= ?", (now,))
                connection.execute("DELETE FROM settled_requests WHERE settled_at < ?", (now - SETTLED_SECONDS,))
                connection.execute("DELETE FROM limit_counters WHERE resets < ?", (now - _COUNTER_SECONDS,))
            return totals

    def renew(self, request_ids: Sequence[str], now: float) -> None:
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE limit_holds SET expires_at = ? WHERE request = ? AND expires_at > ?",
                [(now + LEASE_SECONDS, request_id, now) for request_id in request_ids],
            )

    def usage(self, counters: Sequence[Counter], now: float) -> Sequence[Used]:
        with self._database.reader() as connection:
            return [_used(connection, counter, now) for counter in counters]


def _used(connection: sqlite3.Connection, counter: Counter, now: float) -> Used:
    return Used(*connection.execute(_USED, (*counter, *counter, now)).fetchone())
