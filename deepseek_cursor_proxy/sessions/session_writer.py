"""SessionWriter: adds turns to the trie of one session, inside a transaction.

A turn that continues the last one of its session, as nearly all do, adds its new messages and moves the node's head.
Any other turn is looked up link by link. Nodes and the row of the session are written once for all turns.
"""

import sqlite3
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from deepseek_cursor_proxy.conversation import Message, is_blank
from deepseek_cursor_proxy.reasoning.message_digest import digest_message
from deepseek_cursor_proxy.sessions.rows import Link, Rows, delete_unused, last_id, pack, unpack
from deepseek_cursor_proxy.sessions.trajectory import Json, RecordedTurn, merge_info, message_json, reasoning_of

# Links before the first message have this parent.
_ROOT = 0


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
        """Whether these messages are those of the turn, its answer, and more."""
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
    return array("q", [hash(each if isinstance(each.content, str) else _without_parts(each)) for each in messages])


def _without_parts(message: Message) -> tuple[object, ...]:
    # Parts have no hash. Their digest takes part in its place.
    return (digest_message(message).digest, *message[2:])


class _Place(NamedTuple):
    """Where a turn belongs: the links of its messages that are there, that of its answer, its node, and its info."""

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
        self, connection: sqlite3.Connection, rows: Rows, session: SessionRow, last: WrittenTurn | None
    ) -> None:
        """`rows` are shared by all that write in this transaction."""
        self.session = session
        self.last = last
        self._connection = connection
        self._rows = rows
        self._turns: list[RecordedTurn] = []
        # Of nodes that changed, what is not written yet.
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
        """Write what is written once for all turns."""
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
        path = self._find_path(messages, hashes)
        answer = self._find(path, turn.answer) if len(path) == len(messages) else None
        return _Place(path, answer, *self._place(path, answer, turn.info))

    def _find_path(self, messages: Sequence[Message], hashes: "array[int]") -> list[int]:
        """The links of the messages that are there."""
        path = list(self.last.links[: self.last.common(hashes)]) if self.last is not None else []
        while len(path) < len(messages) and (link := self._find(path, messages[len(path)])) is not None:
            path.append(link)
        return path

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
        # The answer as it came is true; of what a client sends, the first with a reasoning is.
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

    def _place(self, path: Sequence[int], answer: int | None, info: Json) -> tuple[int, Mapping[str, Any]]:
        """The node of a turn that has this path in common with earlier ones, and what is known about it.

        It is one that the turn continues, or a new one.
        """
        node = self._node_with_head((answer,)) if answer is not None else None
        if node is None:
            node = self._node_with_head(path)
            if node is None or self.session.track_tree:
                return self._begin_node(node if node is not None else self._node_of(path)), info
        return node, merge_info(self._info(node), info)

    def _info(self, node: int) -> Mapping[str, Any]:
        if node in self._infos:
            return self._infos[node]
        if self.last is not None and self.last.node == node:
            return self.last.info
        (packed,) = self._connection.execute("SELECT info FROM nodes WHERE id = ?", (node,)).fetchone()
        found: Mapping[str, Any] = unpack(packed)
        return found

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

    def _node_of(self, path: Sequence[int]) -> int | None:
        """The node that the end of a path was added for."""
        if not path:
            return None
        self._rows.write()
        return int(self._connection.execute("SELECT node FROM links WHERE id = ?", (path[-1],)).fetchone()[0])

    def _begin_node(self, parent: int | None) -> int:
        return last_id(
            self._connection.execute(
                "INSERT INTO nodes (session, parent, head, info) VALUES (?,?,0,x'')", (self.session.id, parent)
            )
        )

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


# Few enough for one statement.
_LINKS_PER_QUERY = 200


def storable(text: str) -> str:
    """The text with `?` for lone surrogates, which are legal in JSON and have no UTF-8 form."""
    return text.encode(errors="replace").decode()


def _leading_prompts(messages: Sequence[Message]) -> Sequence[Message]:
    count = next((at for at, each in enumerate(messages) if each.role != "system"), len(messages))
    return messages[:count]
