"""UpstreamResponse: an HTTP response of DeepSeek (or another upstream), read strictly, in pieces and within deadlines.

    read_head   status and headers
    read        the whole body
    stream      the body as it arrives, with heartbeats while DeepSeek is silent
    pieces      the body as it arrives, without heartbeats

While a call is queued, DeepSeek sends comments and blank lines as keep-alives: they postpone the deadline by up to
`max_queue_seconds`. The reader of a stream reports which pieces were more than that. A response that ended properly
returns its connection to the pool, any other closes it.
"""

import contextlib
import math
import re
import time
from collections.abc import Generator, Iterator
from functools import partial
from typing import Protocol

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import Heartbeat
from deepseek_cursor_proxy.deepseek import chat_api
from deepseek_cursor_proxy.errors import ProxyError, UpstreamDropped, UpstreamFailed, UpstreamTimeout
from deepseek_cursor_proxy.http1 import bodies, heads
from deepseek_cursor_proxy.http1.bodies import ContentDecoder
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.json_codec import decode_upstream_json
from deepseek_cursor_proxy.net.wait import Deadline
from deepseek_cursor_proxy.redaction import SHORTEST_SECRET, SecretFilter, safe_text
from deepseek_cursor_proxy.upstream.call_limit import Slot
from deepseek_cursor_proxy.upstream.connections import Connection, ConnectionPool, Destination

# More than any answer: a million tokens are a few megabytes.
_MAX_ANSWER_BYTES = 32 * 1024 * 1024
_MAX_STREAM_BYTES = 1024 * 1024 * 1024
_MAX_ERROR_BYTES = 1024 * 1024
# A refusal is known by its status; its text is worth waiting for, but not for as long as an answer.
_ERROR_SECONDS = 10.0
# After the answer is complete only its usage and [DONE] are worth waiting for, and not for long.
_USAGE_SECONDS = 5.0
# After its last event a stream ends within a moment, or its connection is not worth keeping.
_END_SECONDS = 0.25
# A server that sends more interim responses than this has no final one.
_MOST_INTERIM_RESPONSES = 16
# DeepSeek's type, and what gateways call it when they do not know better.
_STREAM_TYPES = ("text/event-stream", "text/plain", "application/octet-stream", "")


class StreamedResponse(Protocol):
    """A response that is read as a stream: the upstream's, or one that was recorded."""

    connect_seconds: float | None

    @property
    def has_input(self) -> bool: ...

    def stream(self) -> "Generator[bytes | Heartbeat, None, None]": ...
    def note_progress(self) -> None: ...
    def note_keep_alive(self) -> None: ...
    def end_soon(self) -> None: ...
    def close(self, *, was_complete: bool = False) -> None: ...


class UpstreamResponse:
    """Used by one thread at a time; must be closed."""

    def __init__(
        self, connection: Connection, pool: ConnectionPool, config: ProxyConfig, peer: Peer | None, to: Destination
    ) -> None:
        """Reads nothing yet; see `read_head`."""
        self._connection = connection
        self._pool = pool
        self._config = config
        self._peer = peer
        self.destination = to
        self._started = time.monotonic()
        # When to stop waiting for the end of a stream whose answer is complete; see end_soon.
        self._end_by = math.inf
        # While it streams: when progress and the last keep-alive came, and when the silence after them is too long.
        self._progress_at = self._keep_alive_at = self._give_up_at = 0.0
        self._has_progressed = False
        # The first event is read alone and at once: hundreds may have arrived with it.
        self._awaits_first_event = False
        self._is_closed = False
        self.slot: Slot | None = None
        # Takes the owner's key out of the body, if the call was made with one; see hide.
        self._filter: SecretFilter | None = None
        # How long the connection took; 0 if it was open already.
        self.connect_seconds: float | None = 0.0 if connection.is_reused else connection.connect_seconds

    def read_head(self) -> None:
        """Read the head, after interim ones (100, 102, 103); OSError, TimeoutError or ValueError when there is none."""
        until = time.monotonic() + self._config.request_timeout
        receive = partial(self._connection.receive, until, self._peer)
        # What was received, but not given to the decoder of the body yet.
        self._unread = b""
        for _ in range(_MOST_INTERIM_RESPONSES + 1):
            try:
                head, self._unread = heads.read_response_head(receive, self._unread)
            except heads.IncompleteHead as error:
                if error.is_late:
                    raise TimeoutError from None
                if error.is_empty:
                    raise ClosedBeforeResponse from None
                raise
            if head.status == 101:
                raise ValueError("it switches protocols")
            if head.status >= 200:
                break
        else:
            raise ValueError("it sent too many interim responses")
        self.status, self.headers = head.status, head.headers
        # An upstream that neither accepts nor refuses is not DeepSeek, and gets no second request.
        is_expected = head.status == 200 or head.status >= 400
        self._keeps_alive = is_expected and heads.keeps_alive(head.version, head.headers)
        self._body = bodies.response_decoder(head)
        self._is_ended = self._body.is_complete
        # How many bytes of the body may still come.
        self._bytes_left = _MAX_STREAM_BYTES

    def hide(self, secret: str) -> None:
        """Take a key of the owner out of what is read: an upstream may echo the headers it was called with."""
        if len(secret) >= SHORTEST_SECRET:
            self._filter = SecretFilter(secret)
            self.headers = {name: value.replace(secret, "***") for name, value in self.headers.items()}

    @property
    def retry_after(self) -> int | None:
        """The seconds that the upstream asks to wait; a number, because it is the one header that clients get."""
        value = self.headers.get("retry-after", "")
        return int(value) if re.fullmatch(r"[0-9]{1,6}", value) else None

    def raise_unless_stream(self) -> None:
        """Raise UpstreamFailed for a body that is no event stream, while the client can still get a status."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in _STREAM_TYPES:
            self._open_decoder(_MAX_STREAM_BYTES)
            return
        if kind == "application/json":
            with contextlib.suppress(ValueError):
                body = decode_upstream_json(self.read(_MAX_ERROR_BYTES))
                # Some gateways refuse with the status of a success.
                if isinstance(body, dict):
                    chat_api.chunk_delta(body)
        raise UpstreamFailed(
            f"{self.destination.name} answered with {safe_text(kind, 60)}, which is not an event stream. Check "
            f"{self.destination.setting}."
        )

    def read_refusal(self) -> bytes:
        """The body of a refusal, or nothing if it does not come in time."""
        with contextlib.suppress(ProxyError):
            return self.read(_MAX_ERROR_BYTES, _ERROR_SECONDS)
        return b""

    def read(self, limit: int = _MAX_ANSWER_BYTES, max_seconds: float = math.inf) -> bytes:
        *_, body = self.read_with_heartbeats(limit, max_seconds)
        assert isinstance(body, bytes)
        return body

    def read_with_heartbeats(
        self, limit: int = _MAX_ANSWER_BYTES, max_seconds: float = math.inf
    ) -> Generator[bytes | Heartbeat, None, None]:
        """The whole body, and before it a Heartbeat for every keep-alive while the call is queued."""
        pieces: list[bytes] = []
        decoder, has_begun = self._open_decoder(limit), False
        timeout = min(self._config.request_timeout, max_seconds)
        now = time.monotonic()
        until = now + timeout
        # A refusal is not queued.
        queued_until = now + (self._config.max_queue_seconds if max_seconds == math.inf else 0.0)
        while not self._is_ended:
            data = self._next(until)
            if data is None:
                is_queued = pieces and not has_begun and time.monotonic() >= queued_until
                raise self._queue_error() if is_queued else self._silent_error()
            for piece in self._decode(decoder, data):
                pieces.append(piece)
                if not has_begun and piece.isspace():
                    until = max(until, min(time.monotonic() + timeout, queued_until))
                    yield Heartbeat()
                elif not has_begun:
                    # Once: DeepSeek has the whole answer before its first byte, so a byte now and then is no progress.
                    has_begun, until = True, time.monotonic() + timeout
        if pieces and decoder is not None and not decoder.is_complete:
            raise UpstreamDropped(f"{self.destination.name}'s answer was cut off (it ends inside its compression).")
        yield b"".join(pieces)

    def pieces(self) -> Generator[bytes, None, None]:
        decoder = self._open_decoder(_MAX_STREAM_BYTES)
        while not self._is_ended:
            data = self._next(min(time.monotonic() + self._config.request_timeout, self._end_by))
            if data is None or time.monotonic() >= self._end_by:
                raise self._silent_error()
            yield from self._decode(decoder, data)

    def _silent_error(self) -> UpstreamTimeout:
        return UpstreamTimeout(f"{self.destination.name} went silent. Try again, or raise --request-timeout.")

    def _queue_error(self) -> UpstreamTimeout:
        return UpstreamTimeout(
            f"{self.destination.name} kept this call in its queue for {time.monotonic() - self._started:.0f} seconds. "
            "Try again."
        )

    @property
    def has_input(self) -> bool:
        """Whether something of the body has arrived, perhaps its end."""
        return bool(self._unread) or self._is_ended or self._connection.has_input

    def stream(self) -> Generator[bytes | Heartbeat, None, None]:
        """The body as it arrives; a Heartbeat after a time without progress."""
        decoder = self._open_decoder(_MAX_STREAM_BYTES)
        is_plain = decoder is None and self._filter is None
        interval, timeout = self._config.heartbeat_interval, self._config.request_timeout
        self._progress_at = self._keep_alive_at = heartbeat_from = time.monotonic()
        self._give_up_at = self._progress_at + timeout
        self._awaits_first_event = True
        while not self._is_ended:
            if self._has_progressed:
                # Only now, so that the delay of a slow client is not counted as DeepSeek's silence.
                self._has_progressed, self._progress_at = False, time.monotonic()
                heartbeat_from, self._give_up_at = self._progress_at, self._progress_at + timeout
            data = self._next(min(heartbeat_from + interval, self._give_up_at, self._end_by))
            if data and is_plain:
                # Nearly all of them: without a generator for each.
                yield data
            elif data is not None:
                yield from self._decode(decoder, data)
            # After a complete answer not even progress postpones the end.
            if not self._has_progressed or self._end_by < math.inf:
                now = time.monotonic()
                if now >= min(self._give_up_at, self._end_by):
                    raise self._silence(now)
                if now >= heartbeat_from + interval:
                    heartbeat_from = now
                    yield Heartbeat()

    def _silence(self, now: float) -> UpstreamTimeout:
        if self._keep_alive_at > self._progress_at and now < self._keep_alive_at + self._config.request_timeout:
            return self._queue_error()
        return UpstreamTimeout(f"{self.destination.name} went silent in the middle of the answer. Try again.")

    def note_keep_alive(self) -> None:
        """Record that the last piece was a keep-alive: the call is queued."""
        self._keep_alive_at = now = time.monotonic()
        queued_until = min(now + self._config.request_timeout, self._progress_at + self._config.max_queue_seconds)
        self._give_up_at = max(self._give_up_at, queued_until)

    def note_progress(self) -> None:
        """Record that the last piece was progress."""
        self._has_progressed, self._awaits_first_event = True, False

    def end_soon(self) -> None:
        """Have the stream of a complete answer end soon."""
        self._end_by = min(self._end_by, time.monotonic() + _USAGE_SECONDS)

    def _next(self, until: float) -> bytes | None:
        """The next bytes without framing (perhaps b""); None if nothing arrives before `until`."""
        try:
            data = self._unread or self._connection.receive(until, self._peer)
            self._unread = b""
            if data is None:
                return None
            if self._awaits_first_event and (at := data.find(b"data:")) >= 0 and (end := data.find(b"\n\n", at)) >= 0:
                # With the keep-alives before it, and the end of its chunk.
                end += 4 if data.startswith(b"\r\n", end + 2) else 2
                data, self._unread = data[:end], data[end:]
            if not data:
                self._body.end()
                self._is_ended, self._keeps_alive = True, False
                return b""
            decoded = self._body.feed(data)
        except (OSError, bodies.IncompleteBody) as error:
            raise UpstreamDropped(
                f"{self.destination.name}'s answer was cut off ({error or type(error).__name__})."
            ) from None
        except ValueError as error:
            raise UpstreamFailed(f"{self.destination.name}'s answer was cut off ({error}).") from None
        self._is_ended = self._body.is_complete
        self._bytes_left -= len(decoded)
        if self._bytes_left < 0:
            raise UpstreamFailed(f"{self.destination.name}'s answer is too large.")
        return decoded

    def _open_decoder(self, limit: int) -> ContentDecoder | None:
        """The decoder for a body of at most `limit` bytes, before and after it; None if it is not encoded."""
        self._bytes_left = limit
        announced = self.headers.get("content-length", "0")
        if int(announced) > limit:
            raise UpstreamFailed(f"{self.destination.name}'s answer is too large ({announced} bytes).")
        try:
            return bodies.content_decoder(self.headers, limit)
        except bodies.UnknownCoding as error:
            raise UpstreamFailed(f"{self.destination.name} packed its answer in an unknown way ({error}).") from None

    def _decode(self, decoder: ContentDecoder | None, data: bytes) -> Iterator[bytes]:
        """The content of these bytes without the owner's key, in non-empty pieces."""
        secret_filter = self._filter
        try:
            for piece in (data,) if decoder is None else decoder.decode_pieces(data):
                if plain := piece if secret_filter is None else secret_filter.feed(piece, is_last=False):
                    yield plain
        except ValueError as error:
            raise UpstreamFailed(f"{self.destination.name}'s answer cannot be read: {error}.") from None
        if secret_filter is not None and self._is_ended and (rest := secret_filter.feed(b"", is_last=True)):
            yield rest

    def close(self, *, was_complete: bool = False) -> None:
        """Return the connection to the pool if the body ended or, when complete, ends in a moment; else close it."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if was_complete and not self._is_ended:
                self._await_end()
            has_no_leftover = not (self._body.rest or self._unread or self._connection.has_unsent_bytes)
            if self._is_ended and self._keeps_alive and has_no_leftover:
                self._pool.give_back(self._connection)
            else:
                self._connection.close()
        finally:
            if self.slot is not None:
                self.slot.release()

    def _await_end(self) -> None:
        deadline = Deadline.after(_END_SECONDS)
        # The client has its answer and need not stay.
        self._peer = None
        with contextlib.suppress(ProxyError):
            while not self._is_ended and self._next(deadline) is not None and not deadline.is_over:
                pass


class ClosedBeforeResponse(ConnectionError):
    """The server closed without a single byte of a response."""
