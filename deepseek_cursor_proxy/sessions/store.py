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
import zlib
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from deepseek_cursor_proxy.conversation import Message, is_blank
from deepseek_cursor_proxy.reasoning.message_digest import digest_message
from deepseek_cursor_proxy.sessions.schema import SESSIONS
from deepseek_cursor_proxy.sessions.trajectory import (
    Json,
    Node,
    RecordedTurn,
    Session,
    SessionOptions,
    merge_info,
    message_json,
    reasoning_of,
)
from deepseek_cursor_proxy.storage.engine.database import Database

_log = logging.getLogger(__name__)

# Links before the first message have this parent.
_ROOT = 0
# The row of a link and its entries in three indexes.
_BYTES_PER_LINK = 120
# Sessions that are recorded at the same time, as a rule a handful.
_MOST_PATHS = 64
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
        # By session, the last turn; used by the recorder's thread alone.
        self._paths: dict[str, _KnownPath] = {}
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
                    session.uuid, caller, options.name, json.dumps(options.tags), options.track_tree,
                    options.tool_parser, chat, model, now, now, expires_at,
                ),
            )  # fmt: skip
        return session

    def of_chat(self, caller: bytes, chat: bytes, model: str) -> str:
        """The session of a chat, begun if there is none."""
        with self.database.reader() as connection:
            row = connection.execute(
                "SELECT uuid FROM sessions WHERE caller = ? AND chat = ?", (caller, chat)
            ).fetchone()
        return str(row[0]) if row is not None else self.create(caller, SessionOptions(), model, chat).uuid

    def get(self, caller: bytes, session: str) -> Session | None:
        with self.database.reader() as connection:
            row = connection.execute(
                f"SELECT {_COLUMNS}, (SELECT count(*) FROM nodes WHERE session = sessions.id) FROM sessions "
                "WHERE caller = ? AND uuid = ? AND (expires_at IS NULL OR expires_at > ?)",
                (caller, session, self._clock()),
            ).fetchone()
        return None if row is None else _session(row)

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
        self._paths.pop(session, None)
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
            writer = _TurnWriter(connection, row[0])
            path = writer.add(turn, self._paths.get(session, _KnownPath()), track_tree=bool(row[1]))
            connection.execute(
                "UPDATE sessions SET used_at = ?, requests = requests + 1, tokens = tokens + ?, model = ?, "
                "cost = CASE WHEN ? IS NULL THEN cost ELSE coalesce(cost, 0) + ? END, bytes = bytes + ? WHERE id = ?",
                (self._clock(), turn.tokens, turn.model, turn.cost, turn.cost, writer.bytes, row[0]),
            )
        self._remember(session, path)
        return True

    def _remember(self, session: str, path: "_KnownPath") -> None:
        self._paths.pop(session, None)
        while len(self._paths) >= _MOST_PATHS:
            self._paths.pop(next(iter(self._paths)))
        self._paths[session] = path

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


def _delete_unused(connection: sqlite3.Connection) -> None:
    """Delete the messages that no session has any more."""
    connection.execute(
        "DELETE FROM messages WHERE NOT EXISTS (SELECT 1 FROM links WHERE message = messages.id) "
        "AND NOT EXISTS (SELECT 1 FROM head_texts WHERE message = messages.id)"
    )


class _TurnWriter:
    """Writes one turn, inside a transaction; `bytes` counts what it adds."""

    def __init__(self, connection: sqlite3.Connection, session: int) -> None:
        self._connection = connection
        self._session = session
        self.bytes = 0

    def add(self, turn: RecordedTurn, known: "_KnownPath", *, track_tree: bool) -> "_KnownPath":
        """Add a turn; the path of its messages, which the next turn of the chat begins with."""
        prompts = _leading_prompts(turn.messages)
        messages = turn.messages[len(prompts) :]
        path = known.links[: known.common(messages)]
        while len(path) < len(messages) and (link := self._find(path, messages[len(path)])) is not None:
            path.append(link)
        answer = self._find(path, turn.answer) if len(path) == len(messages) else None
        node = self._place(path, answer, turn.info, track_tree=track_tree)
        for message in messages[len(path) :]:
            path.append(self._insert(path, message, node))
        head = answer if answer is not None else self._insert(path, turn.answer, node)
        self._connection.execute(
            "UPDATE links SET is_own = 1, message = ?, logprobs = ? WHERE id = ?",
            (self._message(message_json(turn.answer)), _pack(turn.logprobs) if turn.logprobs else None, head),
        )
        self._finish(node, head, [*map(message_json, prompts), {"tools": list(turn.tools)}])
        return _KnownPath(tuple(messages), path)

    def _find(self, path: Sequence[int], message: Message) -> int | None:
        """The link of a message after a path; it gets the reasoning if it had none."""
        row = self._connection.execute(
            "SELECT links.id, is_own, body FROM links JOIN messages ON messages.id = message "
            "WHERE session = ? AND parent = ? AND identity = ?",
            (self._session, path[-1] if path else _ROOT, digest_message(message).digest),
        ).fetchone()
        if row is None:
            return None
        link, is_own, body = row
        # The answer as it came is true; of what a client sends, the first with a reasoning is.
        if not is_own and not is_blank(message.reasoning) and not reasoning_of(_unpack(body)):
            value = self._message(message_json(message))
            self._connection.execute("UPDATE links SET message = ? WHERE id = ?", (value, link))
        return int(link)

    def _insert(self, path: Sequence[int], message: Message, node: int) -> int:
        parent, identity = path[-1] if path else _ROOT, digest_message(message).digest
        cursor = self._connection.execute(
            "INSERT INTO links (session, parent, identity, message, is_own, node) VALUES (?,?,?,?,0,?)",
            (self._session, parent, identity, self._message(message_json(message)), node),
        )
        self.bytes += _BYTES_PER_LINK
        return _last_id(cursor)

    def _message(self, body: Json) -> int:
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        digest = sha256(text).digest()
        row = self._connection.execute("SELECT id FROM messages WHERE digest = ?", (digest,)).fetchone()
        if row is not None:
            return int(row[0])
        packed = zlib.compress(text)
        self.bytes += len(packed)
        return _last_id(self._connection.execute("INSERT INTO messages (digest, body) VALUES (?, ?)", (digest, packed)))

    def _place(self, path: Sequence[int], answer: int | None, info: Json, *, track_tree: bool) -> int:
        """The node of a turn that has this path in common with earlier ones: one that it continues, or a new one."""
        on_path = {link: at for at, link in enumerate(path)}
        heads = dict(self._connection.execute("SELECT head, id FROM nodes WHERE session = ?", (self._session,)))
        if answer in heads:
            # The same answer to the same history.
            node = heads[answer]
        else:
            last = max((head for head in heads if head in on_path), key=on_path.__getitem__, default=None)
            if last is None or track_tree:
                parent = heads[last] if last is not None else self._node_of(path)
                return _last_id(
                    self._connection.execute(
                        "INSERT INTO nodes (session, parent, head, info) VALUES (?,?,0,?)",
                        (self._session, parent, _pack(info)),
                    )
                )
            node = heads[last]
        (before,) = self._connection.execute("SELECT info FROM nodes WHERE id = ?", (node,)).fetchone()
        merged = _pack(merge_info(_unpack(before), info))
        self._connection.execute("UPDATE nodes SET info = ? WHERE id = ?", (merged, node))
        return int(node)

    def _node_of(self, path: Sequence[int]) -> int | None:
        """The node that the end of a path was added for."""
        if not path:
            return None
        return int(self._connection.execute("SELECT node FROM links WHERE id = ?", (path[-1],)).fetchone()[0])

    def _finish(self, node: int, head: int, texts: Sequence[Json]) -> None:
        self._connection.execute("UPDATE nodes SET head = ? WHERE id = ?", (head, node))
        self._connection.execute("DELETE FROM head_texts WHERE node = ?", (node,))
        rows = [(node, position, self._message(text)) for position, text in enumerate(texts)]
        self._connection.executemany("INSERT INTO head_texts (node, position, message) VALUES (?,?,?)", rows)


class _KnownPath(NamedTuple):
    """The messages of the last turn of a chat, and their links: the next turn begins with the same objects."""

    messages: tuple[Message, ...] = ()
    links: list[int] = []  # noqa: RUF012 (never changed: `common` says how much of it is copied)

    def common(self, messages: Sequence[Message]) -> int:
        pairs = enumerate(zip(self.messages, messages, strict=False))
        return next((at for at, (one, other) in pairs if one is not other), min(len(self.messages), len(messages)))


def _last_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _leading_prompts(messages: Sequence[Message]) -> Sequence[Message]:
    count = next((at for at, each in enumerate(messages) if each.role != "system"), len(messages))
    return messages[:count]


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
    *prompts, tools = [_unpack(body) for (body,) in texts]
    links = connection.execute(_CHAIN, (row[1],)).fetchall()
    first = len(prompts)
    return Node(
        number,
        row[0],
        (*prompts, *[_unpack(body) for body, _, _ in links]),
        tuple(tools["tools"]),
        frozenset(at for at, (_, is_own, _) in enumerate(links, first) if is_own),
        _unpack(row[2]),
        {at: _unpack(packed) for at, (_, _, packed) in enumerate(links, first) if packed is not None},
    )


def _pack(value: Any) -> bytes:
    return zlib.compress(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))


def _unpack(packed: bytes) -> Any:
    return json.loads(zlib.decompress(packed).decode("utf-8", "surrogatepass"))
