"""Reads an event stream of DeepSeek, as it arrives, as deltas and heartbeats: EventReader, and those of chats.

Most events of a chat completion differ from the one before in a piece of text only; a ChunkTemplate reads these, many
at a time. All others are parsed. Both ways give the same, byte for byte: a template is a parsed chunk with a gap where
its text is. It has no other field of that name, nor an escape that could hide one, so with another text in the gap it
is parsed as the same chunk with that text. This holds for every text, because the bytes before the gap end inside a
JSON string, and no text that is let in can end that string. A template lets in only texts that our encoder would write
with the same bytes, so it changes nothing but the time: 27.7 microseconds for a chunk become 4.1.

ThinkSplitter takes the reasoning out of content that begins with <think>…</think>, piece by piece. Only a leading tag
counts: later ones are the model's own text. Text after the closing tag is content, without the white space before it. A
block that is never closed is reasoning to its end.

`join_stream` joins a stream into a whole completion, for a client that did not ask for a stream.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from deepseek_cursor_proxy.conversation import Batch, Batches, Delta, Heartbeat, OtherReasoning, Reply, Run
from deepseek_cursor_proxy.deepseek import chat_api
from deepseek_cursor_proxy.deepseek.chat_api import AnswerCalls
from deepseek_cursor_proxy.deepseek.server_tools import FieldFinder
from deepseek_cursor_proxy.errors import ProxyError, UpstreamFailed
from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.json_codec import as_object, decode_upstream_json

_WHOLE_EVENT = re.compile(rb"data: ([^\r\n]++)\n\n")
# After so many templates in a row that matched no event, no more are derived: the chunks of this stream never repeat.
_MAX_UNUSED = 8


@dataclass(slots=True)
class ParsedEvents:
    """The events in some bytes of a stream: deltas and heartbeats, then perhaps the end or a problem."""

    batch: Batch
    # There was a chunk with deltas; comments and other data are no progress.
    is_progress: bool = False
    # An answer or a call may be complete with it, which is stored before the client gets it.
    must_store_first: bool = False
    # How many items of the batch come before that.
    early_count: int = 0
    is_done: bool = False
    problem: ProxyError | None = None

    def take_early(self) -> "ParsedEvents":
        """Remove and return the items that need not be stored."""
        early = ParsedEvents(self.batch[: self.early_count])
        self.batch = self.batch[self.early_count :]
        return early


# Reads the next bytes of a stream: `read` of an EventReader, or a function around it.
Read = Callable[[bytes], ParsedEvents]


class EventReader:
    """Reads one stream, event by event; each API of DeepSeek has a subclass. Used by one thread."""

    def __init__(self) -> None:
        self._parser = sse.Parser()

    def read(self, data: bytes) -> ParsedEvents:
        """The events that these bytes complete; nothing is read after the end or a problem."""
        events = ParsedEvents([])
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
            if events.is_done or events.problem is not None:
                return

    def _read_event(self, events: ParsedEvents, data: str) -> list[Delta]:
        """Add an event. Returns its deltas."""
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
            if not events.must_store_first and [delta for delta in deltas if delta.finish_reason or delta.may_end_call]:
                events.must_store_first, events.early_count = True, len(events.batch)
            events.batch += deltas
            events.is_progress = events.is_progress or bool(deltas)
            return deltas
        return []


class StreamReader(EventReader):
    """Reads a stream of chat completions, most of it by templates.

    `splits_think`: the reasoning is in the content, between <think> and </think>. `has_server_tools`: DeepSeek may run
    tools itself for this answer.
    """

    def __init__(self, *, splits_think: bool = False, has_server_tools: bool = False) -> None:
        super().__init__()
        self._calls = AnswerCalls()
        self._splitter = ThinkSplitter() if splits_think else None
        self._finder = FieldFinder("delta") if has_server_tools else None
        self._template: ChunkTemplate | None = None
        self._has_matched, self._is_between_events = True, True
        # A template would forward a part of a tag.
        self._unused = _MAX_UNUSED if splits_think else 0

    def read(self, data: bytes) -> ParsedEvents:
        events, at, end = ParsedEvents([]), 0, len(data)
        while at < end and not (events.is_done or events.problem):
            if self._template is not None and self._is_between_events:
                delta, at = self._template.read(data, at)
                if delta is not None:
                    events.batch.append(delta)
                    events.is_progress = self._has_matched = True
                if at == end:
                    break
            # One event at a time, because it may give a template for those after it.
            whole = _WHOLE_EVENT.match(data, at) if self._is_between_events else None
            if whole is not None:
                # Without the parser, which reads such an event in five times as long.
                self._parser.is_at_start = False
                self._read_event(events, whole[1].decode("utf-8", "replace"))
                at = whole.end()
                continue
            stop = data.find(b"\n\n", at) + 2
            stop = stop if stop >= 2 else end
            self._read_events(events, data[at:stop])
            self._is_between_events = self._parser.is_between_events
            at = stop
        return events

    def _read_event(self, events: ParsedEvents, data: str) -> list[Delta]:
        deltas = super()._read_event(events, data)
        if len(deltas) == 1 and self._unused < _MAX_UNUSED:
            template = ChunkTemplate.derive(data.encode(), deltas[0])
            if template is not None:
                self._unused = 0 if self._has_matched else self._unused + 1
                self._template, self._has_matched = template, False
        return deltas

    def _deltas(self, chunk: Mapping[str, Any]) -> list[Delta]:
        delta = chat_api.chunk_delta(chunk)
        if delta.calls or delta.finish_reason:
            delta = self._calls.repair(delta, "delta")
        if self._splitter is not None:
            delta = self._splitter.split(delta)
        return [delta if self._finder is None else self._finder.mark(delta)]


def read_completion(
    body: Mapping[str, Any], *, splits_think: bool = False, has_server_tools: bool = False
) -> list[Delta]:
    """The delta of a whole completion; the options are those of StreamReader."""
    delta = AnswerCalls().repair(chat_api.chunk_delta(body, "message"), "message")
    choices = (delta.chunk or {})["choices"]
    if not choices or not isinstance(choices[0].get("message"), dict):
        # It would reach the client as an empty success.
        raise UpstreamFailed("DeepSeek's answer has no choices, or one without a message.")
    if splits_think:
        delta = chat_api.with_reasoning(ThinkSplitter().split(delta, is_whole=True))
    return [FieldFinder("message").mark(delta) if has_server_tools else delta]


OPENING, CLOSING = "<think>", "</think>"


def begins_with_block(content: str) -> bool:
    """Whether a whole content begins with a closed block."""
    return content.lstrip().startswith(OPENING) and CLOSING in content


class ThinkSplitter:
    """Splits one answer; what may become a tag is held back until the next piece, or the end. Used by one thread."""

    def __init__(self) -> None:
        # Before the opening tag, inside the block, in the white space after it, or in the text.
        self._place = "start"
        self._held = ""

    def split(self, delta: Delta, *, is_whole: bool = False) -> Delta:
        """The delta with the reasoning in its content as reasoning."""
        if not delta.text and not delta.finish_reason:
            return delta
        reasoning, text = self._feed(delta.text or "", is_end=is_whole or bool(delta.finish_reason))
        if not reasoning and text == (delta.text or ""):
            return delta
        other = delta.other_reasoning
        if reasoning and other is None:
            other = OtherReasoning("think", is_native=bool(delta.reasoning))
        reasoning = (delta.reasoning or "") + reasoning
        return delta._replace(reasoning=reasoning or None, text=text, other_reasoning=other)

    def _feed(self, piece: str, *, is_end: bool) -> tuple[str, str]:
        """The reasoning and the text that are decided with this piece."""
        held, reasoning, text = self._held + piece, "", ""
        if self._place == "start":
            begins = held.lstrip()
            if begins.startswith(OPENING):
                held, self._place = begins.removeprefix(OPENING), "block"
            elif is_end or not OPENING.startswith(begins):
                self._place = "text"
        if self._place == "block":
            reasoning, tag, rest = held.partition(CLOSING)
            if tag:
                held, self._place = rest, "gap"
            else:
                # The longest end that may be the beginning of the tag.
                sizes = range(0 if is_end else min(len(CLOSING) - 1, len(held)), 0, -1)
                cut = len(held) - next((size for size in sizes if held.endswith(CLOSING[:size])), 0)
                reasoning, held = held[:cut], held[cut:]
        if self._place == "gap" and (held := held.lstrip()):
            self._place = "text"
        if self._place == "text":
            text, held = held, ""
        self._held = held
        if is_end:
            self._place = "text"
        return reasoning, text


def read_own_names(read: Read, own_names: Mapping[str, str], data: bytes) -> ParsedEvents:
    """The events with the client's names of tools in place of those that were sent."""
    events = read(data)
    events.batch = [restore_names(item, own_names) if isinstance(item, Delta) else item for item in events.batch]
    return events


def restore_names(delta: Delta, own_names: Mapping[str, str]) -> Delta:
    calls = tuple([replace(call, name=own_names.get(call.name, call.name)) for call in delta.calls])
    return delta if calls == delta.calls else delta._replace(calls=calls)


# The fields of a delta that Reply adds up.
_ADDED_UP = frozenset({"role", "content", "reasoning_content", "tool_calls"})


def join_stream(batches: Batches, *, has_server_tools: bool) -> Batches:
    """The same answer as one delta at its end; until then a heartbeat for every batch, because the client waits."""
    reply, has_reasoning = Reply(), False
    body: dict[str, Any] = {}
    choice: dict[str, Any] = {}
    # The text and blocks of the content, and the fields that we do not know.
    contents: list[str | list[Any]] = []
    others: dict[str, Any] = {}
    with closing(batches):
        for batch in batches:
            for delta in [item for item in batch if isinstance(item, Delta)]:
                reply.add(delta)
                has_reasoning |= delta.reasoning is not None
                body |= delta.chunk or {}
                entry: dict[str, Any] = next(iter((delta.chunk or {}).get("choices") or ()), {})
                fields = as_object(entry.get("delta"))
                choice = _merge(choice, {name: value for name, value in entry.items() if name != "delta"})
                others = _merge(others, {name: value for name, value in fields.items() if name not in _ADDED_UP})
                if (content := fields.get("content")) and isinstance(content, list):
                    contents.append(content)
                elif delta.text:
                    contents.append(delta.text)
            yield [Heartbeat()]
    whole = reply.message()
    message: dict[str, Any] = {"role": "assistant", "content": whole.content}
    if not all(isinstance(piece, str) for piece in contents):
        blocks = [[{"type": "text", "text": piece}] if isinstance(piece, str) else piece for piece in contents]
        message["content"] = [*chain.from_iterable(blocks)]
    if has_reasoning:
        message["reasoning_content"] = whole.reasoning
    if whole.tool_calls:
        message["tool_calls"] = [
            {"index": at, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for at, (id, name, arguments) in enumerate(whole.tool_calls)
        ]
    choice |= {"message": {**message, **others}, "finish_reason": reply.finish_reason}
    body |= {"object": "chat.completion", "choices": [choice], "usage": reply.usage}
    yield [*read_completion(body, has_server_tools=has_server_tools)]


def _merge(known: Any, value: Any) -> Any:
    """Objects and lists together, texts joined, the last of other values that are not null."""
    if isinstance(value, dict):
        known = as_object(known)
        return {**known, **{name: _merge(known.get(name), each) for name, each in value.items()}}
    if value is None:
        return known
    return known + value if type(known) is type(value) and isinstance(value, (str, list)) else value


# The constructors of named tuples are Python code and take four times as long: with this, a chunk takes an eighth less.
_new = tuple.__new__
# The inside of a JSON string as our encoder writes it, and not empty: empty texts are left to the parser.
_STRING = re.compile(rb'(?!")[^"\\\x00-\x1f]*+(?:\\["\\bfnrt][^"\\\x00-\x1f]*+)*+')
_OPENINGS = {name: re.compile(rb'"%b"\s*+:\s*+"' % name.encode()) for name in ("reasoning_content", "content")}


class ChunkTemplate:
    """One chunk with a gap in it; immutable."""

    def __init__(self, before: bytes, after: bytes, delta: Delta, field: str) -> None:
        self._head = b"data: " + before
        self._tail = after + b"\n\n"
        self._delta = delta
        self._field = field

    @classmethod
    def derive(cls, data: bytes, delta: Delta) -> "ChunkTemplate | None":
        """The template of an event with this data, which was read as this delta; None if it has none."""
        is_plain = not (delta.calls or delta.finish_reason or delta.usage or delta.other_reasoning or delta.server)
        # A run has no place for a second choice.
        is_plain = is_plain and len((delta.chunk or {})["choices"]) == 1
        if not is_plain or bool(delta.text) == bool(delta.reasoning) or b"\n" in data:
            return None
        field = "content" if delta.text else "reasoning_content"
        opening = _OPENINGS[field].search(data)
        string = _STRING.match(data, opening.end()) if opening is not None else None
        if string is None or data.count(b'"%b"' % field.encode()) > 1:
            return None
        before, after = data[: string.start()], data[string.end() :]
        return cls(before, after, delta, field) if b"\\" not in before + after else None

    def fill(self, text: str) -> Delta:
        """The delta of one chunk with this text."""
        chunk = self._delta.chunk or {}
        choice: Mapping[str, Any] = chunk["choices"][0]
        chunk = {**chunk, "choices": [{**choice, "delta": {**choice["delta"], self._field: text}}]}
        if self._field == "content":
            return self._delta._replace(text=text, chunk=chunk)
        return self._delta._replace(reasoning=text, chunk=chunk)

    def read(self, data: bytes, at: int) -> tuple[Delta | None, int]:
        """One delta for the matching events from `at` on, where one begins; and where the first other one begins."""
        head, tail, first, size = self._head, self._tail, at, len(data)
        strings = []
        while at < size and data.startswith(head, at):
            string = _STRING.match(data, at + len(head))
            if string is None or not data.startswith(tail, end := string.end()):
                break
            strings.append(string[0])
            at = end + len(tail)
        if not strings:
            return None, first
        try:
            # Each string alone: half a character at its end is damage, which the next string must not complete.
            text = strings[0].decode() if len(strings) == 1 else b"\n".join(strings).decode().replace("\n", "")
        except UnicodeDecodeError:
            # The parser replaces the damaged bytes.
            return None, first
        if "\\" in text:
            text = unquote(text)
        known, run = self._delta, _new(Run, (self, strings))
        pair = (known.reasoning, text) if self._field == "content" else (text, known.text)
        return _new(Delta, (known.choice, *pair, (), None, None, known.chunk, run, None, None)), at


def unquote(text: str) -> str:
    """The text of the inside of a JSON string."""
    return str(json.loads(f'"{text}"')) if "\\" in text else text


def split_run(delta: Delta) -> list[Delta]:
    """One delta for each chunk of a run; any other delta alone."""
    if delta.run is None:
        return [delta]
    return [delta.run.template.fill(unquote(string.decode())) for string in delta.run.strings]
