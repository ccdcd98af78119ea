"""The output items of a response while they are written: reasoning, text, tool calls, searches, compaction.

An item is announced when it is added, has a delta for each piece, and repeats the whole when it is done: joined, the
pieces are that whole. `value` is the item as it is in the response object.

An item in which the answer broke off is `incomplete` and has no done event: Codex keeps every item that is done in its
history, half a thought as well, and runs every call that is done. Only a text that reached the limit of its length is
done as well as incomplete.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Any

from deepseek_cursor_proxy.conversation import CallPiece, ChatRequest, Delta, ServerPiece, ToolCall, join_pieces
from deepseek_cursor_proxy.deepseek.rules import is_whole_call
from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.json_codec import as_list, as_object, encode_json
from deepseek_cursor_proxy.protocols.request.custom_tools import FreeTextReader
from deepseek_cursor_proxy.protocols.responses import compaction
from deepseek_cursor_proxy.protocols.responses.envelope import Frame

# So many log probabilities are repeated at the end of a text, some 25 MB; all of them were in its deltas.
_MAX_LOGPROBS = 50_000


class EventSequence:
    """Encodes events with numbers that rise by one."""

    def __init__(self) -> None:
        self._next = 0

    def encode_raw(self, kind: str, rest: bytes) -> bytes:
        """One event; `rest` is the JSON of its other fields."""
        number, self._next = self._next, self._next + 1
        return sse.event(b'{"type":"%b","sequence_number":%d,%b}' % (kind.encode(), number, rest), kind)

    def encode(self, kind: str, **rest: Any) -> bytes:
        return self.encode_raw(kind, encode_json(rest)[1:-1])

    def splice(self, splice: "Splice", strings: Iterable[bytes]) -> bytes:
        """An event for each of these strings, as they are between the quotes of JSON."""
        head, middle, tail = splice
        strings = list(strings)
        first, self._next = self._next, self._next + len(strings)
        return b"".join(
            [b"%b%d%b%b%b" % (head, number, middle, string, tail) for number, string in enumerate(strings, first)]
        )


# The bytes of a delta before its number, between that and its text, and after the text.
Splice = tuple[bytes, bytes, bytes]


def _splice(kind: str, position: Mapping[str, Any], **last: Any) -> Splice:
    head = b'event: %b\ndata: {"type":"%b","sequence_number":' % (kind.encode(), kind.encode())
    tail = b"," + encode_json(last)[1:] if last else b"}"
    return head, b"," + encode_json(position)[1:-1] + b',"delta":"', b'"' + tail + b"\n\n"


class Item:
    """One item of the output; `kind` is how its id begins."""

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

    def announce(self) -> bytes:
        return self._event("response.output_item.added", item=self.value)

    def finish(self) -> bytes:
        raise AssertionError

    def break_off(self) -> bytes:
        """End the item without a done event: the answer ended inside it."""
        self._status = "incomplete"
        return b""

    def _position(self, **more: Any) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self._index, **more}

    def _event(self, kind: str, **rest: Any) -> bytes:
        return self._events.encode(kind, output_index=self._index, **rest)

    def _finish_item(self) -> bytes:
        return self._event("response.output_item.done", item=self.value)


class ReasoningItem(Item):
    """The reasoning; repeated as a summary for clients that ask for one, because there is no shorter one."""

    kind = "rs"

    def __init__(self, frame: Frame, index: int, events: EventSequence) -> None:
        super().__init__(frame, index, events)
        self._sealer = frame.sealer if frame.options.sealed else None
        self._has_summary = frame.options.summary is not None
        self._delta = _splice("response.reasoning_text.delta", self._position(content_index=0))
        self._summary = _splice("response.reasoning_summary_text.delta", self._position(summary_index=0))

    @property
    def value(self) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self.id, "type": "reasoning", "summary": [], "content": []}
        if self.is_done:
            item["content"] = [self._part(self.text)]
            item["summary"] = [self._summary_part(self.text)] if self._has_summary else []
            if self._sealer is not None:
                item["encrypted_content"] = self._sealer.seal(self.text)
        return {**item, "status": self._status}

    def announce(self) -> bytes:
        """The item and its part: openai-node (5 to 7) refuses deltas of a part that was not announced."""
        events = super().announce()
        events += self._events.encode(
            "response.content_part.added", **self._position(content_index=0), part=self._part("")
        )
        if self._has_summary:
            kind = "response.reasoning_summary_part.added"
            events += self._events.encode(kind, **self._position(summary_index=0), part=self._summary_part(""))
        return events

    def write(self, text: str, strings: Iterable[bytes]) -> bytes:
        self._pieces.append(text)
        strings = list(strings)
        deltas = self._events.splice(self._delta, strings)
        return deltas + self._events.splice(self._summary, strings) if self._has_summary else deltas

    def finish(self) -> bytes:
        self._status = "completed"
        text, events, at = self.text, self._events, self._position(content_index=0)
        done = [events.encode("response.reasoning_text.done", **at, text=text)]
        done.append(events.encode("response.content_part.done", **at, part=self._part(text)))
        if self._has_summary:
            at = self._position(summary_index=0)
            done.append(events.encode("response.reasoning_summary_text.done", **at, text=text))
            done.append(events.encode("response.reasoning_summary_part.done", **at, part=self._summary_part(text)))
        return b"".join(done) + self._finish_item()

    def _part(self, text: str) -> dict[str, str]:
        return {"type": "reasoning_text", "text": text}

    def _summary_part(self, text: str) -> dict[str, str]:
        return {"type": "summary_text", "text": text}


class TextItem(Item):
    """The text of the answer, with the log probabilities of its tokens for clients that ask for them."""

    kind = "msg"

    def __init__(self, frame: Frame, index: int, events: EventSequence) -> None:
        super().__init__(frame, index, events)
        self._delta = _splice("response.output_text.delta", self._position(content_index=0), logprobs=[])
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

    def announce(self) -> bytes:
        events = super().announce()
        at = self._position(content_index=0)
        return events + self._events.encode("response.content_part.added", **at, part=self._part())

    def write(self, text: str, strings: Iterable[bytes]) -> bytes:
        self._pieces.append(text)
        return self._events.splice(self._delta, strings)

    def write_with_logprobs(self, text: str, logprobs: list[dict[str, Any]]) -> bytes:
        self._pieces.append(text)
        for entry in logprobs:
            self._logprobs_left -= 1 + len(entry["top_logprobs"])
            if self._logprobs_left >= 0:
                self._logprobs.append(entry)
        at = self._position(content_index=0)
        return self._events.encode("response.output_text.delta", **at, delta=text, logprobs=logprobs)

    def cite(self, annotation: Mapping[str, Any]) -> bytes:
        """Add a source of the text."""
        at = self._position(content_index=0, annotation_index=len(self._annotations))
        self._annotations.append(annotation)
        return self._events.encode("response.output_text.annotation.added", **at, annotation=annotation)

    def finish(self, status: str = "completed") -> bytes:
        self._status = status
        at, events = self._position(content_index=0), self._events
        done = events.encode("response.output_text.done", **at, text=self.text, logprobs=self._logprobs)
        done += events.encode("response.content_part.done", **at, part=self._part())
        return done + self._finish_item()


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
        given = item.get("id")
        if isinstance(given, str) and given and given not in ids:
            self.id = given
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
            queries = [each for each in as_list(action.get("queries")) if isinstance(each, str)]
            action = {**action, "query": next(iter(queries), "")}
        return {**self._item, "id": self.id, "action": action, "status": self._status}

    def advance(self, piece: ServerPiece) -> bytes:
        """The events of a step, and of those before it that did not come."""
        if self.is_done:
            return b""
        if not piece.is_whole:
            return self._write_steps(piece.step)
        self._item = piece.item
        status = piece.item.get("status")
        self._status = status if status in ("completed", "failed") else "completed"
        steps = self._write_steps("completed") if self._status == "completed" else b""
        return steps + self._finish_item()

    def _write_steps(self, last: str) -> bytes:
        if not self._is_search or last not in self._STEPS:
            return b""
        steps = self._STEPS[self._steps : self._STEPS.index(last) + 1]
        self._steps += len(steps)
        return b"".join(self._events.encode(f"response.web_search_call.{each}", **self._position()) for each in steps)

    def break_off(self) -> bytes:
        # The official types have no search that is incomplete.
        self._status = "failed" if self._is_search else "incomplete"
        return b""


class CompactionItem(Item):
    """The summary of a history, sealed, and so without deltas."""

    kind = "cmp"

    def __init__(self, frame: Frame, index: int, events: EventSequence, summary: str) -> None:
        super().__init__(frame, index, events)
        assert frame.sealer is not None
        self._sealed = frame.sealer.seal(summary)

    @property
    def value(self) -> dict[str, Any]:
        return {"id": self.id, "type": compaction.KIND, "encrypted_content": self._sealed}

    def finish(self) -> bytes:
        self._status = "completed"
        return self.announce() + self._finish_item()


class CallItem(Item):
    """A call of a function, or of a custom tool: its text is the one field of a function upstream."""

    kind = "fc"

    def __init__(self, frame: Frame, index: int, events: EventSequence, request: ChatRequest, piece: CallPiece) -> None:
        self._is_custom = piece.name in request.custom_tools
        self.kind = "ctc" if self._is_custom else "fc"
        super().__init__(frame, index, events)
        self._call_id = piece.id
        self._namespace, self._name = request.tool_namespaces.get(piece.name, ("", piece.name))
        self._upstream_name = piece.name
        self._reader = FreeTextReader() if self._is_custom else None
        self._arguments: list[str] = []
        field = "custom_tool_call_input" if self._is_custom else "function_call_arguments"
        self._delta = _splice(f"response.{field}.delta", self._position())
        self._done = f"response.{field}.done"

    @property
    def is_whole(self) -> bool:
        return is_whole_call(ToolCall(self._call_id, self._upstream_name, "".join(self._arguments)))

    @property
    def value(self) -> dict[str, Any]:
        kind, field = ("custom_tool_call", "input") if self._is_custom else ("function_call", "arguments")
        item = {"id": self.id, "type": kind, "status": self._status, "call_id": self._call_id, "name": self._name}
        if self._namespace:
            item["namespace"] = self._namespace
        return {**item, field: self.text}

    def write(self, arguments: str) -> bytes:
        self._arguments.append(arguments)
        return self._write(self._reader.feed(arguments) if self._reader is not None else arguments)

    def _write(self, text: str) -> bytes:
        if not text:
            return b""
        self._pieces.append(text)
        return self._events.splice(self._delta, [encode_json(text)[1:-1]])

    def finish(self) -> bytes:
        rest = self._rest()
        self._status = "completed"
        whole = {"input": self.text} if self._is_custom else {"arguments": self.text, "name": self._name}
        return rest + self._events.encode(self._done, **self._position(), **whole) + self._finish_item()

    def break_off(self) -> bytes:
        """A whole call is done, though the answer broke off after it."""
        if self.is_whole:
            return self.finish()
        return self._rest() + super().break_off()

    def _rest(self) -> bytes:
        return self._write(self._reader.end()) if self._reader is not None else b""


def read_logprobs(delta: Delta) -> list[dict[str, Any]]:
    """The log probabilities of a delta's text; none for a run, whose chunks differ in their text alone.

    The bytes of a token may be null in chat completions; here they are always a list. A malformed entry is left out,
    because clients compute with it.
    """
    if delta.run is not None or delta.chunk is None:
        return []
    choice = as_object(next(iter(as_list(delta.chunk.get("choices"))), None))
    read = [_logprobs_entry(value) for value in as_list(as_object(choice.get("logprobs")).get("content"))]
    return [entry for entry in read if entry is not None]


def _logprobs_entry(value: object) -> dict[str, Any] | None:
    token = _token(value)
    if token is None or not isinstance(value, dict):
        return None
    others = [_token(each) for each in as_list(value.get("top_logprobs"))]
    return {**token, "top_logprobs": [each for each in others if each is not None]}


def _token(value: object) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    token, logprob, data = value.get("token"), value.get("logprob"), value.get("bytes")
    if not isinstance(token, str) or isinstance(logprob, bool) or not isinstance(logprob, (int, float)):
        return None
    is_list = isinstance(data, list) and all(isinstance(each, int) for each in data)
    return {"token": token, "logprob": logprob, "bytes": data if is_list else list(token.encode("utf-8", "replace"))}
