"""Convert calls in the model's own markup, which arrive as text, into calls of the answer.

A server that does not parse its model's markup hands it on as text, with finish_reason `stop`: an agent that gets such
a turn stops. `call_forms` and `dsml` have the forms, `Quotes` finds markup that is no call. Forced calls as JSON text
are another matter: `answer_calls`.

    text         passes; line breaks at its end and what may yet become an opening marker wait for the next piece
    a block      is held until it ends. It becomes calls if each names a declared tool and has the arguments that it
                 requires, in the declared simple types; else it stays the text that it was. A block that is cut keeps
                 its whole calls, and the rest of it is text
    quotations   stay text: fences, backticks, HTML comments, <details>, and a block that the client sent since the
                 last answer
    thinking     a block in it is a call only if nothing but blanks follows it, and no text and no call

Line breaks before a block belong to it, and blanks after it if no text follows. A call that the server sent in
structured form is not made twice. Each character is looked at a bounded number of times, however hostile the text is.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

from deepseek_cursor_proxy.conversation import Batch, CallPiece, ChatRequest, Delta, ForeignReasoning, ToolCall
from deepseek_cursor_proxy.deepseek.apis.chat_stream import EventReader, ParsedEvents
from deepseek_cursor_proxy.deepseek.tools import dsml, server_tools
from deepseek_cursor_proxy.deepseek.tools.call_forms import Block, HermesBlock, Quotes, State, decode, read_call
from deepseek_cursor_proxy.json_codec import as_object

# Line breaks or blanks that wait for what follows; no template writes more.
_MOST_BLANKS = 64
# More calls than any model makes; what looks like further ones stays text.
_MOST_BLOCKS = 128
_BREAKS = ("\r", "\n")
_REASONING_FIELDS = ("reasoning_content", "reasoning")


class _Markers(NamedTuple):
    """The opening markers of the forms that are read."""

    opening: re.Pattern[str]
    # A marker of which the end has not arrived.
    partial: re.Pattern[str]

    def partial_size(self, text: str) -> int:
        """The length of the end of a text that may be the beginning of a marker."""
        at = text.rfind("<", -dsml.LONGEST_MARKER)
        return len(text) - at if at >= 0 and self.partial.fullmatch(text, at) is not None else 0


_DSML = _Markers(re.compile(dsml.OPENING), re.compile(dsml.PARTIAL))
_DSML_AND_HERMES = _Markers(
    re.compile(f"{dsml.OPENING}|{HermesBlock.MARKER}"),
    re.compile(f"{dsml.PARTIAL}|{dsml.beginnings(HermesBlock.MARKER)}"),
)


def _before_breaks(text: str) -> int:
    """Where the line breaks at the end of a text begin, which belong to a block after them."""
    start = max(0, len(text) - _MOST_BLANKS)
    return start + len(text[start:].rstrip("\r\n"))


def _open_block(marker: str) -> Block:
    return HermesBlock() if marker == HermesBlock.MARKER else dsml.open_block(marker)


class WrittenCalls:
    """Converts the deltas of one answer. Used by the thread that reads it."""

    def __init__(
        self,
        request: ChatRequest,
        new_id: Callable[[], str],
        on_structured: Callable[[], object] = lambda: None,
        *,
        with_hermes: bool = False,
    ) -> None:
        """`on_structured` is called for each delta with calls in structured form."""
        self._markers = _DSML_AND_HERMES if with_hermes else _DSML
        self._request = request
        # A completion has one text and a list of calls; the answers of other APIs have both in their order.
        self._is_completion = request.client_api == server_tools.CHAT
        self._new_id = new_id
        self._on_structured = on_structured
        self._choices: dict[int, _Choice] = {}
        # The calls that were made of text, and the text as it came.
        self.calls: list[ToolCall] = []
        self.markup: list[str] = []

    def convert(self, delta: Delta, part: str = "delta") -> list[Delta]:
        """The deltas in place of one; `part` is where its chunk has the content, `message` for a whole answer."""
        if self.passes(delta):
            return [delta]
        if part == "message" and "<" not in (delta.text or "") and "<" not in (delta.reasoning or ""):
            if delta.calls:
                self._on_structured()
            return [delta]
        choice = self._choices.get(delta.choice)
        if choice is None:
            choice = self._choices[delta.choice] = _Choice(self._read_block, self._markers)
        if delta.calls:
            self._on_structured()
        is_end = part == "message" or delta.finish_reason is not None
        before: list[Delta] = []
        if (delta.reasoning or delta.server) and part == "delta" and (held := choice.take_held()):
            # What the model wrote before it thought on, or before a search, stays before that.
            before.append(_with_chunk(Delta(delta.choice, text=held, chunk=delta.chunk), part, is_first=False))
        if delta.reasoning:
            choice.thinking.foreign = delta.foreign and delta.foreign._replace(details=())
            delta = _with_reasoning(delta, choice.thinking.feed(delta.reasoning), part)
        if choice.thinking.has_held and choice.thinking.ends_before(delta):
            released = choice.thinking.release()
            if delta.reasoning is not None:
                delta = _with_reasoning(delta, delta.reasoning + released, part)
            else:
                before.append(_thought(delta, released, choice.thinking.foreign, part))
        items = choice.feed(delta.text) if delta.text else []
        if delta.calls:
            # The text of an answer comes before its calls, line breaks and a lone < at its end too.
            held = choice.take_held() if choice.has_no_marker else ""
            items += [*([held] if held else []), *choice.add_structured(delta.calls)]
        if is_end:
            items += choice.end()
            if choice.thinking.has_held:
                released = choice.thinking.release()
                if part == "message":
                    delta = _with_reasoning(delta, (delta.reasoning or "") + released, part)
                else:
                    before.append(_thought(delta, released, choice.thinking.foreign, part))
        reason = "tool_calls" if delta.finish_reason == "stop" and choice.written_count else delta.finish_reason
        same: _Items = [*([delta.text] if delta.text else []), *delta.calls]
        is_one = (part == "message" and self._is_completion) or not items
        if is_one:
            # A call without arguments is in two pieces.
            items, same = _merge(items), _merge(same)
        if items == same and reason == delta.finish_reason:
            return [*before, delta]
        groups = [items] if is_one else [[item] for item in items]
        return [*before, *_deltas(delta._replace(finish_reason=reason), groups, part)]

    def passes(self, delta: Delta) -> bool:
        """True if a delta has no part of any call and nothing is held: it is handed on as it is, and counts as read."""
        if delta.calls or delta.finish_reason:
            return False
        choice = self._choices.get(delta.choice)
        if delta.server is not None and choice is not None and (choice.has_held or choice.thinking.has_held):
            return False
        if delta.reasoning:
            is_plain = not delta.text and "<" not in delta.reasoning and delta.reasoning[-1] not in _BREAKS
            return is_plain and (choice is None or not (choice.has_held or choice.thinking.has_held))
        if not delta.text:
            return True
        return choice is not None and not choice.thinking.has_held and choice.passes(delta.text)

    def reader(self, reader: EventReader) -> EventReader:
        """A reader of the stream that gives the converted deltas."""
        return _ConvertedReader(reader, self)

    def flush(self) -> list[Delta]:
        """Release all that is held, because the answer broke off."""
        deltas = []
        for index, choice in self._choices.items():
            if choice.thinking.has_held:
                deltas.append(Delta(index, reasoning=choice.thinking.release(), foreign=choice.thinking.foreign))
            deltas += [Delta(index, text=text) for text in choice.break_off() if isinstance(text, str)]
        return deltas

    def _read_block(self, block: Block, text: str) -> Sequence[ToolCall] | None:
        functions = {tool["function"]["name"]: as_object(tool["function"]) for tool in self._request.tools}
        # By the names that the model knows.
        functions = {self._request.sent_names.get(name, name): function for name, function in functions.items()}
        calls = [read_call(each, functions) for each in block.values()]
        if not calls or not all(calls) or self._is_quoted(text):
            return None
        made = [ToolCall(self._new_id(), *call) for call in calls if call is not None]
        self.calls += made
        self.markup.append(text)
        return made

    def _is_quoted(self, block: str) -> bool:
        """Whether a message since the last answer has the same block."""
        block = "".join(block.split())
        for message in reversed(self._request.messages):
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
_ReadBlock = Callable[[Block, str], Sequence[ToolCall] | None]


class _Choice:
    """The text of one choice. `read_block` returns the calls of a block; None if the block stays text.

    state                              fields                     ends with
    text                               _held: breaks, "<…"        an opening marker: block; unless in quotes
    block                              _block, _parts             the end of the block: after a call, or text
    after a call (_is_after_call)      _blanks                    text that is not blank: text; a marker: block
    """

    def __init__(self, read_block: "_ReadBlock", markers: _Markers) -> None:
        self._read_block = read_block
        self._markers = markers
        self.thinking = _Thinking(markers)
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
        # How many calls came in the model's own markup; some of them the server sent as well.
        self.written_count = 0
        self._has_text = False
        # By index, the calls that the server sent in structured form; those after a written one wait for the end.
        self._structured: dict[int, _Structured] = {}
        self._late: dict[int, _Structured] = {}

    def add_structured(self, pieces: Sequence[CallPiece]) -> Sequence[CallPiece]:
        """Take pieces of calls that the server sent. Returns those to hand on now."""
        calls = self._late if self._written else self._structured
        passed = [calls.setdefault(piece.index, _Structured()).add(piece) for piece in pieces]
        self._next_index = max([self._next_index, *(piece.index + 1 for piece in pieces)])
        return () if self._written else passed

    def passes(self, text: str) -> bool:
        """True if nothing in a text or before it may be part of a block; the text then counts as read."""
        if self._block is not None or self._held or self._is_after_call or "<" in text or text[-1] in _BREAKS:
            return False
        self._quotes.add(text)
        self._has_text = True
        return True

    def feed(self, text: str) -> _Items:
        if self.passes(text):
            return [text]
        text, self._held, at = self._held + text, "", 0
        while at < len(text):
            if (block := self._block) is None:
                at = self._read_text(text, at)
                continue
            end = block.feed(text, at)
            self._parts.append(text[at:end])
            at = end
            if block.state is not State.OPEN:
                self._end_block(block)
            if block.state is State.BROKEN:
                text, at = block.unread, 0
        return self._take()

    @property
    def has_held(self) -> bool:
        """Whether text is held that is part of no block."""
        return bool(self._held)

    @property
    def has_no_marker(self) -> bool:
        """True if nothing but blanks or a lone < is held."""
        return self._held.strip() in ("", "<")

    def take_held(self) -> str:
        held, self._held = self._held, ""
        self._quotes.add(held)
        self._put(held)
        return "".join(map(str, self._take()))

    def break_off(self) -> _Items:
        """Release what is held of an incomplete answer, as text."""
        self._put("".join(self._parts) + self._held)
        self._held, self._block, self._parts = "", None, []
        return self._take()

    def end(self) -> _Items:
        """Release what is held at the end of the answer; a block that is cut keeps its whole calls."""
        if self._block is not None:
            self._end_block(self._block)
        self._put(self._held)
        self._held = ""
        if self.thinking.has_held and not (self._has_text or self._structured or self._late or self._written):
            for written in self.thinking.take_calls(self._read_block):
                self._add_written(written)
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
        """Hand on the text from `at` to the next block, or to what is held. Returns where to go on."""
        opened = self._markers.opening.search(text, at)
        end = opened.start() if opened is not None else len(text) - self._markers.partial_size(text[at:])
        cut = at + _before_breaks(text[at:end])
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
            self._block, self._parts = _open_block(opened[0]), [text[cut : opened.end()]]
        return opened.end()

    def _end_block(self, block: Block) -> None:
        """Make calls or text of a block. Of a cut one, all after its last whole call is text."""
        whole, self._block, self._parts = "".join(self._parts), None, []
        calls = self._read_block(block, whole.strip()) if block.state is not State.BROKEN else None
        if calls is None:
            # No other block is looked for in it: nested ones would be read once per level.
            if block.state is State.BROKEN:
                whole = whole.removesuffix(block.unread)
            self._quotes.add(whole)
            self._put(whole)
            return
        for call in calls:
            self._add_written(call)
        if block.state is State.OPEN and block.tail:
            self._put(whole[-block.tail :])

    def _add_written(self, call: ToolCall) -> None:
        self._is_after_call, self._blanks = True, ""
        self.written_count += 1
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
            self._has_text = self._has_text or not text.isspace()
            self._items.append(text)


class _Thinking:
    """The thinking of one choice. Blocks are held as long as nothing but blanks and further blocks follow them."""

    def __init__(self, markers: _Markers) -> None:
        self._markers = markers
        # The field in which the host sends it.
        self.foreign: ForeignReasoning | None = None
        # The end that may become a marker; the open block and its text; the closed ones, with what is between them.
        self._held = ""
        self._block: Block | None = None
        self._parts: list[str] = []
        self._closed: list[tuple[Block, str]] = []

    @property
    def has_held(self) -> bool:
        return bool(self._held or self._block or self._closed)

    def ends_before(self, delta: Delta) -> bool:
        """Whether a delta shows that what is held is no call: blanks may follow one."""
        text = delta.text or ""
        return bool(delta.calls or delta.server or (text.strip() if self._block or self._closed else text))

    def feed(self, text: str) -> str:
        """The thinking to hand on now."""
        text, self._held, at, shown = self._held + text, "", 0, ""
        while at < len(text):
            if self._block is not None:
                end = self._block.feed(text, at)
                self._parts.append(text[at:end])
                at = end
                if self._block.state is State.CLOSED:
                    self._closed.append((self._block, "".join(self._parts)))
                    self._block, self._parts = None, []
                elif self._block.state is State.BROKEN:
                    unread = self._block.unread
                    shown += self.release().removesuffix(unread)
                    text, at = unread, 0
                continue
            opened = self._markers.opening.search(text, at)
            end = opened.start() if opened is not None else len(text) - self._markers.partial_size(text[at:])
            between = text[at:end]
            if between and not (self._closed and between.isspace()):
                cut = _before_breaks(between)
                shown += self.release() + between[:cut]
                between = between[cut:]
            if opened is None:
                at, self._held = len(text), between + text[end:]
            else:
                at, self._block, self._parts = opened.end(), _open_block(opened[0]), [between + opened[0]]
        return shown

    def release(self) -> str:
        """Release all that is held, as thinking."""
        text = "".join(whole for _, whole in self._closed) + "".join(self._parts) + self._held
        self._held, self._block, self._parts, self._closed = "", None, [], []
        return text

    def take_calls(self, read_block: "_ReadBlock") -> Sequence[ToolCall]:
        """Take the calls of the held blocks. If one of them is no call, returns none and keeps all held."""
        if not self._closed or self._block is not None or self._held.strip():
            return ()
        found = [read_block(block, whole.strip()) for block, whole in self._closed]
        if None in found:
            return ()
        self.release()
        return [call for calls in found for call in calls or ()]


class _Structured:
    """A structured call of the server, in pieces. The end of empty arguments is held: a block may have others."""

    def __init__(self) -> None:
        self._id = self._name = self.held = ""
        # What was handed on.
        self._arguments: list[str] = []
        self.has_arguments = False

    def add(self, piece: CallPiece) -> CallPiece:
        """The piece as it is handed on."""
        self._id, self._name = self._id or piece.id, self._name or piece.name
        if not self.has_arguments:
            so_far = "".join([*self._arguments, self.held, piece.arguments])
            if len(so_far) < _MOST_BLANKS and "".join(so_far.split()) == "{}":
                self.held += piece.arguments
                return replace(piece, arguments="")
            self.has_arguments = so_far.strip() not in ("", "{")
            if self.held:
                piece, self.held = replace(piece, arguments=self.held + piece.arguments), ""
        self._arguments.append(piece.arguments)
        return piece

    def take(self, arguments: str | None = None) -> str:
        """Hand on what is held, or the rest of these arguments in its place."""
        taken, self.held = self.held, ""
        if arguments is not None:
            # An object, of which the brace may have been handed on.
            taken = arguments.removeprefix("".join(self._arguments).strip())
        self._arguments.append(taken)
        self.has_arguments = True
        return taken

    def whole(self) -> ToolCall:
        return ToolCall(self._id, self._name, "".join(self._arguments) + self.held)

    def is_same(self, name: str, arguments: str) -> bool:
        """True if this is the same call, or what the server left of it."""
        own = self.whole()
        return name == own.name and (not self.has_arguments or decode(own.arguments) == decode(arguments))


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
        # While text is held, send an empty string, not a missing field, so that the client sees activity.
        new = delta._replace(text=text if text or not calls else None, calls=calls, run=None)
        if at > 0:
            new = new._replace(reasoning=None, foreign=None, server=None)
        if at < last:
            new = new._replace(finish_reason=None, usage=None)
        found.append(_with_chunk(new, part, is_first=at == 0))
    return found


def _with_chunk(delta: Delta, part: str, *, is_first: bool) -> Delta:
    return delta._replace(chunk=_chunk(delta, part, is_first=is_first))


def _thought(delta: Delta, text: str, foreign: ForeignReasoning | None, part: str) -> Delta:
    """A delta of thinking that goes before this one."""
    thought = Delta(delta.choice, reasoning=text, chunk=delta.chunk, foreign=foreign)
    if delta.chunk is not None and delta.chunk.get("choices"):
        choice = {"index": delta.choice, part: {_REASONING_FIELDS[0]: text}, "finish_reason": None}
        thought = thought._replace(chunk={**delta.chunk, "choices": [choice]})
    return thought


def _with_reasoning(delta: Delta, text: str, part: str) -> Delta:
    """The delta with another piece of thinking in place of its own."""
    if text == delta.reasoning:
        return delta
    chunk = delta.chunk
    if chunk is not None and chunk.get("choices"):
        fields = as_object(chunk["choices"][0].get(part))
        replaced = {name: text for name in _REASONING_FIELDS if isinstance(fields.get(name), str)}
        chunk = {**chunk, "choices": [{**chunk["choices"][0], part: {**fields, **replaced}}]}
    return delta._replace(reasoning=text, chunk=chunk, run=None)


def _chunk(delta: Delta, part: str, *, is_first: bool) -> Mapping[str, Any] | None:
    """The chunk (or completion) of a delta with its text and calls."""
    chunk = delta.chunk
    if chunk is None or not chunk.get("choices"):
        return chunk
    choice = chunk["choices"][0]
    if not is_first:
        # The first chunk carries the log probabilities.
        choice = {name: value for name, value in choice.items() if name not in (part, "logprobs")}
    fields = {name: value for name, value in as_object(choice.get(part)).items() if name != "tool_calls"}
    if delta.calls:
        # Beside calls an answer without text has null, in a completion as in a stream.
        fields["tool_calls"] = [_call_json(each, part) for each in delta.calls]
    if delta.text or not delta.calls or "content" in fields or part == "message":
        fields["content"] = delta.text or (None if delta.calls else delta.text)
    body = {**chunk, "choices": [{**choice, part: fields, "finish_reason": delta.finish_reason}]}
    if delta.usage is None:
        body.pop("usage", None)
    return body


def _call_json(piece: CallPiece, part: str) -> dict[str, Any]:
    named = {"id": piece.id, "type": "function"} if piece.id else {}
    function = {"name": piece.name, "arguments": piece.arguments} if piece.name else {"arguments": piece.arguments}
    return {**({"index": piece.index} if part == "delta" else {}), **named, "function": function}
