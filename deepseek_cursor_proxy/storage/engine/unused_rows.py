"""Deletes rows that were not used for long, or are too many, from a table with the columns `id` and `used_at`."""

import sqlite3

from deepseek_cursor_proxy.storage.steady_clock import PruningClock

# So short a transaction that no turn waits noticeably for the writer.
_ROWS_PER_STEP = 200


def delete_unused(
    connection: sqlite3.Connection, table: str, pruning: PruningClock, max_age: float, max_rows: int
) -> int:
    """Delete some of the rows that are too old, and of the longest unused beyond `max_rows`; how many."""
    rows = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    excess = min(max(0, rows - max_rows), _ROWS_PER_STEP)
    return connection.execute(
        f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} ORDER BY used_at > ? DESC, used_at LIMIT ?) OR id IN "
        f"(SELECT id FROM {table} WHERE used_at < ? ORDER BY used_at LIMIT ?)",
        (pruning.latest_plausible(), excess, pruning.oldest_kept(max_age), _ROWS_PER_STEP),
    ).rowcount
