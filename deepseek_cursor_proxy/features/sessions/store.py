"""SessionStore: sessions and their trajectories, in a file of their own.

    sessions    one row each; everything else belongs to one and goes with it
    messages    each message, prompt or list of tools of a session once, by digest, packed
    links       the chats of a session as a trie: each message under the digest of the chain that ends with it
    nodes       trajectories: the link each ends with, and the digests of its prompts and tools

A chat of 200 turns costs its own size once. A turn that continues a node moves the node's head; one that parts from it
begins a new node, whose parent is the node it has most in common with. Where a turn belongs is decided by the digests
that `reasoning` identifies messages by, which ignore reasoning, and not by text. Deleting a session removes its bytes
from the file.

A turn is written when its answer ends, together with those of other threads (`write_behind`), and waits in memory
while the file cannot be used. A caller sees its own sessions alone: `get` takes the caller's namespace. Nodes are for
the owner, or for a caller whose session was found.
"""

import json
import logging
import sqlite3
import time
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from deepseek_cursor_proxy.conversation import Message, count_prompts
from deepseek_cursor_proxy.features.sessions.trajectory import (
    Json,
    Node,
    RecordedTurn,
    Session,
    SessionOptions,
    TurnOfSession,
    merge_info,
    message_json,
    new_session,
    storable,
)
from deepseek_cursor_proxy.json_codec import encode_json, json_text
from deepseek_cursor_proxy.reasoning.identity import digest_message
from deepseek_cursor_proxy.storage.database import Store
from deepseek_cursor_proxy.storage.faults import FaultGuard
from deepseek_cursor_proxy.storage.schema import Schema
from deepseek_cursor_proxy.storage.table import compress
from deepseek_cursor_proxy.storage.write_behind import WriteBehind

_log = logging.getLogger(__name__)

_TURNS_BETWEEN_PRUNINGS = 256
# Sessions that are recorded at the same time, usually a handful.
_MOST_SESSIONS_KNOWN = 64
# Half of SHA-256: no two texts of a session have the same.
_DIGEST_BYTES = 16
# The parent of the first message of a chat.
_ROOT = b""
# Links and nodes are looked up this many at a time; a turn rarely adds more messages.
_KEYS_PER_QUERY = 16
_MOST_BYTES_UNPACKED = 300
# The row of a link and its entries in the index.
_BYTES_PER_LINK = 120

_TABLES = """
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, caller BLOB NOT NULL, name TEXT NOT NULL, tags TEXT NOT NULL,
    track_tree INTEGER NOT NULL, reads_written_calls INTEGER NOT NULL, chat BLOB,
    model TEXT NOT NULL, created_at REAL NOT NULL, used_at REAL NOT NULL, expires_at REAL, requests INTEGER NOT NULL,
    nodes INTEGER NOT NULL, tokens INTEGER NOT NULL, cost REAL, bytes INTEGER NOT NULL
) STRICT;
CREATE INDEX sessions_by_caller ON sessions (caller, created_at);
-- Sessions that the setting record = all has begun: one for each chat of a caller.
CREATE UNIQUE INDEX sessions_by_chat ON sessions (caller, chat) WHERE chat IS NOT NULL;
CREATE TABLE messages (
    id INTEGER PRIMARY KEY, session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE, digest BLOB NOT NULL,
    body BLOB NOT NULL, UNIQUE (session, digest)
) STRICT;
CREATE TABLE links (
    session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE, key BLOB NOT NULL, parent BLOB NOT NULL,
    message BLOB NOT NULL, node INTEGER NOT NULL, is_own INTEGER NOT NULL, logprobs BLOB, PRIMARY KEY (session, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE nodes (
    id INTEGER PRIMARY KEY, session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE, parent INTEGER,
    head BLOB NOT NULL, texts BLOB NOT NULL, info TEXT NOT NULL
) STRICT;
CREATE INDEX nodes_by_session ON nodes (session);
CREATE INDEX nodes_by_head ON nodes (session, head)"""
# "DScs".
_SCHEMA = Schema(0x44536373, 6, _TABLES)


class _WaitingTurns(WriteBehind[TurnOfSession]):
    # Each holds its history, most of it shared with other turns.
    bound = 1000
    # Other writers of the file wait for a transaction.
    batch = 100
    keeps_refused = False


class SessionStore:
    """Called by the threads of requests. Methods raise Unusable; only `record` keeps turns until the file is usable."""

    # What is kept: seconds since the last use, sessions, bytes of packed messages.
    max_age_seconds = 90 * 24 * 3600
    max_sessions = 10_000
    max_bytes = 4 * 1024**3

    def __init__(self, path: str | Path, *, clock: Callable[[], float] = time.time, must_open: bool = False) -> None:
        """Open the file, or start without it and retry. With `must_open` raise Unusable instead and move nothing."""
        self._clock = clock
        self._file = Store(path, must_open=must_open, tables=_SCHEMA, title="session data")
        self.database = self._file.database
        self._faults = FaultGuard(_log, "sessions")
        self._waiting = _WaitingTurns(self.database, self._write, self._faults)
        # By session; used within transactions.
        self._known: dict[int, _Chain] = {}
        # Turns since the last pruning.
        self._unpruned = 0
        self._file.open()

    def close(self) -> None:
        """Write waiting turns, if the file can be used, and close it; idempotent."""
        self.database.background.close()
        if lost := self._waiting.close(self._file.reopen):
            _log.warning("%d turns of sessions were not recorded", lost)
        self.database.close()

    # Sessions …

    def insert(self, caller: bytes, session: Session) -> Session:
        """Add a new session. Beyond the limit the least recently used ones are deleted."""
        with self.database.transaction() as connection:
            _insert(connection, caller, session)
        if self.count() > self.max_sessions:
            self.prune()
        return session

    def get(self, caller: bytes | None, session: str) -> Session | None:
        """A session of a caller; of any caller for None, which only the owner may ask for."""
        return next(iter(self._select("uuid = ?", caller, session)), None)

    def list(self, caller: bytes | None) -> Sequence[Session]:
        """The sessions of a caller, newest first; of all callers for None, which only the owner may ask for."""
        return self._select("TRUE", caller)

    def _select(self, condition: str, caller: bytes | None, *values: str) -> Sequence[Session]:
        rows = self.database.select(
            "SELECT uuid, name, tags, track_tree, reads_written_calls, model, created_at, used_at, "
            "requests, nodes, tokens, cost FROM sessions "
            f"WHERE {condition} AND (? IS NULL OR caller = ?) AND (expires_at IS NULL OR expires_at > ?) "
            "ORDER BY created_at DESC, id DESC",
            *(*values, caller, caller, self._clock()),
        )
        return [_session(*row) for row in rows]

    def count(self) -> int:
        return self.database.number("SELECT count(*) FROM sessions")

    def delete(self, caller: bytes, session: str) -> bool:
        """Delete a session and all its bytes in the file. True if there was one."""
        with self.database.reader() as connection:
            # An unknown one does not wait for other writers.
            row = connection.execute("SELECT id FROM sessions WHERE uuid = ? AND caller = ?", (session, caller))
            if (found := row.fetchone()) is None:
                return False
        self._delete([found])
        return True

    def prune(self) -> int:
        """Delete surplus, old and expired sessions, least recently used first. Returns how many.

        Because of age at most a tenth, so that a wrong clock deletes few.
        """
        now = self._clock()
        with self.database.reader() as connection:
            surplus = connection.execute(
                "SELECT id FROM (SELECT id, sum(bytes) OVER newest AS total, row_number() OVER newest AS rank "
                "FROM sessions WINDOW newest AS (ORDER BY used_at DESC, id DESC)) WHERE total > ? OR rank > ?",
                (self.max_bytes, self.max_sessions),
            ).fetchall()
            old = connection.execute(
                "SELECT id FROM sessions WHERE expires_at <= ? OR used_at < ? "
                "ORDER BY used_at LIMIT max(1, (SELECT count(*) / 10 FROM sessions))",
                (now, now - self.max_age_seconds),
            ).fetchall()
        rows = list({*surplus, *old})
        if rows:
            self._delete(rows)
        return len(rows)

    def _delete(self, rows: Sequence[tuple[int]]) -> None:
        with self.database.transaction() as connection:
            connection.execute("PRAGMA secure_delete = ON")
            connection.executemany("DELETE FROM sessions WHERE id = ?", rows)
        self.database.empty_log()

    def _prune_quietly(self) -> None:
        with self._faults.guard("prune"):
            self.prune()

    # Turns …

    def record(self, turns: Sequence[TurnOfSession]) -> None:
        """Add turns, except those of deleted sessions. While the file cannot be used, they wait."""
        self._waiting.write(turns)
        self._unpruned += len(turns)
        if self._unpruned >= _TURNS_BETWEEN_PRUNINGS:
            self._unpruned = 0
            self.database.background.run(self._prune_quietly)

    def _write(self, connection: sqlite3.Connection, turns: Sequence[TurnOfSession]) -> None:
        for turn in turns:
            self._add(connection, turn)

    def _add(self, connection: sqlite3.Connection, turn_of_session: TurnOfSession) -> None:
        session = self._find_or_begin(connection, turn_of_session)
        if session is None:
            return
        turn = turn_of_session.turn
        known = self._known.pop(session.id, None)
        while len(self._known) >= _MOST_SESSIONS_KNOWN:
            self._known.pop(next(iter(self._known)))
        chain = self._known[session.id] = _Chain.of(turn, known)
        writer = _TurnWriter(connection, session, turn, chain)
        writer.write()
        connection.execute(
            # A sum that does not fit its column would lose the turn.
            "UPDATE sessions SET used_at = ?, requests = requests + 1, tokens = min(tokens + ?, 1 << 62), model = ?, "
            "cost = CASE WHEN ?4 IS NULL THEN cost ELSE coalesce(cost, 0) + ?4 END, nodes = nodes + ?, "
            "bytes = bytes + ? WHERE id = ?",
            (
                self._clock(), turn.tokens, storable(turn.model), turn.cost, writer.is_new_node, writer.size,
                session.id,
            ),
        )  # fmt: skip

    def _find_or_begin(self, connection: sqlite3.Connection, turn: TurnOfSession) -> "_SessionRow | None":
        caller, session, _ = turn
        column, value = ("uuid", session) if isinstance(session, str) else ("chat", session.chat)
        row = connection.execute(
            f"SELECT id, track_tree FROM sessions WHERE caller = ? AND {column} = ?", (caller, value)
        ).fetchone()
        if row is not None:
            return _SessionRow(row[0], bool(row[1]))
        if isinstance(session, str):
            return None
        begun = new_session(SessionOptions(session.name), session.model, self._clock())
        # Beyond the limit another one goes.
        self._unpruned = _TURNS_BETWEEN_PRUNINGS
        return _SessionRow(_insert(connection, caller, begun, session.chat), track_tree=False)

    def node(self, session: str, number: int) -> Node | None:
        node = next(self.nodes(session, after=number - 1), None)
        return node if node is not None and node.id == number else None

    def nodes(self, session: str, *, after: int = 0) -> Iterator[Node]:
        """The nodes of a session, oldest first, one at a time; those with greater ids than `after`."""
        while True:
            with self.database.reader() as connection:
                row = connection.execute(
                    "SELECT nodes.id, parent, session, head, texts, info FROM nodes "
                    "JOIN sessions ON sessions.id = session WHERE uuid = ? AND nodes.id > ? ORDER BY nodes.id LIMIT 1",
                    (session, after),
                ).fetchone()
                if row is None:
                    return
                after = row[0]
                node = _read_node(connection, row)
            yield node


class _SessionRow(NamedTuple):
    id: int
    track_tree: bool


class _Chain(NamedTuple):
    """What was computed for a turn, without its texts: the next turn of the session mostly begins with the same."""

    # Hashes of the messages after the prompts, and the key of the chain up to each.
    hashes: "array[int]"
    keys: Sequence[bytes]
    prompts: "array[int]"
    tools: Sequence[Json]
    # The digests of the prompts and the tools, joined.
    texts: bytes

    @classmethod
    def of(cls, turn: RecordedTurn, known: "_Chain | None") -> "_Chain":
        prompts, messages = _divide(turn.messages)
        hashes, prompt_hashes = _hash(messages), _hash(prompts)
        keys: list[bytes] = []
        if known is not None:
            keys += known.keys[: _common(known.hashes, hashes)]
        for message in messages[len(keys) :]:
            keys.append(_next_key(keys, message))
        if known is not None and known.prompts == prompt_hashes and known.tools == turn.tools:
            return cls(hashes, keys, known.prompts, known.tools, known.texts)
        texts = b"".join(map(_digest, _head_texts(prompts, turn.tools)))
        return cls(hashes, keys, prompt_hashes, turn.tools, texts)


class _TurnWriter:
    """Adds one turn to the trie of its session; used within a transaction."""

    def __init__(self, connection: sqlite3.Connection, session: _SessionRow, turn: RecordedTurn, chain: _Chain) -> None:
        self._connection = connection
        self._session = session
        self._turn = turn
        self._prompts, messages = _divide(turn.messages)
        self._chain = chain
        # The last message is the answer.
        self._messages = (*messages, turn.answer)
        self._keys = [*chain.keys, _next_key(chain.keys, turn.answer)]
        # What was added.
        self.is_new_node = False
        self.size = 0

    def write(self) -> None:
        place = self._continue()
        self.is_new_node = place is None
        self._write_links(*(place or self._begin_node()))

    def _continue(self) -> tuple[int, int] | None:
        """Move the head of the node that this turn continues. Returns the node and the number of known messages."""
        found = self._last_on_path("nodes", "head", "id, texts, info", self._keys)
        if found is None or (self._session.track_tree and found.key != self._keys[-1]):
            return None
        number, texts, info = found.values
        if texts != self._chain.texts:
            self._write_texts()
        self._connection.execute(
            "UPDATE nodes SET head = ?, texts = ?, info = ? WHERE id = ?",
            (self._keys[-1], self._chain.texts, json_text(merge_info(json.loads(info), self._turn.info)), number),
        )
        return number, found.depth

    def _begin_node(self) -> tuple[int, int]:
        """Begin a node below the one that the turn has most in common with."""
        found, before = None, self._keys[:-1]
        if self._session.track_tree:
            found = self._last_on_path("nodes", "head", "id", before)
        found = found or self._last_on_path("links", "key", "node", before)
        self._write_texts()
        statement = "INSERT INTO nodes (session, parent, head, texts, info) VALUES (?,?,?,?,?)"
        parent, depth = (found.values[0], found.depth) if found is not None else (None, 0)
        values = (self._session.id, parent, self._keys[-1], self._chain.texts, json_text(self._turn.info))
        return _last_id(self._connection.execute(statement, values)), depth

    def _last_on_path(self, table: str, column: str, values: str, path: Sequence[bytes]) -> "_Found | None":
        """The row of the last key on a path that a table has."""
        marks = ",".join("?" * _KEYS_PER_QUERY)
        query = f"SELECT {column}, {values} FROM {table} WHERE session = ? AND {column} IN ({marks})"
        for end in range(len(path), 0, -_KEYS_PER_QUERY):
            keys = path[max(0, end - _KEYS_PER_QUERY) : end]
            filler = [None] * (_KEYS_PER_QUERY - len(keys))
            found = {row[0]: row[1:] for row in self._connection.execute(query, (self._session.id, *keys, *filler))}
            if found:
                depth = max(at for at, key in enumerate(keys, end - len(keys) + 1) if key in found)
                return _Found(path[depth - 1], depth, found[path[depth - 1]])
        return None

    def _write_links(self, node: int, begin: int) -> None:
        session, keys, logprobs = self._session.id, self._keys, self._turn.logprobs
        # Those before were there, or the next ones would not be.
        for at in range(begin, len(keys) - 1):
            self._connection.execute(
                "INSERT OR IGNORE INTO links VALUES (?,?,?,?,?,0,NULL)",
                (session, keys[at], keys[at - 1] if at else _ROOT, self._write_message(at), node),
            )
            self.size += _BYTES_PER_LINK
        self._connection.execute(
            "INSERT INTO links VALUES (?,?,?,?,?,1,?) ON CONFLICT DO UPDATE SET "
            "is_own = 1, message = excluded.message, logprobs = excluded.logprobs",
            (
                session, keys[-1], keys[-2] if len(keys) > 1 else _ROOT, self._write_message(-1), node,
                _pack(encode_json(logprobs)) if logprobs else None,
            ),
        )  # fmt: skip
        self.size += _BYTES_PER_LINK

    def _write_message(self, at: int) -> bytes:
        return self._write_text(encode_json(message_json(self._messages[at])))

    def _write_texts(self) -> None:
        for text in _head_texts(self._prompts, self._turn.tools):
            self._write_text(text)

    def _write_text(self, text: bytes) -> bytes:
        """Write a message, a prompt or a list of tools, unless the session has it. Returns its digest."""
        digest = _digest(text)
        body = _pack(text)
        statement = "INSERT OR IGNORE INTO messages (session, digest, body) VALUES (?,?,?)"
        if self._connection.execute(statement, (self._session.id, digest, body)).rowcount:
            self.size += len(body)
        return digest


class _Found(NamedTuple):
    """A row whose key is on the path of a turn, and how many messages it stands for."""

    key: bytes
    depth: int
    values: Sequence[Any]


def _divide(messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    """The prompts before the first other message, and the rest."""
    count = count_prompts(messages)
    return messages[:count], messages[count:]


def _hash(messages: Sequence[Message]) -> "array[int]":
    """A hash of each whole message, for this process: 64 bits, so that an equal one is the same message."""
    # Parts have no hash. Their digest takes part in its place.
    values = (
        message if isinstance(message.content, str) else (digest_message(message).digest, *message[2:])
        for message in messages
    )
    return array("q", map(hash, values))


def _common(known: "array[int]", hashes: "array[int]") -> int:
    """How many messages two chats have in common."""
    count = min(len(known), len(hashes))
    if known[:count] == hashes[:count]:
        return count
    return next(at for at in range(count) if known[at] != hashes[at])


def _next_key(keys: Sequence[bytes], message: Message) -> bytes:
    """The key of a chain with one more message."""
    return _digest((keys[-1] if keys else _ROOT) + digest_message(message).digest)


def _head_texts(prompts: Sequence[Message], tools: Sequence[Json]) -> list[bytes]:
    return [encode_json(text) for text in (*map(message_json, prompts), {"tools": list(tools)})]


def _insert(connection: sqlite3.Connection, caller: bytes, session: Session, chat: bytes | None = None) -> int:
    options, created_at = session.options, session.created_at
    expires_at = None if options.ttl_seconds is None else created_at + options.ttl_seconds
    return _last_id(
        connection.execute(
            # Two processes may hold one session of a caller in memory until an upstream accepts its key.
            "INSERT OR IGNORE INTO sessions (uuid, caller, name, tags, track_tree, reads_written_calls, "
            "chat, model, created_at, used_at, expires_at, requests, nodes, tokens, cost, bytes) "
            "VALUES (?,?,?,?,?,?,?,?,?,?,?,0,0,0,NULL,0)",
            (
                session.uuid, caller, options.name, json.dumps(options.tags), options.track_tree,
                options.reads_written_calls, chat, session.model, created_at, session.used_at, expires_at,
            ),
        )
    )  # fmt: skip


def _session(uuid: str, name: str, tags: str, *rest: Any) -> Session:
    track_tree, reads_written_calls, model, created_at, used_at, requests, nodes, tokens, cost = rest
    is_read = bool(reads_written_calls)
    options = SessionOptions(name, tuple(json.loads(tags)), bool(track_tree), reads_written_calls=is_read)
    return Session(uuid, options, model, created_at, used_at, requests, nodes, tokens, cost)


_CHAIN = """
WITH RECURSIVE chain (parent, message, is_own, logprobs, depth) AS (
    SELECT parent, message, is_own, logprobs, 0 FROM links WHERE session = ?1 AND key = ?2
    UNION ALL
    SELECT links.parent, links.message, links.is_own, links.logprobs, depth + 1
    FROM chain JOIN links ON links.session = ?1 AND links.key = chain.parent
) SELECT body, is_own, logprobs FROM chain JOIN messages ON session = ?1 AND digest = message ORDER BY depth DESC
"""


def _read_node(connection: sqlite3.Connection, row: Sequence[Any]) -> Node:
    number, parent, session, head, texts, info = row
    digests = [texts[at : at + _DIGEST_BYTES] for at in range(0, len(texts), _DIGEST_BYTES)]
    query = "SELECT body FROM messages WHERE session = ? AND digest = ?"
    *prompts, tools = [_unpack(*connection.execute(query, (session, digest)).fetchone()) for digest in digests]
    links = connection.execute(_CHAIN, (session, head)).fetchall()
    first = len(prompts)
    return Node(
        number,
        parent,
        (*prompts, *[_unpack(body) for body, _, _ in links]),
        tuple(tools["tools"]),
        frozenset(at for at, (_, is_own, _) in enumerate(links, first) if is_own),
        json.loads(info),
        {at: _unpack(packed) for at, (_, _, packed) in enumerate(links, first) if packed is not None},
    )


def _last_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _digest(data: bytes) -> bytes:
    return sha256(data).digest()[:_DIGEST_BYTES]


def _pack(text: bytes) -> bytes:
    """The text packed; a short one as it is, which costs less and is hardly longer."""
    return compress(text) if len(text) > _MOST_BYTES_UNPACKED else text


def _unpack(packed: bytes) -> Any:
    # JSON begins with a bracket, what zlib makes never does.
    return json.loads(packed if packed[:1] in b"{[" else zlib.decompress(packed))
