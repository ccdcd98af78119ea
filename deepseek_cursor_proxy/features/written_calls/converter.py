"""Calls that a model wrote as text become calls of the answer.

A server that does not decode its model's markup forwards it as text, with finish_reason `stop`: an agent that gets such
a turn stops. `call_markup` has the forms. Text passes up to the first opening marker that is no quotation; from there
on it is held, and read once, when the answer ends. A block becomes calls if each of them names a declared tool and has
its required arguments, in the declared simple types; else it stays the text that it was. A block that is cut off keeps
its whole calls. Blocks at the end of the thinking become calls if the answer has no text and no other call. The text of
an answer to a request that forces a call is held from its beginning: it may be the call, as JSON.

Only the model's own words become calls: if a message of the request brings markup into the chat (`brings_markup`), or
once DeepSeek has run a search, everything stays text.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from deepseek_cursor_proxy.conversation import Batch, CallPiece, ChatRequest, Delta, OtherReasoning, ToolCall
from deepseek_cursor_proxy.deepseek import chat_api, server_tools
from deepseek_cursor_proxy.deepseek.chat_stream import ParsedEvents, Read
from deepseek_cursor_proxy.deepseek.rules import is_forced
from deepseek_cursor_proxy.features.written_calls.call_markup import (
    MARKUP,
    NO_MARKERS,
    WITH_HERMES,
    Block,
    Markers,
    Quotes,
    brings_json,
    brings_markup,
    decode,
    find_call,
    read_block,
    typed_call,
)
from deepseek_cursor_proxy.json_codec import as_object


class WrittenCalls:
    """Converts the deltas of one answer. Used by the thread that reads it."""

    def __init__(
        self,
        request: ChatRequest,
        new_id: Callable[[], str],
        on_structured: Callable[[], object] = lambda: None,
        *,
        with_markup: bool = True,
        with_hermes: bool = False,
    ) -> None:
        """`on_structured` is called for each delta that begins a call in structured form."""
        self._request = request
        self._new_id = new_id
        self._on_structured = on_structured
        self._markers = WITH_HERMES if with_hermes else MARKUP if with_markup else NO_MARKERS
        self._is_forced = is_forced(request.tool_choice)
        # A completion has one text and a list of calls; the answers of other APIs have both in their order.
        self._is_completion = request.client_api == server_tools.CHAT
        # Whether markup may be a call; called at the first marker of a text. A method would make a cycle, which holds
        # the request until the next full garbage collection.
        self._may_count: Callable[[], bool] = lambda: not brings_markup(request)
        self._answer = _Answer(self._markers, self._may_count, holds_text=self._is_forced)
        # The calls that were made of markup, and the markup as it came.
        self.calls: list[ToolCall] = []
        self.markup: list[str] = []

    def read(self, read: Read, data: bytes) -> ParsedEvents:
        """The next events of a stream that `read` reads, converted."""
        events = read(data)
        batch: Batch = []
        is_same = not (events.is_done or events.problem is not None)
        for item in events.batch:
            if isinstance(item, Delta) and not self.read_plain(item):
                is_same = False
                batch += self.convert(item)
            else:
                batch.append(item)
        if is_same:
            return events
        if self._answer.has_held and (events.is_done or events.problem is not None):
            # It may have broken off.
            batch += self._release(Delta())
        events.batch = batch
        durable = [isinstance(each, Delta) and bool(each.finish_reason or each.may_end_call) for each in batch]
        events.must_store_first = True in durable
        events.early_count = durable.index(True) if events.must_store_first else 0
        return events

    def read_plain(self, delta: Delta) -> bool:
        """True if a delta stays as it is, because it can be no part of a written call; it then counts as read."""
        answer = self._answer
        if answer.is_off:
            return True
        if delta.finish_reason or delta.server is not None:
            return False
        if delta.calls:
            return not (delta.text or delta.reasoning) and answer.continue_calls(delta.calls)
        if delta.reasoning:
            return not delta.text and not answer.text.has_held and answer.thinking.read_plain(delta.reasoning)
        return not delta.text or (not answer.thinking.has_held and answer.text.read_plain(delta.text))

    def convert(self, delta: Delta, *, is_whole: bool = False) -> list[Delta]:
        """The deltas in place of one that is not plain; `is_whole`: it is all of an answer."""
        answer = self._answer
        if delta.calls:
            self._on_structured()
        if delta.server is not None:
            # What follows may quote the pages that DeepSeek found.
            answer.is_off = True
            return [*self._release(delta), delta]
        if is_whole and not self._is_forced and "<" not in f"{delta.reasoning}{delta.text}":
            return [delta]
        given = delta
        before: list[Delta] = []
        if delta.reasoning:
            if answer.text.has_held and not is_whole:
                before.append(_extra(delta, text=answer.text.release()))
            answer.other_reasoning = delta.other_reasoning and delta.other_reasoning._replace(details=())
            delta = delta._replace(reasoning=answer.thinking.feed(delta.reasoning))
        items: list[str | CallPiece] = [answer.text.feed(delta.text)] if delta.text else []
        if delta.calls:
            # The text of an answer comes before its calls, line breaks and a lone < at its end too.
            if answer.text.has_held and not answer.text.is_holding:
                items.append(answer.text.release())
            items += answer.add_calls(delta.calls)
        reason, is_end = delta.finish_reason, is_whole or delta.finish_reason is not None
        if is_end and (answer.has_held or self._is_forced):
            items += self._end(reason)
            reason = "tool_calls" if reason == "stop" and answer.has_written else reason
        if answer.thinking.has_held and (is_end or answer.thinking.is_followed_by(delta)):
            thought = answer.thinking.release()
            if delta.reasoning is not None or is_whole:
                delta = delta._replace(reasoning=(delta.reasoning or "") + thought)
            else:
                before.append(_extra(delta, reasoning=thought, other_reasoning=answer.other_reasoning))
        if is_whole and delta.reasoning != given.reasoning:
            delta = chat_api.with_reasoning(delta)
        delta = delta._replace(finish_reason=reason) if reason != given.finish_reason else delta
        if delta == given and items == [*([given.text] if given.text else []), *given.calls]:
            # Nearly always.
            return [*before, given]
        deltas = self._deltas(delta, items)
        return [*before, deltas[0]._replace(run=None), *deltas[1:]]

    def _release(self, delta: Delta) -> list[Delta]:
        """All that is held, before this delta, as it came."""
        answer = self._answer
        thought, text, calls = answer.thinking.release(), answer.text.release(), answer.place([])
        released = [_extra(delta, reasoning=thought, other_reasoning=answer.other_reasoning)] if thought else []
        released += [_extra(delta, text=text)] if text else []
        return [*released, _extra(delta, calls=tuple(calls))] if calls else released

    def _end(self, reason: str | None) -> list[str | CallPiece]:
        """What is held at the end of the answer: text, and the calls that are made of it."""
        answer = self._answer
        text = answer.text.take()
        may_be_forced = self._is_forced and reason == "stop" and not answer.has_calls
        forced = find_call(text, self._request) if may_be_forced else None
        if forced is not None and not brings_json(self._request, text):
            answer.has_written = True
            return answer.place([ToolCall(self._new_id(), *forced)])
        items = self._read(text, answer.text.quotes)
        has_text = answer.text.has_words or any(isinstance(item, str) and item.strip() for item in items)
        if answer.thinking.holds and not (has_text or answer.has_calls):
            found = self._read("".join(answer.thinking.held), answer.thinking.quotes)
            if all(isinstance(item, ToolCall) for item in found):
                answer.thinking.take()
                items += found
        answer.has_written = any(isinstance(item, ToolCall) for item in items)
        return answer.place(items)

    def _read(self, text: str, quotes: Quotes) -> list[str | ToolCall]:
        """The text and the calls of what was held. Line breaks before a block are part of it, and blanks after it."""
        items: list[str | ToolCall] = []
        start = at = 0
        opening = self._markers.opening
        if opening.search(text) is None or not self._may_count():
            opening = NO_MARKERS.opening
        while (opened := opening.search(text, at)) is not None:
            quotes.add(text[at : opened.start()])
            block = Block([], opened.end(), opened.end()) if quotes.is_open() else read_block(text, opened)
            calls = self._calls_of(block)
            if calls:
                before = text[start : opened.start()]
                items += [before[: _before_breaks(before)], *calls]
                self.calls += calls
                self.markup.append(text[opened.start() : block.calls_end])
                start = block.calls_end
            else:
                # No other block is looked for in it: nested ones would be read once per level.
                quotes.add(text[opened.start() : block.end])
            at = block.end
        items.append(text[start:])
        return [item for at, item in enumerate(items) if item and not (at and isinstance(item, str) and item.isspace())]

    def _calls_of(self, block: Block) -> list[ToolCall]:
        """The calls of a block; none if one of them is no call of a declared tool."""
        functions = {tool["function"]["name"]: as_object(tool["function"]) for tool in self._request.tools}
        # By the names that the model knows.
        functions = {self._request.sent_names.get(name, name): function for name, function in functions.items()}
        calls = [typed_call(call, functions) for call in block.calls]
        return [ToolCall(self._new_id(), *call) for call in calls if call is not None] if all(calls) else []

    def _deltas(self, delta: Delta, items: Sequence[str | CallPiece]) -> list[Delta]:
        """The delta with these items; more than one delta if text follows calls and their order counts."""
        # While text is held, an empty string shows the client that the model is at work.
        deltas = [delta._replace(text=delta.text and "", calls=())]
        for item in items:
            last = deltas[-1]
            if isinstance(item, CallPiece):
                deltas[-1] = last._replace(calls=_add_piece(last.calls, item))
            elif item and last.calls and not self._is_completion:
                deltas[-1] = last._replace(finish_reason=None, usage=None)
                deltas.append(Delta(delta.choice, text=item, finish_reason=delta.finish_reason, usage=delta.usage))
            elif item:
                deltas[-1] = last._replace(text=(last.text or "") + item)
        return deltas


def _add_piece(calls: tuple[CallPiece, ...], piece: CallPiece) -> tuple[CallPiece, ...]:
    if piece.index not in [call.index for call in calls]:
        return (*calls, piece)
    return tuple(
        replace(call, arguments=call.arguments + piece.arguments) if call.index == piece.index else call
        for call in calls
    )


def _extra(delta: Delta, **fields: Any) -> Delta:
    """A delta that goes before this one."""
    chunk = delta.chunk
    if chunk is not None:
        chunk = {**chunk, "choices": [{"index": delta.choice, "delta": {}, "finish_reason": None}]}
    return Delta(delta.choice, chunk=chunk, **fields)


class _Answer:
    """What has come so far: the text, the thinking, and the calls that the server sent in structured form."""

    def __init__(self, markers: Markers, may_count: Callable[[], bool], *, holds_text: bool) -> None:
        self.text = _Channel(markers, may_count, holds=holds_text)
        self.thinking = _Channel(markers, may_count)
        # The field in which the host sends the thinking.
        self.other_reasoning: OtherReasoning | None = None
        # True once nothing of the answer can be a call any more.
        self.is_off = False
        # Whether calls were made of text; the server may have sent some of them as well.
        self.has_written = False
        # By index, the calls that were forwarded, and those after a marker, which wait for the end.
        self._sent: dict[int, _StructuredCall] = {}
        self._late: dict[int, _StructuredCall] = {}

    @property
    def has_calls(self) -> bool:
        return bool(self._sent or self._late)

    @property
    def has_held(self) -> bool:
        """Whether anything waits for the end; in nearly every answer nothing does."""
        is_late = bool(self._late) or True in [bool(call.held) for call in self._sent.values()]
        return self.text.has_held or self.thinking.has_held or is_late

    def continue_calls(self, pieces: Sequence[CallPiece]) -> bool:
        """Add pieces that continue forwarded calls, as nearly all do; False if these are others."""
        calls = [self._sent.get(piece.index) for piece in pieces]
        if self._late or [call for call in calls if call is None or call.is_empty]:
            return False
        for piece in pieces:
            self._sent[piece.index].add(piece)
        return True

    def add_calls(self, pieces: Sequence[CallPiece]) -> Sequence[CallPiece]:
        """Take pieces of calls that the server sent. Returns those to forward now."""
        is_late = self.text.is_holding
        calls = self._late if is_late else self._sent
        forwarded = [calls.setdefault(piece.index, _StructuredCall()).add(piece) for piece in pieces]
        return () if is_late else forwarded

    def place(self, items: Sequence[str | ToolCall]) -> list[str | CallPiece]:
        """The items for the client, no call twice, and all calls that are held after them."""
        placed: list[str | CallPiece] = []
        written: list[ToolCall] = []
        for item in items:
            if isinstance(item, str):
                placed.append(item)
                continue
            index = next((at for at, sent in self._sent.items() if sent.is_same(item)), None)
            if index is None:
                written.append(item)
                placed.append(self._new_piece(item, len(written)))
            elif self._sent[index].is_empty:
                # The server took the name out of the markup and lost the rest.
                placed.append(CallPiece(index, arguments=self._sent[index].take(item.arguments)))
        placed += [CallPiece(at, arguments=sent.take()) for at, sent in self._sent.items() if sent.held]
        for call in self._late.values():
            if not any(call.is_same(each) for each in written):
                written.append(call.whole())
                placed.append(self._new_piece(call.whole(), len(written)))
        self._late = {}
        return placed

    def _new_piece(self, call: ToolCall, number: int) -> CallPiece:
        return CallPiece(max(self._sent, default=-1) + number, *call)


class _StructuredCall:
    """A call that the server sent, in pieces. The end of empty arguments is held: the text may have others."""

    def __init__(self) -> None:
        self._id = self._name = self.held = ""
        self._forwarded: list[str] = []
        self.is_empty = True

    def add(self, piece: CallPiece) -> CallPiece:
        """The piece as it is forwarded."""
        if self.is_empty:
            self._id, self._name = self._id or piece.id, self._name or piece.name
            so_far = "".join([*self._forwarded, self.held, piece.arguments]).strip()
            if so_far[:1] == "{" and so_far[-1:] == "}" and not so_far[1:-1].strip():
                self.held += piece.arguments
                return replace(piece, arguments="")
            self.is_empty = so_far in ("", "{")
            if self.held:
                piece, self.held = replace(piece, arguments=self.held + piece.arguments), ""
        self._forwarded.append(piece.arguments)
        return piece

    def take(self, arguments: str | None = None) -> str:
        """Forward what is held, or the rest of these arguments in its place."""
        taken, self.held = self.held, ""
        if arguments is not None:
            # An object, of which the brace may have been forwarded.
            taken = arguments.removeprefix("".join(self._forwarded).strip())
        self._forwarded.append(taken)
        self.is_empty = False
        return taken

    def whole(self) -> ToolCall:
        return ToolCall(self._id, self._name, "".join(self._forwarded) + self.held)

    def is_same(self, call: ToolCall) -> bool:
        """True if this is the same call, or what the server left of it."""
        own = self.whole()
        return call.name == own.name and (self.is_empty or decode(own.arguments) == decode(call.arguments))


# Line breaks that wait for what follows; no template writes more.
_MOST_BREAKS = 64


def _before_breaks(text: str) -> int:
    """Where the line breaks at the end of a text begin, which belong to a block after them."""
    start = max(0, len(text) - _MOST_BREAKS)
    return start + len(text[start:].rstrip("\r\n"))


class _Channel:
    """The text or the thinking. It passes up to the first marker that may count, and is held from there on.

    Line breaks at its end, and what may yet become a marker, wait for the next piece.
    """

    def __init__(self, markers: Markers, may_count: Callable[[], bool], *, holds: bool = False) -> None:
        self._markers = markers
        self._may_count = may_count
        self.quotes = Quotes()
        self._tail = ""
        self.held: list[str] = []
        self.holds = holds
        # Whether anything but blanks has passed.
        self.has_words = False

    @property
    def has_held(self) -> bool:
        return bool(self.held or self._tail)

    @property
    def is_holding(self) -> bool:
        """Whether more is held than blanks or a lone <."""
        return bool(self.held) or len(self._tail.strip()) > 1

    def is_followed_by(self, delta: Delta) -> bool:
        """Whether a delta shows that held thinking is no call: blanks may follow one."""
        text = delta.text or ""
        return bool(delta.calls or (text.strip() if self.holds else text))

    def read_plain(self, text: str) -> bool:
        """True if a text passes as it is; it then counts as read."""
        if self.holds or self._tail or "<" in text or text[-1] in "\r\n":
            return False
        # Without calls, because this runs for every chunk.
        self.has_words = self.has_words or not text.isspace()
        self.quotes.unread.append(text)
        return True

    def feed(self, text: str) -> str:
        """The text to forward now."""
        if self.holds:
            self.held.append(text)
            return ""
        text, self._tail, at = self._tail + text, "", 0
        while (opened := self._markers.opening.search(text, at)) is not None:
            self.quotes.add(text[at : opened.start()])
            at = opened.start()
            if not self.quotes.is_open():
                if self._may_count():
                    cut = _before_breaks(text[:at])
                    self.holds, self.held = True, [text[cut:]]
                    return self._pass(text[:cut])
                self._markers = NO_MARKERS
            self.quotes.add(opened[0])
            at = opened.end()
        cut = _before_breaks(text[: len(text) - self._markers.partial_size(text)])
        self.quotes.add(text[at:cut])
        self._tail = text[cut:]
        return self._pass(text[:cut])

    def take(self) -> str:
        """All that is held, for reading it."""
        text, self._tail, self.held = "".join(self.held) + self._tail, "", []
        return text

    def release(self) -> str:
        """All that is held, as text."""
        text = self.take()
        self.quotes.add(text)
        return self._pass(text)

    def _pass(self, text: str) -> str:
        self.has_words = self.has_words or not (text.isspace() or not text)
        return text
