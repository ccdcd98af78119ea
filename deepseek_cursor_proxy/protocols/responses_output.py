"""The output items of a response while they are written: reasoning, text, tool calls, searches, compaction.

An item is announced when it is added, has a delta for each piece, and repeats the whole when it is done: joined, the
pieces are that whole. `value` is the item as it is in the response object.

An item in which the answer broke off is `incomplete` and has no done event: Codex keeps every item that is done in its
history, half a thought as well, and runs every call that is done. Only a text that reached the limit of its length is
done as well as incomplete.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from deepseek_cursor_proxy.conversation import CallPiece, ChatRequest, Delta, ServerPiece, ToolCall, join_pieces
from deepseek_cursor_proxy.deepseek.rules import is_whole_call
from deepseek_cursor_proxy.deepseek.usage import read_logprob
from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.json_codec import as_list, as_object, as_text, encode_json
from deepseek_cursor_proxy.protocols.custom_tools import FreeTextReader
from deepseek_cursor_proxy.protocols.responses_envelope import COMPACTION, Frame

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


# The forms of reasoning by their field in the item: the events of the text and of its part, and the type of the part.
_REASONING_FORMS = {
    "content": ("response.reasoning_text", "response.content_part", "reasoning_text"),
    "summary": ("response.reasoning_summary_text", "response.reasoning_summary_part", "summary_text"),
}


class ReasoningItem(Item):
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

    def write(self, text: str, strings: Sequence[bytes]) -> None:
        self._pieces.append(text)
        self._events.splice(self._delta, strings)

    def finish(self) -> None:
        self._status = "completed"
        text = self.text
        self._events.add(f"{self._text_event}.done", **self._at, text=text)
        self._events.add(f"{self._part_event}.done", **self._at, part={"type": self._part_type, "text": text})
        super().finish()


class TextItem(Item):
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

    def write(self, text: str, strings: Sequence[bytes]) -> None:
        self._pieces.append(text)
        self._events.splice(self._delta, strings)

    def write_with_logprobs(self, text: str, logprobs: list[dict[str, Any]]) -> None:
        self._pieces.append(text)
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
        self._reader = FreeTextReader() if piece.name in request.custom_tools else None
        self.kind, self._type, self._field, event = ("fc", "function_call", "arguments", "function_call_arguments")
        if self._reader is not None:
            self.kind, self._type, self._field, event = ("ctc", "custom_tool_call", "input", "custom_tool_call_input")
        super().__init__(frame, index, events)
        self._piece = piece
        self._namespace, self._name = request.tool_namespaces.get(piece.name, ("", piece.name))
        self._arguments: list[str] = []
        self._delta = _splice(f"response.{event}.delta", self._position())
        self._done = f"response.{event}.done"

    @property
    def is_whole(self) -> bool:
        return is_whole_call(ToolCall(self._piece.id, self._piece.name, "".join(self._arguments)))

    @property
    def value(self) -> dict[str, Any]:
        item = {"id": self.id, "type": self._type, "status": self._status}
        item |= {"call_id": self._piece.id, "name": self._name}
        return {**item, **({"namespace": self._namespace} if self._namespace else {}), self._field: self.text}

    def write(self, arguments: str) -> None:
        self._arguments.append(arguments)
        self._write_text(self._reader.feed(arguments) if self._reader is not None else arguments)

    def _write_text(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._events.splice(self._delta, [encode_json(text)[1:-1]])

    def finish(self) -> None:
        self._write_text(self._reader.end() if self._reader is not None else "")
        self._status = "completed"
        name = {} if self._reader is not None else {"name": self._name}
        self._events.add(self._done, **self._position(), **{self._field: self.text}, **name)
        super().finish()

    def break_off(self) -> None:
        """A whole call is done, though the answer broke off after it."""
        if self.is_whole:
            self.finish()
        else:
            self._write_text(self._reader.end() if self._reader is not None else "")
            super().break_off()


def read_logprobs(delta: Delta) -> list[dict[str, Any]]:
    """The log probabilities of a delta's text; none for a run, whose chunks differ in their text alone.

    The bytes of a token may be null in chat completions; here they are always a list. A malformed entry is left out,
    because clients compute with it.
    """
    if delta.run is not None or delta.chunk is None:
        return []
    choice = as_object(next(iter(as_list(delta.chunk.get("choices"))), None))
    entries: list[dict[str, Any]] = []
    for value in as_list(as_object(choice.get("logprobs")).get("content")):
        if (token := read_logprob(value)) is not None:
            others = map(read_logprob, as_list(value.get("top_logprobs")))
            entries.append({**token, "top_logprobs": [other for other in others if other is not None]})
    return entries
