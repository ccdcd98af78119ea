"""Decode the JSON of a chat that grows: the part of a body that an earlier one began with is not parsed again.

The bytes of a body are compared with known bodies up to their last common message, which takes a hundredth of the time
of parsing; parsing continues there. The messages are the list named `messages` or, in Responses, `input`. What follows
them, which is the tools of many clients, is not parsed again either if it is the same as in the last body of the chat.

Exact, because a JSON value depends on its own bytes and on nothing after them. The result equals that of
`decode_json_object`, which decodes every unusual body and raises every error. Rule: no caller changes a decoded body.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from deepseek_cursor_proxy.chat_memory import MAX_ITEMS, ChatMemory, Entry, Stage
from deepseek_cursor_proxy.json_codec import MAX_JSON_VALUES, check_depth, count_value_starts, decode_json_object, scan

# A shorter body is parsed as fast as it is compared.
_MIN_BYTES = 16_384
# The memory of a message without its text, and of any value in it.
_BYTES_PER_MESSAGE = 400
_BYTES_PER_VALUE = 80
_LISTS = ("messages", "input")
_WHITE_SPACE = re.compile(r"[ \t\n\r]*").match


class _Message(NamedTuple):
    """One message: where it ends in the body, its value, and how many JSON values the body contains up to there."""

    end: int
    value: Any
    values: int


_NO_MESSAGE = _Message(0, None, 0)


class _Tail(NamedTuple):
    """A body from the bracket that ends its messages: bytes, the fields in it, and how many JSON values it contains."""

    raw: bytes
    fields: Mapping[str, Any]
    values: int


_NO_TAIL = _Tail(b"", {}, 0)


@dataclass(frozen=True, slots=True)
class _Prefix:
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

    def common(self, body: bytes) -> "_Prefix":
        """The part that this body begins with."""
        at = 0
        for count, piece in enumerate(self.pieces):
            if not body.startswith(piece, at):
                return self._cut(body, count, at)
            at += len(piece)
        return self

    def _cut(self, body: bytes, count: int, start: int) -> "_Prefix":
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
        return _Prefix(self.fields, self.name, tuple(kept), pieces, self.tail) if kept else _NOTHING


_NOTHING = _Prefix({}, "", (), ())
_DECODE: Stage[None, _Prefix] = Stage("decode", lambda item: 0)


def decode(body: bytes, memory: ChatMemory, min_bytes: int = _MIN_BYTES) -> dict[str, Any]:
    """A request body as a JSON object, or a BadRequest that names the error."""
    if len(body) < min_bytes:
        return decode_json_object(body)
    known = memory.entries(_DECODE)
    commons = [entry.result.common(body) for entry in known]
    common = max(commons, key=lambda prefix: prefix.last.end, default=_NOTHING)
    if common is _NOTHING and 2 * len(body) > memory.max_entry_bytes:
        return decode_json_object(body)
    try:
        parser = _Parser(body, common)
        value = parser.parse()
    except (ValueError, IndexError, RecursionError):
        return decode_json_object(body)
    prefix = parser.prefix()
    if prefix.messages:
        size = 2 * (prefix.last.end + len(prefix.tail.raw))
        size += _BYTES_PER_MESSAGE * len(prefix.messages) + _BYTES_PER_VALUE * (prefix.last.values + prefix.tail.values)
        # The new prefix contains these but, perhaps, for their last message, which Claude Code marks.
        pairs = zip(known, commons, strict=True)
        replaced = [entry for entry, part in pairs if len(part.messages) >= max(1, len(entry.result.messages) - 1)]
        memory.put(Entry(_DECODE, (), None, prefix, size), replaced)
    return value


class _Parser:
    """Parses a body after its known prefix. Raises ValueError, IndexError or RecursionError for an unusual one.

    `_text` is the body after the prefix, `_at` the position behind the last token that was read.
    """

    def __init__(self, body: bytes, known: _Prefix) -> None:
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
        self._text = rest.decode()
        self._at = 0
        self._fields = known.fields
        self._name = known.name
        self._messages = list(known.messages)
        self._is_known = bool(known.messages)
        # Where the list of messages ended.
        self._tail_at = 0

    def parse(self) -> dict[str, Any]:
        value: dict[str, Any] = dict(self._fields)
        # The new values, as deep as they are in the body.
        new: dict[str, Any] = {}
        if self._is_known:
            value[self._name], new[self._name] = self._list()
        elif self._expect("{"):
            self._member(value, new)
        if self._has_known_tail:
            value |= self._tail.fields
        else:
            while self._expect(",}") == ",":
                self._member(value, new)
            raw = self._text[self._tail_at :].encode()
            fields = {name: value[name] for name in value if name not in self._fields and name != self._name}
            self._tail = _Tail(raw, fields, count_value_starts(raw))
        if self._skip_blanks() != len(self._text):
            raise ValueError
        check_depth(new)
        return value

    def prefix(self) -> _Prefix:
        """The body that was parsed, for the next one."""
        pieces = list(self._pieces)
        if self._messages:
            pieces.append(self._body[sum(map(len, pieces)) : self._messages[-1].end])
        while len(pieces) > 1 and len(pieces[-2]) < 2 * len(pieces[-1]):
            pieces[-2:] = [b"".join(pieces[-2:])]
        return _Prefix(self._fields, self._name, tuple(self._messages), tuple(pieces), self._tail)

    def _member(self, value: dict[str, Any], new: dict[str, Any]) -> None:
        name, self._at = scan(self._text, self._skip_blanks())
        self._expect(":")
        if not isinstance(name, str) or name in value:
            # The last of two fields with one name counts, and the prefix would have the first.
            raise ValueError
        if name in _LISTS and not self._name and self._text[self._skip_blanks()] == "[":
            self._fields, self._name = dict(value), name
            value[name], new[name] = self._list()
        else:
            value[name], self._at = scan(self._text, self._skip_blanks())
            new[name] = value[name]

    def _list(self) -> tuple[list[Any], list[Any]]:
        """All messages, and the new ones among them."""
        new: list[Any] = []
        # The first message begins with the body, any other where the one before it ended.
        begin = self._at if self._is_known else 0
        while self._expect(",]" if self._messages else "[") != "]":
            value, end = scan(self._text, self._skip_blanks())
            raw = self._text[begin:end].encode()
            last = self._messages[-1] if self._messages else _NO_MESSAGE
            self._messages.append(_Message(last.end + len(raw), value, last.values + count_value_starts(raw)))
            if len(self._messages) > MAX_ITEMS:
                # One by one that many take eight times as long, and no memory takes them.
                raise ValueError
            new.append(value)
            begin = self._at = end
        self._tail_at = self._at - 1
        return [message.value for message in self._messages], new

    def _expect(self, expected: str) -> str:
        """Read the next character that is no blank; ValueError if it is none of these."""
        character = self._text[self._skip_blanks()]
        if character not in expected:
            raise ValueError
        self._at += 1
        return character

    def _skip_blanks(self) -> int:
        blanks = _WHITE_SPACE(self._text, self._at)
        assert blanks is not None
        self._at = blanks.end()
        return self._at
