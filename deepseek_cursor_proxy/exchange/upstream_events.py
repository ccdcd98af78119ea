"""The body of an upstream response as parsed events, in an order in which no delta waits for slow work.

    first event alone       the first event is parsed and handed on alone: hundreds may have arrived with it
    cheap before durable    a piece that completes an answer or a call has to be stored before it is handed on; its
                            events before the completing one are handed on without that wait

A BLOCKING lull precedes slow work. `record_sent`, which records that DeepSeek accepted the call, runs after the first
such lull, or when there is nothing to hand on yet. A Heartbeat travels in a batch of its own.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from itertools import chain
from typing import Any, Protocol

from deepseek_cursor_proxy.conversation import Delta, Heartbeat
from deepseek_cursor_proxy.deepseek.apis.chat_stream import EventReader, ParsedEvents
from deepseek_cursor_proxy.errors import UpstreamFailed
from deepseek_cursor_proxy.http1.lull import BLOCKING, Lull
from deepseek_cursor_proxy.json_codec import decode_upstream_json
from deepseek_cursor_proxy.upstream.response import UpstreamResponse


class StreamedResponse(Protocol):
    """A response that comes in pieces: from an upstream, or from the response cache."""

    def stream(self, *, with_lulls: bool) -> Generator[bytes | Heartbeat | Lull, None, None]: ...

    def note_progress(self) -> None: ...

    def note_keep_alive(self) -> None: ...


UpstreamEvents = Generator[ParsedEvents | Lull, None, None]
_Pieces = Generator[bytes | Heartbeat | Lull, None, None]


def read_stream(
    response: StreamedResponse, reader: EventReader, record_sent: Callable[[], None], *, with_lulls: bool
) -> UpstreamEvents:
    """The events of a streamed response up to its [DONE] or the first problem."""
    with closing(response.stream(with_lulls=with_lulls)) as pieces:
        for piece in chain(_first_event_alone(pieces, record_sent), pieces):
            if isinstance(piece, Lull):
                yield piece
            elif isinstance(piece, Heartbeat):
                yield ParsedEvents([piece])
            else:
                events = reader.read(piece)
                if events.is_progress:
                    response.note_progress()
                elif events.batch or piece.isspace():
                    # Nothing but comments and blank lines.
                    response.note_keep_alive()
                if events.is_durable:
                    if events.early_count:
                        yield events.take_early()
                    yield BLOCKING
                    record_sent()
                yield events
                if events.is_over:
                    return


def _first_event_alone(pieces: _Pieces, record_sent: Callable[[], None]) -> _Pieces:
    for piece in pieces:
        if isinstance(piece, bytes):
            end = piece.find(b"\n\n") + 2
            end = end if end >= 2 else len(piece)
            yield piece[:end]
            yield BLOCKING
            record_sent()
            if end < len(piece):
                yield piece[end:]
            return
        record_sent()
        yield piece


def read_whole(response: UpstreamResponse, read_answer: Callable[[Mapping[str, Any]], list[Delta]]) -> UpstreamEvents:
    """The one batch of a response that is not streamed, after a Heartbeat for each of DeepSeek's keep-alives."""
    pieces = response.read_with_heartbeats()
    try:
        for piece in pieces:
            if isinstance(piece, Heartbeat):
                yield ParsedEvents([piece])
            else:
                yield ParsedEvents([*read_answer(_json_object(piece))], is_durable=True)
    finally:
        pieces.close()


def _json_object(raw: bytes) -> dict[str, Any]:
    try:
        body = decode_upstream_json(raw)
    except ValueError:
        raise UpstreamFailed("DeepSeek's answer is not JSON.") from None
    if not isinstance(body, dict):
        raise UpstreamFailed("DeepSeek's answer is not a JSON object.")
    return body
