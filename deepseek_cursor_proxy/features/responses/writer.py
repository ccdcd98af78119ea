"""OpenAI Responses: writes an answer as events (`ResponseWriter`) or as one object (`PlainResponseWriter`).

    response.created, response.in_progress
    for every item   output_item.added, its deltas, its done events, output_item.done
    response.completed | incomplete | failed, with the object

The plain writer writes the same events and sends only the object of the last. Sequence numbers rise by one from event
to event. The strings of a run of equal chunks are spliced into events without being encoded again.

An item is announced when it is added, has a delta for each piece, and repeats the whole when it is done: joined, the
pieces are that whole. `value` is the item as it is in the response object. An item in which the answer broke off is
`incomplete` and has no done event: Codex keeps every item that is done in its history, half a thought as well, and runs
every call that is done. Only a text that reached the limit of its length is done as well as incomplete.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from deepseek_cursor_proxy.conversation import (
    Batch,
    CallPiece,
    ChatRequest,
    Delta,
    Heartbeat,
    ServerDelta,
    ServerPiece,
    ToolCall,
    add_piece,
    join_pieces,
)
from deepseek_cursor_proxy.deepseek.error_messages import early_end
from deepseek_cursor_proxy.deepseek.rules import is_whole_call
from deepseek_cursor_proxy.deepseek.usage import read_logprobs
from deepseek_cursor_proxy.errors import ClientGone, ProxyError, UpstreamFailed
from deepseek_cursor_proxy.features.responses.fields import COMPACTION, Frame, error_object, state, usage
from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.json_codec import Json, as_list, as_object, as_text, encode_json, is_json
from deepseek_cursor_proxy.protocols.tools import FreeTextReader

# At most this many log probabilities, some 25 MB, are repeated when a text is done; its deltas had all of them.
_MAX_LOGPROBS = 50_000


class EventSequence:
    """Encodes events with numbers that rise by one, and keeps them until they are taken."""

    def __init__(self) -> None:
        self._next = 0
        self._encoded: list[bytes] = []

    def take(self) -> bytes:
        encoded, self._encoded = self._encoded, []
        return b"".join(encoded)

    def add_raw(self, kind: str, rest: bytes) -> None:
        """Add one event; `rest` is the JSON of its other fields."""
        number, self._next = self._next, self._next + 1
        self._encoded.append(sse.event(b'{"type":"%b","sequence_number":%d,%b}' % (kind.encode(), number, rest), kind))

    def add(self, kind: str, **rest: Any) -> None:
        self.add_raw(kind, encode_json(rest)[1:-1])

    def splice(self, splice: "Splice", strings: Iterable[bytes]) -> None:
        """Add an event for each of these strings, as they are between the quotes of JSON."""
        head, middle, tail = splice
        number = self._next
        for string in strings:
            self._encoded.append(b"%b%d%b%b%b" % (head, number, middle, string, tail))
            number += 1
        self._next = number


# The bytes of a delta before its number, between that and its text, and after the text.
Splice = tuple[bytes, bytes, bytes]


def _splice(kind: str, position: Mapping[str, Any], **last: Any) -> Splice:
    head = b'event: %b\ndata: {"type":"%b","sequence_number":' % (kind.encode(), kind.encode())
    tail = b"," + encode_json(last)[1:] if last else b"}"
    return head, b"," + encode_json(position)[1:-1] + b',"delta":"', b'"' + tail + b"\n\n"


class Item:
    """One item of the output, which adds its events to `events`; `kind` is how its id begins."""

    kind = ""

    def __init__(self, frame: Frame, index: int, events: EventSequence) -> None:
        self._events = events
        self._index = index
        self._pieces: list[str] = []
        self._status = "in_progress"
        self.id = frame.item_id(self.kind, index)

    @property
    def text(self) -> str:
        return join_pieces(self._pieces)

    @property
    def is_done(self) -> bool:
        return self._status != "in_progress"

    @property
    def value(self) -> dict[str, Any]:
        raise AssertionError

    def announce(self) -> None:
        self._events.add("response.output_item.added", output_index=self._index, item=self.value)

    def finish(self) -> None:
        self._events.add("response.output_item.done", output_index=self._index, item=self.value)

    def break_off(self) -> None:
        """End the item without a done event: the answer ended inside it."""
        self._status = "incomplete"

    def _position(self, **more: Any) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self._index, **more}


class StreamedTextItem(Item):
    """Reasoning or text; `strings` are its pieces as they are between the quotes of JSON."""

    _delta: "Splice"

    def write(self, text: str, strings: Sequence[bytes]) -> None:
        add_piece(self._pieces, text)
        self._events.splice(self._delta, strings)


# The forms of reasoning by their field in the item: the events of the text and of its part, and the type of the part.
_REASONING_FORMS = {
    "content": ("response.reasoning_text", "response.content_part", "reasoning_text"),
    "summary": ("response.reasoning_summary_text", "response.reasoning_summary_part", "summary_text"),
}


class ReasoningItem(StreamedTextItem):
    """The reasoning; as a summary alone for clients that ask for one: Copilot makes text of an item that has both."""

    kind = "rs"

    def __init__(self, frame: Frame, index: int, events: EventSequence) -> None:
        super().__init__(frame, index, events)
        self._sealer = frame.sealer if frame.options.sealed else None
        self._field = "content" if frame.options.summary is None else "summary"
        self._text_event, self._part_event, self._part_type = _REASONING_FORMS[self._field]
        self._at = self._position(**{f"{self._field}_index": 0})
        self._delta = _splice(f"{self._text_event}.delta", self._at)

    @property
    def value(self) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self.id, "type": "reasoning", "summary": [], "content": []}
        if self.is_done:
            text = self.text
            item[self._field] = [{"type": self._part_type, "text": text}]
            if self._sealer is not None:
                item["encrypted_content"] = self._sealer.seal(text)
        return {**item, "status": self._status}

    def announce(self) -> None:
        """Add the item and its part: openai-node (5 to 7) refuses deltas of a part that was not announced."""
        super().announce()
        self._events.add(f"{self._part_event}.added", **self._at, part={"type": self._part_type, "text": ""})

    def finish(self) -> None:
        self._status = "completed"
        text = self.text
        self._events.add(f"{self._text_event}.done", **self._at, text=text)
        self._events.add(f"{self._part_event}.done", **self._at, part={"type": self._part_type, "text": text})
        super().finish()


class TextItem(StreamedTextItem):
    """The text of the answer, with the log probabilities of its tokens for clients that ask for them."""

    kind = "msg"

    def __init__(self, frame: Frame, index: int, events: EventSequence) -> None:
        super().__init__(frame, index, events)
        self._at = self._position(content_index=0)
        self._delta = _splice("response.output_text.delta", self._at, logprobs=[])
        self._has_logprobs = frame.options.logprobs
        self._logprobs: list[dict[str, Any]] = []
        self._logprobs_left = _MAX_LOGPROBS
        self._annotations: list[Mapping[str, Any]] = []

    @property
    def value(self) -> dict[str, Any]:
        content = [self._part()] if self.is_done else []
        return {"id": self.id, "type": "message", "role": "assistant", "status": self._status, "content": content}

    def _part(self) -> dict[str, Any]:
        part = {"type": "output_text", "text": self.text, "annotations": self._annotations}
        return {**part, "logprobs": self._logprobs} if self._has_logprobs else part

    def announce(self) -> None:
        super().announce()
        self._events.add("response.content_part.added", **self._at, part=self._part())

    def write_with_logprobs(self, text: str, logprobs: list[dict[str, Any]]) -> None:
        add_piece(self._pieces, text)
        for entry in logprobs:
            self._logprobs_left -= 1 + len(entry["top_logprobs"])
            if self._logprobs_left >= 0:
                self._logprobs.append(entry)
        self._events.add("response.output_text.delta", **self._at, delta=text, logprobs=logprobs)

    def cite(self, annotation: Mapping[str, Any]) -> None:
        """Add a source of the text."""
        at = {**self._at, "annotation_index": len(self._annotations)}
        self._annotations.append(annotation)
        self._events.add("response.output_text.annotation.added", **at, annotation=annotation)

    def finish(self, status: str = "completed") -> None:
        self._status = status
        self._events.add("response.output_text.done", **self._at, text=self.text, logprobs=self._logprobs)
        self._events.add("response.content_part.done", **self._at, part=self._part())
        super().finish()


class ServerItem(Item):
    """An item of a tool that DeepSeek runs itself, as DeepSeek sends it; its id as well, if no other item has it.

    Only a search has events for its steps. Fields that the official types require of one are added if they are missing.
    """

    kind = "ws"
    _STEPS = ("in_progress", "searching", "completed")

    def __init__(
        self, frame: Frame, index: int, events: EventSequence, item: Mapping[str, Any], ids: Container[str]
    ) -> None:
        super().__init__(frame, index, events)
        given = as_text(item.get("id"))
        self.id = given if given and given not in ids else self.id
        self._item = item
        self._is_search = item["type"] == "web_search_call"
        # How many steps of a search have been written.
        self._steps = 0

    @property
    def value(self) -> dict[str, Any]:
        if not self._is_search:
            return {**self._item, "id": self.id, **({"status": "incomplete"} if self._status == "incomplete" else {})}
        action = as_object(self._item.get("action")) or {"type": "search"}
        if action.get("type") == "search" and "query" not in action:
            queries = [query for query in as_list(action.get("queries")) if isinstance(query, str)]
            action = {**action, "query": next(iter(queries), "")}
        return {**self._item, "id": self.id, "action": action, "status": self._status}

    def advance(self, piece: ServerPiece) -> None:
        """Add the events of a step, and of those before it that did not come; the last step ends the item."""
        if self.is_done:
            return
        step = piece.step
        if piece.is_whole:
            self._item = piece.item
            self._status = step = "failed" if piece.item.get("status") == "failed" else "completed"
        if self._is_search and step in self._STEPS:
            steps = self._STEPS[self._steps : self._STEPS.index(step) + 1]
            self._steps += len(steps)
            for name in steps:
                self._events.add(f"response.web_search_call.{name}", **self._position())
        if piece.is_whole:
            super().finish()

    def break_off(self) -> None:
        # The official types have no search that is incomplete.
        self._status = "failed" if self._is_search else "incomplete"

    # What DeepSeek left unfinished has no done event.
    finish = break_off


class CompactionItem(Item):
    """The summary of a history, sealed, and so without deltas."""

    kind = "cmp"

    def __init__(self, frame: Frame, index: int, events: EventSequence, summary: str) -> None:
        super().__init__(frame, index, events)
        assert frame.sealer is not None
        self._sealed = frame.sealer.seal(summary)

    @property
    def value(self) -> dict[str, Any]:
        return {"id": self.id, "type": COMPACTION, "encrypted_content": self._sealed}


class CallItem(Item):
    """A call of a function, or of a custom tool: its text is the one field of a function upstream."""

    def __init__(self, frame: Frame, index: int, events: EventSequence, request: ChatRequest, piece: CallPiece) -> None:
        is_custom = piece.name in request.custom_tools
        self._reader = FreeTextReader() if is_custom else None
        self.kind, self._type = ("ctc", "custom_tool_call") if is_custom else ("fc", "function_call")
        self._field = "input" if is_custom else "arguments"
        event = f"response.{self._type}_{self._field}"
        super().__init__(frame, index, events)
        self._piece = piece
        self._namespace, self._name = request.tool_namespaces.get(piece.name, ("", piece.name))
        self._arguments: list[str] = []
        self._delta = _splice(f"{event}.delta", self._position())
        self._done = f"{event}.done"

    @property
    def is_whole(self) -> bool:
        return is_whole_call(ToolCall(self._piece.id, self._piece.name, "".join(self._arguments)))

    @property
    def value(self) -> dict[str, Any]:
        item = {"id": self.id, "type": self._type, "status": self._status}
        item |= {"call_id": self._piece.id, "name": self._name}
        return {**item, **({"namespace": self._namespace} if self._namespace else {}), self._field: self.text}

    def write(self, arguments: str) -> None:
        add_piece(self._arguments, arguments)
        self._write_text(arguments if self._reader is None else self._reader.feed(arguments))

    def _write_text(self, text: str) -> None:
        if text:
            add_piece(self._pieces, text)
            self._events.splice(self._delta, [encode_json(text)[1:-1]])

    def finish(self) -> None:
        self._write_text("" if self._reader is None else self._reader.end())
        self._status = "completed"
        name = {} if self._reader is not None else {"name": self._name}
        self._events.add(self._done, **self._position(), **{self._field: self.text}, **name)
        super().finish()

    def break_off(self) -> None:
        """A whole call is done, though the answer broke off after it."""
        if self.is_whole:
            self.finish()
        else:
            self._write_text("" if self._reader is None else self._reader.end())
            super().break_off()


# Upstream may send comments often; they become events at most this often. …
_HEARTBEAT_SECONDS = 10.0
# … In the background less often: every event is stored with the whole object in it.
_BACKGROUND_HEARTBEAT_SECONDS = 60.0
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}

Save = Callable[[dict[str, Any]], None]
_Item = TypeVar("_Item", bound=Item)
_TextPart = TypeVar("_TextPart", bound=StreamedTextItem)


class ResponseWriter:
    """Writes one response as events and saves it before the last one. Used by one thread; `now` never goes back."""

    def __init__(self, frame: Frame, request: ChatRequest, now: Callable[[], float], save: Save) -> None:
        self._frame = frame
        self._request = request
        self._now = now
        self._save = save
        self._events = EventSequence()
        self._items: list[Item] = []
        self._open: StreamedTextItem | None = None
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

    def _open_item(self, kind: type[_TextPart]) -> _TextPart:
        """The open item if it is of this kind, else a new one."""
        if isinstance(self._open, kind):
            return self._open
        self._open = opened = self._add(kind(self._frame, len(self._items), self._events))
        return opened

    def _add(self, item: _Item) -> _Item:
        """Add an item, after the open one and every whole call have ended: clients run a call once it is done."""
        if self._open is not None:
            self._open.finish()
            self._open = None
        for call in self._calls.values():
            if call.is_whole and not call.is_done:
                call.finish()
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
            if item is not None and not item.is_done:
                (item.break_off if is_broken else item.finish)()


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
        head = {"id": response["id"], "object": "response.compaction", "created_at": response["created_at"]}
        output = [*(item for item in self._items if item.get("role") == "user"), *response["output"]]
        return encode_json({**head, "output": output, "usage": response["usage"] or usage({})})

    def fail(self, error: ProxyError) -> bytes:
        """Break off: a compaction has no field for a failure."""
        raise ClientGone


def failure_event(error: ProxyError) -> bytes:
    """The last event of a stream that failed outside its writer; it has no sequence number."""
    event = {"type": "error", "message": error.message, "param": None, "code": error.code}
    return sse.event(encode_json(event), "error")
