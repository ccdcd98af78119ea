"""Rows of messages and links: packed, each message once, and many of them written with one statement.

A statement that adds one row costs several times its share of one that adds thirty, also because every statement hands
Python's lock to another thread and waits for it again.
"""

import json
import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import islice
from typing import Any, NamedTuple

from deepseek_cursor_proxy.compression import compress

# What is encoded came from JSON, so that nothing contains itself.
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode
# A file that an earlier version wrote may have sums that are infinite.
_from_json = json.JSONDecoder(parse_constant=lambda _: None).decode
# The row of a link and its entries in three indexes.
_BYTES_PER_LINK = 120
# Rows per statement, largest first. Three sizes make three statements, which SQLite keeps prepared.
_SIZES = (32, 8, 1)


class Link(NamedTuple):
    session: int
    parent: int
    identity: bytes
    is_own: bool
    logprobs: bytes | None
    node: int


class Rows:
    """Writes messages at once, and links with their messages when `write` is called. Used within one transaction.

    No other transaction writes meanwhile, so a link has its id before it is written.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        # By id: the link and the digest of its message.
        self._links: dict[int, tuple[Link, bytes]] = {}
        # Session, parent and identity of each.
        self._places: set[tuple[int, int, bytes]] = set()
        # By digest: the message, and the session that it counts for, the first that has it.
        self._messages: dict[bytes, tuple[bytes, int]] = {}
        self._next_link = 0
        # What was added, by session.
        self.bytes: Counter[int] = Counter()

    def add_link(self, link: Link, message: Any) -> int:
        self._next_link = self._next_link or self._unused_id("links")
        number, text = self._next_link, encode(message)
        self._next_link += 1
        digest = sha256(text).digest()
        self._links[number] = link, digest
        self._places.add(link[:3])
        self._messages.setdefault(digest, (text, link.session))
        return number

    def has_link_at(self, place: tuple[int, int, bytes]) -> bool:
        """Whether a link with this session, parent and identity was added and is not written."""
        return place in self._places

    def write(self) -> None:
        """Write the links that were added."""
        if not self._links:
            return
        ids = self._message_ids()
        links = [(number, ids[digest], *link) for number, (link, digest) in self._links.items()]
        self._insert("links (id, message, session, parent, identity, is_own, logprobs, node)", links)
        for link, _ in self._links.values():
            self.bytes[link.session] += _BYTES_PER_LINK
        self._links.clear()
        self._places.clear()
        self._messages.clear()

    def write_message(self, session: int, message: Any) -> int:
        """The id of a message, a prompt or a list of tools, which is added if it is not there."""
        text = encode(message)
        digest = sha256(text).digest()
        row = self._connection.execute("SELECT id FROM messages WHERE digest = ?", (digest,)).fetchone()
        if row is not None:
            return int(row[0])
        packed = compress(text)
        self.bytes[session] += len(packed)
        return last_id(self._connection.execute("INSERT INTO messages (digest, body) VALUES (?, ?)", (digest, packed)))

    def _message_ids(self) -> dict[bytes, int]:
        """The ids of the messages of all links, by digest; new ones are written."""
        ids: dict[bytes, int] = {}
        for digests in _divide(self._messages):
            marks = ",".join("?" * len(digests))
            ids |= self._connection.execute(f"SELECT digest, id FROM messages WHERE digest IN ({marks})", digests)
        number, rows = self._unused_id("messages"), []
        for digest, (text, session) in self._messages.items():
            if digest not in ids:
                packed = compress(text)
                rows.append((number, digest, packed))
                self.bytes[session] += len(packed)
                ids[digest] = number
                number += 1
        self._insert("messages (id, digest, body)", rows)
        return ids

    def _insert(self, into: str, rows: Sequence[tuple[Any, ...]]) -> None:
        for part in _divide(rows):
            marks = f"({','.join('?' * len(part[0]))})"
            values = [value for row in part for value in row]
            self._connection.execute(f"INSERT INTO {into} VALUES {','.join([marks] * len(part))}", values)

    def _unused_id(self, table: str) -> int:
        (number,) = self._connection.execute(f"SELECT coalesce(max(id), 0) + 1 FROM {table}").fetchone()
        return int(number)


def _divide(items: Iterable[Any]) -> Iterable[list[Any]]:
    """Yield parts, each of one of the sizes above."""
    left = iter(items)
    rest = list(islice(left, _SIZES[0]))
    while rest:
        size = next(size for size in _SIZES if size <= len(rest))
        yield rest[:size]
        rest = [*rest[size:], *islice(left, size)]


# Of a row of `messages`: whether no chat has it.
UNUSED = (
    "(NOT EXISTS (SELECT 1 FROM links WHERE message = messages.id) "
    "AND NOT EXISTS (SELECT 1 FROM head_texts WHERE message = messages.id))"
)


def delete_unused(connection: sqlite3.Connection, messages: Iterable[int]) -> None:
    """Delete those of these messages that no chat has any more, and their bytes."""
    connection.execute("PRAGMA secure_delete = ON")
    for part in _divide(messages):
        connection.execute(f"DELETE FROM messages WHERE id IN ({','.join('?' * len(part))}) AND {UNUSED}", part)


def last_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def encode(value: Any) -> bytes:
    return _to_json(value).encode("utf-8", "surrogatepass")


def pack(value: Any) -> bytes:
    return compress(encode(value))


def unpack(packed: bytes) -> Any:
    return _from_json(zlib.decompress(packed).decode("utf-8", "surrogatepass"))
