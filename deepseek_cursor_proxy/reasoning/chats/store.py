"""The store of chats: for each branch of a chat the order of its tools and the outline of its last request.

A chat is a digest (see identity.History.conversation). It has several branches, because sub-agents and other helpers of
a client begin with the same words; each branch has its own order of tools.

The order of tools is worth money and survives a restart: it is a row in the file, written a moment later and only when
it changed. An outline serves the diagnosis alone and would be a write with every request, so it stays in memory, within
bounds: after a restart one request per chat goes undiagnosed. A failure of the file never fails an answer.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, Unpack

from deepseek_cursor_proxy.reasoning.chats.divergence import RequestOutline, nearest
from deepseek_cursor_proxy.storage.entries import Kind, Row
from deepseek_cursor_proxy.storage.sqlite.database import Database
from deepseek_cursor_proxy.storage.sqlite.rows import ToolOrderRows
from deepseek_cursor_proxy.storage.table import Table, TableOptions

# Beyond this many sub-agents under one first question, the one idle longest counts as new.
_BRANCHES_PER_CHAT = 16
# DeepSeek takes 128; the order of more than this is not worth its place in the file.
_MOST_TOOLS = 1000
# Messages and tools, of all chats together; some 200 bytes each.
_MESSAGES_IN_MEMORY = 100_000
# A use is worth a write only when the row would otherwise look a day older than it is.
_USE_RESOLUTION_SECONDS = 24 * 3600


_NEVER = float("-inf")


class PromptTokens(NamedTuple):
    """The tokens of a prompt, how many were cached, and the upstream and model, each with a cache of its own."""

    total: int
    cached: int
    upstream: str = ""
    model: str = ""

    @property
    def share(self) -> float:
        return self.cached / self.total if self.total else 0.0


class LastPrompt:
    """The prompt of a request in its branch. Its tokens are None until the thread of the answer records them."""

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens: PromptTokens | None = None


class ChatBranch(NamedTuple):
    """One agent in a chat: the names of its tools as last accepted, and the outline of its last request if known."""

    order: tuple[str, ...] = ()
    last: RequestOutline | None = None
    written_at: float = _NEVER
    prompt: LastPrompt | None = None


class ChatStore(Table[Row]):
    """Called by workers. Its lock protects `_chats` and `_size`; the database has its own."""

    # Orders change rarely, so a few writes are many chats.
    kind = Kind("tool_orders", "conversation store", max_rows=10_000)
    rows: ToolOrderRows

    def __init__(self, database: Database, **options: Unpack[TableOptions]) -> None:
        super().__init__(database, **options)
        self._lock = threading.Lock()
        # Branches newest first, chats by last use.
        self._chats: OrderedDict[bytes, tuple[ChatBranch, ...]] = OrderedDict()
        self._size = 0

    def find(self, conversation: bytes, now: RequestOutline) -> ChatBranch | None:
        """The branch that a request belongs to; None if it begins one."""
        branches = self._branches(conversation)
        if not branches:
            return None
        last = nearest([branch.last for branch in branches if branch.last is not None], now)
        if last is not None:
            return next(branch for branch in branches if branch.last is last)
        # After a restart there are no outlines: the branch with most of these tools and fewest others, else the newest.
        bare = [branch for branch in branches if branch.last is None]
        return max(bare, key=lambda branch: -len(now.tools.keys() ^ set(branch.order)), default=None)

    def record(
        self, conversation: bytes, found: ChatBranch | None, now: RequestOutline, order: Sequence[str]
    ) -> LastPrompt:
        """Record a request that DeepSeek accepted as the last one of its branch; `found` is the result of `find`."""
        before = found if found is not None and _continues(found, now) else None
        # A request without tools says nothing about their order.
        prompt = LastPrompt()
        branch = ChatBranch(tuple(order) or (found.order if found else ()), now, _NEVER, prompt)
        branch = self._write_order(conversation, before, branch)
        with self._lock:
            others = [each for each in self._chats.get(conversation, ()) if each is not before]
            self._replace(conversation, (branch, *others)[:_BRANCHES_PER_CHAT])
        return prompt

    def _branches(self, conversation: bytes) -> tuple[ChatBranch, ...]:
        with self._lock:
            branches = self._chats.get(conversation)
        if branches is None and (branches := self._read(conversation)):
            with self._lock:
                # Another thread may have recorded a request since.
                branches = self._chats.get(conversation) or branches
                self._replace(conversation, branches)
        return branches

    def _replace(self, conversation: bytes, branches: tuple[ChatBranch, ...]) -> None:
        self._size += _size(branches) - _size(self._chats.pop(conversation, ()))
        self._chats[conversation] = branches
        while self._size > _MESSAGES_IN_MEMORY and len(self._chats) > 1:
            _, evicted = self._chats.popitem(last=False)
            self._size -= _size(evicted)

    def _read(self, conversation: bytes) -> tuple[ChatBranch, ...]:
        with self._faults.guard("look up"):
            rows = self.rows.find(conversation, _BRANCHES_PER_CHAT)
            return tuple(ChatBranch(tuple(json.loads(names)), None, used_at) for names, used_at in rows)
        return ()

    def _write_order(self, conversation: bytes, before: ChatBranch | None, branch: ChatBranch) -> ChatBranch:
        """Write the row if the order is new or its time a day old. Returns the branch with `written_at`."""
        if not branch.order or len(branch.order) > _MOST_TOOLS:
            return branch
        now = self.pruning.use_time()
        with self._lock:
            others = [each for each in self._chats.get(conversation, ()) if each is not before]
        known = [each.written_at for each in (before, *others) if each is not None and each.order == branch.order]
        branch = branch._replace(written_at=max(known, default=_NEVER))
        if abs(now - branch.written_at) < _USE_RESOLUTION_SECONDS:
            return branch
        names = json.dumps(branch.order)
        # The branch's former row, unless another branch still has that order.
        former = json.dumps(before.order) if before and before.order not in [each.order for each in others] else names
        self.write_later([Row((conversation, names), (former,), now)])
        self._pruner.count_writes()
        return branch._replace(written_at=now)


def _continues(found: ChatBranch, now: RequestOutline) -> bool:
    """True if a request replaces the last one of this branch; else it begins another branch."""
    return set(found.order) == now.tools.keys() if found.last is None else now.replaces(found.last)


def _size(branches: Sequence[ChatBranch]) -> int:
    return len(branches) + sum([len(last.messages) + len(last.tools) for _, last, *_ in branches if last is not None])
