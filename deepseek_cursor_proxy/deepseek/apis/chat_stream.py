"""Reads an event stream of DeepSeek, as it arrives, as deltas and heartbeats: EventReader, and those of chats.

Most events of a chat completion differ from the one before in a piece of text only; a ChunkTemplate reads these, many
at a time. All others are parsed. Both ways give the same, byte for byte; see repeated_chunks for the reason.
ThinkSplitter takes the reasoning out of content that begins with <think>…</think>, piece by piece. Only a leading tag
counts: later ones are the model's own text. Text after the closing tag is content, without the white space before it. A
block that is never closed is reasoning to its end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from deepseek_cursor_proxy.conversation import Batch, Delta, ForeignReasoning, Heartbeat
from deepseek_cursor_proxy.deepseek.apis import chat_api
from deepseek_cursor_proxy.deepseek.apis.repeated_chunks import ChunkTemplate
from deepseek_cursor_proxy.deepseek.tools.answer_calls import AnswerCalls
from deepseek_cursor_proxy.deepseek.tools.server_fields import FieldFinder
from deepseek_cursor_proxy.errors import ProxyError, UpstreamFailed
from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.json_codec import as_list, as_object, as_text, decode_upstream_json

# After so many templates in a row that matched no event, no more are derived: the chunks of this stream never repeat.
_MAX_UNUSED = 8


@dataclass(slots=True)
class ParsedEvents:
    """The events in some bytes of a stream: deltas and heartbeats, then perhaps the end or a problem."""

    batch: Batch = field(default_factory=list)
    # There was a chunk with deltas; comments and other data are no progress.
    is_progress: bool = False
    # An answer or a call may be complete with it, which is stored before the client gets it.
    is_durable: bool = False
    # How many items of the batch come before that.
    early_count: int = 0
    is_done: bool = False
    problem: ProxyError | None = None

    @property
    def is_over(self) -> bool:
        return self.is_done or self.problem is not None

    def take_early(self) -> "ParsedEvents":
        """The items that need not be stored, taken off this."""
        early = ParsedEvents(self.batch[: self.early_count])
        self.batch = self.batch[self.early_count :]
        return early

    def raise_problem(self) -> None:
        assert self.problem is not None
        try:
            raise self.problem
        finally:
            # An error that is held by the object that raised it is freed by the collector only.
            self.problem = None


class EventReader:
    """Reads one stream, event by event; each API of DeepSeek has a subclass. Used by one thread."""

    def __init__(self) -> None:
        self._parser = sse.Parser()

    def read(self, data: bytes) -> ParsedEvents:
        """The events that these bytes complete; nothing is read after the end or a problem."""
        events = ParsedEvents()
        self._read_events(events, data)
        return events

    def _deltas(self, chunk: Mapping[str, Any]) -> list[Delta]:
        raise AssertionError

    def _read_events(self, events: ParsedEvents, data: bytes) -> None:
        try:
            items = self._parser.feed(data)
        except ValueError as error:
            events.problem = UpstreamFailed(f"DeepSeek sent something that cannot be read: {error}.")
            return
        for item in items:
            if isinstance(item, sse.Comment):
                events.batch.append(Heartbeat(item.line))
            else:
                self._read_event(events, item.data)
            if events.is_over:
                return

    def _read_event(self, events: ParsedEvents, data: str) -> list[Delta]:
        """Add an event; its deltas are returned as well."""
        if not data:
            return []
        if data.strip() == "[DONE]":
            events.is_done = True
            return []
        try:
            chunk = decode_upstream_json(data)
            deltas = self._deltas(chunk) if isinstance(chunk, dict) else []
        except ProxyError as error:
            events.problem = error
        except ValueError:
            events.problem = UpstreamFailed("DeepSeek sent an event that is not JSON.")
        else:
            if not events.is_durable and any(delta.finish_reason or delta.may_end_call for delta in deltas):
                events.is_durable, events.early_count = True, len(events.batch)
            events.batch += deltas
            events.is_progress = events.is_progress or bool(deltas)
            return deltas
        return []


class _ChatReader(EventReader):
    """Reads a stream of chat completions."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = AnswerCalls()

    def _deltas(self, chunk: Mapping[str, Any]) -> list[Delta]:
        deltas = chat_api.chunk_deltas(chunk)
        if len(deltas) == 1 and not deltas[0].calls and not deltas[0].finish_reason:
            return deltas
        return [self._calls.repair(delta, "delta") for delta in deltas]


class ThinkReader(_ChatReader):
    """Reads a stream whose reasoning is in the content, between <think> and </think>."""

    def __init__(self) -> None:
        super().__init__()
        self._splitter = ThinkSplitter()

    def _deltas(self, chunk: Mapping[str, Any]) -> list[Delta]:
        return [self._splitter.split(delta, "delta") for delta in super()._deltas(chunk)]


class StreamReader(_ChatReader):
    """Reads a stream of chat completions, most of it by templates."""

    def __init__(self) -> None:
        super().__init__()
        self._template: ChunkTemplate | None = None
        self._has_matched = True
        self._unused = 0

    def read(self, data: bytes) -> ParsedEvents:
        events = ParsedEvents()
        at = self._read_run(events, data, 0)
        while at < len(data) and not events.is_over:
            # One event at a time, because it may give a template for those after it.
            end = data.find(b"\n\n", at) + 2
            end = end if end >= 2 else len(data)
            self._read_events(events, data[at:end])
            at = end if events.is_over else self._read_run(events, data, end)
        return events

    def _read_run(self, events: ParsedEvents, data: bytes, at: int) -> int:
        if self._template is None or at == len(data) or not self._parser.is_between_events:
            return at
        delta, at = self._template.read(data, at)
        if delta is not None:
            events.batch.append(delta)
            events.is_progress = self._has_matched = True
        return at

    def _read_event(self, events: ParsedEvents, data: str) -> list[Delta]:
        deltas = super()._read_event(events, data)
        if len(deltas) == 1 and self._unused < _MAX_UNUSED:
            template = ChunkTemplate.derive(data.encode(), deltas[0])
            if template is not None:
                self._unused = 0 if self._has_matched else self._unused + 1
                self._template, self._has_matched = template, False
        return deltas


class ServerToolReader(StreamReader):
    """Reads an answer for which DeepSeek may run tools itself."""

    def __init__(self) -> None:
        super().__init__()
        self._finder = FieldFinder("delta")

    def _deltas(self, chunk: Mapping[str, Any]) -> list[Delta]:
        return self._finder.mark(super()._deltas(chunk), chunk)


OPENING, CLOSING = "<think>", "</think>"


def begins_with_block(content: str) -> bool:
    """Whether a whole content begins with a closed block."""
    return content.lstrip().startswith(OPENING) and CLOSING in content


class ThinkSplitter:
    """Splits the choices of one answer. Used by the thread that reads it."""

    def __init__(self) -> None:
        self._choices: dict[int, _Splitter] = {}

    def split(self, delta: Delta, part: str) -> Delta:
        """The delta with the reasoning in its content as reasoning; `part` is where its chunk has the content."""
        if not delta.text and not delta.finish_reason:
            return delta
        splitter = self._choices.setdefault(delta.choice, _Splitter())
        splitter.feed(delta.text or "")
        if delta.finish_reason or part == "message":
            splitter.end()
        reasoning, text = splitter.take()
        if not reasoning and text == (delta.text or ""):
            return delta
        foreign = delta.foreign
        if reasoning and foreign is None:
            foreign = ForeignReasoning("think", is_native=bool(delta.reasoning))
        reasoning = (delta.reasoning or "") + reasoning
        chunk = delta.chunk
        if chunk is not None:
            choice = chunk["choices"][0]
            fields = {**(choice.get(part) or {}), "content": text, "reasoning_content": reasoning or None}
            chunk = {**chunk, "choices": [{**choice, part: fields}]}
        return delta._replace(reasoning=reasoning or None, text=text, chunk=chunk, foreign=foreign)


class _Splitter:
    """One choice. What may yet become a tag is held back until the next piece, or the end."""

    def __init__(self) -> None:
        self._state = self._read_start
        self._held = ""
        self._reasoning = self._text = ""

    def feed(self, text: str) -> None:
        self._held += text
        # Each state leaves what it cannot decide yet, and is done when it changes nothing.
        before = None
        while self._held and before != (self._held, self._state):
            before = self._held, self._state
            self._state()

    def end(self) -> None:
        if self._state == self._read_reasoning:
            self._reasoning += self._held
        elif self._state != self._skip_space:
            self._text += self._held
        self._held = ""
        self._state = self._read_text

    def take(self) -> tuple[str, str]:
        """The reasoning and the text since the last call."""
        pieces = self._reasoning, self._text
        self._reasoning = self._text = ""
        return pieces

    def _read_start(self) -> None:
        begins = self._held.lstrip()
        if begins.startswith(OPENING):
            self._held = begins.removeprefix(OPENING)
            self._state = self._read_reasoning
        elif not OPENING.startswith(begins):
            self._state = self._read_text

    def _read_reasoning(self) -> None:
        reasoning, tag, rest = self._held.partition(CLOSING)
        if tag:
            self._reasoning += reasoning
            self._held, self._state = rest, self._skip_space
            return
        # The longest end that may be the beginning of the tag.
        sizes = range(min(len(CLOSING) - 1, len(reasoning)), 0, -1)
        size = next((size for size in sizes if reasoning.endswith(CLOSING[:size])), 0)
        cut = len(reasoning) - size
        self._reasoning += reasoning[:cut]
        self._held = reasoning[cut:]

    def _skip_space(self) -> None:
        self._held = self._held.lstrip()
        if self._held:
            self._state = self._read_text

    def _read_text(self) -> None:
        self._text += self._held
        self._held = ""


class OwnNameReader(EventReader):
    """Reads one stream with another reader. Used by one thread."""

    def __init__(self, reader: EventReader, sent_names: Mapping[str, str]) -> None:
        super().__init__()
        self._reader = reader
        self._own_names = _invert(sent_names)

    def read(self, data: bytes) -> ParsedEvents:
        events = self._reader.read(data)
        own_names = self._own_names
        events.batch = [_restore(item, own_names) if isinstance(item, Delta) else item for item in events.batch]
        return events


def restore_names(deltas: Sequence[Delta], sent_names: Mapping[str, str]) -> list[Delta]:
    """The deltas of an answer with the client's names."""
    own_names = _invert(sent_names)
    return [_restore(delta, own_names) for delta in deltas]


def _invert(sent_names: Mapping[str, str]) -> Mapping[str, str]:
    return {sent: name for name, sent in sent_names.items()}


def _restore(delta: Delta, own_names: Mapping[str, str]) -> Delta:
    """The delta with the client's names in its calls and in its chunk (or completion), which has one choice."""
    if not delta.calls:
        return delta
    calls = tuple(replace(call, name=own_names.get(call.name, call.name)) for call in delta.calls)
    if calls == delta.calls:
        return delta
    chunk = delta.chunk
    if chunk is not None and chunk.get("choices"):
        choice = chunk["choices"][0]
        part = "message" if "message" in choice else "delta"
        entries = [_restore_entry(entry, own_names) for entry in as_list(as_object(choice.get(part)).get("tool_calls"))]
        chunk = {**chunk, "choices": [{**choice, part: {**as_object(choice.get(part)), "tool_calls": entries}}]}
    return delta._replace(calls=calls, chunk=chunk)


def _restore_entry(entry: Mapping[str, Any], own_names: Mapping[str, str]) -> Mapping[str, Any]:
    function = as_object(entry.get("function"))
    name = own_names.get(as_text(function.get("name")))
    return entry if name is None else {**entry, "function": {**function, "name": name}}
