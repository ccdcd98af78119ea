"""The tables of the core in the store's file, and what a file is checked for. A feature has its tables in its store.

The schema version is SQLite's user_version. A change of any table raises it: a file of an earlier version is set aside
and a new one begun, a file of a later one is left alone. Tables and version are written in one transaction, so a
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

-- By base URL, the form in which its answers have their reasoning.
CREATE TABLE reasoning_forms (base_url TEXT PRIMARY KEY, form TEXT NOT NULL) STRICT, WITHOUT ROWID;
-- By name of a key or group and by base URL, whose reasoning it has.
CREATE TABLE key_names (
    name TEXT NOT NULL, base_url TEXT NOT NULL, namespace BLOB NOT NULL, PRIMARY KEY (name, base_url)
) STRICT, WITHOUT ROWID;
"""


class Schema(NamedTuple):
    """The tables of one kind of file: the number that marks it, the version, and the CREATE statements."""

    application_id: int
    version: int
    statements: str

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
            execute(connection, self.statements)
            connection.execute(f"PRAGMA application_id = {self.application_id}")
            self.write_version(connection)

    def write_version(self, connection: sqlite3.Connection) -> None:
        """Write the version; also the smallest write to find out whether the file can be written."""
        connection.execute(f"PRAGMA user_version = {self.version}")


# The file of reasonings, responses and whatever else the stores of this folder keep ("DScp").
STORE = Schema(0x44536370, 14, _TABLES)


def table_names(statements: str) -> list[str]:
    return re.findall(r"CREATE TABLE (\w+)", statements)


def if_missing(statements: str) -> str:
    """The same statements, without effect on what is there."""
    return re.sub(r"^(CREATE (?:UNIQUE )?(?:TABLE|INDEX))", r"\1 IF NOT EXISTS", statements, flags=re.MULTILINE)


def execute(connection: sqlite3.Connection, statements: str) -> None:
    """Run statements in the transaction that is open; `executescript` would commit it."""
    for statement in statements.split(";\n"):
        connection.execute(statement)


def read_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
