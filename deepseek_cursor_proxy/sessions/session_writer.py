"""SessionWriter: adds turns to the trie of one session, inside a transaction; Rows: its messages and links.

A turn that continues the last one of its session, as nearly all do, adds its new messages and moves the node's head.
Any other turn is looked up link by link. Nodes and the row of the session are written once for all turns. Messages are
packed, each is stored once, and many rows are written with one statement: one that adds a single row costs several
times its share of one that adds thirty, also because every statement hands Python's lock to another thread and waits
for it again.
"""

import json
import sqlite3
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from typing import Any, NamedTuple

from deepseek_cursor_proxy.compression import compress
from deepseek_cursor_proxy.conversation import Message, is_blank
from deepseek_cursor_proxy.reasoning.identity import digest_message
from deepseek_cursor_proxy.sessions.trajectory import Json, RecordedTurn, merge_info, message_json, reasoning_of

# Links before the first message have this parent.
_ROOT = 0
# Few enough for one statement.
_LINKS_PER_QUERY = 200
# The values came from JSON, so none contains itself.
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode
# A file of an earlier version may have infinite sums.
_from_json = json.JSONDecoder(parse_constant=lambda _: None).decode
# The row of a link and its entries in three indexes.
_BYTES_PER_LINK = 120
# Rows per statement, largest first. Three sizes make three statements, which SQLite keeps prepared.
_SIZES = (32, 8, 1)


class WrittenTurn(NamedTuple):
    """A turn as it was written, without its texts: what the next one of the chat begins with."""

    # Hashes of the messages after the prompts.
    messages: "array[int]"
    links: Sequence[int]
    answer: bytes
    head: int
    # Whether the head was written with this turn, so that nothing can follow it yet.
    is_new: bool
    node: int
    info: Mapping[str, Any]
    prompts: "array[int]"
    tools: Sequence[Json]

    def is_continued_by(self, messages: Sequence[Message], hashes: "array[int]") -> bool:
        """Whether these messages begin with the messages of the turn and its answer, and have more."""
        count = len(self.messages)
        if len(messages) <= count or hashes[:count] != self.messages:
            return False
        return digest_message(messages[count]).digest == self.answer

    def common(self, hashes: "array[int]") -> int:
        """How many messages a history has in common with the turn."""
        pairs = enumerate(zip(self.messages, hashes, strict=False))
        return next((at for at, (one, other) in pairs if one != other), min(len(self.messages), len(hashes)))


def _hash(messages: Sequence[Message]) -> "array[int]":
    """A hash of each whole message, for this process: 64 bits, so that an equal one is the same message."""
    # Parts have no hash. Their digest takes part in its place.
    values = (
        message if isinstance(message.content, str) else (digest_message(message).digest, *message[2:])
        for message in messages
    )
    return array("q", map(hash, values))


class _Place(NamedTuple):
    """Where a turn belongs: the stored links of its messages, the link of its answer, its node, and its info."""

    path: list[int]
    answer: int | None
    node: int
    info: Mapping[str, Any]


class SessionRow(NamedTuple):
    id: int
    uuid: str
    track_tree: bool


class SessionWriter:
    """Writes turns of one session; used within one transaction. `last` is the turn that the next one may continue."""

    def __init__(
        self, connection: sqlite3.Connection, rows: "Rows", session: SessionRow, last: WrittenTurn | None
    ) -> None:
        """`rows` are shared by all that write in this transaction."""
        self.session = session
        self.last = last
        self._connection = connection
        self._rows = rows
        self._turns: list[RecordedTurn] = []
        # Changes of nodes that are not written yet.
        self._heads: dict[int, int] = {}
        self._infos: dict[int, Mapping[str, Any]] = {}

    def add(self, turn: RecordedTurn) -> None:
        prompts = _leading_prompts(turn.messages)
        messages = turn.messages[len(prompts) :]
        hashes, prompt_hashes = _hash(messages), _hash(prompts)
        path, answer, node, info = self._continue(messages, hashes, turn) or self._look_up(messages, hashes, turn)
        for message in messages[len(path) :]:
            path.append(self._insert(path, message, node))
        head = self._write_answer(path, turn, node, answer)
        self._heads[node], self._infos[node] = head, info
        self._write_texts(node, prompts, prompt_hashes, turn.tools)
        digest = digest_message(turn.answer).digest
        self.last = WrittenTurn(hashes, path, digest, head, answer is None, node, info, prompt_hashes, turn.tools)
        self._turns.append(turn)

    def finish(self, now: float) -> None:
        """Write what all turns share."""
        self._rows.write()
        self._write_heads()
        rows = [(pack(info), node) for node, info in self._infos.items()]
        self._connection.executemany("UPDATE nodes SET info = ? WHERE id = ?", rows)
        costs = [turn.cost for turn in self._turns if turn.cost is not None]
        self._connection.execute(
            # A sum that does not fit its column would lose the turn.
            "UPDATE sessions SET used_at = ?, requests = requests + ?, tokens = min(tokens + ?, 1 << 62), model = ?, "
            "cost = CASE WHEN ? THEN coalesce(cost, 0) + ? ELSE cost END, bytes = bytes + ? WHERE id = ?",
            (
                now, len(self._turns), sum(turn.tokens for turn in self._turns), storable(self._turns[-1].model),
                bool(costs), sum(costs), self._rows.bytes[self.session.id], self.session.id,
            ),
        )  # fmt: skip

    def _write_heads(self) -> None:
        rows = [(head, node) for node, head in self._heads.items()]
        self._connection.executemany("UPDATE nodes SET head = ? WHERE id = ?", rows)
        self._heads.clear()

    def _continue(self, messages: Sequence[Message], hashes: "array[int]", turn: RecordedTurn) -> _Place | None:
        """The place of a turn that goes on where the last one ended, if no other did so before."""
        last = self.last
        if last is None or self.session.track_tree or not last.is_continued_by(messages, hashes):
            return None
        path = [*last.links, last.head]
        if not last.is_new and self._find(path, (*messages, turn.answer)[len(path)]) is not None:
            return None
        return _Place(path, None, last.node, merge_info(last.info, turn.info))

    def _look_up(self, messages: Sequence[Message], hashes: "array[int]", turn: RecordedTurn) -> _Place:
        """The place of any turn: its messages that are there, and the node that it continues, or a new one."""
        path = list(self.last.links[: self.last.common(hashes)]) if self.last is not None else []
        while len(path) < len(messages) and (link := self._find(path, messages[len(path)])) is not None:
            path.append(link)
        answer = self._find(path, turn.answer) if len(path) == len(messages) else None
        node = self._node_with_head((answer,)) if answer is not None else None
        if node is None:
            node = self._node_with_head(path)
            if node is None or self.session.track_tree:
                return _Place(path, answer, self._begin_node(path, node), turn.info)
        return _Place(path, answer, node, merge_info(self._info(node), turn.info))

    def _begin_node(self, path: Sequence[int], parent: int | None) -> int:
        """A new node below another one, by default the one that the end of the path was added for."""
        if parent is None and path:
            self._rows.write()
            (parent,) = self._connection.execute("SELECT node FROM links WHERE id = ?", (path[-1],)).fetchone()
        statement = "INSERT INTO nodes (session, parent, head, info) VALUES (?,?,0,x'')"
        return last_id(self._connection.execute(statement, (self.session.id, parent)))

    def _find(self, path: Sequence[int], message: Message) -> int | None:
        """The link of a message after a path; it gets the reasoning if it had none."""
        place = self.session.id, path[-1] if path else _ROOT, digest_message(message).digest
        if self._rows.has_link_at(place):
            self._rows.write()
        row = self._connection.execute(
            "SELECT links.id, is_own, body, message FROM links JOIN messages ON messages.id = message "
            "WHERE session = ? AND parent = ? AND identity = ?",
            place,
        ).fetchone()
        if row is None:
            return None
        link, is_own, body, before = row
        # Our own answer counts; of the messages that clients send, the first with a reasoning.
        if not is_own and not is_blank(message.reasoning) and not reasoning_of(unpack(body)):
            value = self._rows.write_message(self.session.id, message_json(message))
            self._connection.execute("UPDATE links SET message = ? WHERE id = ?", (value, link))
            delete_unused(self._connection, [before])
        return int(link)

    def _write_answer(self, path: Sequence[int], turn: RecordedTurn, node: int, link: int | None) -> int:
        logprobs = pack(turn.logprobs) if turn.logprobs else None
        if link is None:
            return self._insert(path, turn.answer, node, is_own=True, logprobs=logprobs)
        before = self._connection.execute("SELECT message FROM links WHERE id = ?", (link,)).fetchone()
        self._connection.execute(
            "UPDATE links SET is_own = 1, message = ?, logprobs = ? WHERE id = ?",
            (self._rows.write_message(self.session.id, message_json(turn.answer)), logprobs, link),
        )
        delete_unused(self._connection, before)
        return link

    def _insert(
        self, path: Sequence[int], message: Message, node: int, *, is_own: bool = False, logprobs: bytes | None = None
    ) -> int:
        parent, identity = path[-1] if path else _ROOT, digest_message(message).digest
        return self._rows.add_link(
            Link(self.session.id, parent, identity, is_own, logprobs, node), message_json(message)
        )

    def _info(self, node: int) -> Mapping[str, Any]:
        if node in self._infos:
            return self._infos[node]
        if self.last is not None and self.last.node == node:
            return self.last.info
        (packed,) = self._connection.execute("SELECT info FROM nodes WHERE id = ?", (node,)).fetchone()
        info: Mapping[str, Any] = unpack(packed)
        return info

    def _node_with_head(self, path: Sequence[int]) -> int | None:
        """The node that ends last on a path."""
        if path:
            self._write_heads()
        for begin in range(len(path), 0, -_LINKS_PER_QUERY):
            links = path[max(0, begin - _LINKS_PER_QUERY) : begin]
            row = self._connection.execute(
                f"SELECT id FROM nodes WHERE head IN ({','.join('?' * len(links))}) AND session = ? "
                "ORDER BY head DESC LIMIT 1",
                (*links, self.session.id),
            ).fetchone()
            if row is not None:
                return int(row[0])
        return None

    def _write_texts(self, node: int, prompts: Sequence[Message], hashes: "array[int]", tools: Sequence[Json]) -> None:
        """Write the prompts and the tools of a node, in place of those it had."""
        last, delete = self.last, "DELETE FROM head_texts WHERE node = ? RETURNING message"
        before: list[tuple[int]] = []
        if last is None or last.prompts != hashes or last.tools != tools:
            texts = [*map(message_json, prompts), {"tools": list(tools)}]
            rows = [
                (node, position, self._rows.write_message(self.session.id, text)) for position, text in enumerate(texts)
            ]
            before = self._connection.execute(delete, (node,)).fetchall()
            self._connection.executemany("INSERT INTO head_texts (node, position, message) VALUES (?,?,?)", rows)
        elif last.node != node:
            before = self._connection.execute(delete, (node,)).fetchall()
            self._connection.execute(
                "INSERT INTO head_texts SELECT ?, position, message FROM head_texts WHERE node = ?", (node, last.node)
            )
        if before:
            delete_unused(self._connection, [message for (message,) in before])


def storable(text: str) -> str:
    """The text with `?` for lone surrogates, which are legal in JSON and have no UTF-8 form."""
    return text.encode(errors="replace").decode()


def _leading_prompts(messages: Sequence[Message]) -> Sequence[Message]:
    count = next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))
    return messages[:count]


class Link(NamedTuple):
    session: int
    parent: int
    identity: bytes
    is_own: bool
    logprobs: bytes | None
    node: int


class Rows:
    """Writes messages at once, and links with their messages when `write` is called. Used within one transaction.

    No other transaction writes at the same time, so a link has its id before it is written.
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
        """Whether a link with this session, parent and identity was added and not yet written."""
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
        """The id of a message, a prompt or a list of tools, which is added if it is new."""
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
    """Delete the ones of these messages that no chat uses any more, and their bytes."""
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
