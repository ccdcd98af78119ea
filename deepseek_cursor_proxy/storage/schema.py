"""The tables of the store's file. All CREATE statements of that file are here.

The schema version is SQLite's user_version. A change of these statements raises it: a file of an earlier version is set
aside and a new one begun, a file of a later one is left alone. Tables and version are written in one transaction, so a
process that dies in between leaves an empty file.
"""

import re
import sqlite3
from typing import NamedTuple

from deepseek_cursor_proxy.storage.faults import Outdated, Unusable

_TABLES = """
-- One row per reasoning, addressed by the digest of its text; the keys that lead to it are small rows of their own.
CREATE TABLE reasonings (
    id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, text BLOB NOT NULL, used_at REAL NOT NULL
) STRICT;
CREATE INDEX reasonings_by_use ON reasonings (used_at);
-- `place` is the order in which the reasonings of a key were written.
CREATE TABLE keys (
    key BLOB NOT NULL, reasoning INTEGER NOT NULL REFERENCES reasonings ON DELETE CASCADE, place INTEGER NOT NULL,
    PRIMARY KEY (key, reasoning)
) STRICT, WITHOUT ROWID;
-- Deleting a reasoning has to find its keys.
CREATE INDEX keys_by_reasoning ON keys (reasoning);

-- One row per stored response, whole in itself: nothing in it leads to another row.
CREATE TABLE responses (
    number INTEGER PRIMARY KEY, caller BLOB NOT NULL, id TEXT NOT NULL, status TEXT NOT NULL, created_at REAL NOT NULL,
    size INTEGER NOT NULL, body BLOB NOT NULL, input BLOB NOT NULL, events BLOB, UNIQUE (caller, id)
) STRICT;
-- Pruning asks for the oldest rows and the sum of all sizes, and must not read the large rows for it.
CREATE INDEX responses_by_age ON responses (created_at, size);
CREATE INDEX responses_unfinished ON responses (status) WHERE status IN ('queued', 'in_progress');

-- By base URL, the form in which its answers have their reasoning.
CREATE TABLE reasoning_forms (base_url TEXT PRIMARY KEY, form TEXT NOT NULL) STRICT, WITHOUT ROWID;
-- By name of a key or group and by base URL, whose reasoning it has.
CREATE TABLE key_names (
    name TEXT NOT NULL, base_url TEXT NOT NULL, namespace BLOB NOT NULL, PRIMARY KEY (name, base_url)
) STRICT, WITHOUT ROWID;

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

-- Oldest first, what an engine that several proxies share has not got.
CREATE TABLE backlog (
    id INTEGER PRIMARY KEY, script TEXT NOT NULL, key BLOB NOT NULL, arguments BLOB NOT NULL, used_at REAL NOT NULL
) STRICT;
CREATE INDEX backlog_by_use ON backlog (used_at);
"""


class Schema(NamedTuple):
    """The tables of one kind of file: the number that marks it, the version, and the CREATE statements."""

    application_id: int
    version: int
    statements: str

    def tables(self) -> list[str]:
        return re.findall(r"CREATE TABLE (\w+)", self.statements)

    def check(self, connection: sqlite3.Connection) -> bool:
        """Raise Unusable for a file that is not ours or of another version; write nothing. True if it is empty."""
        with connection:
            # One snapshot: between two statements another process may have created the tables.
            connection.execute("BEGIN")
            if connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
                return True
            application_id = connection.execute("PRAGMA application_id").fetchone()[0]
            version = read_version(connection)
        if application_id != self.application_id:
            raise Unusable("it is a database of another program, which is left alone")
        if version > self.version:
            raise Unusable(f"it was written by a newer version of this program (schema {version}) and is left alone")
        if version < self.version:
            raise Outdated(version)
        return False

    def create(self, connection: sqlite3.Connection) -> None:
        """Create the tables, unless another process has just done so."""
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            if read_version(connection) == self.version:
                return
            for statement in self.statements.split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {self.application_id}")
            self.write_version(connection)

    def write_version(self, connection: sqlite3.Connection) -> None:
        """Write the version; also the smallest write to find out whether the file can be written."""
        connection.execute(f"PRAGMA user_version = {self.version}")


# The file of reasonings, responses and whatever else the stores of this folder keep ("DScp").
STORE = Schema(0x44536370, 14, _TABLES)


def read_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
