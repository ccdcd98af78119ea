"""Rows: the tables of the store by kind, as `storage.entries` describes them; which rows are deleted, and when.

Pruning deletes the longest unused rows beyond the limits of number, bytes and age, in steps so small that no turn waits
noticeably for the writer. Methods raise Unusable for a fault of the file, Refused for a row that SQLite does not take.
"""

import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deepseek_cursor_proxy.storage.entries import (
    BacklogEntry,
    CacheTotals,
    DayGroup,
    DaySums,
    Kind,
    ReasoningEntry,
    ResponseChange,
    ResponseRow,
    StoreStats,
    UsageRow,
)
from deepseek_cursor_proxy.storage.sqlite import usage_rows
from deepseek_cursor_proxy.storage.sqlite.database import Database
from deepseek_cursor_proxy.storage.steady_clock import PruningClock

# SQLite's default limit of variables in one statement is 32766 since 3.32; older builds took 999.
_KEYS_PER_QUERY = 900
# From this share of a limit on a table is nearly full; a file that is smaller needs no sum of its rows.
_NEARLY_FULL = 0.8
# Different reasonings for answers in the same words to the same history: a client that asks the same all day must not
# make every lookup longer.
_MOST_TEXTS_PER_KEY = 16
# Enough that no two texts have the same.
_DIGEST_BYTES = 16
# A use is written only when the row's time of last use is a day old, …
_USE_RESOLUTION_SECONDS = 24 * 3600
# … or a minute, when the store is so full that the order of use decides which rows go.
_FINE_USE_RESOLUTION_SECONDS = 60


class Rows:
    """The rows of one kind. Called by any thread; the database has its own locks."""

    # Column names of row id and timestamp; SQL expressions for size and prunability.
    id = "id"
    time = "used_at"
    size = "0"
    may_go = "TRUE"

    def __init__(self, database: Database, kind: Kind, clock: PruningClock) -> None:
        self.database = database
        self.kind = kind
        self.clock = clock
        self.is_nearly_full = False

    def read(self, keys: Sequence[Any], prefix: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """For each row found: (last key column, *values, time). `prefix` holds the leading key columns."""
        *first, last = self.kind.key
        select = f"SELECT {', '.join((last, *self.kind.values, self.time))} FROM {self.kind.table} WHERE "
        select += "".join(f"{name} = ? AND " for name in first)
        rows: list[tuple[Any, ...]] = []
        with self.database.reader() as connection:
            for start in range(0, len(keys), _KEYS_PER_QUERY):
                chunk = keys[start : start + _KEYS_PER_QUERY]
                rows += connection.execute(f"{select}{last} IN ({','.join('?' * len(chunk))})", (*prefix, *chunk))
        return rows

    def read_all(self, most: int) -> list[tuple[Any, ...]]:
        """For each row of a small table: (*key columns, *values)."""
        columns = ", ".join((*self.kind.key, *self.kind.values))
        with self.database.reader() as connection:
            return connection.execute(f"SELECT {columns} FROM {self.kind.table} LIMIT ?", (most,)).fetchall()

    def write(self, entries: Sequence[Any], is_retry: bool = False) -> Sequence[Any]:
        """Write entries in one transaction, with `is_retry` despite a known fault. Returns one result per entry."""
        with self.database.transaction(is_retry=is_retry) as connection:
            return [self._write_one(connection, entry) for entry in entries]

    def _write_one(self, connection: sqlite3.Connection, entry: Any) -> Any:
        """Insert a row, or update the one with this key. Returns the values that the row has now."""
        kind, (key, values, time, keeps_first) = self.kind, entry
        timestamp = () if time is None else (self.time,)
        columns = (*kind.key, *kind.values, *timestamp)
        # At least one, or RETURNING has no row.
        replaced = (timestamp or kind.key[:1]) if keeps_first else (*kind.values, *timestamp)
        return connection.execute(
            f"INSERT INTO {kind.table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) "
            f"ON CONFLICT ({', '.join(kind.key)}) DO UPDATE SET "
            f"{', '.join(f'{name} = excluded.{name}' for name in replaced)} RETURNING {', '.join(kind.values)}",
            (*key, *values, *([] if time is None else [time])),
        ).fetchone()

    # Pruning …

    def prune(self, go_on: Callable[[], bool]) -> int:
        """Delete the least recently used rows beyond the limits. Returns how many. Stops when `go_on` returns False."""
        rows, size = self.measure()
        deleted = self._delete(rows - self.kind.max_rows, size - self.kind.max_bytes, None, go_on)
        oldest = self.clock.oldest_kept(self.kind.max_age_seconds)
        expired = self.database.number(f"SELECT count(*) FROM {self.kind.table} WHERE {self.time} < ?", oldest)
        most = max(1, int(rows * self.kind.share_by_age))
        return deleted + self._delete(min(expired, most), 0, oldest, go_on)

    def totals(self) -> tuple[int, int]:
        """Returns the number of rows and their bytes."""
        with self.database.reader() as connection:
            rows, size = connection.execute(
                f"SELECT count(*), coalesce(sum({self.size}), 0) FROM {self.kind.table}"
            ).fetchone()
            return rows, size

    def measure(self, *, is_exact: bool = True) -> tuple[int, int]:
        """Returns the number of rows and their bytes; sets `is_nearly_full`.

        While the file is far below the limit, or without `is_exact`, its size stands in for the sum.
        """
        kind = self.kind
        rows = self.database.number(f"SELECT count(*) FROM {kind.table}")
        size = self.database.file_size()
        if is_exact and size >= _NEARLY_FULL * kind.max_bytes:
            size = self.totals()[1] if kind.rows_per_sum is None else self._sum_sizes(kind.rows_per_sum)
        self.is_nearly_full = rows >= _NEARLY_FULL * kind.max_rows or size >= _NEARLY_FULL * kind.max_bytes
        return rows, size

    def _sum_sizes(self, step: int) -> int:
        last = self.database.number(f"SELECT coalesce(max({self.id}), 0) FROM {self.kind.table}")
        query = f"SELECT coalesce(sum({self.size}), 0) FROM {self.kind.table} WHERE {self.id} >= ? AND {self.id} < ?"
        return sum(self.database.number(query, start, start + step) for start in range(0, last + 1, step))

    def _delete(self, rows: float, size: float, before: float | None, go_on: Callable[[], bool]) -> int:
        """Delete the least recently used rows until these numbers of rows and bytes are gone. Returns how many rows.

        With `before` only rows with an earlier time.
        """
        deleted = 0
        while rows > 0 or size > 0:
            gone: list[tuple[int]] = []
            with self.database.transaction() as connection:
                if before is None:
                    # Another process may be pruning, too.
                    rows, size = self._excess(connection, rows, size)
                for id, bytes in self._longest_unused(connection, before):
                    if rows <= 0 and size <= 0:
                        break
                    gone.append((id,))
                    rows, size = rows - 1, size - bytes
                connection.executemany(f"DELETE FROM {self.kind.table} WHERE {self.id} = ?", gone)
            deleted += len(gone)
            if not gone or not go_on():
                break
        return deleted

    def _excess(self, connection: sqlite3.Connection, rows: float, size: float) -> tuple[float, float]:
        """These rows and bytes, or fewer if fewer are beyond the limits by now.

        The bytes are not recomputed where `rows_per_sum` is set: too slow in a transaction.
        """
        kind = self.kind
        bytes = self.size if kind.rows_per_sum is None else "NULL"
        held, held_bytes = connection.execute(f"SELECT count(*), sum({bytes}) FROM {kind.table}").fetchone()
        return min(rows, held - kind.max_rows), min(size, held_bytes - kind.max_bytes) if held_bytes else size

    def _longest_unused(self, connection: sqlite3.Connection, before: float | None) -> list[tuple[int, int]]:
        """Id and bytes of the rows to delete in one step. Without `before`, rows dated in the future come first.

        Their age is unknown.
        """
        query = f"SELECT {self.id}, {self.size} FROM {self.kind.table} WHERE {self.may_go} AND {self.time} {{}} ? "
        query += f"ORDER BY {self.time} LIMIT {self.kind.rows_per_step}"
        if before is not None:
            return connection.execute(query.format("<"), (before,)).fetchall()
        future = self.clock.latest_plausible()
        found = (connection.execute(query.format(sign), (future,)).fetchall() for sign in (">", "<="))
        return next(filter(None, found), [])


class ReasoningRows(Rows):
    """The tables `reasonings` and `keys`: a reasoning is one row, each key that leads to it a small one.

    The lock protects `_used`, the rows whose use is written with the next turn: a lookup never writes.
    """

    size = "length(text)"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._lock = threading.Lock()
        self._used: set[int] = set()

    def find(self, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """Key and text of every reasoning under these keys, oldest first."""
        rows: list[tuple[bytes, bytes, int, float]] = []
        with self.database.reader() as connection:
            for start in range(0, len(keys), _KEYS_PER_QUERY):
                chunk = keys[start : start + _KEYS_PER_QUERY]
                rows += connection.execute(
                    "SELECT key, text, id, used_at FROM keys JOIN reasonings ON id = reasoning "
                    f"WHERE key IN ({','.join('?' * len(chunk))}) ORDER BY place",
                    chunk,
                )
        if rows:
            now, resolution = self.clock.use_time(), self._use_resolution()
            if used := [id for _, _, id, used_at in rows if abs(now - used_at) > resolution]:
                with self._lock:
                    self._used.update(used)
        return [row[:2] for row in rows]

    def write(self, entries: Sequence[ReasoningEntry], is_retry: bool = False) -> Sequence[Any]:
        """Write entries, and the uses noted by `find`."""
        # Not at the start of the program, which is waited for.
        from hashlib import sha256

        now = self.clock.use_time()
        with self.database.transaction(is_retry=is_retry) as connection:
            with self._lock:
                used, self._used = self._used, set()
            for keys, text in entries:
                digest = sha256(text).digest()[:_DIGEST_BYTES]
                known = connection.execute("SELECT id FROM reasonings WHERE digest = ?", (digest,)).fetchone()
                if known is not None:
                    id: int = known[0]
                    used.add(id)
                else:
                    insert = "INSERT INTO reasonings (digest, text, used_at) VALUES (?, ?, ?)"
                    id = connection.execute(insert, (digest, text, now)).lastrowid or 0
                connection.executemany(
                    "INSERT OR IGNORE INTO keys (key, reasoning, place) SELECT ?1, ?2, place FROM "
                    "(SELECT coalesce(max(place) + 1, 0) AS place, count(*) AS texts FROM keys WHERE key = ?1) "
                    f"WHERE texts < {_MOST_TEXTS_PER_KEY}",
                    [(key, id) for key in keys],
                )
            query = "UPDATE reasonings SET used_at = ?1 WHERE id = ?2 AND abs(?1 - used_at) > ?3"
            connection.executemany(query, [(now, id, self._use_resolution()) for id in used])
        return entries

    def _use_resolution(self) -> float:
        """The age from which a stored time of last use is updated."""
        return _FINE_USE_RESOLUTION_SECONDS if self.is_nearly_full else _USE_RESOLUTION_SECONDS

    def prune(self, go_on: Callable[[], bool]) -> int:
        if self._used:
            # The order of use decides what goes.
            self.write([])
        return super().prune(go_on)

    def stats(self) -> StoreStats:
        with self.database.reader() as connection:
            rows, size, oldest = connection.execute(
                "SELECT count(*), coalesce(sum(length(text)), 0), min(used_at) FROM reasonings"
            ).fetchone()
            keys = connection.execute("SELECT count(*) FROM keys").fetchone()[0]
        return StoreStats(rows, keys, size, oldest)


class AnswerRows(Rows):
    """Cached answers, and by currency the sums of hits, misses, tokens and money."""

    time = "created_at"
    size = "size"

    def add_totals(self, totals: Sequence[CacheTotals], is_retry: bool) -> Sequence[Any]:
        with self.database.transaction(is_retry=is_retry) as connection:
            connection.executemany(
                "INSERT INTO cache_totals (currency, hits, misses, tokens, money) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (currency) DO UPDATE SET hits = hits + excluded.hits, misses = misses + excluded.misses, "
                f"tokens = min(tokens + excluded.tokens, {2**63 - 1}), money = money + excluded.money",
                totals,
            )
        return totals

    def read_totals(self) -> list[CacheTotals]:
        with self.database.reader() as connection:
            rows = connection.execute("SELECT currency, hits, misses, tokens, money FROM cache_totals")
            return list(map(CacheTotals._make, rows))


# Exactly the condition of the partial index; SQLite uses the index for no other.
_IS_UNFINISHED = "status IN ('queued', 'in_progress')"


class ResponseRows(Rows):
    """Stored responses, each whole in itself."""

    id = "number"
    time = "created_at"
    size = "size"
    # An unfinished response would be lost with its row.
    may_go = f"NOT {_IS_UNFINISHED}"

    def find(self, caller: bytes, id: str, *, with_events: bool) -> ResponseRow | None:
        if not id.isascii():
            # Our ids are ASCII; a made-up one may not even be text for SQLite.
            return None
        with self.database.reader() as connection:
            row = connection.execute(
                f"SELECT caller, id, status, created_at, body, input, {'events' if with_events else 'NULL'} "
                "FROM responses WHERE caller = ? AND id = ?",
                (caller, id),
            ).fetchone()
        return None if row is None else ResponseRow._make(row)

    def _write_one(self, connection: sqlite3.Connection, entry: ResponseChange) -> bool:
        """Make a change. True if it replaced, deleted or inserted a row."""
        caller, id, row, may_insert = entry
        if row is None:
            return connection.execute("DELETE FROM responses WHERE caller = ? AND id = ?", (caller, id)).rowcount > 0
        # created_at stays: an update does not make a response younger.
        is_there = connection.execute(
            "UPDATE responses SET status = ?, size = ?, body = ?, input = ?, events = ? WHERE caller = ? AND id = ?",
            (row.status, row.size, row.body, row.input, row.events, caller, id),
        ).rowcount
        if not is_there and may_insert:
            connection.execute(
                "INSERT INTO responses (caller, id, status, created_at, body, input, events, size) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, row.size),
            )
        return is_there > 0 or may_insert

    def read_from(self, after: int, most: int) -> list[tuple[int, ResponseRow]]:
        """The responses after a row, oldest first, each with its row."""
        with self.database.reader() as connection:
            query = "SELECT number, caller, id, status, created_at, body, input, events FROM responses "
            rows = connection.execute(f"{query} WHERE number > ? ORDER BY number LIMIT ?", (after, most))
            return [(number, ResponseRow._make(row)) for number, *row in rows]

    def unfinished(self) -> list[tuple[int, bytes, str, bytes]]:
        """Number, caller, id and packed body of the responses that are not finished."""
        with self.database.reader() as connection:
            query = f"SELECT number, caller, id, body FROM responses WHERE {_IS_UNFINISHED}"
            return connection.execute(query).fetchall()

    def fail(self, number: int, body: bytes, *, is_retry: bool) -> bool:
        """Mark a response as failed, with this packed body. True if it was still unfinished."""
        with self.database.transaction(is_retry=is_retry) as connection:
            changed = connection.execute(
                "UPDATE responses SET status = 'failed', body = ?, size = size - length(body) + ? "
                f"WHERE number = ? AND {_IS_UNFINISHED}",
                (body, len(body), number),
            )
            return changed.rowcount > 0


class UsageRows(Rows):
    """A row for each request, and the sums of each day; `usage_rows` reads them."""

    time = "ended_at"

    def add(self, rows: Sequence[UsageRow], sums: Mapping[DayGroup, DaySums], is_retry: bool) -> None:
        """Add rows and their sums in one transaction, so that a process that dies leaves them in step."""
        with self.database.transaction(is_retry=is_retry) as connection:
            usage_rows.insert(connection, rows)
            usage_rows.write_sums(connection, sums)

    def mean_output(self, model: str) -> int:
        """The tokens of an answer of this model, on average of its last ones; 0 if there is none."""
        with self.database.reader() as connection:
            return usage_rows.mean_output(connection, model)

    def answered_keys(self) -> frozenset[str]:
        with self.database.reader() as connection:
            return usage_rows.read_answered_keys(connection)


class BacklogRows(Rows):
    """What the engine has not got, oldest first."""

    size = "length(arguments)"

    def _write_one(self, connection: sqlite3.Connection, entry: BacklogEntry) -> None:
        row = (*entry, self.clock.use_time())
        connection.execute("INSERT INTO backlog (script, key, arguments, used_at) VALUES (?, ?, ?, ?)", row)

    def oldest(self, most: int) -> list[tuple[tuple[int, float], BacklogEntry]]:
        """The oldest entries, each with its number and time."""
        with self.database.reader() as connection:
            query = "SELECT id, used_at, script, key, arguments FROM backlog ORDER BY id LIMIT ?"
            return [(row[:2], BacklogEntry(*row[2:])) for row in connection.execute(query, (most,))]

    def delete(self, written: Sequence[tuple[int, float]]) -> None:
        """Delete entries by number and time: another process may have deleted one, and its number is used again."""
        with self.database.transaction() as connection:
            connection.executemany("DELETE FROM backlog WHERE id = ? AND used_at = ?", written)


_TYPES: dict[str, type[Rows]] = {
    "reasonings": ReasoningRows,
    "responses": ResponseRows,
    "cached_answers": AnswerRows,
    "usage": UsageRows,
    "backlog": BacklogRows,
}


def open_rows(database: Database, kind: Kind, clock: PruningClock) -> Any:
    """The rows of a kind; see `storage.entries`."""
    return _TYPES.get(kind.table, Rows)(database, kind, clock)


def newest_time(database: Database, until: float) -> float | None:
    """The latest time in any table that is not after `until`; None if there is none."""
    with database.reader() as connection:
        queries = [f"SELECT max({rows.time}) FROM {table} WHERE {rows.time} <= ?" for table, rows in _TYPES.items()]
        times = [connection.execute(query, (until,)).fetchone()[0] for query in queries]
    return max((time for time in times if time is not None), default=None)


def delete_all(database: Database) -> int:
    """Delete everything stored for callers. Returns the number of reasonings. Usage, hits and learned values stay."""
    with database.transaction() as connection:
        count = connection.execute("SELECT count(*) FROM reasonings").fetchone()[0]
        for table in ("keys", *(_TYPES.keys() - {"usage"})):
            connection.execute(f"DELETE FROM {table}")
    database.shrink()
    return int(count)
