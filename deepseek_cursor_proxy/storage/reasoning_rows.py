"""SQL of the tables `reasonings` and `keys` that `reasonings` uses in several places."""

import sqlite3
from typing import NamedTuple


class Row(NamedTuple):
    id: int
    text: bytes
    used_at: float


def rows_under(connection: sqlite3.Connection, key: bytes, most: int) -> list[tuple[int, bytes, float]]:
    """The latest reasonings under a key, newest first, as plain tuples in the order of a Row, which are cheaper."""
    rows = connection.execute(
        "SELECT id, text, used_at FROM keys JOIN reasonings ON id = reasoning WHERE key = ? "
        "ORDER BY reasoning DESC LIMIT ?",
        (key, most),
    )
    return rows.fetchall()


def is_known(connection: sqlite3.Connection, key: bytes) -> bool:
    return connection.execute("SELECT 1 FROM keys WHERE key = ? LIMIT 1", (key,)).fetchone() is not None
