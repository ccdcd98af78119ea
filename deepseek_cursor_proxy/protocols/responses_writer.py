"""OpenAI Responses: writes an answer as events (`ResponseWriter`) or as one object (`PlainResponseWriter`).

    response.created, response.in_progress
    for every item   output_item.added, its deltas, its done events, output_item.done
    response.completed | incomplete | failed, with the object

The plain writer writes the same events and sends only the object of the last. Sequence numbers rise by one from event
to event. The strings of a run of equal chunks are spliced into events without being encoded again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from deepseek_cursor_proxy.conversation import Batch, CallPiece, ChatRequest, Delta, Heartbeat, ServerDelta, join_pieces
from deepseek_cursor_proxy.deepseek.error_messages import OVERFLOW, early_end, is_overflow_message
from deepseek_cursor_proxy.errors import ClientGone, ProxyError, UpstreamFailed
from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.json_codec import Json, encode_json, is_json
from deepseek_cursor_proxy.protocols.responses_envelope import Frame, state, usage
from deepseek_cursor_proxy.protocols.responses_output import (
    CallItem,
    CompactionItem,
    EventSequence,
    Item,
    ReasoningItem,
    ServerItem,
    TextItem,
    read_logprobs,
)

# Upstream may send comments often; they become events at most this often. …
_HEARTBEAT_SECONDS = 10.0
# … In the background less often: every event is stored with the whole object in it.
_BACKGROUND_HEARTBEAT_SECONDS = 60.0
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
# Codes that clients act on; to them any other code is a server error, and they retry.
_CODES = frozenset({"rate_limit_exceeded", OVERFLOW, "invalid_prompt", "insufficient_quota"})
_CODES_BY_STATUS = {429: "rate_limit_exceeded", 402: "insufficient_quota", 400: "invalid_prompt"}

Save = Callable[[dict[str, Any]], None]
_Item = TypeVar("_Item", bound=Item)
_Words = TypeVar("_Words", ReasoningItem, TextItem)


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
        self._add_lifecycle("response.created", state("in_progress"))
        return self.start()

    def begin_queued(self) -> bytes:
        """The beginning of a response that waits in a queue; `start` follows when its turn comes."""
        self._add_lifecycle("response.created", state("queued"))
        self._add_lifecycle("response.queued", state("queued"))
        return self._events.take()

    def start(self) -> bytes:
        self._add_lifecycle("response.in_progress", state("in_progress"))
        return self._events.take()

    def write(self, batch: Batch) -> bytes:
        for item in batch:
            self._write(item)
        return self._events.take()

    def end(self) -> bytes:
        self._end_items()
        if (failure := early_end(self._finish_reason)) is not None:
            return self.fail(failure)
        if self._finish_reason in _INCOMPLETE:
            details = {"reason": _INCOMPLETE[self._finish_reason]}
            return self._last("response.incomplete", "incomplete", incomplete_details=details)
        if self._frame.options.json and not self._calls:
            texts = self._texts()
            # The last text alone as well: the model may say that it searches before it does.
            if not (is_json("".join(texts)) or (texts and is_json(texts[-1]))):
                return self.fail(UpstreamFailed("DeepSeek's answer is not the JSON that was asked for. Try again."))
        return self._last("response.completed", "completed")

    def fail(self, error: ProxyError) -> bytes:
        self._end_items(is_broken=True)
        return self._last("response.failed", "failed", error=error_object(error))

    def cancel(self) -> bytes:
        """The last events of a cancelled answer: incomplete, because the API has no event for a cancellation."""
        self._end_items(is_broken=True)
        return self._last("response.incomplete", "cancelled")

    def _add_lifecycle(self, kind: str, so_far: Mapping[str, Any]) -> None:
        self._wrote_at = self._now()
        self._events.add_raw(kind, b'"response":' + self._frame.encode(so_far))

    def _last(self, kind: str, status: str, **known: Any) -> bytes:
        known |= {"output": [item.value for item in self._items], "output_text": "".join(self._texts())}
        if status == "completed":
            known["completed_at"] = self._frame.created_at + int(self._now() - self._began_at)
        so_far = state(status, usage=usage(self._usage), **known)
        self._add_lifecycle(kind, so_far)
        last = self._events.take()
        self.response = self._frame.response(so_far)
        self._save(self.response)
        return last

    def _texts(self) -> list[str]:
        return [item.text for item in self._items if isinstance(item, TextItem)]

    def _write(self, item: Delta | Heartbeat) -> None:
        if isinstance(item, Heartbeat):
            self._write_heartbeat(item)
            return
        self._usage = self._usage if item.usage is None else item.usage
        strings = item.run.strings if item.run is not None else None
        if item.reasoning:
            opened = self._open_item(ReasoningItem)
            opened.write(item.reasoning, strings or [encode_json(item.reasoning)[1:-1]])
        if item.text:
            text = self._open_item(TextItem)
            if self._frame.options.logprobs and (logprobs := read_logprobs(item)):
                text.write_with_logprobs(item.text, logprobs)
            else:
                text.write(item.text, strings or [encode_json(item.text)[1:-1]])
        for piece in item.calls:
            self._write_call(piece)
        if item.server is not None:
            self._write_server(item.server)
        if item.finish_reason is not None:
            self._finish_reason = item.finish_reason
            is_incomplete = item.finish_reason in _INCOMPLETE
            if is_incomplete and isinstance(self._open, TextItem):
                # A text that reached its limit is done, as in OpenAI's own streams.
                self._open.finish("incomplete")
            self._end_items(is_broken=is_incomplete or early_end(item.finish_reason) is not None)

    def _write_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Write an event, because Codex does not count comments."""
        quiet = self._now() - self._wrote_at
        if self._frame.options.background and quiet < _BACKGROUND_HEARTBEAT_SECONDS:
            return
        if not heartbeat.line or quiet >= _HEARTBEAT_SECONDS:
            self._add_lifecycle("response.in_progress", state("in_progress"))

    def _open_item(self, kind: type[_Words]) -> _Words:
        """The open item if it is of this kind, else a new one."""
        if isinstance(self._open, kind):
            return self._open
        opened = self._add(kind(self._frame, len(self._items), self._events))
        self._open = opened
        return opened

    def _add(self, item: _Item) -> _Item:
        """Add an item, after the open one and every whole call have ended: clients run a call once it is done."""
        ready: list[Item] = [] if self._open is None else [self._open]
        ready += [call for call in self._calls.values() if call.is_whole and not call.is_done]
        self._open = None
        for ended in ready:
            ended.finish()
        self._items.append(item)
        item.announce()
        return item

    def _write_call(self, piece: CallPiece) -> None:
        call = self._calls.get(piece.index)
        if call is None:
            if (before := self._nameless.pop(piece.index, None)) is not None:
                arguments = before.arguments + piece.arguments
                piece = CallPiece(piece.index, before.id or piece.id, piece.name, arguments)
            if not piece.name:
                # Its name decides which kind of item it is; a gateway may send that late.
                self._nameless[piece.index] = piece
                return
            call = self._add(CallItem(self._frame, len(self._items), self._events, self._request, piece))
            self._calls[piece.index] = call
        if not call.is_done:
            call.write(piece.arguments)

    def _write_server(self, server: ServerDelta) -> None:
        for piece in server.pieces:
            item = self._server_items.get(piece.key)
            if item is None:
                ids = {other.id for other in self._items}
                item = self._add(ServerItem(self._frame, len(self._items), self._events, piece.item, ids))
                self._server_items[piece.key] = item
            item.advance(piece)
        if isinstance(self._open, TextItem):
            for annotation in server.citations:
                self._open.cite(annotation)

    def _end_items(self, *, is_broken: bool = False) -> None:
        """End every item that has not ended, as broken off or finished."""
        begun: list[Item | None] = [self._open, *self._calls.values(), *self._server_items.values()]
        self._open = None
        for item in begun:
            if item is None or item.is_done:
                continue
            if is_broken:
                item.break_off()
            else:
                item.finish()


class SummaryWriter(ResponseWriter):
    """Writes the response to a request for compaction: one item, when the whole summary is there."""

    def __init__(self, frame: Frame, request: ChatRequest, now: Callable[[], float], save: Save) -> None:
        super().__init__(frame, request, now, save)
        self._summary: list[str] = []

    def _write(self, item: Delta | Heartbeat) -> None:
        if isinstance(item, Delta):
            self._usage = self._usage if item.usage is None else item.usage
            self._finish_reason = item.finish_reason or self._finish_reason
            self._summary.append(item.text or "")
            # The client reads nothing of it until then.
            item = Heartbeat("writing")
        self._write_heartbeat(item)

    def end(self) -> bytes:
        summary = join_pieces(self._summary).strip()
        failure = early_end(self._finish_reason)
        if failure is None and (not summary or self._finish_reason in _INCOMPLETE):
            failure = UpstreamFailed("DeepSeek wrote no whole summary of this conversation. Try again.")
        if failure is not None:
            return self.fail(failure)
        self._add(CompactionItem(self._frame, 0, self._events, summary)).finish()
        return self._last("response.completed", "completed")


class PlainResponseWriter:
    """Writes one response as JSON, at its end, from the writer of its events. Used by one thread."""

    def __init__(self, events: ResponseWriter) -> None:
        self._events = events
        self.begin, self.write = events.begin, events.write

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
                "output": [*(item for item in self._items if item.get("role") == "user"), *response["output"]],
                "usage": response["usage"] or usage({}),
            }
        )

    def fail(self, error: ProxyError) -> bytes:
        """Break off: a compaction has no field for a failure."""
        raise ClientGone


def failure_event(error: ProxyError) -> bytes:
    """The last event of a stream that failed outside its writer; it has no sequence number."""
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
