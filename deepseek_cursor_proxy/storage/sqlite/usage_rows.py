"""The rows of the usage ledger, and their SQL: table `usage`, one row per request, and `usage_days`, sums for ever.

Both are written together, so that a process that dies leaves them in step. There is no text of a request in them: only
figures, names of models, and digests. A day is one of this machine's own clock.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deepseek_cursor_proxy.storage.entries import DayGroup, DaySums, UsageRow

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
_ANY: Mapping[str, str] = {}
_SUMS = DaySums._fields
_GROUP = DayGroup._fields
_DAY_COLUMNS = (*_GROUP, *_SUMS)
_ADD = (
    f"INSERT INTO usage_days ({', '.join(_DAY_COLUMNS)}) VALUES ({', '.join('?' * len(_DAY_COLUMNS))}) "
    f"ON CONFLICT ({', '.join(_GROUP)}) DO UPDATE SET "
    # A sum beyond SQLite's whole numbers would be a float, which the column refuses, and with it all rows.
    + ", ".join(f"{name} = min({name} + excluded.{name}, {2**63 - 1})" for name in _SUMS)
)


def insert(connection: sqlite3.Connection, rows: Iterable[UsageRow]) -> None:
    connection.executemany(_INSERT, [row[1:] for row in rows])


def write_sums(connection: sqlite3.Connection, sums: Mapping[DayGroup, DaySums]) -> None:
    for group, added in sums.items():
        connection.execute(_ADD, (*_bounded(connection, group), *added))


def _bounded(connection: sqlite3.Connection, group: DayGroup) -> DayGroup:
    """The group itself, or the one for all others if the day has too many groups."""
    where = " AND ".join(f"{name} = ?" for name in _GROUP)
    if connection.execute(f"SELECT 1 FROM usage_days WHERE {where}", group).fetchone() is not None:
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


def mean_output(connection: Reader, model: str) -> int:
    """The output tokens of a model's answers, on average, among the last rows of all; 0 if there is none."""
    query = "SELECT avg(output) FROM usage WHERE id > (SELECT max(id) FROM usage) - ? AND model = ? AND output > 0"
    return round(connection.execute(query, (_ROWS_OF_AVERAGE, model)).fetchone()[0] or 0)


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


def read_page(
    connection: Reader, limit: int, before_id: int | None = None, wanted: Mapping[str, str] = _ANY
) -> Sequence[UsageRow]:
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


def count(connection: Reader) -> int:
    return int(connection.execute("SELECT count(*) FROM usage").fetchone()[0])
