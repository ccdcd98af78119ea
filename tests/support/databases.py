"""Test cases over a database file of their own."""

import sqlite3
import tempfile
import unittest
from contextlib import closing
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.storage.database import Database


def age_rows(path: Path, seconds: float) -> None:
    """Make all rows of a file that no process has open so much older, as if the clock had gone on."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for (column,) in connection.execute(f"SELECT name FROM pragma_table_info('{table}')").fetchall():
                if column.endswith("_at"):
                    connection.execute(f"UPDATE {table} SET {column} = {column} - ?", (seconds,))
                elif column == "day":
                    connection.execute(f"UPDATE {table} SET day = date(day, ?)", (f"-{seconds // 86400:.0f} days",))


class StoreFileTestCase(unittest.TestCase):
    """A path in a folder of its own, and a clock that the test sets."""

    def setUp(self) -> None:
        self.path = Path(self.enterContext(tempfile.TemporaryDirectory())) / "store.sqlite3"
        self.now = 1_000_000_000.0

    def open(self, path: Path | None = None, **options: Any) -> Database:
        database = Database(path or self.path, **options)
        self.addCleanup(database.close)
        database.open()
        return database

    def lock(self, statement: str = "BEGIN EXCLUSIVE") -> sqlite3.Connection:
        """A connection of another process, as far as SQLite can tell, that holds the file."""
        locker = sqlite3.connect(self.path, isolation_level=None)
        self.addCleanup(locker.close)
        locker.execute(statement)
        return locker


class DatabaseTestCase(StoreFileTestCase):
    """The same with an open database."""

    def setUp(self) -> None:
        super().setUp()
        self.database = self.open()

    def select(self, query: str, *values: object) -> list[Any]:
        with self.database.reader() as connection:
            return list(connection.execute(query, values).fetchall())

    def execute(self, *statements: str) -> None:
        with self.database.transaction() as connection:
            for statement in statements:
                connection.execute(statement)


class StoreTestCase(DatabaseTestCase):
    """The same with a store on the database, whose clock is the test's."""

    store_type: type[Any]

    def setUp(self) -> None:
        super().setUp()
        self.store = self.store_on(self.database)

    def store_on(self, database: Database, **limits: float) -> Any:
        store = self.store_type(database, clock=lambda: self.now, **limits)
        self.addCleanup(store.close)
        return store

    def restart(self) -> None:
        if hasattr(self.store, "close"):
            self.store.close()
        self.database.close()
        self.database = self.open()
        self.store = self.store_on(self.database)
