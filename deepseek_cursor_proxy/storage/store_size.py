"""How much the store holds: rows of every table, and bytes of the file. Raises Unusable for a fault of the file."""

from typing import NamedTuple

from deepseek_cursor_proxy.storage.sqlite import schema
from deepseek_cursor_proxy.storage.sqlite.database import Database


class StoreSize(NamedTuple):
    rows: dict[str, int]
    bytes: int


def measure(database: Database) -> StoreSize:
    # The connection is given back after every table: counting half a million keys takes 10 ms, and lookups wait.
    rows = {table: _number(database, f"SELECT count(*) FROM {table}") for table in sorted(schema.STORE.tables())}
    pages, size = _number(database, "PRAGMA page_count"), _number(database, "PRAGMA page_size")
    return StoreSize(rows, pages * size)


def _number(database: Database, query: str) -> int:
    with database.reader() as connection:
        return int(connection.execute(query).fetchone()[0])
