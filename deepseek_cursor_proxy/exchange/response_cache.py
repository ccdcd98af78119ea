"""The exact response cache: the same question of the same caller is answered as before, without a call.

    ResponseCache      the cache that all requests share
    CacheLookup        its part in one exchange: find, open_reader, store_answer, end
    PendingQuestions   identical questions at the same time: the leader's is sent, the others wait for its answer
    AnswerRecorder     records the bytes of an answer while they are read
    ReplayedResponse   plays them again in the place of an upstream response

What is kept are the bytes of the upstream's stream, and a hit reads them as it would read the upstream's. So reasoning,
calls, searches, log probabilities and usage are those of the first answer, in every API, and whatever is done with an
answer on its way to the client is done with a hit as well; only its heartbeats are left out.

A pending question ends with an answer, for all that wait, or without one, because the call failed or its client left.
Then each waiter asks again, and the first to do so leads.

Whether a request may use the cache is decided by its endpoint. An answer is kept if it came to its own end, `stop` or
`tool_calls`, and can be used by a client.
"""

import hashlib
import json
import threading
import zlib
from collections.abc import Generator, Iterator
from enum import Enum
from typing import NamedTuple

from deepseek_cursor_proxy.conversation import Heartbeat, Reply
from deepseek_cursor_proxy.deepseek.apis.chat_stream import EventReader, ParsedEvents
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.http1.lull import Lull
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.json_codec import canonical_json, object_in
from deepseek_cursor_proxy.net.wait import wait_readable
from deepseek_cursor_proxy.net.wakeup import Wakeup
from deepseek_cursor_proxy.storage.answers import CachedAnswer, CachedAnswers
from deepseek_cursor_proxy.usage.prices import Cost

# After this many failed calls the waiting requests no longer wait for each other: each gets its own error.
_MOST_FAILURES = 2
# Some fifty chunks: so few writes that a long answer takes milliseconds, so small that the first text comes at once.
_BYTES_PER_PIECE = 16 * 1024
# Of an ordinary answer about one piece, of blanks a megabyte.
_PACKED_BYTES_PER_STEP = 1024
# Chunks repeat each other: the fastest level leaves a tenth of them or less.
_FASTEST = 1
# Packed. A million tokens have less; what has more is not worth keeping.
_MOST_BYTES = 32 * 1024 * 1024


class CacheState(Enum):
    """How the cache answered a request, as the header X-Cache says it."""

    MISS = "miss"
    HIT = "hit"
    # An identical question is pending. If it fails, this one is sent after all.
    SHARED = "shared"


def cache_key(caller: bytes, url: str, body: bytes) -> bytes:
    """The digest of a question: caller, upstream and its API, body, whatever the order of keys in its objects.

    How the answer is read is no part of it: the bytes are kept as they came, and read again.
    """
    digest = hashlib.sha256()
    for part in (caller, url.encode(), canonical_json(json.loads(body)).encode()):
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return digest.digest()


class ResponseCache:
    """Called by workers; the store and the pending questions have their own locks."""

    def __init__(self, store: CachedAnswers) -> None:
        self.store = store
        self.pending = PendingQuestions()

    def close(self) -> None:
        self.store.close()


class CacheLookup:
    """The cache in one exchange. Used by the thread that runs it; must be ended."""

    def __init__(self, cache: ResponseCache, peer: Peer | None, patience: float) -> None:
        """`patience` is how many seconds the client waits in silence."""
        self._cache = cache
        self._peer = peer
        self._patience = patience
        self._key = b""
        self._role: Role | None = None
        self._recorder: AnswerRecorder | None = None
        self._failures = 0
        self.state = CacheState.MISS

    @property
    def is_waiting(self) -> bool:
        """Whether this request waits for the answer to an identical question."""
        return self._role is not None and not self._role.is_leader

    def find(self, key: bytes) -> "ReplayedResponse | None":
        """The answer for this key. None: the exchange makes the call or, while `is_waiting`, waits."""
        if self._key == key and self._role is not None and self._role.is_leader:
            # A retry.
            return None
        self.end(has_failed=True)
        self._key = key
        while True:
            if (found := self._look_up()) is not None:
                return found
            if self._failures >= _MOST_FAILURES:
                break
            self._role = self._cache.pending.join(key)
            if self._role is None:
                break
            if self._role.is_leader:
                # The last leader may have stored its answer in between.
                if (found := self._look_up()) is not None:
                    return found
                break
            if not self.wait():
                self.state = CacheState.SHARED
                return None
            if (found := self.take()) is not None:
                return found
        self.state = CacheState.MISS
        return None

    def _look_up(self) -> "ReplayedResponse | None":
        answer = self._cache.store.find(self._key)
        replayed = self._replay(answer) if answer is not None else None
        if replayed is not None:
            self._leave(answer)
        return replayed

    def _replay(self, answer: CachedAnswer) -> "ReplayedResponse | None":
        if is_damaged(answer.packed):
            return None
        self.state = CacheState.HIT
        self._cache.store.count_hit(answer)
        return ReplayedResponse(answer.packed)

    def wait(self) -> bool:
        """Wait for the identical question; False if the client's patience ends first, so that it gets a heartbeat."""
        assert self._role is not None
        return self._role.wait(self._patience, self._peer)

    def take(self) -> "ReplayedResponse | None":
        """The answer to the identical question, once it ended; None if there is none, and the exchange asks again."""
        assert self._role is not None
        question = self._role.question
        self._leave()
        self._failures += question.has_failed
        return self._replay(question.answer) if question.answer is not None else None

    def open_reader(self, reader: EventReader) -> EventReader:
        """The reader of the answer: it replays a hit, or records the response from its beginning."""
        if self.state is CacheState.HIT:
            return ReplayReader(reader)
        if self._recorder is None:
            # Only now that the upstream has accepted the call, and not again with a retry.
            self._cache.store.count_miss()
        self._recorder = AnswerRecorder(reader)
        return self._recorder

    def store_answer(self, reply: Reply, tokens: Tokens | None, cost: Cost | None) -> None:
        """Store the recorded answer, which is complete, if a client can use it, and hand it to the waiters."""
        packed = self._recorder.pack() if self._recorder is not None and _is_usable(reply) else None
        if packed is None:
            return
        answer = CachedAnswer(packed, tokens.prompt + tokens.output if tokens is not None else 0)
        if cost is not None:
            answer = answer._replace(cost=cost.amount, currency=cost.currency)
        self._cache.store.record(self._key, answer)
        self._leave(answer)

    def end(self, *, has_failed: bool = False) -> None:
        """End the lookup: the exchange is over, or asks something else. Waiters get no answer. Idempotent."""
        self._recorder = None
        self._leave(has_failed=has_failed)

    def _leave(self, answer: CachedAnswer | None = None, *, has_failed: bool = False) -> None:
        role, self._role = self._role, None
        if role is not None:
            self._cache.pending.leave(role, answer, has_failed=has_failed)


def _is_usable(reply: Reply) -> bool:
    """Whether a client can use an answer: one with text, or with calls whose arguments are objects."""
    message = reply.message()
    if reply.finish_reason == "tool_calls":
        are_whole = [bool(call.name) and object_in(call.arguments) is not None for call in message.tool_calls]
        return bool(are_whole) and all(are_whole)
    return reply.finish_reason == "stop" and isinstance(message.content, str) and bool(message.content.strip())


class PendingQuestion:
    """A question whose leader has sent it. The leader writes it; the lock of PendingQuestions protects all fields."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.waiters: set[Wakeup] = set()
        self.is_over = False
        self.answer: CachedAnswer | None = None
        # Whether it ended because the call failed, and not because the client left.
        self.has_failed = False


class Role(NamedTuple):
    """The role of one request for a pending question: the leader, which sends it, or a waiter with its wake-up."""

    question: PendingQuestion
    wakeup: Wakeup | None = None

    @property
    def is_leader(self) -> bool:
        return self.wakeup is None

    def wait(self, seconds: float, peer: Peer | None) -> bool:
        """Wait for the leader; False if the time is over first. Raises as any wait for a client does."""
        assert self.wakeup is not None
        return self.question.is_over or wait_readable(self.wakeup, seconds, peer)


class PendingQuestions:
    """Called by workers; the lock protects `_questions`, which others can join, and the fields of each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._questions: dict[bytes, PendingQuestion] = {}

    def join(self, key: bytes) -> Role | None:
        """The role of a new request for this key: the leader if there is none yet. None if no descriptors are left."""
        with self._lock:
            question = self._questions.get(key)
            if question is None:
                question = self._questions[key] = PendingQuestion(key)
                return Role(question)
            try:
                wakeup = Wakeup()
            except OSError:
                return None
            question.waiters.add(wakeup)
            return Role(question, wakeup)

    def leave(self, role: Role, answer: CachedAnswer | None = None, *, has_failed: bool = False) -> None:
        """End a role, once. When the leader leaves, the question ends, with its answer or without one."""
        question, wakeup = role
        with self._lock:
            if wakeup is not None:
                question.waiters.discard(wakeup)
            else:
                del self._questions[question.key]
                question.answer, question.has_failed, question.is_over = answer, has_failed, True
                # Under the lock: a waiter that leaves closes its wake-up.
                for waiter in question.waiters:
                    waiter.notify()
        if wakeup is not None:
            wakeup.close()


class AnswerRecorder(EventReader):
    """Reads one stream with another reader, and keeps its bytes. Used by one thread."""

    def __init__(self, reader: EventReader) -> None:
        super().__init__()
        self._reader = reader
        self._packer = zlib.compressobj(_FASTEST)
        self._packed: list[bytes] = []
        self._size = 0

    def read(self, data: bytes) -> ParsedEvents:
        if self._size <= _MOST_BYTES:
            self._add(self._packer.compress(data))
        return self._reader.read(data)

    def pack(self) -> bytes | None:
        """All bytes, once the stream is over; None if they are too many."""
        self._add(self._packer.flush())
        return b"".join(self._packed) if self._size <= _MOST_BYTES else None

    def _add(self, packed: bytes) -> None:
        self._packed.append(packed)
        self._size += len(packed)


def unpack(packed: bytes) -> Iterator[bytes]:
    """The bytes of an answer, piece by piece, because they are ten times as many; zlib.error if they are damaged."""
    unpacker = zlib.decompressobj()
    for start in range(0, len(packed), _PACKED_BYTES_PER_STEP):
        data = unpacker.decompress(packed[start : start + _PACKED_BYTES_PER_STEP])
        for at in range(0, len(data), _BYTES_PER_PIECE):
            yield data[at : at + _BYTES_PER_PIECE]
    if not unpacker.eof:
        raise zlib.error("the end is missing")


def is_damaged(packed: bytes) -> bool:
    try:
        for _ in unpack(packed):
            pass
    except zlib.error:
        return True
    return False


class ReplayReader(EventReader):
    """Reads a recorded stream with another reader, without its heartbeats. Used by one thread."""

    def __init__(self, reader: EventReader) -> None:
        super().__init__()
        self._reader = reader

    def read(self, data: bytes) -> ParsedEvents:
        events = self._reader.read(data)
        early = events.batch[: events.early_count]
        events.early_count -= sum(isinstance(item, Heartbeat) for item in early)
        events.batch = [item for item in events.batch if not isinstance(item, Heartbeat)]
        return events


class ReplayedResponse:
    """A recorded answer with the interface of an UpstreamResponse. Used by one thread."""

    # No connection was needed.
    connect_seconds: float | None = None

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    def stream(self) -> Generator[bytes | Heartbeat | Lull, None, None]:
        yield from unpack(self._packed)

    # There are no deadlines, and nothing to close …

    def note_progress(self) -> None: ...

    def note_keep_alive(self) -> None: ...

    def end_soon(self) -> None: ...

    def close(self, *, was_complete: bool = False) -> None: ...
