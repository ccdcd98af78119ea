"""SessionStore: sessions and their trajectories, in a file of their own.

Every message is stored once, by digest; a chat is a chain of links, so a chat of 200 turns costs its own size once. A
request that continues a node moves the node's head; one that parts from it begins a new node, whose parent is the node
it has most in common with. Where it belongs is decided by the digests that `reasoning` identifies messages by, which
ignore reasoning, and not by text. Deleting a session removes its bytes from the file.

Callers see their own sessions alone: every method that takes a uuid takes the caller's namespace too.
"""

import json
import logging
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from deepseek_cursor_proxy.sessions.schema import SESSIONS
from deepseek_cursor_proxy.sessions.trajectory import Node, RecordedTurn, Session, SessionOptions
from deepseek_cursor_proxy.sessions.turn_writer import TurnWriter, WrittenTurn, unpack
from deepseek_cursor_proxy.storage.engine.database import Database

_log = logging.getLogger(__name__)

# Sessions that are recorded at the same time, as a rule a handful.
_MOST_SESSIONS_KNOWN = 64
_COLUMNS = "uuid, name, tags, track_tree, tool_parser, model, created_at, used_at, requests, tokens, cost"


class Limits(NamedTuple):
    """What is kept: seconds since the last use, sessions, bytes of packed messages."""

    age_seconds: float = 90 * 24 * 3600
    sessions: int = 10_000
    bytes: int = 4 * 1024**3


_LIMITS = Limits()


class SessionStore:
    """Called by handler threads and the recorder's thread; all state is in the file. Methods raise Unusable."""

    def __init__(self, path: str | Path, limits: Limits = _LIMITS, *, clock: Callable[[], float] = time.time) -> None:
        self._limits = limits
        self._clock = clock
        # By session; used by the recorder's thread, and others only take entries out.
        self._last_turns: dict[str, WrittenTurn] = {}
        self.database = Database(path, tables=SESSIONS)

    def open(self, *, may_set_aside: bool = True) -> None:
        self.database.open(may_set_aside=may_set_aside)

    def close(self) -> None:
        self.database.close()

    # Sessions …

    def create(self, caller: bytes, options: SessionOptions, model: str, chat: bytes | None = None) -> Session:
        now = self._clock()
        session = Session(str(uuid.uuid4()), options, model, now, now)
        expires_at = None if options.ttl_seconds is None else now + options.ttl_seconds
        with self.database.transaction() as connection:
            connection.execute(
                "INSERT INTO sessions (uuid, caller, name, tags, track_tree, tool_parser, chat, model, created_at, "
                "used_at, expires_at, requests, tokens, cost, bytes) VALUES (?,?,?,?,?,?,?,?,?,?,?,0,0,NULL,0)",
                (
                    session.uuid, caller, _storable(options.name), json.dumps(options.tags), options.track_tree,
                    options.tool_parser, chat, _storable(model), now, now, expires_at,
                ),
            )  # fmt: skip
        return session

    def of_chat(self, caller: bytes, chat: bytes, name: str, model: str) -> str:
        """The session of a chat, begun under this name if there is none."""
        with self.database.reader() as connection:
            row = connection.execute(
                "SELECT uuid FROM sessions WHERE caller = ? AND chat = ?", (caller, chat)
            ).fetchone()
        return str(row[0]) if row is not None else self.create(caller, SessionOptions(name), model, chat).uuid

    def get(self, caller: bytes, session: str) -> Session | None:
        with self.database.reader() as connection:
            row = connection.execute(
                f"SELECT {_COLUMNS}, (SELECT count(*) FROM nodes WHERE session = sessions.id) FROM sessions "
                "WHERE caller = ? AND uuid = ? AND (expires_at IS NULL OR expires_at > ?)",
                (caller, session, self._clock()),
            ).fetchone()
        return None if row is None else _session(row)

    def has(self, caller: bytes, session: str) -> bool:
        with self.database.reader() as connection:
            row = connection.execute(
                "SELECT 1 FROM sessions WHERE uuid = ? AND caller = ? AND (expires_at IS NULL OR expires_at > ?)",
                (session, caller, self._clock()),
            ).fetchone()
        return row is not None

    def list(self, caller: bytes | None) -> list[Session]:
        """The sessions of a caller, newest first; of all callers for None, which only the owner may ask for."""
        with self.database.reader() as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS}, (SELECT count(*) FROM nodes WHERE session = sessions.id) FROM sessions "
                "WHERE (? IS NULL OR caller = ?) AND (expires_at IS NULL OR expires_at > ?) "
                "ORDER BY created_at DESC, id DESC",
                (caller, caller, self._clock()),
            ).fetchall()
        return [_session(row) for row in rows]

    def count(self) -> int:
        with self.database.reader() as connection:
            return int(connection.execute("SELECT count(*) FROM sessions").fetchone()[0])

    def delete(self, caller: bytes, session: str) -> bool:
        """Whether there was one; none of its bytes is left in the file."""
        with self.database.transaction() as connection:
            connection.execute("PRAGMA secure_delete = ON")
            deleted = connection.execute(
                "DELETE FROM sessions WHERE caller = ? AND uuid = ?", (caller, session)
            ).rowcount
            _delete_unused(connection)
        self._last_turns.pop(session, None)
        if deleted:
            self._empty_log()
        return deleted > 0

    def prune(self) -> int:
        """Delete expired, old and surplus sessions, longest unused first; how many."""
        now = self._clock()
        with self.database.transaction() as connection:
            connection.execute("PRAGMA secure_delete = ON")
            deleted = connection.execute(
                "DELETE FROM sessions WHERE expires_at <= ? OR used_at < ?", (now, now - self._limits.age_seconds)
            ).rowcount
            deleted += connection.execute(
                "DELETE FROM sessions WHERE id IN (SELECT id FROM (SELECT id, sum(bytes) OVER newest AS total, "
                "row_number() OVER newest AS rank FROM sessions WINDOW newest AS (ORDER BY used_at DESC, id DESC)) "
                "WHERE total > ? OR rank > ?)",
                (self._limits.bytes, self._limits.sessions),
            ).rowcount
            if deleted:
                _delete_unused(connection)
        if deleted:
            self._empty_log()
        return deleted

    def _empty_log(self) -> None:
        """Copy the log into the file and cut it off: it still has the pages of deleted rows."""
        with self.database.reader() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # Turns …

    def record(self, caller: bytes, session: str, turn: RecordedTurn) -> bool:
        """Add a turn to its session; False if there is no such session any more."""
        with self.database.transaction() as connection:
            row = connection.execute(
                "SELECT id, track_tree FROM sessions WHERE caller = ? AND uuid = ?", (caller, session)
            ).fetchone()
            if row is None:
                return False
            writer = TurnWriter(connection, row[0])
            last = writer.add(turn, self._last_turns.get(session), track_tree=bool(row[1]))
            connection.execute(
                "UPDATE sessions SET used_at = ?, requests = requests + 1, tokens = tokens + ?, model = ?, "
                "cost = CASE WHEN ? IS NULL THEN cost ELSE coalesce(cost, 0) + ? END, bytes = bytes + ? WHERE id = ?",
                (self._clock(), turn.tokens, _storable(turn.model), turn.cost, turn.cost, writer.bytes, row[0]),
            )
        # After the transaction: one that failed has left nothing to go on from.
        self._remember(session, last)
        return True

    def _remember(self, session: str, last: WrittenTurn) -> None:
        self._last_turns.pop(session, None)
        while len(self._last_turns) >= _MOST_SESSIONS_KNOWN:
            self._last_turns.pop(next(iter(self._last_turns)))
        self._last_turns[session] = last

    def node(self, session: str, number: int) -> Node | None:
        """One node of a session, for the owner."""
        with self.database.reader() as connection:
            row = connection.execute(
                "SELECT 1 FROM nodes JOIN sessions ON sessions.id = session WHERE uuid = ? AND nodes.id = ?",
                (session, number),
            ).fetchone()
            return None if row is None else _read_node(connection, number)

    def node_count(self, session: str) -> int:
        with self.database.reader() as connection:
            row = connection.execute(
                "SELECT count(*) FROM nodes JOIN sessions ON sessions.id = session WHERE uuid = ?", (session,)
            ).fetchone()
        return int(row[0])

    def nodes(self, session: str, caller: bytes | None = None) -> Iterator[Node]:
        """The nodes of a session, oldest first, one at a time; None as the caller is the owner."""
        with self.database.reader() as connection:
            rows = connection.execute(
                "SELECT nodes.id FROM nodes JOIN sessions ON sessions.id = session "
                "WHERE uuid = ? AND (? IS NULL OR caller = ?) ORDER BY nodes.id",
                (session, caller, caller),
            ).fetchall()
        for (number,) in rows:
            with self.database.reader() as connection:
                node = _read_node(connection, number)
            if node is not None:
                yield node


def _session(row: tuple[Any, ...]) -> Session:
    name, tags, track_tree, tool_parser, model, created_at, used_at, requests, tokens, cost, nodes = row[1:]
    options = SessionOptions(name, tuple(json.loads(tags)), bool(track_tree), tool_parser)
    return Session(row[0], options, model, created_at, used_at, requests, nodes, tokens, cost)


def _storable(text: str) -> str:
    """The text with `?` for lone surrogates, which are legal in JSON and have no UTF-8 form."""
    return text.encode(errors="replace").decode()


def _delete_unused(connection: sqlite3.Connection) -> None:
    """Delete the messages that no session has any more."""
    connection.execute(
        "DELETE FROM messages WHERE NOT EXISTS (SELECT 1 FROM links WHERE message = messages.id) "
        "AND NOT EXISTS (SELECT 1 FROM head_texts WHERE message = messages.id)"
    )


_CHAIN = """
WITH RECURSIVE chain (id, parent, message, is_own, logprobs, depth) AS (
    SELECT id, parent, message, is_own, logprobs, 0 FROM links WHERE id = ?
    UNION ALL
    SELECT links.id, links.parent, links.message, links.is_own, links.logprobs, depth + 1
    FROM chain JOIN links ON links.id = chain.parent
) SELECT body, is_own, logprobs FROM chain JOIN messages ON messages.id = message ORDER BY depth DESC
"""


def _read_node(connection: sqlite3.Connection, number: int) -> Node | None:
    row = connection.execute("SELECT parent, head, info FROM nodes WHERE id = ?", (number,)).fetchone()
    if row is None:
        return None
    texts = connection.execute(
        "SELECT body FROM head_texts JOIN messages ON messages.id = message WHERE node = ? ORDER BY position", (number,)
    ).fetchall()
    *prompts, tools = [unpack(body) for (body,) in texts]
    links = connection.execute(_CHAIN, (row[1],)).fetchall()
    first = len(prompts)
    return Node(
        number,
        row[0],
        (*prompts, *[unpack(body) for body, _, _ in links]),
        tuple(tools["tools"]),
        frozenset(at for at, (_, is_own, _) in enumerate(links, first) if is_own),
        unpack(row[2]),
        {at: unpack(packed) for at, (_, _, packed) in enumerate(links, first) if packed is not None},
    )
