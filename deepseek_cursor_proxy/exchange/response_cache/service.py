"""ResponseCache, which all requests share, and CacheLookup, its part in one exchange.

    find     before a request is sent: an answer to play, or nothing, and then the exchange calls or waits
    record   while the answer is read
    store    when it is complete
    end      when the exchange is over, however it ended

Whether a request may use the cache is decided by its endpoint. An answer is kept if it came to its own end, `stop` or
`tool_calls`, and can be used by a client.
"""

import hashlib
import json
from enum import Enum

from deepseek_cursor_proxy.conversation import Reply
from deepseek_cursor_proxy.deepseek.apis.chat_stream import EventReader
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.exchange.response_cache.flights import Flights, Seat
from deepseek_cursor_proxy.exchange.response_cache.replay import (
    AnswerRecorder,
    ReplayedResponse,
    ReplayReader,
    is_damaged,
)
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.json_codec import canonical_json, object_in
from deepseek_cursor_proxy.storage.answers import CachedAnswer, CachedAnswers
from deepseek_cursor_proxy.usage.prices import Cost

# After so many calls that failed, those who waited no longer wait for each other: each gets an error of its own.
_MOST_FAILURES = 2


class CacheState(Enum):
    """What the cache has to do with an answer, as its header says it."""

    MISS = "miss"
    HIT = "hit"
    # An identical question is in flight. If it fails, this one is sent after all.
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
    """Called by handler threads; store and flights have their own locks."""

    def __init__(self, store: CachedAnswers) -> None:
        self.store = store
        self.flights = Flights()

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
        self._seat: Seat | None = None
        self._recorder: AnswerRecorder | None = None
        self._failures = 0
        self.state = CacheState.MISS

    @property
    def is_waiting(self) -> bool:
        """Whether an identical question is in flight, whose answer is not there yet."""
        return self._seat is not None and not self._seat.is_leader

    def find(self, key: bytes) -> ReplayedResponse | None:
        """The answer for this key. None: the exchange makes the call or, while `is_waiting`, waits."""
        if self._key == key and self._seat is not None and self._seat.is_leader:
            # A retry.
            return None
        self.end(has_failed=True)
        self._key = key
        while True:
            if (found := self._look_up()) is not None:
                return found
            if self._failures >= _MOST_FAILURES:
                break
            self._seat = self._cache.flights.join(key)
            if self._seat is None:
                break
            if self._seat.is_leader:
                # The last leader may have stored its answer since.
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

    def _look_up(self) -> ReplayedResponse | None:
        answer = self._cache.store.find(self._key)
        replayed = self._replay(answer) if answer is not None else None
        if replayed is not None:
            self._leave(answer)
        return replayed

    def _replay(self, answer: CachedAnswer) -> ReplayedResponse | None:
        if is_damaged(answer.packed):
            return None
        self.state = CacheState.HIT
        self._cache.store.count_hit(answer)
        return ReplayedResponse(answer.packed)

    def wait(self) -> bool:
        """Whether the identical question is over before the client has waited long."""
        assert self._seat is not None
        return self._seat.wait(self._patience, self._peer)

    def take(self) -> ReplayedResponse | None:
        """Its answer, once it is over; None if it has none, and the exchange has to ask again."""
        assert self._seat is not None
        flight = self._seat.flight
        self._leave()
        self._failures += flight.has_failed
        return self._replay(flight.answer) if flight.answer is not None else None

    def open_reader(self, reader: EventReader) -> EventReader:
        """The reader of the answer: of a hit, or of a response that is recorded from its beginning."""
        if self.state is CacheState.HIT:
            return ReplayReader(reader)
        if self._recorder is None:
            # Only now that the upstream has accepted the call, and not again with a retry.
            self._cache.store.count_miss()
        self._recorder = AnswerRecorder(reader)
        return self._recorder

    def store_answer(self, reply: Reply, tokens: Tokens | None, cost: Cost | None) -> None:
        """Keep what was recorded, an answer that came to its end, if a client can use it; others may wait for it."""
        packed = self._recorder.pack() if self._recorder is not None and _is_usable(reply) else None
        if packed is None:
            return
        answer = CachedAnswer(packed, tokens.prompt + tokens.output if tokens is not None else 0)
        if cost is not None:
            answer = answer._replace(cost=cost.amount, currency=cost.currency)
        self._cache.store.record(self._key, answer)
        self._leave(answer)

    def end(self, *, has_failed: bool = False) -> None:
        """The exchange is over, or asks something else; those who wait for it get no answer. Idempotent."""
        self._recorder = None
        self._leave(has_failed=has_failed)

    def _leave(self, answer: CachedAnswer | None = None, *, has_failed: bool = False) -> None:
        seat, self._seat = self._seat, None
        if seat is not None:
            self._cache.flights.leave(seat, answer, has_failed=has_failed)


def _is_usable(reply: Reply) -> bool:
    """Whether a client can use an answer: one with text, or with calls whose arguments are objects."""
    message = reply.message()
    if reply.finish_reason() == "tool_calls":
        are_whole = [bool(call.name) and object_in(call.arguments) is not None for call in message.tool_calls]
        return bool(are_whole) and all(are_whole)
    return reply.finish_reason() == "stop" and isinstance(message.content, str) and bool(message.content.strip())
