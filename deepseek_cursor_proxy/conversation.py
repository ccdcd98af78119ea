"""The canonical conversation: pure values that every API is translated to and from.

    in     ChatRequest, with its Messages and ToolCalls
    out    Delta, what one upstream chunk adds; Heartbeat; a Batch of both; Reply, which adds deltas up to a Message

These types know no wire format, no store and no socket. A whole JSON completion is one big Delta. Reasoning is
three-valued everywhere: text, "" (the model has none), None (unknown). What arrived together travels together, as a
Batch, so that it can also be written together.

Values that every request, or every message of it, creates are named tuples: these take a fifth of the time of frozen
dataclasses, and are hashed and compared in C. No caller changes what their fields hold.

Memo is a bounded dictionary of results of a pure function. Keys are compared by their whole value and values never
change, so nothing goes stale, and every caller gets the same result with or without it. For lists that grow see
chat_memory.
"""

import json
import sys
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Memo(Generic[Key, Value]):
    """Called by any thread, without a lock: two that fill it at once may miscount bytes until the next turnover."""

    def __init__(self, max_bytes: int, size: Callable[[Key, Value], int]) -> None:
        # Two generations: a full young one becomes the old one, and entries of the old one that were not used since are
        # dropped. That is nearly least recently used, at the cost of a plain dictionary.
        self._half = max_bytes // 2
        self._size_of = size
        self._size = 0
        self._young: dict[Key, Value] = {}
        self._old: dict[Key, Value] = {}

    def get(self, key: Key) -> Value | None:
        found = self._young.get(key)
        if found is None and (found := self._old.get(key)) is not None:
            self.put(key, found)
        return found

    def put(self, key: Key, value: Value) -> None:
        size = self._size_of(key, value)
        if size > self._half:
            # It would evict everything else.
            return
        if self._size + size > self._half:
            self._old, self._young, self._size = self._young, {}, 0
        self._young[key] = value
        self._size += size


# The memory of a message or a call without its text: the tuple, its ids and names.
_BYTES_PER_MESSAGE = 400

# Content that is not plain text: parts in OpenAI's shape, `{"type": "text", "text": …}` and images or files.
Parts = tuple[Mapping[str, Any], ...]
_EMPTY: Mapping[str, Any] = MappingProxyType({})


class ToolCall(NamedTuple):
    id: str
    name: str
    arguments: str


class Message(NamedTuple):
    role: str
    content: str | Parts = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    # DeepSeek's beta "continue this text" mark; no part of the message's identity.
    prefix: bool = False
    # The JSON of the list that a host sent as `reasoning_details`, for a host that takes it back.
    details: str | None = None
    # An answer for which DeepSeek ran tools of its own, as the client's API has it: see `pack_items`. Its text is
    # `content` as well, its reasoning `reasoning`.
    server_items: str | None = None

    @property
    def byte_size(self) -> int:
        """About how many bytes it takes."""
        size = _BYTES_PER_MESSAGE + sys.getsizeof(self.content) + len(self.reasoning or "") + len(self.details or "")
        size += len(self.server_items or "")
        for call in self.tool_calls:
            size += _BYTES_PER_MESSAGE + len(call.arguments)
        return size


def count_prompts(messages: Sequence[Message]) -> int:
    """The number of system messages that begin a history."""
    # A plain loop: a generator takes three times as long, and every request counts twice.
    for count, message in enumerate(messages):
        if message.role != "system":
            return count
    return len(messages)


class ChatName(NamedTuple):
    """What tells chats apart that begin with the same question: the client's program, and its id of the chat."""

    id: str = ""
    client: str = ""


UNNAMED = ChatName()


class ChatRequest(NamedTuple):
    """A client's request, in DeepSeek's terms; `requested_model` is the client's name of the model."""

    requested_model: str
    model: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str | Mapping[str, Any] | None = None
    stream: bool = False
    # Where a stream has its usage: True for a chunk of its own, False for nowhere; see protocols/chat_writer.
    include_usage: bool | None = None
    # How many answers the client wants; each is an upstream call of its own.
    choices: int = 1
    thinking: bool = True
    effort: str = "high"
    params: Mapping[str, Any] = _EMPTY
    chat_name: ChatName = UNNAMED
    # What the client sent and DeepSeek has no field for, for the log.
    dropped: tuple[str, ...] = ()
    # Tools that take free text: their calls are functions with one field upstream, and bare text to the client.
    custom_tools: frozenset[str] = frozenset()
    # Tools of a namespace, by their names upstream: the namespace, and the name that the client knows.
    tool_namespaces: Mapping[str, tuple[str, str]] = _EMPTY
    # Tools whose names DeepSeek refuses: the names that it gets (see deepseek/tool_definitions).
    sent_names: Mapping[str, str] = _EMPTY
    # The API that the client uses; see deepseek/server_tools for its name.
    client_api: str = "chat"
    # Tools that DeepSeek runs itself, as the client declares them, and the choice of one that it forces.
    server_tools: tuple[Mapping[str, Any], ...] = ()
    server_choice: Mapping[str, Any] | None = None
    # Whether the client wants the response cache to be used, if it says so.
    cache: bool | None = None
    # The custom tools that the client declares as OpenAI's chat completions have them: their calls come back so.
    openai_custom_tools: frozenset[str] = frozenset()


def pack_items(api: str, items: Sequence[Mapping[str, Any]]) -> str:
    """Message.server_items: the items or blocks of an answer in the form of an API, in their order.

    A reasoning among them is replaced by its length, because the client may not send it: {"type": "thinking",
    "length": 12} stands for the next 12 characters of `Message.reasoning`. In an answer, and in the form of APIs that
    have no more to say about a text, {"type": "text", "length": 12} stands for those of `Message.content`. In the form
    of Messages, {"type": "tool_use"} stands for the next one of `Message.tool_calls`.
    """
    return json.dumps({api: items}, ensure_ascii=False, separators=(",", ":"))


def place_items(
    items: Sequence[tuple[Mapping[str, Any], int, int]], thoughts: Sequence[str], texts: Sequence[str]
) -> list[Mapping[str, Any]]:
    """The items, each given with the thoughts and texts before it, and the lengths of both in their places.

    Thoughts and texts are either lists or one string each.
    """
    found: list[Mapping[str, Any]] = []
    thoughts_at = texts_at = 0
    for item, thoughts_end, texts_end in [*items, ({}, len(thoughts), len(texts))]:
        words = {"thinking": thoughts[thoughts_at:thoughts_end], "text": texts[texts_at:texts_end]}
        found += [{"type": kind, "length": len(join_pieces(pieces))} for kind, pieces in words.items() if pieces]
        found += [item] if item else []
        thoughts_at, texts_at = thoughts_end, texts_end
    return found


def unpack_items(message: Message, api: str) -> list[dict[str, Any]]:
    """The items of a message in the form of this API; none if it has them in the form of another."""
    found: list[dict[str, Any]] = json.loads(message.server_items).get(api, []) if message.server_items else []
    return found


# JavaScript trims the byte order mark as white space, and some clients write a zero-width space for an empty text.
_INVISIBLE = "\ufeff\u200b"
_ASCII_SPACES = b" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f"


def is_blank(reasoning: str | None) -> bool:
    """Whether a reasoning has no visible character; some clients write blanks where they have lost it."""
    begins = (reasoning or "").lstrip()
    return not begins or (begins[0] in _INVISIBLE and not remove_spaces(begins))


def remove_spaces(text: str) -> str:
    """The text without white space, for telling whether a client changed nothing else in it."""
    # The bytes first: most white space is ASCII, and dividing 100 kB into words takes 4 ms in place of 0.2.
    text = text.encode("utf-8", "surrogatepass").translate(None, _ASCII_SPACES).decode("utf-8", "surrogatepass")
    return text if text.isascii() else "".join(text.split()).replace("\ufeff", "").replace("\u200b", "")


# Not frozen: each chunk of a call makes one, and frozen it takes twice as long.
@dataclass(slots=True)
class CallPiece:
    """A fragment of a tool call, never changed; pieces with the same index belong to the same call."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class OtherReasoning(NamedTuple):
    """What a chunk says about its reasoning that DeepSeek's own chunks do not: see deepseek/hosts.py."""

    # The field it came in, `reasoning` or `reasoning_details`.
    name: str
    details: tuple[Mapping[str, Any], ...] = ()
    # `reasoning_content` came as well, and its text counts.
    is_native: bool = False


class ServerPiece(NamedTuple):
    """A step of an item that a tool of DeepSeek's own makes; `item` is as much of it as DeepSeek has sent by now."""

    # The same for all steps of an item.
    key: int | str
    item: Mapping[str, Any]
    # in_progress, searching, completed: the last one has the whole item, and may be the only one.
    step: str = "completed"

    @property
    def is_whole(self) -> bool:
        return self.step == "completed"


class ServerDelta(NamedTuple):
    """What a chunk says about tools that DeepSeek runs itself, and about sources of the text."""

    pieces: tuple[ServerPiece, ...] = ()
    # Sources of the text block that is open, as DeepSeek's API has them.
    citations: tuple[Mapping[str, Any], ...] = ()
    # The text that follows is a block of its own.
    begins_text: bool = False

    @property
    def size(self) -> int:
        """About how many characters are kept of it."""
        kept = [piece.item for piece in self.pieces if piece.is_whole]
        return sum(len(repr(part)) for part in (*kept, *self.citations))


class Run(NamedTuple):
    """Chunks in a row that differ in one string only: the string of each, as it is between its quotes in JSON."""

    # What all of them have in common: a ChunkTemplate of deepseek/chat_stream.
    template: Any
    strings: Sequence[bytes]


class Delta(NamedTuple):
    """What one upstream chunk adds to one choice; `chunk` is that chunk, with that choice only.

    With a `run` it is several chunks that arrived together, texts joined; `chunk` is the one their template is from.
    """

    choice: int = 0
    reasoning: str | None = None
    text: str | None = None
    calls: tuple[CallPiece, ...] = ()
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    chunk: Mapping[str, Any] | None = None
    run: Run | None = None
    # None in everything that DeepSeek itself sends.
    other_reasoning: OtherReasoning | None = None
    # None in answers without tools that DeepSeek runs itself.
    server: ServerDelta | None = None

    @property
    def may_end_call(self) -> bool:
        """Whether the arguments of a call may be complete with it."""
        return bool(self.calls) and self.calls[-1].arguments.endswith("}")


class Heartbeat(NamedTuple):
    """Nothing new from DeepSeek: a keep-alive for the client. `line` is DeepSeek's own comment, if it sent one."""

    line: str = ""


Batch = list[Delta | Heartbeat]
Batches = Generator[Batch, None, None]


class Reply:
    """Adds up the deltas of one answer. Used by the one thread that runs the exchange.

    An answer is held in pieces, and joined when its message is asked for: see `join_small_pieces`.
    """

    # All of an answer is held until it is stored. A million tokens are four million characters: what is longer than
    # this does not come to an end.
    MAX_CHARACTERS = 16 * 1024 * 1024

    usage: Mapping[str, Any] | None = None
    # In characters: what this holds in memory.
    size = 0
    finish_reason: str | None = None
    is_finished = False
    # How many characters of reasoning came under another name only.
    _other_size = 0
    _has_empty_reasoning = False
    # Until the next delta.
    _message: Message | None = None

    def __init__(self) -> None:
        # The names other than `reasoning_content` under which reasoning came, in their order.
        self._other_names: dict[str, None] = {}
        self._reasoning: list[str] = []
        self._text: list[str] = []
        self._calls: dict[int, _PartialCall] = {}
        self._details: list[dict[str, Any]] = []
        # Each with the characters of reasoning and of text before it.
        self._server_items: list[tuple[Mapping[str, Any], int, int]] = []

    def add(self, delta: Delta) -> None:
        # All at once, because this runs for every chunk: fields by name take longer.
        _, reasoning, text, calls, finish_reason, usage, chunk, _, other, server = delta
        self.size += len(reasoning or "") + len(text or "")
        if usage is not None:
            self.usage = usage
        if chunk is not None and not chunk.get("choices"):
            return
        self._message = None
        if reasoning:
            # Not by `add_piece`: a call for every chunk takes 1 % of its time.
            self._reasoning.append(reasoning)
            if len(self._reasoning) > MOST_PIECES:
                join_small_pieces(self._reasoning)
        elif reasoning is not None:
            self._has_empty_reasoning = True
        if other is not None:
            self._other_names[other.name] = None
            if reasoning and not other.is_native:
                self._other_size += len(reasoning)
            merge_details(self._details, other.details)
            values = [value for detail in other.details for value in detail.values()]
            self.size += sum(len(value) if isinstance(value, str) else 16 for value in values)
        if text:
            self._text.append(text)
            if len(self._text) > MOST_PIECES:
                join_small_pieces(self._text)
        if server is not None:
            before = sum(map(len, self._reasoning)), sum(map(len, self._text))
            self._server_items += [(piece.item, *before) for piece in server.pieces if piece.is_whole]
            self.size += server.size
        for piece in calls:
            call = self._calls.get(piece.index) or self._calls.setdefault(piece.index, _PartialCall())
            # Later pieces may repeat id and name, empty or in full; they are never continued.
            call.id, call.name = call.id or piece.id, call.name or piece.name
            add_piece(call.arguments, piece.arguments)
            self.size += len(piece.id) + len(piece.name) + len(piece.arguments)
        if finish_reason:
            self.finish_reason, self.is_finished = finish_reason, True

    @property
    def is_empty(self) -> bool:
        return not (self._reasoning or self._text or self._calls or self._server_items)

    @property
    def has_no_answer(self) -> bool:
        """Whether there is no text but blanks, no call, and nothing of a tool that DeepSeek ran."""
        return not (self._calls or self._server_items or "".join(self._text).strip())

    def has_empty_reasoning(self) -> bool:
        """Whether upstream said that the model thought nothing, and did not just leave the reasoning out."""
        details = (self.usage or {}).get("completion_tokens_details")
        tokens = details.get("reasoning_tokens") if isinstance(details, dict) else None
        return tokens == 0 or self._has_empty_reasoning

    @property
    def other_reasoning_names(self) -> tuple[str, ...]:
        """The names other than `reasoning_content` under which reasoning came."""
        return tuple(self._other_names)

    @property
    def has_mixed_names(self) -> bool:
        """Whether upstream used `reasoning_content` and other names in the same answer."""
        return bool(self._other_names) and sum(map(len, self._reasoning)) > self._other_size

    def message(self) -> Message:
        if self._message is None:
            parts = sorted(self._calls.items())
            calls = tuple([ToolCall(part.id, part.name, join_pieces(part.arguments)) for _, part in parts])
            self._message = Message("assistant", join_pieces(self._text), join_pieces(self._reasoning), calls)
            if self._details:
                details = json.dumps(self._details, ensure_ascii=False, separators=(",", ":"))
                self._message = self._message._replace(details=details)
            if self._server_items:
                items = place_items(self._server_items, "".join(self._reasoning), "".join(self._text))
                self._message = self._message._replace(server_items=pack_items("answer", items))
        return self._message


@dataclass(slots=True)
class _PartialCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


# The fields of a detail that a stream sends in pieces.
_DETAIL_TEXTS = ("text", "summary", "data")


def merge_details(known: list[dict[str, Any]], new: Sequence[Mapping[str, Any]]) -> None:
    """Add the details of a chunk: one that continues an earlier one, by type and index, is joined to it."""
    earlier = len(known)
    for detail in new:
        index = detail.get("index")
        open_ones = known[:earlier] if index is not None else known[:earlier][-1:]
        same = (one for one in open_ones if one.get("type") == detail.get("type") and one.get("index") == index)
        target = next(same, None)
        if target is None:
            known.append(dict(detail))
            continue
        for name, value in detail.items():
            before = target.get(name)
            if name in _DETAIL_TEXTS and isinstance(before, str) and isinstance(value, str):
                target[name] = before + value
            elif value is not None:
                target[name] = value


MOST_PIECES = 64
# A piece alone takes so much beside its text, which has five characters.
_BYTES_PER_PIECE = 72


def add_piece(pieces: list[str], piece: str) -> None:
    """Append a piece to those of a text."""
    pieces.append(piece)
    if len(pieces) > MOST_PIECES:
        join_small_pieces(pieces)


def join_small_pieces(pieces: list[str]) -> None:
    """Make one of more than MOST_PIECES pieces, if they take more memory than their text; linear in the text."""
    if len(pieces) * _BYTES_PER_PIECE > len(pieces[0]):
        pieces[:] = ("".join(pieces),)


def join_pieces(pieces: Sequence[str]) -> str:
    """The pieces as one text; a character that was cut into two surrogates becomes whole again."""
    text = "".join(pieces)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text
