"""SessionStore: sessions and their trajectories, in a file of their own.

    sessions    one row each; everything else belongs to one and goes with it
    messages    each message, prompt or list of tools once, by digest, packed
    links       the chats of a session as a trie: a message after its predecessor; a chat of 200 turns has 400 links
    nodes       trajectories: the link each ends with; `head_texts` names the prompt and the tools of each
    journals    up to which turn each journal is written (see `journal`)

A chat of 200 turns costs its own size once. A request that continues a node moves the node's head; one that parts from
it begins a new node, whose parent is the node it has most in common with. Where it belongs is decided by the digests
that `reasoning` identifies messages by, which ignore reasoning, and not by text. Deleting a session removes its bytes
from the file.

A caller sees its own sessions alone: `get` takes the caller's namespace. Nodes are for the owner, or for a caller whose
session was found.
"""

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from deepseek_cursor_proxy.sessions.journal import find_left
from deepseek_cursor_proxy.sessions.session_writer import (
    UNUSED,
    Rows,
    SessionRow,
    SessionWriter,
    WrittenTurn,
    delete_unused,
    last_id,
    storable,
    unpack,
)
from deepseek_cursor_proxy.sessions.trajectory import (
    Node,
    Session,
    SessionOptions,
    TurnOfSession,
    UnnamedSession,
    new_session,
)
from deepseek_cursor_proxy.storage.faults import FaultGuard, fault_of
from deepseek_cursor_proxy.storage.sqlite.database import Database
from deepseek_cursor_proxy.storage.sqlite.schema import Schema
from deepseek_cursor_proxy.storage.steady_clock import PruningClock, tolerance_for

_log = logging.getLogger(__name__)

# Sessions that are recorded at the same time, usually a handful.
_MOST_SESSIONS_KNOWN = 64
# Suffix in the column tool_parser: the client asked for the parser by name.
_BY_NAME = ", by name"
# Messages in one read: other readers wait for it.
_MOST_LOOKED_AT = 1000
# Turns of a journal in one transaction: other writers of the file wait for it.
_MOST_TOGETHER = 100


_SESSIONS = (
    "CREATE TABLE sessions (id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, caller BLOB NOT NULL, "
    "name TEXT NOT NULL, tags TEXT NOT NULL, track_tree INTEGER NOT NULL, tool_parser TEXT NOT NULL, "
    "chat BLOB, model TEXT NOT NULL, created_at REAL NOT NULL, used_at REAL NOT NULL, expires_at REAL, "
    "requests INTEGER NOT NULL, tokens INTEGER NOT NULL, cost REAL, bytes INTEGER NOT NULL) STRICT",
    "CREATE INDEX sessions_by_caller ON sessions (caller, created_at)",
    "CREATE INDEX sessions_by_use ON sessions (used_at)",
    # Sessions that the setting record = all has begun: one for each chat of a caller.
    "CREATE UNIQUE INDEX sessions_by_chat ON sessions (caller, chat) WHERE chat IS NOT NULL",
    "CREATE TABLE messages (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, body BLOB NOT NULL) STRICT",
    "CREATE TABLE links (id INTEGER PRIMARY KEY, session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE, "
    "parent INTEGER NOT NULL, identity BLOB NOT NULL, message INTEGER NOT NULL REFERENCES messages, "
    "is_own INTEGER NOT NULL, logprobs BLOB, node INTEGER NOT NULL, UNIQUE (session, parent, identity)) STRICT",
    "CREATE INDEX links_by_message ON links (message)",
    "CREATE TABLE nodes (id INTEGER PRIMARY KEY, session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE, "
    "parent INTEGER, head INTEGER NOT NULL, info BLOB NOT NULL) STRICT",
    "CREATE INDEX nodes_by_session ON nodes (session)",
    "CREATE INDEX nodes_by_head ON nodes (head)",
    "CREATE TABLE head_texts (node INTEGER NOT NULL REFERENCES nodes ON DELETE CASCADE, position INTEGER NOT NULL, "
    "message INTEGER NOT NULL REFERENCES messages, PRIMARY KEY (node, position)) STRICT, WITHOUT ROWID",
    "CREATE INDEX head_texts_by_message ON head_texts (message)",
)
_JOURNALS = ("CREATE TABLE journals (name TEXT PRIMARY KEY, number INTEGER NOT NULL) STRICT, WITHOUT ROWID",)
# "DScs".
_SCHEMA = Schema(0x44536373, 3, ";\n".join((*_SESSIONS, *_JOURNALS)))


class Limits(NamedTuple):
    """What is kept: seconds since the last use, sessions, bytes of packed messages."""

    age_seconds: float = 90 * 24 * 3600
    sessions: int = 10_000
    bytes: int = 4 * 1024**3


_LIMITS = Limits()


class SessionStore:
    """Called by workers; `record` by the recorder's, and by any that recovers. Methods raise Unusable."""

    def __init__(
        self,
        path: str | Path,
        limits: Limits = _LIMITS,
        *,
        clock: Callable[[], float] = time.time,
        pruning: PruningClock | None = None,
        on_fault: Callable[[], None] = lambda: None,
    ) -> None:
        """See Database for `on_fault`."""
        self._limits = limits
        self._clock = clock
        self._pruning = pruning or PruningClock(tolerance_for(limits.age_seconds))
        # Whether turns have begun a session since the surplus was deleted.
        self._has_begun = False
        # By session: a copy of what is in the file; used within transactions.
        self._last_turns: dict[str, WrittenTurn] = {}
        # The connection they were written by, and its PRAGMA data_version, which changes with the writes of others.
        self._file_version: tuple[sqlite3.Connection | None, int] = None, 0
        self._has_deleted_unused = False
        self._faults = FaultGuard(_log, "sessions")
        self.database = Database(path, on_fault=on_fault, tables=_SCHEMA)

    def open(self, *, may_set_aside: bool = True) -> None:
        self.database.open(may_set_aside=may_set_aside)
        with self.database.reader() as connection:
            newest = "SELECT max(used_at) FROM sessions WHERE used_at <= ?"
            self._pruning.resume(lambda until: connection.execute(newest, (until,)).fetchone()[0])

    def close(self) -> None:
        self.database.close()

    # Sessions …

    def create(self, caller: bytes, options: SessionOptions, model: str) -> Session:
        return self.insert(caller, new_session(options, model, self._clock()))

    def insert(self, caller: bytes, session: Session) -> Session:
        """Add a new session, used now. Beyond the limit the least recently used ones are deleted."""
        session = session._replace(used_at=self._pruning.use_time())
        with self.database.transaction() as connection:
            _insert(connection, caller, session)
        self._prune_surplus()
        return session

    def _prune_surplus(self) -> None:
        if self.count() > self._limits.sessions:
            self.prune()

    def get(self, caller: bytes, session: str) -> Session | None:
        return next(iter(self._select("caller = ? AND uuid = ?", caller, session)), None)

    def list(self, caller: bytes | None) -> Sequence[Session]:
        """The sessions of a caller, newest first; of all callers for None, which only the owner may ask for."""
        return self._select("(? IS NULL OR caller = ?)", caller, caller)

    def _select(self, condition: str, *values: object) -> Sequence[Session]:
        with self.database.reader() as connection:
            rows = connection.execute(
                "SELECT uuid, name, tags, track_tree, tool_parser, model, created_at, used_at, requests, tokens, cost, "
                "(SELECT count(*) FROM nodes WHERE session = sessions.id) FROM sessions "
                f"WHERE {condition} AND (expires_at IS NULL OR expires_at > ?) ORDER BY created_at DESC, id DESC",
                (*values, self._clock()),
            ).fetchall()
        return [_session(*row) for row in rows]

    def count(self) -> int:
        with self.database.reader() as connection:
            return int(connection.execute("SELECT count(*) FROM sessions").fetchone()[0])

    def delete(self, caller: bytes, session: str) -> bool:
        """Delete a session and all its bytes in the file. True if there was one."""
        with self.database.transaction() as connection:
            deleted = _delete(connection, "caller = ? AND uuid = ?", (caller, session))
            self._last_turns.pop(session, None)
        self._delete_unused()
        self.database.empty_log()
        return deleted > 0

    def contains(self, caller: bytes, session: str) -> bool:
        """Whether the file has the session, expired or not."""
        with self.database.reader() as connection:
            rows = connection.execute("SELECT 1 FROM sessions WHERE uuid = ? AND caller = ?", (session, caller))
            return rows.fetchone() is not None

    def _delete_unused(self) -> None:
        """Delete, once, the messages that earlier versions left when a chat's prompt or an answer was replaced.

        They are looked for in parts and without a transaction: all of a large file takes seconds.
        """
        last: bytes | None = b"" if not self._has_deleted_unused else None
        while last is not None:
            with self.database.reader() as connection:
                rows = connection.execute(
                    f"SELECT digest, id, {UNUSED} FROM messages WHERE digest > ? ORDER BY digest LIMIT ?",
                    (last, _MOST_LOOKED_AT),
                ).fetchall()
            if unused := [number for _, number, is_unused in rows if is_unused]:
                with self.database.transaction() as connection:
                    delete_unused(connection, unused)
            last = rows[-1][0] if rows else None
        self._has_deleted_unused = True

    def prune(self) -> int:
        """Delete expired, old and surplus sessions, least recently used first. Returns how many."""
        oldest = self._pruning.oldest_kept(0), self._pruning.oldest_kept(self._limits.age_seconds)
        with self.database.transaction() as connection:
            deleted = _delete(connection, "expires_at <= ? OR used_at < ?", oldest)
            deleted += _delete(
                connection,
                "id IN (SELECT id FROM (SELECT id, sum(bytes) OVER newest AS total, "
                "row_number() OVER newest AS rank FROM sessions "
                "WINDOW newest AS (ORDER BY used_at > ?, used_at DESC, id DESC)) WHERE total > ? OR rank > ?)",
                (self._pruning.latest_plausible(), self._limits.bytes, self._limits.sessions),
            )
        if deleted:
            self.database.empty_log()
        return deleted

    # Turns …

    def record(self, turns: Sequence[TurnOfSession], journal: str = "") -> int:
        """Add turns, except those of deleted sessions. Returns how many were new. Raises Unusable.

        A turn that cannot be recorded costs itself alone. The turns of the journal with this name count as written up
        to the highest number, and none is written twice.
        """
        try:
            with self.database.transaction() as connection:
                self._check_last_turns(connection)
                new = _select_new(connection, turns, journal)
                for writer in self._write(connection, new):
                    self._remember(writer)
                count = len(new)
        except Exception as error:
            # Some of them may not be in the file.
            self._last_turns.clear()
            if (fault := fault_of(error)) is not None:
                raise fault from None
            if len(turns) > 1:
                half = len(turns) // 2
                return self.record(turns[:half], journal) + self.record(turns[half:], journal)
            self._faults.warn("record a turn", RuntimeError(f"{type(error).__name__}: {error}"))
            return 0
        if self._has_begun:
            self._has_begun = False
            self._prune_surplus()
        return count

    def recover(self) -> int:
        """Record the turns in the journals of dead processes. Returns how many."""
        if self.database.path == ":memory:":
            return 0
        count = 0
        # Closed, because PyPy would keep the locks of a generator that a fault left unfinished.
        with closing(find_left(Path(self.database.path))) as journals:
            for left in journals:
                try:
                    turns = left.turns()
                    for begin in range(0, len(turns), _MOST_TOGETHER):
                        count += self.record(turns[begin : begin + _MOST_TOGETHER], left.name)
                    left.clear()
                except OSError as error:
                    _log.warning("sessions: the journal %s cannot be read or emptied: %s", left.name, error.strerror)
                else:
                    self.forget_journal(left.name)
        if count:
            _log.info("sessions: recovered %d turns of a killed process", count)
        return count

    def forget_journal(self, name: str) -> None:
        with self.database.transaction() as connection:
            connection.execute("DELETE FROM journals WHERE name = ?", (name,))

    def _check_last_turns(self, connection: sqlite3.Connection) -> None:
        """Forget them if another process has written, perhaps to the same sessions, or the file was opened again."""
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if (connection, version) != self._file_version:
            self._file_version = connection, version
            self._last_turns.clear()

    def _write(self, connection: sqlite3.Connection, turns: Iterable[TurnOfSession]) -> Collection[SessionWriter]:
        # A session may be named by its uuid and by its chat.
        sessions: dict[tuple[bytes, str | bytes], SessionRow | None] = {}
        writers: dict[int, SessionWriter] = {}
        rows = Rows(connection)
        for turn in turns:
            if turn.key not in sessions:
                sessions[turn.key] = self._find_or_begin(connection, turn.caller, turn.session)
            if (row := sessions[turn.key]) is None:
                continue
            if row.id not in writers:
                writers[row.id] = SessionWriter(connection, rows, row, self._last_turns.get(row.uuid))
            writers[row.id].add(turn.turn)
        for writer in writers.values():
            writer.finish(self._pruning.use_time())
        return writers.values()

    def _find_or_begin(
        self, connection: sqlite3.Connection, caller: bytes, session: str | UnnamedSession
    ) -> SessionRow | None:
        column, value = ("uuid", session) if isinstance(session, str) else ("chat", session.chat)
        row = connection.execute(
            f"SELECT id, uuid, track_tree FROM sessions WHERE caller = ? AND {column} = ?", (caller, value)
        ).fetchone()
        if row is not None:
            return SessionRow(row[0], row[1], bool(row[2]))
        if isinstance(session, str):
            return None
        begun = new_session(SessionOptions(session.name), session.model, self._clock())
        begun = begun._replace(used_at=self._pruning.use_time())
        self._has_begun = True
        return SessionRow(_insert(connection, caller, begun, session.chat), begun.uuid, track_tree=False)

    def _remember(self, writer: SessionWriter) -> None:
        self._last_turns.pop(writer.session.uuid, None)
        while len(self._last_turns) >= _MOST_SESSIONS_KNOWN:
            self._last_turns.pop(next(iter(self._last_turns)))
        if (last := writer.last) is not None:
            # Most sessions have the tools of another one, as its client does.
            tools = next((turn.tools for turn in self._last_turns.values() if turn.tools == last.tools), last.tools)
            self._last_turns[writer.session.uuid] = last._replace(tools=tools)

    def node(self, session: str, number: int) -> Node | None:
        node = next(self.nodes(session, after=number - 1), None)
        return node if node is not None and node.id == number else None

    def nodes(self, session: str, *, after: int = 0) -> Iterator[Node]:
        """The nodes of a session, oldest first, one at a time; those with greater ids than `after`."""
        while True:
            with self.database.reader() as connection:
                row = connection.execute(
                    "SELECT nodes.id, parent, head, info FROM nodes JOIN sessions ON sessions.id = session "
                    "WHERE uuid = ? AND nodes.id > ? ORDER BY nodes.id LIMIT 1",
                    (session, after),
                ).fetchone()
                if row is None:
                    return
                after = row[0]
                node = _read_node(connection, *row)
            if node is not None:
                yield node


def _select_new(
    connection: sqlite3.Connection, turns: Sequence[TurnOfSession], journal: str
) -> Sequence[TurnOfSession]:
    """The turns that are not written yet. Those with a number of the journal count as written from now on."""
    number = max((turn.number for turn in turns), default=0)
    if not number:
        return turns
    row = connection.execute("SELECT number FROM journals WHERE name = ?", (journal,)).fetchone()
    written = 0 if row is None else row[0]
    connection.execute("INSERT OR REPLACE INTO journals VALUES (?, ?)", (journal, max(number, written)))
    return [turn for turn in turns if not 0 < turn.number <= written]


def _insert(connection: sqlite3.Connection, caller: bytes, session: Session, chat: bytes | None = None) -> int:
    options, created_at = session.options, session.created_at
    expires_at = None if options.ttl_seconds is None else created_at + options.ttl_seconds
    parser = options.tool_parser + (_BY_NAME if options.reads_written_calls else "")
    return last_id(
        connection.execute(
            # Two processes may hold one session of a caller in memory until an upstream accepts its key.
            "INSERT OR IGNORE INTO sessions (uuid, caller, name, tags, track_tree, tool_parser, chat, model, "
            "created_at, used_at, expires_at, requests, tokens, cost, bytes) VALUES (?,?,?,?,?,?,?,?,?,?,?,0,0,NULL,0)",
            (
                session.uuid, caller, storable(options.name), json.dumps(options.tags), options.track_tree,
                parser, chat, storable(session.model), created_at, session.used_at, expires_at,
            ),
        )
    )  # fmt: skip


def _session(uuid: str, name: str, tags: str, track_tree: int, tool_parser: str, *rest: Any) -> Session:
    model, created_at, used_at, requests, tokens, cost, nodes = rest
    parser, by_name = tool_parser.removesuffix(_BY_NAME), tool_parser.endswith(_BY_NAME)
    options = SessionOptions(name, tuple(json.loads(tags)), bool(track_tree), parser, reads_written_calls=by_name)
    return Session(uuid, options, model, created_at, used_at, requests, nodes, tokens, cost)


def _delete(connection: sqlite3.Connection, condition: str, values: tuple[object, ...]) -> int:
    """Delete sessions, with the messages that no other session has. Returns how many."""
    sessions = connection.execute(f"SELECT id FROM sessions WHERE {condition}", values).fetchall()
    for (session,) in sessions:
        messages = connection.execute(
            "SELECT message FROM links WHERE session = ? "
            "UNION SELECT message FROM head_texts JOIN nodes ON nodes.id = node WHERE session = ?",
            (session, session),
        ).fetchall()
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("DELETE FROM sessions WHERE id = ?", (session,))
        delete_unused(connection, [message for (message,) in messages])
    return len(sessions)


_CHAIN = """
WITH RECURSIVE chain (id, parent, message, is_own, logprobs, depth) AS (
    SELECT id, parent, message, is_own, logprobs, 0 FROM links WHERE id = ?
    UNION ALL
    SELECT links.id, links.parent, links.message, links.is_own, links.logprobs, depth + 1
    FROM chain JOIN links ON links.id = chain.parent
) SELECT body, is_own, logprobs FROM chain JOIN messages ON messages.id = message ORDER BY depth DESC
"""


def _read_node(connection: sqlite3.Connection, number: int, parent: int | None, head: int, info: bytes) -> Node | None:
    texts = connection.execute(
        "SELECT body FROM head_texts JOIN messages ON messages.id = message WHERE node = ? ORDER BY position", (number,)
    ).fetchall()
    if not texts:
        # Deleted just now.
        return None
    *prompts, tools = [unpack(body) for (body,) in texts]
    links = connection.execute(_CHAIN, (head,)).fetchall()
    first = len(prompts)
    return Node(
        number,
        parent,
        (*prompts, *[unpack(body) for body, _, _ in links]),
        tuple(tools["tools"]),
        frozenset(at for at, (_, is_own, _) in enumerate(links, first) if is_own),
        unpack(info),
        {at: unpack(packed) for at, (_, _, packed) in enumerate(links, first) if packed is not None},
    )
