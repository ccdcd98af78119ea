"""The SQL of ReasoningStore: the tables `reasonings` and `keys`, as functions of a connection; and pending reasonings.

`reasonings` decides when to call them, and what happens when the file cannot be used.
"""

import sqlite3
from collections.abc import Collection, Sequence
from typing import NamedTuple

from deepseek_cursor_proxy.storage.table import KEYS_PER_QUERY
from deepseek_cursor_proxy.storage.write_behind import WriteBehind

# Different reasonings for answers in the same words to the same history: only a block that the client still shows tells
# which one is meant. A client that asks the same all day must not make every lookup longer.
_MOST_ALIKE = 16
# Roughly what an entry takes in memory besides its text and keys.
_BYTES_PER_ENTRY = 500


class PendingReasoning(NamedTuple):
    """A reasoning under all its keys.

    known_key       the file has the text under this key already, unless the file was lost: only a key is added
    previous        the shorter text that the same answer recorded before it went on thinking; it is replaced
    extends         a key under which the same answer recorded the same text before further tool calls
    unless_known    nothing is written if the file knows one of these keys
    """

    keys: tuple[bytes, ...]
    text: bytes
    known_key: bytes | None = None
    previous: bytes | None = None
    extends: bytes | None = None
    unless_known: tuple[bytes, ...] = ()


class PendingReasonings(WriteBehind[PendingReasoning]):
    def size(self, entry: PendingReasoning) -> int:
        return _BYTES_PER_ENTRY + len(entry.text) + sum(map(len, entry.keys))

    def keys(self, entry: PendingReasoning) -> Collection[bytes]:
        return entry.keys

    def merge_keys(self, entry: PendingReasoning) -> Collection[bytes]:
        return [key for key in (entry.extends, entry.keys[0]) if key is not None]

    def merge(self, new: PendingReasoning, old: PendingReasoning) -> PendingReasoning | None:
        if new.extends in old.keys and old.known_key is None and old.text == new.text:
            return new._replace(keys=tuple(dict.fromkeys((*new.keys, *old.keys))))
        if new.keys[0] not in old.keys:
            return None
        if new.known_key is not None or new.unless_known:
            # A key that is known already keeps its reasoning.
            return old
        # The same turn again, or one that went on thinking after its calls. A text that merely begins alike is another
        # answer in the same words and stays an entry of its own.
        return new if old.known_key is None and old.text in (new.text, new.previous) else None


class StoreStats(NamedTuple):
    reasonings: int
    keys: int
    bytes: int
    oldest_use: float | None


class Timing(NamedTuple):
    """The time of a write, and how old a stored time of last use may be without being written again."""

    now: float
    use_resolution: float


_Row = tuple[int, bytes, float]


def find(connection: sqlite3.Connection, keys: list[bytes]) -> list[tuple[bytes, int, bytes, float]]:
    """Key, id, text and time of last use of every reasoning under these keys, newest first."""
    rows: list[tuple[bytes, int, bytes, float]] = []
    for start in range(0, len(keys), KEYS_PER_QUERY):
        chunk = keys[start : start + KEYS_PER_QUERY]
        rows += connection.execute(
            "SELECT keys.key, reasonings.id, reasonings.text, reasonings.used_at FROM keys "
            f"JOIN reasonings ON reasonings.id = keys.reasoning WHERE keys.key IN ({','.join('?' * len(chunk))}) "
            "ORDER BY reasonings.id DESC",
            chunk,
        )
    return rows


def _rows_under(connection: sqlite3.Connection, key: bytes) -> list[_Row]:
    """Id, text and time of last use of the latest reasonings under a key, newest first."""
    return connection.execute(
        "SELECT id, text, used_at FROM keys JOIN reasonings ON id = reasoning WHERE key = ? "
        "ORDER BY reasoning DESC LIMIT ?",
        (key, _MOST_ALIKE),
    ).fetchall()


def _is_known(connection: sqlite3.Connection, key: bytes) -> bool:
    return connection.execute("SELECT 1 FROM keys WHERE key = ? LIMIT 1", (key,)).fetchone() is not None


def write(connection: sqlite3.Connection, entries: Sequence[PendingReasoning], timing: Timing) -> None:
    for each in entries:
        if any(_is_known(connection, key) for key in each.unless_known):
            continue
        if each.known_key is None:
            _write_one(connection, each, timing)
        elif not _is_known(connection, each.keys[0]):
            connection.execute(
                "INSERT INTO keys (key, reasoning) "
                "SELECT ?, keys.reasoning FROM keys JOIN reasonings ON reasonings.id = keys.reasoning "
                "WHERE keys.key = ? AND reasonings.text = ? ORDER BY keys.reasoning DESC LIMIT 1",
                (each.keys[0], each.known_key, each.text),
            )


def write_pending(connection: sqlite3.Connection, entries: Sequence[PendingReasoning], timing: Timing) -> None:
    """Write entries to a file that may be a new one, which lacks the reasoning that an alias refers to."""
    write(connection, entries, timing)
    for each in entries:
        if each.known_key is not None and not _is_known(connection, each.keys[0]):
            _write_one(connection, each, timing)


def _write_one(connection: sqlite3.Connection, new: PendingReasoning, timing: Timing) -> None:
    if new.extends is not None:
        earlier = [row for row in _rows_under(connection, new.extends) if row[1] == new.text]
        if earlier:
            _update(connection, earlier[0], new, timing)
            return
    # The same turn again, or one that went on thinking after its calls, takes no other row. A text that merely begins
    # alike is another answer in the same words.
    alike = _rows_under(connection, new.keys[0])
    known = [row for row in alike if row[1] == new.previous] if new.previous is not None else []
    known += [row for row in alike[:1] if row[1] == new.text]
    if known:
        _update(connection, known[0], new, timing)
        return
    if len(alike) == _MOST_ALIKE:
        _delete_alike(connection, new, [row[0] for row in alike[_MOST_ALIKE // 2 :]])
    row = connection.execute("INSERT INTO reasonings (text, used_at) VALUES (?, ?)", (new.text, timing.now)).lastrowid
    connection.executemany("INSERT INTO keys (key, reasoning) VALUES (?, ?)", [(key, row) for key in set(new.keys)])


def _update(connection: sqlite3.Connection, old: _Row, new: PendingReasoning, timing: Timing) -> None:
    id, text, used_at = old
    if text != new.text or abs(timing.now - used_at) > timing.use_resolution:
        connection.execute("UPDATE reasonings SET text = ?, used_at = ? WHERE id = ?", (new.text, timing.now, id))
    connection.executemany(
        "INSERT OR IGNORE INTO keys (key, reasoning) VALUES (?, ?)", [(key, id) for key in set(new.keys)]
    )


def _delete_alike(connection: sqlite3.Connection, new: PendingReasoning, ids: Sequence[int]) -> None:
    """Delete half of the rows, so that not every turn pays for it. One with other keys stays: a chat still sends it."""
    connection.executemany(
        "DELETE FROM keys WHERE key = ? AND reasoning = ?", [(key, id) for id in ids for key in set(new.keys)]
    )
    connection.executemany(
        "DELETE FROM reasonings WHERE id = ? AND NOT EXISTS (SELECT 1 FROM keys WHERE reasoning = ?)",
        [(id, id) for id in ids],
    )


def write_uses(connection: sqlite3.Connection, ids: Collection[int], now: float) -> None:
    connection.executemany("UPDATE reasonings SET used_at = ? WHERE id = ?", [(now, id) for id in ids])


def count(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM reasonings").fetchone()[0])


def stats(connection: sqlite3.Connection) -> StoreStats:
    rows, size, oldest = connection.execute(
        "SELECT count(*), coalesce(sum(length(text)), 0), min(used_at) FROM reasonings"
    ).fetchone()
    keys = connection.execute("SELECT count(*) FROM keys").fetchone()[0]
    return StoreStats(rows, keys, size, oldest)
