"""The tables of the store's file and their migrations. All CREATE statements of that file are here.

The schema version is SQLite's user_version; MIGRATIONS lists the step from each version to the next. The steps and the
new version are one transaction, so a process that dies in between leaves the file as it was. A new table is a new step;
a step that was released never changes.
"""

import re
import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from deepseek_cursor_proxy.storage.faults import Damaged, Unusable

MIGRATIONS: list[tuple[str, ...]] = [
    # One row per reasoning; the keys that lead to it are small rows of their own.
    (
        "CREATE TABLE reasonings (id INTEGER PRIMARY KEY, text BLOB NOT NULL, used_at REAL NOT NULL) STRICT",
        # Pruning asks for the longest unused, by age and by rank.
        "CREATE INDEX reasonings_by_use ON reasonings (used_at)",
        "CREATE TABLE keys (key BLOB NOT NULL, reasoning INTEGER NOT NULL REFERENCES reasonings ON DELETE CASCADE, "
        "PRIMARY KEY (key, reasoning)) STRICT, WITHOUT ROWID",
        # Deleting a reasoning has to find its keys.
        "CREATE INDEX keys_by_reasoning ON keys (reasoning)",
    ),
    # The order in which the tools of a chat were last sent; a chat with several agents has a row for each order.
    (
        "CREATE TABLE tool_orders (id INTEGER PRIMARY KEY, conversation BLOB NOT NULL, names TEXT NOT NULL, "
        "used_at REAL NOT NULL) STRICT",
        "CREATE INDEX tool_orders_by_conversation ON tool_orders (conversation)",
        "CREATE INDEX tool_orders_by_use ON tool_orders (used_at)",
    ),
    # One row per stored response, whole in itself: nothing in it leads to another row.
    (
        "CREATE TABLE responses (number INTEGER PRIMARY KEY, caller BLOB NOT NULL, id TEXT NOT NULL, "
        "status TEXT NOT NULL, created_at REAL NOT NULL, size INTEGER NOT NULL, body BLOB NOT NULL, "
        "input BLOB NOT NULL, events BLOB, UNIQUE (caller, id)) STRICT",
        # Pruning asks for the oldest rows and the sum of all sizes, and must not read the large rows for it.
        "CREATE INDEX responses_by_age ON responses (created_at, size)",
        "CREATE INDEX responses_unfinished ON responses (status) WHERE status IN ('queued', 'in_progress')",
    ),
    # By model, the mean logarithm of (counted / estimated prompt tokens), and of how many prompts.
    (
        "CREATE TABLE token_ratios (model TEXT PRIMARY KEY, mean REAL NOT NULL, count REAL NOT NULL) STRICT, "
        "WITHOUT ROWID",
    ),
    # By base URL, the form in which its answers have their reasoning.
    ("CREATE TABLE reasoning_forms (base_url TEXT PRIMARY KEY, form TEXT NOT NULL) STRICT, WITHOUT ROWID",),
    # By caller and picture, the text in its place for models that see none.
    (
        "CREATE TABLE picture_descriptions (id INTEGER PRIMARY KEY, caller BLOB NOT NULL, picture BLOB NOT NULL, "
        "text BLOB NOT NULL, used_at REAL NOT NULL, UNIQUE (caller, picture)) STRICT",
        "CREATE INDEX picture_descriptions_by_use ON picture_descriptions (used_at)",
    ),
    # One row per request, figures only; and the sums of each day, which stay when its rows are deleted.
    (
        "CREATE TABLE usage (id INTEGER PRIMARY KEY, ended_at REAL NOT NULL, number INTEGER NOT NULL, api TEXT NOT "
        "NULL, key TEXT NOT NULL, session TEXT NOT NULL, requested_model TEXT NOT NULL, model TEXT NOT NULL, "
        "upstream TEXT NOT NULL, stream INTEGER NOT NULL, outcome TEXT NOT NULL, status INTEGER NOT NULL, hit "
        "INTEGER, miss INTEGER, output INTEGER, thinking INTEGER, searches INTEGER NOT NULL, cost REAL, saved REAL, "
        "divergence_cost REAL, currency TEXT NOT NULL, price_version TEXT NOT NULL, is_cost_unknown INTEGER NOT "
        "NULL, seconds REAL NOT NULL, queue_seconds REAL, connect_seconds REAL, first_token_seconds REAL, retries "
        "INTEGER NOT NULL, filled INTEGER NOT NULL, kept INTEGER NOT NULL, empty INTEGER NOT NULL, missing INTEGER "
        "NOT NULL, recovered INTEGER NOT NULL, divergence TEXT, messages INTEGER NOT NULL, tools INTEGER NOT NULL, "
        "body_bytes INTEGER NOT NULL) STRICT",
        "CREATE INDEX usage_by_end ON usage (ended_at)",
        "CREATE TABLE usage_days (day TEXT NOT NULL, model TEXT NOT NULL, key TEXT NOT NULL, api TEXT NOT NULL, "
        "currency TEXT NOT NULL, requests INTEGER NOT NULL, failed INTEGER NOT NULL, unknown_costs INTEGER NOT NULL, "
        "hit INTEGER NOT NULL, miss INTEGER NOT NULL, output INTEGER NOT NULL, thinking INTEGER NOT NULL, "
        "searches INTEGER NOT NULL, cost REAL NOT NULL, saved REAL NOT NULL, divergence_cost REAL NOT NULL, "
        "PRIMARY KEY (day, model, key, api, currency)) STRICT, WITHOUT ROWID",
    ),
    # By digest of caller and request, whole answers; and what their use has saved, by currency.
    (
        "CREATE TABLE cached_answers (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, created_at REAL NOT NULL, "
        "size INTEGER NOT NULL, body BLOB NOT NULL, tokens INTEGER NOT NULL, cost REAL, currency TEXT NOT NULL) STRICT",
        # Pruning asks for the oldest and for the sum of all sizes.
        "CREATE INDEX cached_answers_by_age ON cached_answers (created_at, size)",
        "CREATE TABLE cache_totals (currency TEXT PRIMARY KEY, hits INTEGER NOT NULL, misses INTEGER NOT NULL, "
        "tokens INTEGER NOT NULL, money REAL NOT NULL) STRICT, WITHOUT ROWID",
    ),
    # What named keys and groups have spent and reserved of their limits; whose reasoning a name has.
    (
        "CREATE TABLE limit_counters (holder TEXT NOT NULL, name TEXT NOT NULL, resets INTEGER NOT NULL, "
        "spent INTEGER NOT NULL, PRIMARY KEY (holder, name, resets)) STRICT, WITHOUT ROWID",
        "CREATE TABLE limit_holds (request TEXT NOT NULL, holder TEXT NOT NULL, name TEXT NOT NULL, "
        "resets INTEGER NOT NULL, amount INTEGER NOT NULL, lapses_at REAL NOT NULL, "
        # In this order, because every request sums up the holds of its counters.
        "PRIMARY KEY (holder, name, resets, request)) STRICT, WITHOUT ROWID",
        "CREATE INDEX limit_holds_by_request ON limit_holds (request)",
        "CREATE TABLE settled_requests (request TEXT PRIMARY KEY, settled_at REAL NOT NULL) STRICT, WITHOUT ROWID",
        "CREATE INDEX settled_requests_by_time ON settled_requests (settled_at)",
        "CREATE TABLE key_names (name TEXT NOT NULL, base_url TEXT NOT NULL, namespace BLOB NOT NULL, "
        "PRIMARY KEY (name, base_url)) STRICT, WITHOUT ROWID",
    ),
    # The program that sent the request.
    ("ALTER TABLE usage ADD COLUMN client TEXT NOT NULL DEFAULT ''",),
    # Whose a reasoning is, for `store copy`; and, oldest first, what an engine that several proxies share has not got.
    (
        # With the first of its keys.
        "ALTER TABLE keys ADD COLUMN caller BLOB",
        "CREATE TABLE backlog (id INTEGER PRIMARY KEY, script TEXT NOT NULL, key BLOB NOT NULL, "
        "arguments BLOB NOT NULL, used_at REAL NOT NULL) STRICT",
        "CREATE INDEX backlog_by_use ON backlog (used_at)",
    ),
]
OF_ANOTHER_PROGRAM = "it is a database of another program, which is left alone"


class Schema(NamedTuple):
    """The tables of one kind of file: the number that marks it, and the migrations."""

    application_id: int
    migrations: Sequence[tuple[str, ...]]

    @property
    def newest_version(self) -> int:
        return len(self.migrations)

    @property
    def first_statement(self) -> str:
        """The first CREATE TABLE, which SQLite keeps in the file as text."""
        return self.migrations[0][0]

    def tables(self, version: int | None = None) -> set[str]:
        """The names of the tables that a file of a version has; of the newest one unless given."""
        steps = self.migrations[: self.newest_version if version is None else max(0, version)]
        return {name for step in steps for name in re.findall(r"CREATE TABLE (\w+)", " ".join(step))}

    def check_ownership(self, application_id: int, version: int, *, is_empty: bool) -> None:
        """Raise Unusable unless the database is of this kind; an empty one may become it."""
        if application_id != self.application_id and not is_empty:
            raise Unusable(OF_ANOTHER_PROGRAM)
        if version > self.newest_version:
            raise Unusable(f"it was written by a newer version of this program (schema {version}) and is left alone")

    def check(self, connection: sqlite3.Connection) -> None:
        """Raise Unusable for a file that is not ours, Damaged for one of ours that lost its tables; write nothing."""
        with connection:
            # One snapshot: between two statements another process may have created the tables.
            connection.execute("BEGIN")
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            application_id = connection.execute("PRAGMA application_id").fetchone()[0]
            number = version(connection)
        self.check_ownership(application_id, number, is_empty=not tables)
        ours, expected = tables & self.tables(), self.tables(number)
        if not ours >= expected:
            raise Damaged("its tables are gone")
        if number < 0 or ours > expected:
            # No migration fits, however often it is tried.
            raise Damaged("its version is lost")

    def migrate(self, connection: sqlite3.Connection) -> None:
        if version(connection) == self.newest_version:
            return
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            # Read again under the lock: another process may have migrated already.
            for step in self.migrations[version(connection) :]:
                for statement in step:
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {self.application_id}")
            self.write_version(connection)

    def write_version(self, connection: sqlite3.Connection) -> None:
        """Write the version; also the smallest write to find out whether the file can be written."""
        connection.execute(f"PRAGMA user_version = {self.newest_version}")


# The file of reasonings, responses and whatever else the stores of this folder keep ("DScp").
STORE = Schema(0x44536370, MIGRATIONS)


def version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
