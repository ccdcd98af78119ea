"""Anthropic Messages: writes an answer as events (`MessageWriter`) or as one message (`PlainMessageWriter`).

    message_start
    for every block   content_block_start, its deltas, content_block_stop: one open block at a time; blocks of tools
                      that DeepSeek ran itself are as it sent them
    message_delta with the stop reason and the usage, message_stop

The plain writer writes the same events and sends only the message at the end. The strings of a run of equal
chunks are spliced into events without being encoded again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from deepseek_cursor_proxy.conversation import (
    Batch,
    CallPiece,
    Delta,
    Heartbeat,
    ServerDelta,
    ServerPiece,
    add_piece,
    join_pieces,
)
from deepseek_cursor_proxy.deepseek.error_messages import early_end
from deepseek_cursor_proxy.deepseek.usage import count_of
from deepseek_cursor_proxy.errors import ClientGone, ProxyError
from deepseek_cursor_proxy.features.encryption import Sealer
from deepseek_cursor_proxy.features.messages import errors
from deepseek_cursor_proxy.features.messages.request import MessageRequest
from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.json_codec import as_object, encode_json, object_in, repair_object

PING = sse.event(b'{"type": "ping"}', "ping")
_STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
    # A long search: the client sends the message back, and DeepSeek continues.
    "pause_turn": "pause_turn",
}
# Every count that the official types have.
_NO_SERVER_TOOL_USE = {"web_search_requests": 0, "web_fetch_requests": 0}


def event(kind: str, **rest: Any) -> bytes:
    return sse.event(encode_json({"type": kind, **rest}), kind)


class MessageHead(NamedTuple):
    """The ids of a message; `input_tokens` is an estimate until DeepSeek sends its count."""

    id: str
    request_id: str = ""
    input_tokens: int = 0


class Block:
    """One block of the content; `delta` has the type of its deltas and the name of the text in them."""

    delta = ("", "")

    def __init__(self, beginning: dict[str, Any]) -> None:
        self._beginning = beginning
        self._pieces: list[str] = []
        # The number of the block, once it has begun, and the bytes around the text of a delta.
        self.index: int | None = None
        self._around = (b"", b"")

    @property
    def value(self) -> dict[str, Any]:
        return {**self._beginning, self.delta[1]: self.text}

    @property
    def text(self) -> str:
        return join_pieces(self._pieces)

    def begin(self, index: int) -> bytes:
        self.index = index
        kind, name = self.delta
        head = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,' % index
        self._around = head + b'"delta":{"type":"%b","%b":"' % (kind.encode(), name.encode()), b'"}}\n\n'
        return event("content_block_start", index=index, content_block=self._beginning)

    def write(self, text: str, strings: Iterable[bytes]) -> bytes:
        """The deltas of a text; `strings` are its pieces as they are between the quotes of JSON."""
        add_piece(self._pieces, text)
        return b"".join([string.join(self._around) for string in strings])

    def finish(self) -> bytes:
        return event("content_block_stop", index=self.index)


class Thinking(Block):
    delta = ("thinking_delta", "thinking")

    def __init__(self, sealer: Sealer, is_omitted: bool) -> None:
        super().__init__({"type": "thinking", "thinking": "", "signature": ""})
        self._sealer = sealer
        self._is_omitted = is_omitted

    @property
    def value(self) -> dict[str, Any]:
        thinking = "" if self._is_omitted else self.text
        return {"type": "thinking", "thinking": thinking, "signature": self._sealer.seal(self.text)}

    def write(self, text: str, strings: Iterable[bytes]) -> bytes:
        deltas = super().write(text, strings)
        return b"" if self._is_omitted else deltas

    def finish(self) -> bytes:
        # Never empty: some clients drop thinking without a signature, or take it for text.
        delta = {"type": "signature_delta", "signature": self._sealer.seal(self.text)}
        return event("content_block_delta", index=self.index, delta=delta) + super().finish()


class Text(Block):
    delta = ("text_delta", "text")

    def __init__(self) -> None:
        super().__init__({"type": "text", "text": ""})
        self._citations: list[Mapping[str, Any]] = []

    @property
    def value(self) -> dict[str, Any]:
        return {**super().value, **({"citations": self._citations} if self._citations else {})}

    def cite(self, citation: Mapping[str, Any]) -> bytes:
        self._citations.append(citation)
        delta = {"type": "citations_delta", "citation": citation}
        return event("content_block_delta", index=self.index, delta=delta)


class ToolUse(Block):
    """A call as far as it has come; it begins once its name is known and the call before it is whole."""

    delta = ("input_json_delta", "partial_json")

    def __init__(self) -> None:
        super().__init__({"type": "tool_use", "id": "", "name": "", "input": {}})
        self._arguments: list[str] = []
        self._written = self._checked_count = 0
        # The last character that is no blank.
        self._last = ""
        self._was_whole = False

    @property
    def name(self) -> str:
        return str(self._beginning["name"])

    @property
    def value(self) -> dict[str, Any]:
        return {**self._beginning, "input": repair_object(self.text)}

    def add(self, piece: CallPiece) -> None:
        begun = self._beginning
        begun["id"], begun["name"] = begun["id"] or piece.id, begun["name"] or piece.name
        if piece.arguments:
            self._arguments.append(piece.arguments)
            self._last = piece.arguments.rstrip()[-1:] or self._last

    @property
    def is_whole(self) -> bool:
        """Whether its arguments are a whole object; called only when something waits for it, as they may be long."""
        if self._checked_count < len(self._arguments):
            self._checked_count = len(self._arguments)
            self._was_whole = self._last == "}" and object_in(join_pieces(self._arguments)) is not None
        return self._was_whole and bool(self.name)

    def write_rest(self) -> bytes:
        """Write the arguments that came since the last time."""
        fragment = "".join(self._arguments[self._written :])
        self._written = len(self._arguments)
        return self.write(fragment, [encode_json(fragment)[1:-1]]) if fragment else b""


class ServerBlock(Block):
    """A block of a tool that DeepSeek runs itself, as DeepSeek sent it; the input of a use follows its beginning."""

    delta = ("input_json_delta", "partial_json")

    def __init__(self, piece: ServerPiece) -> None:
        self._item = dict(piece.item)
        self._has_deltas = self._item["type"] == "server_tool_use"
        super().__init__({**self._item, "input": {}} if self._has_deltas else self._item)
        self.key = piece.key

    @property
    def value(self) -> dict[str, Any]:
        return self._item

    def complete(self, item: Mapping[str, Any]) -> bytes:
        self._item = dict(item)
        if not self._has_deltas or not item.get("input"):
            return b""
        text = encode_json(item["input"]).decode()
        return self.write(text, [encode_json(text)[1:-1]])


# Reasoning or text, and its strings as they are between the quotes of JSON.
_PendingText = tuple[type[Thinking] | type[Text], str, Sequence[bytes]]


class MessageWriter:
    """Writes one message as events, and a ping if the client got nothing for `seconds`: Claude Code gives up after 300.

    Used by one thread.
    """

    def __init__(
        self, head: MessageHead, message: MessageRequest, sealer: Sealer, now: Callable[[], float], seconds: float
    ) -> None:
        self._head = head
        self._request = message
        self._sealer = sealer
        # The events of the batch that is being written.
        self._events: list[bytes] = []
        self._blocks: list[Block] = []
        self._open: Block | None = None
        self._calls: dict[int, ToolUse] = {}
        # Reasoning and text that came in the middle of a call.
        self._pending_texts: list[_PendingText] = []
        self._usage: Mapping[str, Any] | None = None
        self._finish_reason: str | None = None
        self._stop_sequence: str | None = None
        # Sources of a text that has not begun.
        self._pending_citations: list[Mapping[str, Any]] = []
        self._now = now
        self._seconds = seconds
        self._ping_at = now() + seconds

    def begin(self) -> bytes:
        message = {**self._frame(), "content": [], "stop_reason": None, "stop_sequence": None}
        return event("message_start", message={**message, "usage": self._usage_object()})

    def write(self, batch: Batch) -> bytes:
        self._events = []
        for item in batch:
            self._write(item)
        written, now = b"".join(self._events), self._now()
        if not written and batch and now >= self._ping_at:
            written = PING
        if written:
            self._ping_at = now + self._seconds
        return written

    def end(self) -> bytes:
        self._check_end()
        self._events = []
        self._close_all()
        last = event("message_delta", delta=self._ending(), usage=self._usage_object())
        return b"".join(self._events) + last + event("message_stop")

    def fail(self, error: ProxyError) -> bytes:
        self._events = []
        self._close_open()
        return b"".join(self._events) + failure_event(error, self._head.request_id)

    def message(self) -> dict[str, Any]:
        """The whole message, at its end; raises ProxyError if DeepSeek broke it off."""
        self._check_end()
        content = [block.value for block in self._blocks]
        return {**self._frame(), "content": content, **self._ending(), "usage": self._usage_object()}

    def _check_end(self) -> None:
        if (failure := early_end(self._finish_reason)) is not None:
            raise failure

    def _frame(self) -> dict[str, Any]:
        model = self._request.request.requested_model
        return {"id": self._head.id, "type": "message", "role": "assistant", "model": model}

    def _usage_object(self) -> dict[str, Any]:
        counted = usage(self._usage, self._head.input_tokens)
        runs = as_object((self._usage or {}).get("server_tool_use"))
        if not runs and not self._request.request.server_tools:
            return counted
        return {**counted, "server_tool_use": {**_NO_SERVER_TOOL_USE, **runs}}

    def _ending(self) -> dict[str, str | None]:
        reason = _STOP_REASONS.get(self._finish_reason or "", "end_turn")
        if self._stop_sequence is not None:
            reason = "stop_sequence"
        elif reason in ("end_turn", "tool_use"):
            # Whatever upstream says: agents run tools next if this is tool_use.
            reason = "tool_use" if any(isinstance(block, ToolUse) for block in self._blocks) else "end_turn"
        return {"stop_reason": reason, "stop_sequence": self._stop_sequence}

    def _write(self, item: Delta | Heartbeat) -> None:
        if isinstance(item, Heartbeat):
            self._events += [] if item.line else [PING]
            return
        self._usage = self._usage if item.usage is None else item.usage
        strings = item.run.strings if item.run is not None else None
        if item.reasoning and self._request.has_thinking:
            self._write_text(Thinking, item.reasoning, strings or [encode_json(item.reasoning)[1:-1]])
        if item.text:
            self._write_text(Text, item.text, strings or [encode_json(item.text)[1:-1]])
        if item.server is not None:
            self._write_server_delta(item.server)
        for piece in item.calls:
            self._calls.setdefault(piece.index, ToolUse()).add(piece)
            self._write_calls_in_turn()
        if item.finish_reason is not None:
            self._finish_reason = item.finish_reason
            # DeepSeek does not name the stop sequence that ended the answer; other hosts of its models do.
            choices = (item.chunk or {}).get("choices") or [{}]
            stop = as_object(choices[0]).get("stop_reason")
            self._stop_sequence = stop if isinstance(stop, str) and stop in self._request.stops else None
            self._close_all()

    def _write_text(self, kind: "type[Thinking] | type[Text]", text: str, strings: Sequence[bytes]) -> None:
        block = self._open
        if isinstance(block, ToolUse) and not block.is_whole:
            # The block of the call would have to be closed, and could not be opened again.
            self._pending_texts.append((kind, text, strings))
            return
        if not isinstance(block, kind):
            block = Thinking(self._sealer, self._request.omits_thinking) if kind is Thinking else Text()
            self._open_block(block)
        self._events.append(block.write(text, strings))
        if self._pending_citations and isinstance(block, Text):
            self._events += map(block.cite, self._pending_citations)
            self._pending_citations = []

    def _write_server_delta(self, delta: ServerDelta) -> None:
        if delta.begins_text:
            # An empty text has no block, so its sources are dropped.
            self._pending_citations = []
            if isinstance(self._open, Text):
                self._close_open()
        for piece in delta.pieces:
            block = self._open
            if not (isinstance(block, ServerBlock) and block.key == piece.key):
                # A call before it is whole by now: DeepSeek sends one block after the other.
                block = ServerBlock(piece)
                self._open_block(block)
            if piece.is_whole:
                self._events.append(block.complete(piece.item))
                self._close_open()
        for citation in delta.citations:
            if isinstance(self._open, Text):
                self._events.append(self._open.cite(citation))
            else:
                self._pending_citations.append(citation)

    def _open_block(self, block: Block) -> None:
        self._close_open()
        self._open = block
        self._events.append(block.begin(len(self._blocks)))
        self._blocks.append(block)

    def _close_open(self) -> None:
        block, self._open = self._open, None
        if block is not None:
            self._events.append(block.finish())

    def _close_and_write_pending(self) -> None:
        """Close the open block, then write the texts that came in the middle of a call."""
        self._close_open()
        pending, self._pending_texts = self._pending_texts, []
        for text in pending:
            self._write_text(*text)

    def _write_calls_in_turn(self) -> None:
        """Write what can be written of the calls: each begins when the one before it is whole, however they came."""
        unwritten = self._unwritten_calls()
        while unwritten:
            call = unwritten.pop(0)
            self._write_call(call)
            if not (unwritten or self._pending_texts) or not call.is_whole:
                break
            self._close_and_write_pending()

    def _unwritten_calls(self) -> list[ToolUse]:
        """The calls, by their index, that have not begun or are open."""
        calls = [call for _, call in sorted(self._calls.items())]
        return [call for call in calls if call.index is None or call is self._open]

    def _write_call(self, call: ToolUse) -> None:
        """Write what has come of a call; nothing before its name is known."""
        if call.name and call.index is None:
            self._open_block(call)
        if call is self._open:
            self._events.append(call.write_rest())

    def _close_all(self) -> None:
        for call in self._unwritten_calls():
            self._write_call(call)
        self._close_and_write_pending()
        self._close_open()


class PlainMessageWriter(MessageWriter):
    """Writes one message as JSON, at its end; the events before it are not sent."""

    def end(self) -> bytes:
        return encode_json(self.message())

    def fail(self, error: ProxyError) -> bytes:
        """Break off: a plain message has no field for a failure."""
        raise ClientGone


def failure_event(error: ProxyError, request_id: str) -> bytes:
    return sse.event(encode_json(errors.failure(error, request_id)), "error")


def usage(counts: Mapping[str, Any] | None, estimate: int = 0) -> dict[str, Any]:
    """DeepSeek's usage in the fields of this API, where tokens from the cache are not part of the input."""
    counted = counts or {}
    cached = count_of(as_object(counted.get("prompt_tokens_details")), "cached_tokens")
    return {
        "input_tokens": estimate if counts is None else max(0, count_of(counted, "prompt_tokens") - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": count_of(counted, "completion_tokens"),
    }
