"""A stored reasoning as a row of the file, and what leads to it."""

import sqlite3
from typing import NamedTuple


class Row(NamedTuple):
    id: int
    text: bytes
    used_at: float


def rows_under(connection: sqlite3.Connection, key: bytes, most: int) -> list[Row]:
    """The latest reasonings under a key, newest first."""
    rows = connection.execute(
        "SELECT id, text, used_at FROM keys JOIN reasonings ON id = reasoning WHERE key = ? "
        "ORDER BY reasoning DESC LIMIT ?",
        (key, most),
    )
    return [Row(*row) for row in rows]


def is_known(connection: sqlite3.Connection, key: bytes) -> bool:
    return connection.execute("SELECT 1 FROM keys WHERE key = ? LIMIT 1", (key,)).fetchone() is not None
