"""What is remembered of a chat from one request to the next: how its tools went out, and what it looked like.

A chat is a digest (see identity.conversation). Several lines may run through it, because sub-agents and other helpers
of a client begin with the same words; each has its own order of tools.

The order of tools is worth money and survives a restart: it is a row in the file, written only when it changed. What
a request looked like serves a diagnosis alone and would be a write with every request, so it is kept in memory, within
bounds: after a restart one request per chat goes undiagnosed. Like all of the store, this never fails an answer.
"""

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from deepseek_cursor_proxy.chats.divergence import RequestOutline, nearest
from deepseek_cursor_proxy.storage.database import Database
from deepseek_cursor_proxy.storage.faults import FaultGuard
from deepseek_cursor_proxy.storage.pruner import Pruner

_log = logging.getLogger(__name__)

# More sub-agents than this with one opening, and the longest silent is taken for a new one.
_LINES_PER_CHAT = 16
# DeepSeek takes 128; the order of more than this is not worth its place in the file.
_MOST_TOOLS = 1000
# Messages and tools, of all chats together; some 200 bytes each.
_MESSAGES_IN_MEMORY = 100_000
# A use is worth a write only when the row would otherwise look a day older than it is.
_USE_RESOLUTION_SECONDS = 24 * 3600
# Orders change rarely, so a few writes are many chats.
_WRITES_BETWEEN_PRUNINGS = 64
_ROWS_PER_STEP = 200


class Line(NamedTuple):
    """One agent's way through a chat: the names of its tools as last accepted, and its last request if remembered."""

    order: tuple[str, ...] = ()
    last: RequestOutline | None = None
    written_at: float = float("-inf")


class ConversationStore:
    """Called by handler threads. Its lock protects `_chats` and `_size`; the database has one for itself."""

    def __init__(
        self,
        database: Database,
        *,
        max_age_seconds: float = 30 * 24 * 3600,
        max_rows: int = 10_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._max_age = max_age_seconds
        self._max_rows = max_rows
        self._clock = clock
        self._lock = threading.Lock()
        # Lines newest first, chats by last use.
        self._chats: OrderedDict[bytes, tuple[Line, ...]] = OrderedDict()
        self._size = 0
        self._faults = FaultGuard(_log, "conversation store")
        self._pruner = Pruner(lambda: self.prune(), every=_WRITES_BETWEEN_PRUNINGS, name="conversation-store-prune")

    def find(self, conversation: bytes, now: RequestOutline) -> Line | None:
        """The line that a request belongs to; None when it begins one."""
        lines = self._lines(conversation)
        last = nearest([line.last for line in lines if line.last is not None], now)
        if last is not None:
            return next(line for line in lines if line.last is last)
        # After a restart the looks are gone: the line that has most of these tools and fewest others, else the newest.
        bare = [line for line in lines if line.last is None]
        return max(bare, key=lambda line: -len(now.tools.keys() ^ set(line.order)), default=None)

    def record(self, conversation: bytes, found: Line | None, now: RequestOutline, order: Sequence[str]) -> None:
        """DeepSeek accepted a request: from here its line goes on. `found` is what `find` said about it."""
        before = found if found is not None and _goes_on(found, now) else None
        # A request without tools says nothing about their order.
        line = Line(tuple(order) or (found.order if found else ()), now)
        written = self._written(conversation, before, line)
        with self._lock:
            others = [each for each in self._chats.get(conversation, ()) if each is not before]
            self._replace(conversation, (written, *others)[:_LINES_PER_CHAT])

    # In memory …

    def _lines(self, conversation: bytes) -> tuple[Line, ...]:
        with self._lock:
            lines = self._chats.get(conversation)
        if lines is None and (lines := self._read(conversation)):
            with self._lock:
                # Whoever was faster knows more by now.
                lines = self._chats.get(conversation) or lines
                self._replace(conversation, lines)
        return lines

    def _replace(self, conversation: bytes, lines: tuple[Line, ...]) -> None:
        self._size += _size(lines) - _size(self._chats.pop(conversation, ()))
        self._chats[conversation] = lines
        while self._size > _MESSAGES_IN_MEMORY and len(self._chats) > 1:
            _, forgotten = self._chats.popitem(last=False)
            self._size -= _size(forgotten)

    # On disk …

    def _read(self, conversation: bytes) -> tuple[Line, ...]:
        with self._faults.guard("look up"), self._database.reader() as connection:
            rows = connection.execute(
                "SELECT names, used_at FROM tool_orders WHERE conversation = ? ORDER BY used_at DESC, id DESC LIMIT ?",
                (conversation, _LINES_PER_CHAT),
            )
            return tuple(Line(tuple(json.loads(names)), None, used_at) for names, used_at in rows)
        return ()

    def _written(self, conversation: bytes, before: Line | None, line: Line) -> Line:
        """The line with the time of its row, which is written if its order is news or has long been none."""
        if not line.order or len(line.order) > _MOST_TOOLS:
            return line
        now = self._clock()
        with self._lock:
            others = [each for each in self._chats.get(conversation, ()) if each is not before]
        known = [each.written_at for each in (before, *others) if each is not None and each.order == line.order]
        line = Line(line.order, line.last, max(known, default=float("-inf")))
        if now - line.written_at < _USE_RESOLUTION_SECONDS:
            return line
        names = json.dumps(line.order)
        # The line's own row, unless another line still goes by it.
        gone = json.dumps(before.order) if before and before.order not in [each.order for each in others] else names
        with self._faults.guard("record"), self._database.transaction() as connection:
            connection.execute(
                "DELETE FROM tool_orders WHERE conversation = ? AND names IN (?, ?)", (conversation, names, gone)
            )
            connection.execute(
                "INSERT INTO tool_orders (conversation, names, used_at) VALUES (?, ?, ?)", (conversation, names, now)
            )
            self._pruner.count_writes()
            return Line(line.order, line.last, now)
        return line

    # Forgetting …

    def prune(self) -> int:
        """Forget the rows that are too old or too many; how many. What is lost costs a chat one cache miss."""
        forgotten = 0
        with self._faults.guard("prune"):
            while not self._pruner.is_closed and (step := self._forget_some()):
                forgotten += step
        return forgotten

    def _forget_some(self) -> int:
        with self._database.transaction() as connection:
            rows = connection.execute("SELECT count(*) FROM tool_orders").fetchone()[0]
            excess = min(max(0, rows - self._max_rows), _ROWS_PER_STEP)
            return connection.execute(
                "DELETE FROM tool_orders WHERE id IN (SELECT id FROM tool_orders ORDER BY used_at LIMIT ?) OR id IN "
                "(SELECT id FROM tool_orders WHERE used_at < ? ORDER BY used_at LIMIT ?)",
                (excess, self._clock() - self._max_age, _ROWS_PER_STEP),
            ).rowcount

    def close(self) -> None:
        """Idempotent; the database is its owner's to close."""
        self._pruner.close()


def _goes_on(found: Line, now: RequestOutline) -> bool:
    """Whether a request replaces the line it was found to belong to; else it is a branch of it."""
    return set(found.order) == now.tools.keys() if found.last is None else now.replaces(found.last)


def _size(lines: Sequence[Line]) -> int:
    return sum(1 + (len(line.last.marks) + len(line.last.tools) if line.last is not None else 0) for line in lines)
