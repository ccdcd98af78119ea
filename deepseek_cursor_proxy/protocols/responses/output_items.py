"""The items of a response while they are being written: reasoning, text, calls.

Each says what it is when it is added, passes on what is said in it piece by piece, and when it is done repeats the
whole: joined, the pieces are that whole. `value` is the item as it stands in the response object.

An item that the answer broke off in is `incomplete` and gets no done event: Codex keeps every item that is done in its
history, half a thought as well, and runs every call that is done. Only a text that reached the limit of its length is
done as well as incomplete.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from deepseek_cursor_proxy.conversation import CallPiece, ChatRequest, ToolCall, joined
from deepseek_cursor_proxy.deepseek.rules import is_whole_call
from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.protocols.request.free_text import FreeTextReader
from deepseek_cursor_proxy.protocols.responses import compaction
from deepseek_cursor_proxy.protocols.responses.envelope import Frame

# Of the log probabilities of one text as many are repeated at its end, some 25 MB; all of them were in its pieces.
_MOST_LOGPROBS = 50_000


class Numbered:
    """Events with numbers that rise by one."""

    def __init__(self) -> None:
        self._next = 0

    def raw(self, kind: str, rest: bytes) -> bytes:
        """One event; the rest of its object is JSON already."""
        number, self._next = self._next, self._next + 1
        return sse.event(b'{"type":"%b","sequence_number":%d,%b}' % (kind.encode(), number, rest), kind)

    def event(self, kind: str, **rest: Any) -> bytes:
        return self.raw(kind, encode_json(rest)[1:-1])

    def spliced(self, splice: "Splice", strings: Iterable[bytes]) -> bytes:
        """An event for each of these strings, which stand in quotes already."""
        head, middle, tail = splice
        strings = list(strings)
        first, self._next = self._next, self._next + len(strings)
        return b"".join(
            [b"%b%d%b%b%b" % (head, number, middle, string, tail) for number, string in enumerate(strings, first)]
        )


# What stands in a delta before its number, between that and its text, and behind it.
Splice = tuple[bytes, bytes, bytes]


def _splice(kind: str, where: Mapping[str, Any], **behind: Any) -> Splice:
    head = b'event: %b\ndata: {"type":"%b","sequence_number":' % (kind.encode(), kind.encode())
    tail = b"," + encode_json(behind)[1:] if behind else b"}"
    return head, b"," + encode_json(where)[1:-1] + b',"delta":"', b'"' + tail + b"\n\n"


class Item:
    """One item of the output; `kind` is how its id begins."""

    kind = ""

    def __init__(self, frame: Frame, index: int, events: Numbered) -> None:
        self._events = events
        self._index = index
        self._pieces: list[str] = []
        self._status = "in_progress"
        self.id = frame.item_id(self.kind, index)

    @property
    def text(self) -> str:
        return joined(self._pieces)

    @property
    def is_done(self) -> bool:
        return self._status != "in_progress"

    @property
    def value(self) -> dict[str, Any]:
        raise AssertionError

    def added(self) -> bytes:
        return self._event("response.output_item.added", item=self.value)

    def done(self) -> bytes:
        raise AssertionError

    def early_end(self) -> bytes:
        """End the item without a done event, because the answer ended inside it."""
        self._status = "incomplete"
        return b""

    def _where(self, **more: Any) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self._index, **more}

    def _event(self, kind: str, **rest: Any) -> bytes:
        return self._events.event(kind, output_index=self._index, **rest)

    def _item_done(self) -> bytes:
        return self._event("response.output_item.done", item=self.value)


class ReasoningItem(Item):
    """What the model thinks; once more as a summary for those who asked for one, as there is no shorter one."""

    kind = "rs"

    def __init__(self, frame: Frame, index: int, events: Numbered) -> None:
        super().__init__(frame, index, events)
        self._sealer = frame.sealer if frame.options.sealed else None
        self._has_summary = frame.options.summary is not None
        self._delta = _splice("response.reasoning_text.delta", self._where(content_index=0))
        self._summary = _splice("response.reasoning_summary_text.delta", self._where(summary_index=0))

    @property
    def value(self) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self.id, "type": "reasoning", "summary": [], "content": []}
        if self.is_done:
            item["content"] = [self._part(self.text)]
            item["summary"] = [self._summary_part(self.text)] if self._has_summary else []
            if self._sealer is not None:
                item["encrypted_content"] = self._sealer.seal(self.text)
        return {**item, "status": self._status}

    def added(self) -> bytes:
        """The item and its part: openai-node (5 to 7) refuses deltas of a part that was not announced."""
        added = super().added()
        added += self._events.event("response.content_part.added", **self._where(content_index=0), part=self._part(""))
        if self._has_summary:
            kind = "response.reasoning_summary_part.added"
            added += self._events.event(kind, **self._where(summary_index=0), part=self._summary_part(""))
        return added

    def said(self, text: str, strings: Iterable[bytes]) -> bytes:
        self._pieces.append(text)
        strings = list(strings)
        said = self._events.spliced(self._delta, strings)
        return said + self._events.spliced(self._summary, strings) if self._has_summary else said

    def done(self) -> bytes:
        self._status = "completed"
        text, events, at = self.text, self._events, self._where(content_index=0)
        done = [events.event("response.reasoning_text.done", **at, text=text)]
        done.append(events.event("response.content_part.done", **at, part=self._part(text)))
        if self._has_summary:
            at = self._where(summary_index=0)
            done.append(events.event("response.reasoning_summary_text.done", **at, text=text))
            done.append(events.event("response.reasoning_summary_part.done", **at, part=self._summary_part(text)))
        return b"".join(done) + self._item_done()

    def _part(self, text: str) -> dict[str, str]:
        return {"type": "reasoning_text", "text": text}

    def _summary_part(self, text: str) -> dict[str, str]:
        return {"type": "summary_text", "text": text}


class TextItem(Item):
    """What the model says, with the log probabilities of its tokens for those who asked for them."""

    kind = "msg"

    def __init__(self, frame: Frame, index: int, events: Numbered) -> None:
        super().__init__(frame, index, events)
        self._delta = _splice("response.output_text.delta", self._where(content_index=0), logprobs=[])
        self._has_logprobs = frame.options.logprobs
        self._logprobs: list[dict[str, Any]] = []
        self._room = _MOST_LOGPROBS

    @property
    def value(self) -> dict[str, Any]:
        content = [self._part()] if self.is_done else []
        return {"id": self.id, "type": "message", "role": "assistant", "status": self._status, "content": content}

    def _part(self) -> dict[str, Any]:
        part = {"type": "output_text", "text": self.text, "annotations": []}
        return {**part, "logprobs": self._logprobs} if self._has_logprobs else part

    def added(self) -> bytes:
        added = super().added()
        at = self._where(content_index=0)
        return added + self._events.event("response.content_part.added", **at, part=self._part())

    def said(self, text: str, strings: Iterable[bytes]) -> bytes:
        self._pieces.append(text)
        return self._events.spliced(self._delta, strings)

    def said_with(self, logprobs: list[dict[str, Any]], text: str) -> bytes:
        """The same for a text whose tokens have these log probabilities."""
        self._pieces.append(text)
        for entry in logprobs:
            self._room -= 1 + len(entry["top_logprobs"])
            if self._room >= 0:
                self._logprobs.append(entry)
        at = self._where(content_index=0)
        return self._events.event("response.output_text.delta", **at, delta=text, logprobs=logprobs)

    def done(self, status: str = "completed") -> bytes:
        self._status = status
        at, events = self._where(content_index=0), self._events
        done = events.event("response.output_text.done", **at, text=self.text, logprobs=self._logprobs)
        done += events.event("response.content_part.done", **at, part=self._part())
        return done + self._item_done()


class CompactionItem(Item):
    """The summary of a history, sealed and told at once, because nobody can read it before it is whole."""

    kind = "cmp"

    def __init__(self, frame: Frame, index: int, events: Numbered, summary: str) -> None:
        super().__init__(frame, index, events)
        assert frame.sealer is not None
        self._sealed = frame.sealer.seal(summary)

    @property
    def value(self) -> dict[str, Any]:
        return {"id": self.id, "type": compaction.KIND, "encrypted_content": self._sealed}

    def done(self) -> bytes:
        self._status = "completed"
        return self.added() + self._item_done()


class CallItem(Item):
    """A call of a function, or of a custom tool, whose text comes out of the one field it has upstream."""

    kind = "fc"

    def __init__(self, frame: Frame, index: int, events: Numbered, request: ChatRequest, piece: CallPiece) -> None:
        self._is_custom = piece.name in request.custom_tools
        self.kind = "ctc" if self._is_custom else "fc"
        super().__init__(frame, index, events)
        # Every call needs an id: Codex leaves one without alone.
        self._call_id = piece.id or frame.item_id("call", index)
        self._namespace, self._name = request.namespaced.get(piece.name, ("", piece.name))
        self._lowered = piece.name
        self._reader = FreeTextReader() if self._is_custom else None
        self._arguments: list[str] = []
        said = "custom_tool_call_input" if self._is_custom else "function_call_arguments"
        self._delta = _splice(f"response.{said}.delta", self._where())
        self._done = f"response.{said}.done"

    @property
    def is_whole(self) -> bool:
        return is_whole_call(ToolCall(self._call_id, self._lowered, "".join(self._arguments)))

    @property
    def value(self) -> dict[str, Any]:
        kind, said = ("custom_tool_call", "input") if self._is_custom else ("function_call", "arguments")
        item = {"id": self.id, "type": kind, "status": self._status, "call_id": self._call_id, "name": self._name}
        if self._namespace:
            item["namespace"] = self._namespace
        return {**item, said: self.text}

    def said(self, arguments: str) -> bytes:
        self._arguments.append(arguments)
        return self._spoken(self._reader.feed(arguments) if self._reader is not None else arguments)

    def _spoken(self, text: str) -> bytes:
        if not text:
            return b""
        self._pieces.append(text)
        return self._events.spliced(self._delta, [encode_json(text)[1:-1]])

    def done(self) -> bytes:
        rest = self._rest()
        self._status = "completed"
        said = {"input": self.text} if self._is_custom else {"arguments": self.text, "name": self._name}
        return rest + self._events.event(self._done, **self._where(), **said) + self._item_done()

    def early_end(self) -> bytes:
        """A call that is whole is done, whatever broke off behind it."""
        if self.is_whole:
            return self.done()
        return self._rest() + super().early_end()

    def _rest(self) -> bytes:
        return self._spoken(self._reader.end()) if self._reader is not None else b""
