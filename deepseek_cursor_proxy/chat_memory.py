"""The chat memory: what the last request of each chat left, so that the next one processes only its new messages.

A chat comes back every few seconds with its whole history and one turn more. `ChatMemory.decode` finds the known chat
that a body continues, decodes what is new in it, and opens the request's Chat. That goes through the stages, and each
of them continues from its own last result:

    stage      goes through                  result                          in
    decode     the bytes of a body           JSON values                     here
    unseal     JSON values                   the same, unsealed              features/responses, features/messages
    tools      JSON values of the tools      functions                       protocols/tools
    parse      JSON values                   Messages                        protocols/messages, input_items
    echoes     Messages                      those that take the place of    reasoning/echoes, if there are any
                                             turns with an echo
    identify   Messages                      their keys                      reasoning/identity
    restore    keys                          Messages with reasoning, and    reasoning/restore
                                             the stored texts of those sent
    repair     Messages with reasoning       that nothing is to repair       deepseek/history_repair
    details    Messages with reasoning       the same with its details       reasoning/server_turns, if wanted
    items      Messages with reasoning       the same with whole searches    reasoning/server_turns, if there are any
    roles      Messages with reasoning       the same in the roles to send   deepseek/history_repair, for V4
    encode     Messages with reasoning       JSON bytes                      deepseek/chat_api

The contract of a stage: its result is never changed, and depends on nothing but its items and its conditions. Messages
are compared by value, JSON values as objects, with `is`: a stage that makes an equal one anew costs the next one time
and nothing else. Without memory (NO_CHAT) every result is equal.

`Chat.keep` replaces the chat that this one continues; the results of all its stages leave the memory together. Results
for one value, such as the digest of a message, are in a Memo of their module, by value: a chat whose beginning changed
still finds those.
"""

import codecs
import operator
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from deepseek_cursor_proxy.json_codec import MAX_JSON_VALUES, count_value_starts, count_values, decode_json_object, scan

Item = TypeVar("Item")
Result = TypeVar("Result")

# A chat of 200 tool turns is a megabyte, and some four with all its results: thirty of these at once.
_MAX_BYTES = 128 * 1024 * 1024
# A chat with a larger share would evict too many others.
_LARGEST_SHARE = 2
# A body is held in bytes, in strings, and as it is encoded for DeepSeek.
_COPIES_OF_BODY = 3
# Decoding compares a body with every chat.
_MAX_CHATS = 64
# When more busy chats take turns than fit, each would evict the next one, and all would cost three times as much; so
# known ones stay. The requests of an agent are usually seconds apart.
_BUSY_SECONDS = 60.0
# A shorter body is parsed as fast as it is compared.
_MIN_BODY_BYTES = 16_384
# No agent's chat is longer, and one by one that many messages take eight times as long to parse.
_MAX_MESSAGES = 5000
# A Message and its places in the lists of all stages.
_BYTES_PER_MESSAGE = 1000
# A JSON value without its characters: an object, its name, a place in a list or in a small dictionary.
_BYTES_PER_VALUE = 200
# The names of the list of messages.
_LISTS = ("messages", "input")
# What is decoded at once of a long text: all of 28 MB with an emoji, it holds the interpreter for 44 ms.
_SLICE = 1024 * 1024
_BLANKS = " \t\n\r"
_WHITE_SPACE = re.compile(r"[ \t\n\r]*").match


@dataclass(frozen=True, eq=False)
class Stage(Generic[Item, Result]):
    """One kind of result: a constant of the module that computes it."""

    name: str
    # Whether its items are JSON values, where 1 and true differ, though 1 == True.
    is_of_json: bool = False


# Neither this nor Lookup is frozen: a request makes one of each per stage, and frozen they cost five times as much.
@dataclass(eq=False, slots=True)
class Entry(Generic[Item, Result]):
    """The result of a stage for a list of items under some conditions; `size` is what it holds besides these."""

    items: Sequence[Item]
    conditions: object
    result: Result
    size: int

    def begins(self, items: Sequence[Item], *, is_of_json: bool) -> bool:
        known = self.items
        if is_of_json:
            return len(known) <= len(items) and all(map(operator.is_, known, items))
        # For the same objects this takes a sixth of the time of `is`.
        return known == tuple(items[: len(known)])

    def count_same(self, items: Sequence[Item]) -> int:
        """How many JSON values both lists begin with."""
        if self.begins(items, is_of_json=True):
            return len(self.items)
        pairs = enumerate(map(operator.is_, self.items, items))
        return next((at for at, is_same in pairs if not is_same), min(len(self.items), len(items)))


class Chat:
    """The results of a chat's last request, each replaced by that of the current one. Used by the threads of one
    request, which may add to it after `keep`."""

    def __init__(
        self, memory: "ChatMemory", body: "_Body", continued: "Chat | None" = None, replaced: Sequence["Chat"] = ()
    ) -> None:
        """`replaced` are the chats whose place it takes."""
        self._memory = memory
        self.body = body
        self.replaced = replaced
        # By stage; changed by Lookup alone.
        self.entries: dict[Stage[Any, Any], Entry[Any, Any]] = {} if continued is None else dict(continued.entries)
        self.response_id = ""

    @property
    def size(self) -> int:
        return self.body.size + sum([entry.size for entry in self.entries.values()])

    def look_up(
        self, stage: Stage[Item, Result], items: Sequence[Item], conditions: object = None
    ) -> "Lookup[Item, Result]":
        """The known beginning of a list; `conditions` are everything else that the result depends on."""
        known = self.entries.get(stage)
        if known is None or known.conditions != conditions or not known.begins(items, is_of_json=stage.is_of_json):
            return Lookup(self, stage, items, conditions)
        return Lookup(self, stage, items, conditions, len(known.items), known.result, known.size)

    def name(self, response_id: str) -> None:
        """The next request may name this stored response in place of its history."""
        self.response_id = response_id

    def keep(self) -> None:
        """Remember the results of this request. Idempotent."""
        self._memory.put(self)


@dataclass(eq=False, slots=True)
class Lookup(Generic[Item, Result]):
    """A list of items, how many of them are known, and the result for these; None if none are."""

    _chat: Chat = field(repr=False)
    _stage: Stage[Item, Result]
    _items: Sequence[Item]
    _conditions: object
    count: int = 0
    result: Result | None = None
    # What the result holds besides its items.
    size: int = 0

    def store(self, result: Result, size: int = 0) -> None:
        """Remember the result for all items; `size` is what it holds besides these."""
        if self._chat is not NO_CHAT:
            self._chat.entries[self._stage] = Entry(tuple(self._items), self._conditions, result, size)


class DecodedBody(NamedTuple):
    """The JSON object of a request, which no caller changes, and the memory of its chat."""

    value: dict[str, Any]
    chat: Chat


class ChatMemory:
    """Called by any thread. The lock protects the fields."""

    def __init__(
        self,
        max_bytes: int = _MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
        min_body_bytes: int = _MIN_BODY_BYTES,
    ) -> None:
        self._max_bytes = max_bytes
        self._min_body_bytes = min_body_bytes
        self._clock = clock
        self._lock = threading.Lock()
        # Each with its size and when it was last used; the least recent first.
        self._chats: dict[Chat, tuple[int, float]] = {}

    def decode(self, body: bytes) -> DecodedBody:
        """A request body as a JSON object, or a BadRequest that names the error.

        The bytes are compared with known bodies up to their last common message, which takes a hundredth of the time of
        parsing; parsing continues there. Exact, because a JSON value depends on its own bytes and on nothing after
        them: the result equals that of `decode_json_object`, which decodes unusual bodies and raises every error.
        """
        if len(body) < self._min_body_bytes:
            return DecodedBody(decode_json_object(body), NO_CHAT)
        commons = [(chat, chat.body.common(body)) for chat in self.chats()]
        best, common = max(commons, key=lambda pair: pair[1].last.end, default=(None, _NO_BODY))
        is_kept = common is not _NO_BODY or _COPIES_OF_BODY * len(body) <= self._max_chat_bytes
        parser: _Parser | None
        try:
            parser = _Parser(body, common, is_kept=is_kept)
            value = parser.parse()
        except (ValueError, IndexError, StopIteration, RecursionError):
            # What was parsed is freed before the body is decoded again.
            parser = None
        if parser is None:
            return DecodedBody(decode_json_object(body), NO_CHAT)
        if not is_kept or not parser.messages:
            return DecodedBody(value, NO_CHAT)
        # The new chat contains these but, perhaps, for their last message, which Claude Code marks.
        replaced = [chat for chat, part in commons if len(part.messages) >= max(1, len(chat.body.messages) - 1)]
        continued = best if common is not _NO_BODY else None
        return DecodedBody(value, Chat(self, parser.body(), continued, replaced))

    def open_response(self, response_id: str) -> Chat:
        """A chat whose request names the response that it continues, and sends none of its history."""
        known = next((chat for chat in self.chats() if chat.response_id == response_id), None)
        return Chat(self, _NO_BODY, known, () if known is None else (known,))

    def chats(self) -> list[Chat]:
        with self._lock:
            return list(self._chats)

    def put(self, chat: Chat) -> None:
        """Add a chat in place of those that it continues; not if it is too large or has no room beside busy ones."""
        size, now = chat.size, self._clock()
        if size > self._max_chat_bytes:
            return
        with self._lock:
            # Another thread may have removed one already.
            known = [old for old in (chat, *chat.replaced) if self._chats.pop(old, None) is not None]
            held = sum([each for each, _ in self._chats.values()])
            while self._chats and (held + size > self._max_bytes or len(self._chats) >= _MAX_CHATS):
                oldest, (oldest_size, used_at) = next(iter(self._chats.items()))
                if not known and now - used_at < _BUSY_SECONDS:
                    return
                del self._chats[oldest]
                held -= oldest_size
            self._chats[chat] = size, now
            # Else each chat would keep all those before it.
            chat.replaced = ()

    @property
    def _max_chat_bytes(self) -> int:
        return self._max_bytes // _LARGEST_SHARE


def json_size(value: Any) -> int:
    """About how many bytes a JSON value takes in memory."""
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(map(sys.getsizeof, value)) + sum(map(json_size, value.values()))
    return sys.getsizeof(value) + (sum(map(json_size, value)) if isinstance(value, list) else 0)


# Bodies …


class _Message(NamedTuple):
    """A message and all before it in the body: where they end, how many JSON values they contain, their memory."""

    end: int
    value: Any
    values: int
    size: int


_NO_MESSAGE = _Message(0, None, 0, 0)


class _Tail(NamedTuple):
    """A body from the bracket that ends its messages: bytes, fields, how many JSON values these have, their memory.

    It is the tools of many clients, and the same in most requests of a chat.
    """

    raw: bytes
    fields: Mapping[str, Any]
    values: int
    size: int


_NO_TAIL = _Tail(b"", {}, 0, 0)


class _Body(NamedTuple):
    """A body up to its last message: the fields before the messages, the name of their list, and the messages.

    Invariant: `pieces`, joined, are the bytes up to the end of the last message, so the first one contains the fields
    before the list. Each has at least twice the length of the next: comparing a few long pieces takes a third of the
    time of comparing every message, which the CPU has to fetch from all over its memory. The tail is what followed when
    it was read.
    """

    fields: Mapping[str, Any]
    name: str
    messages: tuple[_Message, ...]
    pieces: tuple[bytes, ...]
    tail: _Tail = _NO_TAIL

    @property
    def last(self) -> _Message:
        return self.messages[-1] if self.messages else _NO_MESSAGE

    @property
    def size(self) -> int:
        tail = self.tail.size + len(self.tail.raw)
        return self.last.end + self.last.size + _BYTES_PER_MESSAGE * len(self.messages) + tail

    def common(self, body: bytes) -> "_Body":
        """The part that this body begins with."""
        at = 0
        for count, piece in enumerate(self.pieces):
            if not body.startswith(piece, at):
                return self._cut(body, count, at)
            at += len(piece)
        return self

    def _cut(self, body: bytes, count: int, start: int) -> "_Body":
        """The part up to the first message that differs, which is in the piece after `count` equal ones."""
        different = self.pieces[count]
        kept = [message for message in self.messages if message.end <= start] if count else []
        end = start
        for message in self.messages[len(kept) :]:
            if not body.startswith(different[end - start : message.end - start], end):
                break
            kept.append(message)
            end = message.end
        pieces = (*self.pieces[:count], different[: end - start])
        return self._replace(messages=tuple(kept), pieces=pieces) if kept else _NO_BODY


_NO_BODY = _Body({}, "", (), ())


class _NoChat(Chat):
    """For requests without a chat: short ones, huge ones, and those that are made once. Remembers nothing."""

    def look_up(
        self, stage: Stage[Item, Result], items: Sequence[Item], conditions: object = None
    ) -> "Lookup[Item, Result]":
        return _NOTHING_KNOWN

    def name(self, response_id: str) -> None: ...

    def keep(self) -> None: ...


NO_CHAT: Chat = _NoChat(ChatMemory(0), _NO_BODY)
_NOTHING_KNOWN: Lookup[Any, Any] = Lookup(NO_CHAT, Stage("none"), (), None)


def _from_utf8(value: Any) -> Any:
    """A value whose strings have a character for each byte of UTF-8, as it is meant."""
    if isinstance(value, str):
        return value if value.isascii() else _decode(value)
    if isinstance(value, dict):
        return {_from_utf8(name): _from_utf8(inner) for name, inner in value.items()}
    return [_from_utf8(inner) for inner in value] if isinstance(value, list) else value


def _decode(text: str) -> str:
    if len(text) <= _SLICE:
        return text.encode("latin-1").decode()
    decoded = ""
    slices = (text[at : at + _SLICE].encode("latin-1") for at in range(0, len(text), _SLICE))
    for piece in codecs.iterdecode(slices, "utf-8"):
        # CPython lengthens a text in place that has no other name: no call makes all of its four bytes a character.
        decoded += piece
    return decoded


class _Parser:
    """Parses a body after its known part. Raises one of the errors that `decode` knows for an unusual one.

    `_text` is the body from `_start` on, after the known part; `_at` is the position behind the last token that was
    read. The text has a character for each byte, and each value is decoded by itself: 28 MB of UTF-8 with one emoji
    would be a text of 112 MB, and decoding and scanning it hold the interpreter for 46 and 62 ms.
    """

    def __init__(self, body: bytes, known: _Body, *, is_kept: bool) -> None:
        self._is_kept = is_kept
        self._body = body
        self._pieces = known.pieces
        self._tail = known.tail
        self._has_known_tail = bool(known.tail.raw) and body.endswith(known.tail.raw)
        # A known tail is cut off behind its bracket.
        rest = body[known.last.end : len(body) - len(known.tail.raw) + 1 if self._has_known_tail else len(body)]
        tail_values = known.tail.values if self._has_known_tail else 0
        left = MAX_JSON_VALUES - known.last.values - tail_values
        if len(rest) > left and count_value_starts(rest) > left:
            # Some of these characters may be inside strings: decode_json_object counts exactly.
            raise ValueError
        self._text = rest.decode("latin-1")
        self._start, self._at = known.last.end, 0
        self._fields, self._name = known.fields, known.name
        self.messages = list(known.messages)
        # Where the list of messages ended.
        self._tail_at = 0

    def parse(self) -> dict[str, Any]:
        value: dict[str, Any] = dict(self._fields)
        if self.messages:
            value[self._name] = self._list(_NO_MESSAGE)
        elif self._expect("{"):
            self._member(value)
        while not self._has_known_tail and self._expect(",}") == ",":
            self._member(value)
        if self._skip_blanks() != len(self._text):
            raise ValueError
        if self._has_known_tail:
            value |= self._tail.fields
        else:
            raw = self._text[self._tail_at :].encode("latin-1")
            fields = {name: value[name] for name in value if name not in self._fields and name != self._name}
            values = count_values(fields)
            self._tail = _Tail(raw, fields, values, self._memory(self._tail_at, fields, values))
        return value

    def body(self) -> _Body:
        """The body that was parsed, for the next one."""
        pieces = [*self._pieces, self._body[sum(map(len, self._pieces)) : self.messages[-1].end]]
        while len(pieces) > 1 and len(pieces[-2]) < 2 * len(pieces[-1]):
            pieces[-2:] = [b"".join(pieces[-2:])]
        return _Body(self._fields, self._name, tuple(self.messages), tuple(pieces), self._tail)

    def _member(self, value: dict[str, Any]) -> None:
        name = self._value()
        self._expect(":")
        if not isinstance(name, str) or name in value:
            # The last of two fields with one name counts, and the known part would have the first.
            raise ValueError
        if name in _LISTS and not self._name and self._text[self._skip_blanks()] == "[":
            values = count_values(value)
            self._fields, self._name = dict(value), name
            # The list itself is a value, too.
            value[name] = self._list(_Message(0, None, values + 1, self._memory(0, value, values)))
        else:
            value[name] = self._value()

    def _list(self, last: _Message) -> list[Any]:
        """All messages; without a known one, `last` counts what precedes the list."""
        last = self.messages[-1] if self.messages else last
        while self._expect(",]" if self.messages else "[") != "]":
            start, value = self._at, self._value()
            # Two levels down in the body.
            values = count_values(value, outside=2)
            size = last.size + self._memory(start, value, values)
            last = _Message(self._start + self._at, value, last.values + values + 1, size)
            self.messages.append(last)
            if len(self.messages) > _MAX_MESSAGES:
                raise ValueError
        self._tail_at = self._at - 1
        return [message.value for message in self.messages]

    def _value(self) -> Any:
        """Read the next value."""
        start = self._skip_blanks()
        value, self._at = scan(self._text, start)
        if self._text.isascii():
            return value
        if self._text.find("\\u", start, self._at) < 0:
            return _from_utf8(value)
        # An escape is a whole character, and not a byte of one.
        return scan(self._text[start : self._at].encode("latin-1").decode(), 0)[0]

    def _memory(self, start: int, value: Any, values: int) -> int:
        """About how many bytes a value takes that was read from there on; much faster than `json_size`."""
        if not self._is_kept:
            return 0
        text = self._text[start : self._at]
        # One emoji makes each character of a string four bytes.
        is_narrow = text.isascii() and "\\u" not in text
        return sys.getsizeof(text) + _BYTES_PER_VALUE * values if is_narrow else json_size(value)

    def _expect(self, expected: str) -> str:
        """Read the next character that is no blank; ValueError if it is none of these."""
        character = self._text[self._skip_blanks()]
        if character not in expected:
            raise ValueError
        self._at += 1
        return character

    def _skip_blanks(self) -> int:
        # Most clients write none.
        if self._text[self._at : self._at + 1] in _BLANKS:
            blanks = _WHITE_SPACE(self._text, self._at)
            assert blanks is not None
            self._at = blanks.end()
        return self._at
