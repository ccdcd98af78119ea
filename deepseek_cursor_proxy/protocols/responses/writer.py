"""OpenAI Responses: writes an answer as events (`ResponseWriter`) or as one object (`PlainResponseWriter`).

    response.created, response.in_progress
    for every item   output_item.added, its deltas, its done events, output_item.done
    response.completed | incomplete | failed, with the object

The plain writer has the events written and sends only the object of the last, so both say the same. Numbers rise by one
from event to event. The strings of a run of equal chunks are spliced into events without being encoded again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from deepseek_cursor_proxy.conversation import Batch, CallPiece, ChatRequest, Delta, Heartbeat, ServerDelta, join_pieces
from deepseek_cursor_proxy.deepseek.error_messages import OVERFLOW, early_end, is_overflow_message
from deepseek_cursor_proxy.errors import ClientGone, ProxyError, UpstreamFailed
from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.json_codec import encode_json, is_json
from deepseek_cursor_proxy.protocols.request.field_checks import Json
from deepseek_cursor_proxy.protocols.responses import compaction
from deepseek_cursor_proxy.protocols.responses.envelope import Frame, state, usage
from deepseek_cursor_proxy.protocols.responses.output_items import (
    CallItem,
    CompactionItem,
    EventSequence,
    Item,
    ReasoningItem,
    ServerItem,
    TextItem,
    read_logprobs,
)

# Upstream's comments come at any rate; at most so often they become events. …
_HEARTBEAT_SECONDS = 10.0
# … In the background every event is stored, each with the whole object in it, and no client waits.
_BACKGROUND_HEARTBEAT_SECONDS = 60.0
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
# The codes that clients act on; all others mean a failure of the server to them, and they try again.
_CODES = frozenset({"rate_limit_exceeded", OVERFLOW, "invalid_prompt", "insufficient_quota"})
_CODES_BY_STATUS = {429: "rate_limit_exceeded", 402: "insufficient_quota", 400: "invalid_prompt"}

Save = Callable[[dict[str, Any]], None]


class ResponseWriter:
    """Writes one response as events and saves it before the last one. Used by one thread; `now` never goes back."""

    def __init__(self, frame: Frame, request: ChatRequest, now: Callable[[], float], save: Save) -> None:
        self._frame = frame
        self._request = request
        self._now = now
        self._save = save
        self._events = EventSequence()
        self._items: list[Item] = []
        self._open: ReasoningItem | TextItem | None = None
        self._calls: dict[int, CallItem] = {}
        self._nameless: dict[int, CallPiece] = {}
        self._server_items: dict[int | str, ServerItem] = {}
        self._usage: Mapping[str, Any] | None = None
        self._finish_reason: str | None = None
        self._began_at = self._wrote_at = now()
        # The whole object, once it is known.
        self.response: dict[str, Any] | None = None

    def begin(self) -> bytes:
        return self._lifecycle("response.created", state("in_progress")) + self.start()

    def begin_queued(self) -> bytes:
        """The beginning of a response that waits in a queue; `start` follows when its turn comes."""
        created = self._lifecycle("response.created", state("queued"))
        return created + self._lifecycle("response.queued", state("queued"))

    def start(self) -> bytes:
        return self._lifecycle("response.in_progress", state("in_progress"))

    def write(self, batch: Batch) -> bytes:
        return b"".join([piece for item in batch for piece in self._write(item)])

    def end(self) -> bytes:
        last_events = b"".join(self._close_all())
        if (failure := early_end(self._finish_reason)) is not None:
            return last_events + self.fail(failure)
        if self._finish_reason in _INCOMPLETE:
            details = {"reason": _INCOMPLETE[self._finish_reason]}
            return last_events + self._last("response.incomplete", "incomplete", incomplete_details=details)
        if self._frame.options.json and not self._calls and not self._has_json():
            return last_events + self.fail(
                UpstreamFailed("DeepSeek's answer is not the JSON that was asked for. Try again.")
            )
        return last_events + self._last("response.completed", "completed")

    def fail(self, error: ProxyError) -> bytes:
        broken_off = b"".join(self._break_off())
        return broken_off + self._last("response.failed", "failed", error=error_object(error))

    def cancel(self) -> bytes:
        """The last events of a cancelled answer; the API has none for that, so it is incomplete."""
        broken_off = b"".join(self._break_off())
        return broken_off + self._last("response.incomplete", "cancelled")

    def _lifecycle(self, kind: str, so_far: Mapping[str, Any]) -> bytes:
        self._wrote_at = self._now()
        return self._events.encode_raw(kind, b'"response":' + self._frame.encode(so_far))

    def _last(self, kind: str, status: str, **known: Any) -> bytes:
        known |= {"output": [item.value for item in self._items], "output_text": self._text()}
        if status == "completed":
            known["completed_at"] = self._frame.created_at + int(self._now() - self._began_at)
        so_far = state(status, usage=usage(self._usage), **known)
        last = self._lifecycle(kind, so_far)
        self.response = self._frame.response(so_far)
        self._save(self.response)
        return last

    def _text(self) -> str:
        return "".join(item.text for item in self._items if isinstance(item, TextItem))

    def _has_json(self) -> bool:
        """Whether the text is JSON, or the last one is: the model may say that it searches before it does."""
        texts = [item.text for item in self._items if isinstance(item, TextItem)]
        return is_json("".join(texts)) or (bool(texts) and is_json(texts[-1]))

    def _write(self, item: Delta | Heartbeat) -> Iterable[bytes]:
        if isinstance(item, Heartbeat):
            return self._heartbeat(item)
        self._usage = self._usage if item.usage is None else item.usage
        written: list[bytes] = []
        strings = item.run.strings if item.run is not None else None
        if item.reasoning:
            written += self._open_item(ReasoningItem)
            written.append(self._write_string(item.reasoning, strings))
        if item.text:
            written += self._open_item(TextItem)
            written.append(self._write_text(item, item.text, strings))
        for piece in item.calls:
            written += self._write_call(piece)
        if item.server is not None:
            written += self._write_server(item.server)
        if item.finish_reason is not None:
            self._finish_reason = item.finish_reason
            written += self._finish(item.finish_reason)
        return written

    def _heartbeat(self, heartbeat: Heartbeat) -> Iterable[bytes]:
        """An event, because Codex does not count comments."""
        quiet = self._now() - self._wrote_at
        if self._frame.options.background and quiet < _BACKGROUND_HEARTBEAT_SECONDS:
            return ()
        if heartbeat.line and quiet < _HEARTBEAT_SECONDS:
            return ()
        return (self.start(),)

    def _open_item(self, kind: type[ReasoningItem] | type[TextItem]) -> Iterable[bytes]:
        if isinstance(self._open, kind):
            return ()
        written = self._close_ready()
        self._open = kind(self._frame, len(self._items), self._events)
        self._items.append(self._open)
        return [*written, self._open.announce()]

    def _write_string(self, text: str, strings: Iterable[bytes] | None) -> bytes:
        assert self._open is not None
        return self._open.write(text, [encode_json(text)[1:-1]] if strings is None else strings)

    def _write_text(self, delta: Delta, text: str, strings: Iterable[bytes] | None) -> bytes:
        if self._frame.options.logprobs and isinstance(self._open, TextItem) and (found := read_logprobs(delta)):
            return self._open.write_with_logprobs(text, found)
        return self._write_string(text, strings)

    def _write_call(self, piece: CallPiece) -> Iterable[bytes]:
        call, written = self._calls.get(piece.index), []
        if call is None:
            piece = _join(self._nameless.pop(piece.index, None), piece)
            if not piece.name:
                # Its name decides which kind of item it is; a gateway may send that late.
                self._nameless[piece.index] = piece
                return []
            written += self._close_ready()
            call = CallItem(self._frame, len(self._items), self._events, self._request, piece)
            self._calls[piece.index] = call
            self._items.append(call)
            written.append(call.announce())
        if not call.is_done:
            written.append(call.write(piece.arguments))
        return written

    def _write_server(self, server: ServerDelta) -> Iterable[bytes]:
        written: list[bytes] = []
        for piece in server.pieces:
            item = self._server_items.get(piece.key)
            if item is None:
                written += self._close_ready()
                ids = {each.id for each in self._items}
                item = ServerItem(self._frame, len(self._items), self._events, piece.item, ids)
                self._server_items[piece.key] = item
                self._items.append(item)
                written.append(item.announce())
            written.append(item.advance(piece))
        if isinstance(self._open, TextItem):
            written += [self._open.cite(annotation) for annotation in server.citations]
        return written

    def _close_ready(self) -> list[bytes]:
        """End the open item and every whole call before the next item begins; clients run a call once it is done."""
        whole = [call for call in self._calls.values() if call.is_whole and not call.is_done]
        return [*self._close_open(), *(call.finish() for call in whole)]

    def _close_open(self) -> list[bytes]:
        item, self._open = self._open, None
        return [] if item is None else [item.finish()]

    def _close_all(self) -> list[bytes]:
        unfinished = [item for item in self._server_items.values() if not item.is_done]
        return [
            *self._close_open(),
            *(call.finish() for call in self._calls.values() if not call.is_done),
            *(item.break_off() for item in unfinished),
        ]

    def _finish(self, reason: str) -> list[bytes]:
        if early_end(reason) is not None:
            return self._break_off()
        if reason not in _INCOMPLETE:
            return self._close_all()
        # A text that reached its limit is done, as in OpenAI's own streams.
        text, self._open = (self._open, None) if isinstance(self._open, TextItem) else (None, self._open)
        return [*([] if text is None else [text.finish("incomplete")]), *self._break_off()]

    def _break_off(self) -> list[bytes]:
        item, self._open = self._open, None
        unfinished: list[Item] = [item] if item is not None else []
        unfinished += [call for call in self._calls.values() if not call.is_done]
        unfinished += [item for item in self._server_items.values() if not item.is_done]
        return [each.break_off() for each in unfinished]


class SummaryWriter(ResponseWriter):
    """Writes the response to a request for compaction: one item, when the whole summary is there."""

    def __init__(self, frame: Frame, request: ChatRequest, now: Callable[[], float], save: Save) -> None:
        super().__init__(frame, request, now, save)
        self._summary: list[str] = []

    def _write(self, item: Delta | Heartbeat) -> Iterable[bytes]:
        if isinstance(item, Heartbeat):
            return self._heartbeat(item)
        self._usage = self._usage if item.usage is None else item.usage
        self._finish_reason = item.finish_reason or self._finish_reason
        self._summary.append(item.text or "")
        # The client reads nothing of it until then.
        return self._heartbeat(Heartbeat("writing"))

    def end(self) -> bytes:
        summary = join_pieces(self._summary).strip()
        failure = early_end(self._finish_reason)
        if failure is None and (not summary or self._finish_reason in _INCOMPLETE):
            failure = UpstreamFailed("DeepSeek wrote no whole summary of this conversation. Try again.")
        if failure is not None:
            return self.fail(failure)
        item = CompactionItem(self._frame, 0, self._events, summary)
        self._items.append(item)
        return item.finish() + self._last("response.completed", "completed")


class PlainResponseWriter:
    """Writes one response as JSON, at its end, from the writer of its events. Used by one thread."""

    def __init__(self, events: ResponseWriter) -> None:
        self._events = events

    def begin(self) -> bytes:
        return self._events.begin()

    def write(self, batch: Batch) -> bytes:
        return self._events.write(batch)

    def end(self) -> bytes:
        self._events.end()
        return encode_json(self._events.response)

    def fail(self, error: ProxyError) -> bytes:
        self._events.fail(error)
        return encode_json(self._events.response)


class PlainCompactionWriter(PlainResponseWriter):
    """Writes the reply to POST /responses/compact; `items` are the history that is compacted."""

    def __init__(self, events: ResponseWriter, items: Sequence[Json]) -> None:
        super().__init__(events)
        self._items = items

    def end(self) -> bytes:
        self._events.end()
        response = self._events.response
        assert response is not None
        if response["error"] is not None:
            raise UpstreamFailed(response["error"]["message"])
        return encode_json(
            {
                "id": response["id"],
                "object": "response.compaction",
                "created_at": response["created_at"],
                "output": compaction.compacted_items(self._items, response["output"]),
                "usage": response["usage"] or usage({}),
            }
        )

    def fail(self, error: ProxyError) -> bytes:
        """Break off: a compaction has no words for a failure."""
        raise ClientGone


def _join(before: CallPiece | None, piece: CallPiece) -> CallPiece:
    if before is None:
        return piece
    return CallPiece(piece.index, before.id or piece.id, piece.name, before.arguments + piece.arguments)


def failure_event(error: ProxyError) -> bytes:
    """The last event of a stream that failed outside of the writer of its response, and so has no number."""
    event = {"type": "error", "message": error.message, "param": None, "code": error.code}
    return sse.event(encode_json(event), "error")


def error_object(error: ProxyError) -> dict[str, str]:
    code = error_code(error)
    if code not in _CODES:
        code = _CODES_BY_STATUS.get(error.status, "server_error")
    return {"code": code, "message": error.message}


def error_code(error: ProxyError) -> str:
    """The code of a failure: DeepSeek's own if it sent one, or that of an overflow which it only describes."""
    if isinstance(error, UpstreamFailed) and is_overflow_message(error.message):
        return OVERFLOW
    return str(error.payload()["error"].get("code"))
