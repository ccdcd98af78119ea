"""The exact response cache: the same question of the same caller is answered as before, without a call.

    ResponseCache      the feature: gives a request the cache, if its body, its header or the setting say so
    CacheLookup        the cache in one exchange: find, wrap, store_answer
    AnswerRecorder     records the bytes of an answer while they are read
    ReplayedResponse   plays them again in the place of an upstream response

The cache keeps the bytes of the upstream's stream, and a hit is read as the upstream's stream is. So reasoning, calls,
searches, log probabilities and usage are those of the first answer, in every API, and whatever is done with an answer
on its way to the client is done with a hit as well; only its heartbeats are left out.

An answer is kept if it came to its own end, `stop` or `tool_calls`, and a client can use it.
"""

import json
import zlib
from collections.abc import Generator, Iterator, Mapping
from functools import partial
from typing import Any

from deepseek_cursor_proxy.conversation import Heartbeat, Reply
from deepseek_cursor_proxy.deepseek.chat_stream import ParsedEvents, Read
from deepseek_cursor_proxy.deepseek.prices import Cost
from deepseek_cursor_proxy.deepseek.server_tools import CHAT
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.exchange.client_request import ClientRequest
from deepseek_cursor_proxy.exchange.feature import Feature
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.features.response_cache.store import CachedAnswer, CachedAnswers
from deepseek_cursor_proxy.json_codec import canonical_json, object_in
from deepseek_cursor_proxy.reasoning.identity import digest
from deepseek_cursor_proxy.storage.faults import Unusable


class ResponseCache(Feature):
    name = "response_cache"

    def __init__(self, answers: CachedAnswers, setting: str) -> None:
        self.answers = answers
        self._setting = setting

    def use(self, client: ClientRequest) -> None:
        """Have a request use the cache if the body says so, else if the header does, else if the setting does.

        It is then streamed: a plain and a streamed request are the same question to the upstream.
        """
        if self._setting == "off":
            return
        wanted = client.chat.cache
        if wanted is None:
            wanted = _CACHE_WORDS.get((client.http.headers.get("x-cache") or "").strip().lower())
        if wanted is False or (wanted is None and self._setting != "on"):
            return
        client.cache = CacheLookup(self.answers)
        client.wants_completion = not client.chat.stream and client.chat.client_api == CHAT
        client.is_plain = client.is_plain or client.wants_completion
        client.chat = client.chat._replace(stream=True)

    def reconfigure(self, services: Services) -> None:
        self._setting = services.config.response_cache

    def facts(self, services: Services) -> Mapping[str, Any]:
        """The cache since its store was made; null when that cannot be read."""
        try:
            found = self.answers.stats(services.prices.currency)
        except Unusable:
            return {"cache": None}
        return {
            "cache": {
                "hits": found.totals.hits,
                "misses": found.totals.misses,
                "entries": found.entries,
                "bytes": found.bytes,
                "saved_tokens": found.totals.tokens,
                "saved": round(found.totals.money, 6),
            }
        }

    def close(self) -> None:
        self.answers.close()


def open(services: Services) -> Services:
    cache = ResponseCache(CachedAnswers(services.reasoning_store.database), services.config.response_cache)
    return services.add(cache, use_cache=cache.use)


# Some fifty chunks: so few writes that a long answer takes milliseconds, so small that the first text comes at once.
_BYTES_PER_PIECE = 16 * 1024
# Of an ordinary answer about one piece, of blanks a megabyte.
_PACKED_BYTES_PER_STEP = 1024
# Chunks repeat each other: the fastest level leaves a tenth of them or less.
_FASTEST = 1
# Packed. A million tokens have less; what has more is not worth keeping.
_MOST_BYTES = 32 * 1024 * 1024


# The values of a request's header `x-cache`.
_CACHE_WORDS = {"use": True, "skip": False}


def cache_key(caller: bytes, url: str, body: bytes) -> bytes:
    """The digest of a question: caller, upstream and its API, body, whatever the order of keys in its objects.

    How the answer is read is no part of it: the bytes are kept as they came, and read again.
    """
    return digest(caller, url.encode(), canonical_json(json.loads(body)).encode())


class CacheLookup:
    """The cache in one exchange. Used by the thread that runs it."""

    def __init__(self, answers: CachedAnswers) -> None:
        self._answers = answers
        self._key = b""
        self._recorder: AnswerRecorder | None = None
        self._is_hit = False

    @property
    def state(self) -> str:
        """The value of the header X-Cache."""
        return "hit" if self._is_hit else "miss"

    def find(self, caller: bytes, url: str, body: bytes) -> "ReplayedResponse | None":
        """The answer for this question; None: the exchange makes the call."""
        self._key = cache_key(caller, url, body)
        answer = self._answers.find(self._key)
        self._is_hit = answer is not None
        if answer is None:
            return None
        self._answers.count_hit(answer)
        return ReplayedResponse(answer.packed)

    def wrap(self, read: Read) -> Read:
        """The reader of the answer: it replays a hit, or records the response from its beginning."""
        if self._is_hit:
            return partial(replay, read)
        if self._recorder is None:
            # Only now that the upstream has accepted the call, and not again with a retry.
            self._answers.count_miss()
        self._recorder = AnswerRecorder(read)
        return self._recorder.read

    def store_answer(self, reply: Reply, tokens: Tokens | None, cost: Cost | None) -> None:
        """Store the recorded answer, which is complete, if a client can use it."""
        if self._is_hit or self._recorder is None or not _is_usable(reply):
            return
        packed = self._recorder.pack()
        if packed is None:
            return
        answer = CachedAnswer(packed, tokens.prompt + tokens.output if tokens is not None else 0)
        if cost is not None:
            answer = answer._replace(cost=cost.amount, currency=cost.currency)
        self._answers.record(self._key, answer)


def _is_usable(reply: Reply) -> bool:
    """Whether a client can use an answer: one with text, or with calls whose arguments are objects."""
    message = reply.message()
    if reply.finish_reason == "tool_calls":
        are_whole = [bool(call.name) and object_in(call.arguments) is not None for call in message.tool_calls]
        return bool(are_whole) and all(are_whole)
    return reply.finish_reason == "stop" and isinstance(message.content, str) and bool(message.content.strip())


class AnswerRecorder:
    """Reads one stream with another reader, and keeps its bytes. Used by one thread."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._packer = zlib.compressobj(_FASTEST)
        self._packed = bytearray()

    def read(self, data: bytes) -> ParsedEvents:
        if len(self._packed) <= _MOST_BYTES:
            self._packed += self._packer.compress(data)
        return self._read(data)

    def pack(self) -> bytes | None:
        """All bytes, once the stream is over; None if they are too many."""
        self._packed += self._packer.flush()
        return bytes(self._packed) if len(self._packed) <= _MOST_BYTES else None


def unpack(packed: bytes) -> Iterator[bytes]:
    """The bytes of an answer, piece by piece, because they are ten times as many."""
    unpacker = zlib.decompressobj()
    for start in range(0, len(packed), _PACKED_BYTES_PER_STEP):
        data = unpacker.decompress(packed[start : start + _PACKED_BYTES_PER_STEP])
        for at in range(0, len(data), _BYTES_PER_PIECE):
            yield data[at : at + _BYTES_PER_PIECE]


def replay(read: Read, data: bytes) -> ParsedEvents:
    """The next events of a recorded stream, without its heartbeats."""
    events = read(data)
    early = events.batch[: events.early_count]
    events.early_count -= sum(isinstance(item, Heartbeat) for item in early)
    events.batch = [item for item in events.batch if not isinstance(item, Heartbeat)]
    return events


class ReplayedResponse:
    """A recorded answer with the interface of an UpstreamResponse. Used by one thread."""

    has_input = True
    # No connection was needed.
    connect_seconds: float | None = None

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    def stream(self) -> Generator[bytes | Heartbeat, None, None]:
        yield from unpack(self._packed)

    # There are no deadlines, and nothing to close …

    def note_progress(self) -> None: ...

    def note_keep_alive(self) -> None: ...

    def end_soon(self) -> None: ...

    def close(self, *, was_complete: bool = False) -> None: ...
