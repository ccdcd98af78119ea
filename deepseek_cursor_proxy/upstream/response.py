"""Reading an answer, DeepSeek's or another's: strictly, in pieces, and never longer than the deadlines allow.

Comments and blank lines are DeepSeek's sign of life while a call is queued: they postpone the end of our patience, for
as long as `queue_patience` allows. Whoever reads the stream says what counts as progress. The socket comes before the
clock: what arrived while this process was stopped is read, however late that is. An answer that ended properly gives
its connection back to the pool, any other hangs up.
"""

import contextlib
import math
import re
import time
from collections.abc import Generator, Iterable, Iterator

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import Heartbeat
from deepseek_cursor_proxy.deepseek import chat_api
from deepseek_cursor_proxy.errors import (
    ProxyError,
    UpstreamDropped,
    UpstreamFailed,
    UpstreamTimeout,
)
from deepseek_cursor_proxy.http1 import bodies, heads
from deepseek_cursor_proxy.http1.content_encoding import ContentDecoder, can_decode
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.json_codec import decode_upstream_json
from deepseek_cursor_proxy.lull import BLOCKING, Lull
from deepseek_cursor_proxy.net.deadline import Deadline
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.upstream import response_head
from deepseek_cursor_proxy.upstream.call_limit import Slot
from deepseek_cursor_proxy.upstream.destination import Destination
from deepseek_cursor_proxy.upstream.pool import Connection, ConnectionPool

# More than any answer: a million tokens are a few megabytes.
_MAX_ANSWER_BYTES = 32 * 1024 * 1024
_MAX_STREAM_BYTES = 1024 * 1024 * 1024
_MAX_ERROR_BYTES = 1024 * 1024
# A refusal is known by its status; its words are worth waiting for, but not for as long as an answer.
_ERROR_SECONDS = 10.0
# After the answer is complete only its usage and [DONE] are worth waiting for, and not for long.
_AFTERMATH_SECONDS = 5.0
# After its last event a stream ends within a moment, or its connection is not worth keeping.
_LINGER_SECONDS = 0.25
# How long a flood of what is neither progress nor a sign of life is read after the time for it is over.
_FLOOD_SECONDS = 5.0
# DeepSeek's type, and what gateways call it when they do not know better.
_STREAM_TYPES = ("text/event-stream", "text/plain", "application/octet-stream", "")


class UpstreamResponse:
    """An answer that has begun. Used by one thread; must be closed."""

    def __init__(
        self, connection: Connection, pool: ConnectionPool, config: ProxyConfig, peer: Peer | None, to: Destination
    ) -> None:
        self._connection = connection
        self._pool = pool
        self._config = config
        self._peer = peer
        self.destination = to
        self._started = time.monotonic()
        # When to stop waiting for the end of an answer that is complete; see hurry.
        self._over_by = math.inf
        # How long nothing has to be done when something has just come.
        self._patience = min(config.heartbeat_interval, config.request_timeout)
        # While it streams: when something came that counts, the last keep-alive, and when the client was last told.
        self._progress = self._kept_alive = self._told = 0.0
        self._has_progressed = False
        self._until: float | None = None
        # The deadline after which a flood was still read.
        self._overdue = 0.0
        # Whether a stream yields a Lull in place of waiting for DeepSeek.
        self._has_lulls = False
        self._interruption: Exception | None = None
        self._is_closed = False
        self._is_ended = False
        # The right to this call, given back when it ends.
        self.slot: Slot | None = None
        self.status = 0
        self.headers: dict[str, str] = {}
        self._first = b""
        self._body: bodies.BodyDecoder

    @classmethod
    def begin(
        cls, connection: Connection, pool: ConnectionPool, config: ProxyConfig, peer: Peer | None, to: Destination
    ) -> "UpstreamResponse":
        """Read the head; OSError, TimeoutError or ValueError when there is none."""
        answer = cls(connection, pool, config, peer, to)
        answer._read_head()
        return answer

    # The head …

    def _read_head(self) -> None:
        begun = response_head.read(self._connection, self._peer, time.monotonic() + self._config.request_timeout)
        head, self._first = begun.head, begun.rest
        self.status, self.headers = head.status, head.headers
        # Whoever answers neither yes nor no is not DeepSeek, and nothing more is asked of them.
        is_answer = head.status == 200 or head.status >= 400
        self._keeps_alive = is_answer and heads.keeps_alive(head.version, head.headers)
        self._body = bodies.response_decoder(head, request_method="POST")
        self._is_ended = self._body.is_complete

    @property
    def retry_after(self) -> int | None:
        """The seconds that the other side asks to wait. Checked: no other header of its reaches clients as it is."""
        named = self.headers.get("retry-after", "")
        return int(named) if re.fullmatch(r"[0-9]{1,6}", named) else None

    # The body …

    def raise_unless_stream(self) -> None:
        """Anything but a stream, where one was asked for, as the failure it is: while there is a status to say it."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in _STREAM_TYPES:
            self._unpacker(_MAX_STREAM_BYTES)
            return
        if kind == "application/json":
            with contextlib.suppress(ValueError):
                body = decode_upstream_json(self.read(_MAX_ERROR_BYTES))
                # Some gateways refuse with the status of a success.
                if isinstance(body, dict):
                    chat_api.chunk_deltas(body)
        raise UpstreamFailed(
            f"DeepSeek answered with {safe_text(kind, 60)}, which is not an event stream. Check "
            f"{self.destination.setting}."
        )

    def read_refusal(self) -> bytes:
        """What is said in place of an answer, as far as it comes."""
        with contextlib.suppress(ProxyError):
            return self.read(_MAX_ERROR_BYTES, _ERROR_SECONDS)
        return b""

    def read(self, limit: int = _MAX_ANSWER_BYTES, patience: float = math.inf) -> bytes:
        """The whole body."""
        *_, body = self.reading(limit, patience)
        assert isinstance(body, bytes)
        return body

    def reading(
        self, limit: int = _MAX_ANSWER_BYTES, patience: float = math.inf
    ) -> Generator[bytes | Heartbeat, None, None]:
        """The whole body, and before it a Heartbeat for every keep-alive while the call is queued."""
        pieces: list[bytes] = []
        decoder, has_begun = self._unpacker(limit), False
        timeout = min(self._config.request_timeout, patience)
        started = time.monotonic()
        give_up_at = started + timeout
        # A refusal is not queued.
        queued_until = started + (self._config.queue_patience if patience == math.inf else 0.0)
        while not self._is_ended:
            data = self._next(give_up_at)
            if data is None:
                is_queued = pieces and not has_begun and time.monotonic() >= queued_until
                raise self._queued_for_too_long() if is_queued else self._silence()
            give_up_at = Deadline(give_up_at).allow_for_stop(timeout)
            for piece in self._unpacked(decoder, data):
                pieces.append(piece)
                if not has_begun and piece.isspace():
                    give_up_at = max(give_up_at, min(time.monotonic() + timeout, queued_until))
                    yield Heartbeat()
                elif not has_begun:
                    # Once: what is not streamed was ready before its first byte, so a byte now and then is no progress.
                    has_begun, give_up_at = True, time.monotonic() + timeout
        if pieces and not decoder.is_complete:
            raise UpstreamDropped(f"{self.destination.name}'s answer was cut off (it ends inside its compression).")
        yield b"".join(pieces)

    def pieces(self) -> Generator[bytes, None, None]:
        """The body as it arrives, whatever it is."""
        decoder = self._unpacker(_MAX_STREAM_BYTES)
        while not self._is_ended:
            data = self._next(min(time.monotonic() + self._config.request_timeout, self._over_by))
            if data is None or time.monotonic() >= self._over_by:
                raise self._silence()
            yield from self._unpacked(decoder, data)

    def _silence(self) -> UpstreamTimeout:
        return UpstreamTimeout(f"{self.destination.name} went silent. Try again, or raise --request-timeout.")

    def _queued_for_too_long(self) -> UpstreamTimeout:
        return UpstreamTimeout(
            f"{self.destination.name} kept this call in its queue for {time.monotonic() - self._started:.0f} seconds. "
            "Try again, or raise --queue-patience."
        )

    def stream(self, *, with_lulls: bool = False) -> Generator[bytes | Heartbeat | Lull, None, None]:
        """The body of a stream as it arrives; a Heartbeat when nothing that counts as progress came for a while.

        With lulls it does not wait for DeepSeek: its consumer does, when it yields a Lull.
        """
        decoder = self._unpacker(_MAX_STREAM_BYTES)
        self._told = self._progress = self._kept_alive = time.monotonic()
        self._has_lulls, self._until = with_lulls, None
        lull = Lull(self)
        while not self._is_ended:
            waits = not self._has_lulls or self._connection.tls_wants_write
            data = self._next(self.until if waits else None)
            if data and decoder.is_identity:
                yield self._counted(decoder, data)
            elif data:
                yield from self._inflated(decoder, data)
            # An answer that is complete must end in time, also if more is said that would count otherwise.
            if (not self._has_progressed or self._over_by < math.inf) and time.monotonic() >= self.until:
                self._raise_if_silent()
                self._told, self._until = time.monotonic(), None
                yield Heartbeat()
            elif self._has_lulls and not (self._is_ended or self._connection.has_buffered_input):
                yield BLOCKING if self._connection.tls_wants_write else lull
            self._raise_if_interrupted()

    def _raise_if_silent(self) -> None:
        if self._give_up_at != self._overdue:
            self._forgive_stop()
        now, give_up_at = time.monotonic(), self._give_up_at
        if now < give_up_at:
            return
        if now < give_up_at + _FLOOD_SECONDS and self._connection.has_input:
            # From here on being late means that a flood was read, not that this process was stopped.
            self._overdue = give_up_at
            return
        if self._kept_alive > self._progress and now < self._kept_alive + self._config.request_timeout:
            raise self._queued_for_too_long()
        raise UpstreamTimeout("DeepSeek went silent in the middle of the answer. Try again.")

    def _forgive_stop(self) -> None:
        """Move the deadlines by the time in which this process was stopped: that is nobody's silence."""
        stopped = Deadline(self.until).allow_for_stop(self._config.request_timeout) - self.until
        if stopped:
            self._progress, self._kept_alive = self._progress + stopped, self._kept_alive + stopped
            self._over_by += stopped

    @property
    def _give_up_at(self) -> float:
        return min(self._silent_from, self._over_by)

    @property
    def _silent_from(self) -> float:
        """When it is silent for too long, if nothing more comes."""
        timeout = self._config.request_timeout
        queued_until = min(self._kept_alive + timeout, self._progress + self._config.queue_patience)
        return max(self._progress + timeout, queued_until)

    def note_keep_alive(self) -> None:
        """What came last says that the call is queued."""
        self._kept_alive, self._until = time.monotonic(), None

    def note_progress(self) -> None:
        """What came last was worth waiting for; from when on, the next look at the clock tells.

        That is after the client has taken it: its slowness is not DeepSeek's silence.
        """
        self._has_progressed = True

    @property
    def until(self) -> float:
        """The moment at which something has to be said or done, even if nothing arrives."""
        if self._has_progressed:
            self._has_progressed = False
            self._progress = self._told = time.monotonic()
            self._until = min(self._progress + self._patience, self._over_by)
        elif self._until is None:
            heartbeat_at = self._told + self._config.heartbeat_interval
            self._until = min(heartbeat_at, self._silent_from, self._over_by)
        return self._until

    def fileno(self) -> int:
        return self._connection.fileno()

    def interrupt(self, error: Exception) -> None:
        self._interruption = error

    def _raise_if_interrupted(self) -> None:
        if self._interruption is not None:
            try:
                raise self._interruption
            finally:
                # An error that is held by what raised it is freed by the collector only.
                self._interruption = None

    def hurry(self) -> None:
        """The answer is complete: the end of its stream has to come soon, whatever else is said before.

        Its stream waits for that itself, without lulls: its consumer has to block at the end anyway.
        """
        self._over_by, self._until = min(self._over_by, time.monotonic() + _AFTERMATH_SECONDS), None
        self._has_lulls = False

    def _next(self, until: float | None) -> bytes | None:
        """The next bytes of the body, framing undone (perhaps none); None when the moment `until` came first.

        Without a moment only what has arrived is read.
        """
        try:
            if self._first:
                data: bytes | None = self._first
                self._first = b""
            elif until is None:
                data = self._connection.receive_now()
            else:
                data = self._connection.receive(until, self._peer)
            if data is None:
                return None
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
        return decoded

    def _unpacker(self, limit: int) -> ContentDecoder:
        coding = self.headers.get("content-encoding", "").strip().lower()
        if not can_decode(coding):
            raise UpstreamFailed(f"{self.destination.name} packed its answer in an unknown way ({coding[:20]!r}).")
        announced = self.headers.get("content-length", "0")
        if int(announced) > limit:
            raise UpstreamFailed(f"{self.destination.name}'s answer is too large ({announced} bytes).")
        return ContentDecoder(coding, limit)

    def _unpacked(self, decoder: ContentDecoder, data: bytes) -> Iterable[bytes]:
        """What these bytes stand for, in pieces of which none is empty."""
        # Nearly every answer is plain, and then there is nothing to go on with later.
        return (self._counted(decoder, data),) if decoder.is_identity and data else self._inflated(decoder, data)

    def _counted(self, decoder: ContentDecoder, data: bytes) -> bytes:
        try:
            return decoder.count(data)
        except ValueError as error:
            raise self._unreadable(error) from None

    def _inflated(self, decoder: ContentDecoder, data: bytes) -> Iterator[bytes]:
        try:
            yield from filter(None, decoder.decode_pieces(data))
        except ValueError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: ValueError) -> UpstreamFailed:
        return UpstreamFailed(f"{self.destination.name}'s answer cannot be read: {error}.")

    # The end …

    def close(self, *, was_complete: bool = False) -> None:
        """Keep the connection if the answer is over (or, when its last event was seen, about to be); else hang up."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._let_go(was_complete)
        finally:
            if self.slot is not None:
                self.slot.release()

    def _let_go(self, was_complete: bool) -> None:
        if was_complete and not self._is_ended:
            self._await_end()
        is_in_step = not (self._body.rest or self._first or self._connection.has_unsent_bytes)
        if self._is_ended and self._keeps_alive and is_in_step:
            self._pool.give_back(self._connection)
        else:
            self._connection.close()

    def _await_end(self) -> None:
        deadline = time.monotonic() + _LINGER_SECONDS
        # The client has its answer; whether it stays does not matter any more.
        self._peer = None
        try:
            while not self._is_ended and self._next(deadline) is not None and time.monotonic() < deadline:
                pass
        except ProxyError:
            return
