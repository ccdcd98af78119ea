"""Calls that a model wrote into its text, made calls of the answer.

A server without a parser for its model's calls hands on what the model wrote, with finish_reason `stop`: an agent that
gets such a turn stops. `call_forms` has the forms and what is no call.

    text         passes; line breaks at its end and what may yet become an opening marker wait for the next piece
    a block      is held until it ends. It becomes a call if it is whole, names a declared tool, and its arguments have
                 what the tool requires, in the declared simple types; anything else stays the text that it was
    quotations   stay text: fences, backticks, HTML comments, <details>, and a block that the client sent since the
                 last answer

Line breaks before a block belong to it, and blanks after it if no text follows. A call that the server sent as such is
not made twice. Each character is looked at a bounded number of times, however hostile the text is.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from deepseek_cursor_proxy.conversation import Batch, CallPiece, ChatRequest, Delta, ToolCall
from deepseek_cursor_proxy.deepseek.apis.chat_stream import EventReader, ParsedEvents
from deepseek_cursor_proxy.deepseek.tools import server_tools
from deepseek_cursor_proxy.deepseek.tools.call_forms import (
    FORMS,
    OPENING,
    Block,
    Quotes,
    State,
    decode,
    partial_size,
    read_call,
)
from deepseek_cursor_proxy.json_codec import as_object

# Line breaks or blanks that wait for what follows; no template writes more.
_MOST_BLANKS = 64
# More calls than any model makes; what looks like further ones stays text.
_MOST_BLOCKS = 128
_BREAKS = ("\r", "\n")


class WrittenCalls:
    """Converts the deltas of one answer. Used by the thread that reads it."""

    def __init__(
        self, request: ChatRequest, new_id: Callable[[], str], on_structured: Callable[[], object] = lambda: None
    ) -> None:
        """`on_structured` is called with the first call that the server sent as such."""
        self._tools = {_sent_name(tool, request): as_object(tool["function"]) for tool in request.tools}
        self._messages = request.messages
        # A completion has one text and a list of calls; the answers of other APIs have both in their order.
        self._is_completion = request.client_api == server_tools.CHAT
        self._new_id = new_id
        self._on_structured = on_structured
        self._choices: dict[int, _Choice] = {}

    def convert(self, delta: Delta, part: str = "delta") -> list[Delta]:
        """The deltas in place of one; `part` is where its chunk has the content, `message` for a whole answer."""
        if self.passes(delta):
            return [delta]
        choice = self._choices.get(delta.choice)
        if choice is None:
            choice = self._choices[delta.choice] = _Choice(self._read_block)
        if delta.calls:
            self._on_structured()
        if delta.reasoning and part == "delta" and (held := choice.take_held()):
            # What the model wrote before it thought on stays before that.
            text = Delta(delta.choice, text=held, chunk=delta.chunk)
            text = text._replace(chunk=_chunk(text, part, is_first=False))
            return [text, *self.convert(delta, part)]
        is_end = part == "message" or delta.finish_reason is not None
        items = choice.feed(delta.text) if delta.text else []
        if delta.calls:
            # The text of an answer comes before its calls, line breaks at its end too.
            items += [*choice.take_breaks(), *choice.add_structured(delta.calls)]
        if is_end:
            items += choice.end()
        reason = "tool_calls" if delta.finish_reason == "stop" and choice.has_written else delta.finish_reason
        same: _Items = [*([delta.text] if delta.text else []), *delta.calls]
        is_one = (part == "message" and self._is_completion) or not items
        if is_one:
            # A call without arguments is in two pieces.
            items, same = _merge(items), _merge(same)
        if items == same and reason == delta.finish_reason:
            return [delta]
        groups = [items] if is_one else [[item] for item in items]
        return _deltas(delta._replace(finish_reason=reason), groups, part)

    def passes(self, delta: Delta) -> bool:
        """Whether a delta is handed on as it is: it has no part of any call, and nothing is held; counts as read."""
        if delta.calls or delta.finish_reason:
            return False
        choice = self._choices.get(delta.choice)
        if not delta.text:
            return not delta.reasoning or choice is None or not choice.has_held
        return choice is not None and choice.passes(delta.text)

    def reader(self, reader: EventReader) -> EventReader:
        """A reader of the stream that gives the converted deltas."""
        return _ConvertedReader(reader, self)

    def flush(self) -> list[Delta]:
        """The text that is held, when the answer breaks off."""
        held = ((index, choice.end()) for index, choice in self._choices.items())
        return [Delta(index, text=text) for index, items in held for text in items if isinstance(text, str)]

    def _read_block(self, block: Block, text: str) -> Sequence[ToolCall] | None:
        calls = [read_call(each, self._tools) for each in block.values()]
        if not all(calls) or self._is_quoted(text):
            return None
        return [ToolCall(self._new_id(), *call) for call in calls if call is not None]

    def _is_quoted(self, block: str) -> bool:
        """Whether a message since the last answer has the same block."""
        block = "".join(block.split())
        for message in reversed(self._messages):
            if message.role == "assistant":
                return False
            parts = message.content
            texts = [parts] if isinstance(parts, str) else [str(part.get("text") or "") for part in parts]
            if any(block in "".join(text.split()) for text in texts):
                return True
        return False


class _ConvertedReader(EventReader):
    """Reads one stream with another reader, and converts what it reads. Used by one thread."""

    def __init__(self, reader: EventReader, calls: WrittenCalls) -> None:
        super().__init__()
        self._reader = reader
        self._calls = calls

    def read(self, data: bytes) -> ParsedEvents:
        events = self._reader.read(data)
        batch: Batch = []
        is_same = not events.is_over
        for item in events.batch:
            if isinstance(item, Delta) and not self._calls.passes(item):
                is_same = False
                batch += self._calls.convert(item)
            else:
                batch.append(item)
        if is_same:
            return events
        if events.is_over:
            batch += self._calls.flush()
        events.batch = batch
        durable = (at for at, each in enumerate(batch) if isinstance(each, Delta) and _is_durable(each))
        first = next(durable, None)
        events.is_durable, events.early_count = first is not None, first or 0
        return events


def _is_durable(delta: Delta) -> bool:
    return bool(delta.finish_reason) or delta.may_end_call


# In their order: text, and pieces of calls.
_Items = list[str | CallPiece]


class _Choice:
    """The text of one choice. `read_block` gives the calls of a whole block; None for one that stays text."""

    def __init__(self, read_block: Callable[[Block, str], Sequence[ToolCall] | None]) -> None:
        self._read_block = read_block
        self._items: _Items = []
        # The end of the text that waits for more, and blanks after a call.
        self._held = self._blanks = ""
        self._is_after_call = False
        self._block: Block | None = None
        # The text of the open block, with the line breaks before it.
        self._parts: list[str] = []
        self._quotes = Quotes()
        self._blocks_left = _MOST_BLOCKS
        self._next_index = 0
        self._written: list[ToolCall] = []
        # Whether a block became a call, or was one that the server sent as well.
        self.has_written = False
        # By index, the calls that the server sent as such; those after a written one wait for the end.
        self._structured: dict[int, _Structured] = {}
        self._late: dict[int, _Structured] = {}

    def add_structured(self, pieces: Sequence[CallPiece]) -> Sequence[CallPiece]:
        """Take pieces of calls that the server sent; those to hand on now."""
        calls = self._late if self._written else self._structured
        passed = [calls.setdefault(piece.index, _Structured()).add(piece) for piece in pieces]
        self._next_index = max([self._next_index, *(piece.index + 1 for piece in pieces)])
        return () if self._written else passed

    def passes(self, text: str) -> bool:
        """Whether nothing in a text or before it may be part of a block; it counts as read."""
        if self._block is not None or self._held or self._is_after_call or "<" in text or text[-1] in _BREAKS:
            return False
        self._quotes.add(text)
        return True

    def feed(self, text: str) -> _Items:
        if self.passes(text):
            return [text]
        text, self._held, at = self._held + text, "", 0
        while at < len(text):
            at = self._read_text(text, at) if self._block is None else self._read_markup(self._block, text, at)
        return self._take()

    @property
    def has_held(self) -> bool:
        """Whether text is held that is part of no block."""
        return bool(self._held)

    def take_held(self) -> str:
        held, self._held = self._held, ""
        self._quotes.add(held)
        self._put(held)
        return "".join(map(str, self._take()))

    def take_breaks(self) -> _Items:
        """The line breaks at the end of the text, unless a marker may have begun after them."""
        held = self.take_held() if self._held.isspace() else ""
        return [held] if held else []

    def end(self) -> _Items:
        """What was held; a block that is cut stays text."""
        self._put("".join(self._parts) + self._held)
        self._held, self._block, self._parts = "", None, []
        self._items += [
            CallPiece(index, arguments=call.take()) for index, call in self._structured.items() if call.held
        ]
        for call in self._late.values():
            if not any(call.is_same(each.name, each.arguments) for each in self._written):
                self._put_call(call.whole())
        self._late = {}
        return self._take()

    def _take(self) -> _Items:
        """The items since the last call, texts in a row as one."""
        items, self._items = self._items, []
        if len(items) < 2:
            return items
        groups = [[*group] for _, group in groupby(items, type)]
        return [
            each for group in groups for each in (["".join(map(str, group))] if isinstance(group[0], str) else group)
        ]

    def _read_text(self, text: str, at: int) -> int:
        """Hand on the text from there to the next block, or to what is held; where to go on."""
        opened = OPENING.search(text, at)
        end = opened.start() if opened is not None else len(text) - partial_size(text)
        breaks = max(at, end - _MOST_BLANKS)
        cut = breaks + len(text[breaks:end].rstrip("\r\n"))
        self._put(text[at:cut])
        if opened is None:
            self._quotes.add(text[at:cut])
            self._held = text[cut:]
            return len(text)
        self._quotes.add(text[at:end])
        if not self._blocks_left or self._quotes.is_open():
            self._quotes.add(opened[0])
            self._put(text[cut : opened.end()])
        else:
            self._blocks_left -= 1
            self._block, self._parts = FORMS[opened[0]](), [text[cut : opened.end()]]
        return opened.end()

    def _read_markup(self, block: Block, text: str, at: int) -> int:
        """Feed a block from there; where it ends."""
        end = block.feed(text, at)
        self._parts.append(text[at:end])
        if block.state is not State.OPEN:
            whole, self._block, self._parts = "".join(self._parts), None, []
            calls = self._read_block(block, whole.strip()) if block.state is State.CLOSED else None
            if calls is None:
                # No other block is looked for in it: nested ones would be read once per level.
                self._quotes.add(whole)
                self._put(whole)
            for call in calls or ():
                self._add_written(call)
        return end

    def _add_written(self, call: ToolCall) -> None:
        self._is_after_call, self._blanks = True, ""
        self.has_written = True
        for index, sent in self._structured.items():
            if sent.is_same(call.name, call.arguments):
                if not sent.has_arguments:
                    # The server took the name out of the markup and lost the rest.
                    self._items.append(CallPiece(index, arguments=sent.take(call.arguments)))
                return
        self._written.append(call)
        self._put_call(call)

    def _put_call(self, call: ToolCall) -> None:
        self._items.append(CallPiece(self._next_index, *call))
        self._next_index += 1

    def _put(self, text: str) -> None:
        if self._is_after_call and text:
            text = self._blanks + text
            self._is_after_call = text.isspace() and len(text) < _MOST_BLANKS
            self._blanks = text if self._is_after_call else ""
            text = "" if self._is_after_call else text
        if text:
            self._items.append(text)


class _Structured:
    """A call that the server sent as such, in pieces. Empty arguments are held: a block may have the true ones."""

    def __init__(self) -> None:
        self._id = self._name = self.held = ""
        self._arguments: list[str] = []
        self.has_arguments = False

    def add(self, piece: CallPiece) -> CallPiece:
        """The piece as it is handed on."""
        self._id, self._name = self._id or piece.id, self._name or piece.name
        self.held += piece.arguments
        is_empty = len(self.held) < _MOST_BLANKS and "".join(self.held.split()) in ("", "{", "{}")
        self.has_arguments = self.has_arguments or not is_empty
        return replace(piece, arguments=self.take() if self.has_arguments else "")

    def take(self, arguments: str | None = None) -> str:
        """What is held, or these arguments in its place; it is handed on."""
        taken, self.held = self.held if arguments is None else arguments, ""
        self._arguments.append(taken)
        self.has_arguments = True
        return taken

    def whole(self) -> ToolCall:
        return ToolCall(self._id, self._name, "".join(self._arguments) + self.held)

    def is_same(self, name: str, arguments: str) -> bool:
        """Whether it is this call, or what the server left of it."""
        own = self.whole()
        return name == own.name and decode(own.arguments.strip() or "{}") in ({}, decode(arguments))


def _merge(items: _Items) -> _Items:
    """The text in one piece and each call once, for a whole answer."""
    calls: dict[int, CallPiece] = {}
    for item in items:
        if isinstance(item, CallPiece):
            before = calls.get(item.index)
            calls[item.index] = item if before is None else replace(before, arguments=before.arguments + item.arguments)
    text = "".join(item for item in items if isinstance(item, str))
    return [*([text] if text else []), *calls.values()]


def _deltas(delta: Delta, groups: Sequence[_Items], part: str) -> list[Delta]:
    """A delta for each group of items in place of one: the first has what came before its text, the last its end."""
    last = len(groups) - 1
    found = []
    for at, items in enumerate(groups):
        calls = tuple(item for item in items if isinstance(item, CallPiece))
        text = "".join(item for item in items if isinstance(item, str))
        # A held text is none, and not absent: the client gets a sign of life.
        new = delta._replace(text=text if text or not calls else None, calls=calls, run=None)
        if at > 0:
            new = new._replace(reasoning=None, foreign=None, server=None)
        if at < last:
            new = new._replace(finish_reason=None, usage=None)
        found.append(new._replace(chunk=_chunk(new, part, is_first=at == 0)))
    return found


def _chunk(delta: Delta, part: str, *, is_first: bool) -> Mapping[str, Any] | None:
    """The chunk (or completion) of a delta with its text and calls."""
    chunk = delta.chunk
    if chunk is None or not chunk.get("choices"):
        return chunk
    choice = chunk["choices"][0]
    if not is_first:
        # Its tokens are those of the first.
        choice = {name: value for name, value in choice.items() if name not in (part, "logprobs")}
    fields = {name: value for name, value in as_object(choice.get(part)).items() if name != "tool_calls"}
    if delta.calls:
        # Beside calls an answer without text has null, in a completion as in a stream.
        fields["tool_calls"] = [_call_json(each, part) for each in delta.calls]
    fields["content"] = delta.text or (None if delta.calls else delta.text)
    body = {**chunk, "choices": [{**choice, part: fields, "finish_reason": delta.finish_reason}]}
    if delta.usage is None:
        body.pop("usage", None)
    return body


def _call_json(piece: CallPiece, part: str) -> dict[str, Any]:
    named = {"id": piece.id, "type": "function"} if piece.id else {}
    function = {"name": piece.name, "arguments": piece.arguments} if piece.name else {"arguments": piece.arguments}
    return {**({"index": piece.index} if part == "delta" else {}), **named, "function": function}


def _sent_name(tool: Mapping[str, Any], request: ChatRequest) -> str:
    """The name that the model knows."""
    name = str(tool["function"]["name"])
    return request.sent_names.get(name, name)
