"""The JSON of chats that grow: what a body has in common with an earlier one is not read again.

A chat comes back every few seconds with all it ever said and one turn more. Its bytes up to the last message that is
known are compared, which takes a hundredth of reading them, and reading goes on behind it. What is a message here is an
item where a chat is the `input` of a response.

Exact, because what was read of JSON depends on the bytes so far and on nothing behind them: equal bytes, equal values.
What is read here is what `decode_json_object` reads; whatever looks unusual is left to it, and so is every complaint.
Rule: nobody changes a body that was read. Only time is saved: all of this may be forgotten at any moment.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from deepseek_cursor_proxy.json_codec import MAX_JSON_VALUES, check_depth, count_value_starts, decode_json_object, scan
from deepseek_cursor_proxy.memo import MOST_ITEMS

# Less than this is read as fast as it is compared and kept.
_LONG = 16_384
# Of bodies that are remembered, as bytes and again as values: some eight chats of 200 tool turns.
_MOST_BYTES = 16 * 1024 * 1024
_MOST_CHATS = 16
# Of a message without what is said in it.
_BYTES_PER_MESSAGE = 400
# … and of any value in it.
_BYTES_PER_VALUE = 80
# What a body may call its chat.
_CHATS = ("messages", "input")
_WHITE_SPACE = re.compile(r"[ \t\n\r]*").match


class _Piece(NamedTuple):
    """One message: the bytes from the end of the one before it to its own, what they say, and how many values."""

    raw: bytes
    message: Any
    values: int


@dataclass(frozen=True, slots=True)
class _Known:
    """A body up to its last message; `before` are the fields that stand in front of the messages, `name` is theirs."""

    before: Mapping[str, Any]
    pieces: tuple[_Piece, ...]
    size: int
    name: str = ""

    def common(self, body: bytes) -> "_Known":
        """As much of it as this body begins with."""
        at = 0
        for count, piece in enumerate(self.pieces):
            if not body.startswith(piece.raw, at):
                return _Known(self.before, self.pieces[:count], at, self.name) if count else _NOTHING
            at += len(piece.raw)
        return self


_NOTHING = _Known({}, (), 0)


class GrowingJson:
    """Called by handler threads, without a lock: what one of two at once remembers may be forgotten, and no harm."""

    def __init__(self, shortest: int = _LONG) -> None:
        self._shortest = shortest
        # Newest first.
        self._recent: tuple[_Known, ...] = ()

    def decode(self, body: bytes) -> dict[str, Any]:
        """A request body as a JSON object, or a BadRequest that says what is wrong with it."""
        if len(body) < self._shortest:
            return decode_json_object(body)
        commons = [known.common(body) for known in self._recent]
        common = max(commons, key=lambda each: each.size, default=_NOTHING)
        if common is _NOTHING and 2 * len(body) > _MOST_BYTES:
            # It could not be kept.
            return decode_json_object(body)
        try:
            rest = _Rest(body, common)
            value = rest.read()
        except (ValueError, IndexError, RecursionError):
            return decode_json_object(body)
        self._keep(rest.known, commons)
        return value

    def _keep(self, new: _Known, commons: list[_Known]) -> None:
        """What the new one goes on from makes room for it; else what was longest not asked for, if there is no more."""
        others = [known for known, common in zip(self._recent, commons, strict=False) if known is not common]
        kept: list[_Known] = []
        room = _MOST_BYTES
        for known in [new, *others][:_MOST_CHATS]:
            values = sum(piece.values for piece in known.pieces)
            size = 2 * known.size + _BYTES_PER_MESSAGE * len(known.pieces) + _BYTES_PER_VALUE * values
            if size <= room and known.pieces:
                room -= size
                kept.append(known)
        self._recent = tuple(kept)


class _Rest:
    """What stands behind the known beginning of a body. Anything unusual raises something."""

    def __init__(self, body: bytes, common: _Known) -> None:
        rest = body[common.size :]
        if sum(piece.values for piece in common.pieces) + count_value_starts(rest) > MAX_JSON_VALUES:
            # It may still be text that only looks like it.
            raise ValueError
        self._text = rest.decode()
        self._at = 0
        self._before = common.before
        self._name = common.name
        self._pieces = list(common.pieces)
        self._is_known = bool(common.pieces)

    def read(self) -> dict[str, Any]:
        value: dict[str, Any] = dict(self._before)
        # What was not looked at before, as deep as it stands in the body.
        fresh: dict[str, Any] = {}
        if self._is_known:
            value[self._name], fresh[self._name] = self._messages()
        elif self._sign("{"):
            self._member(value, fresh)
        while self._sign(",}") == ",":
            self._member(value, fresh)
        if self._skip() != len(self._text):
            raise ValueError
        check_depth(fresh)
        return value

    @property
    def known(self) -> _Known:
        """The body that was read, for the next one."""
        return _Known(self._before, tuple(self._pieces), sum(len(piece.raw) for piece in self._pieces), self._name)

    def _member(self, value: dict[str, Any], fresh: dict[str, Any]) -> None:
        name, self._at = scan(self._text, self._skip())
        self._sign(":")
        if not isinstance(name, str) or name in value:
            # Of two fields of one name the last counts, and what was kept of the first would not.
            raise ValueError
        if name in _CHATS and not self._name and self._text[self._skip()] == "[":
            self._before, self._name = dict(value), name
            value[name], fresh[name] = self._messages()
        else:
            value[name], self._at = scan(self._text, self._skip())
            fresh[name] = value[name]

    def _messages(self) -> tuple[list[Any], list[Any]]:
        """All messages, and the new ones among them."""
        new: list[Any] = []
        # The first piece begins with the body, any other where the one before it ended.
        begin = self._at if self._is_known else 0
        while self._sign(",]" if self._pieces else "[") != "]":
            message, end = scan(self._text, self._skip())
            raw = self._text[begin:end].encode()
            self._pieces.append(_Piece(raw, message, count_value_starts(raw)))
            if len(self._pieces) > MOST_ITEMS:
                # Piece by piece that many take eight times as long, and nobody remembers them.
                raise ValueError
            new.append(message)
            begin = self._at = end
        return [piece.message for piece in self._pieces], new

    def _sign(self, expected: str) -> str:
        """The next sign, which must be one of these, and is passed over."""
        sign = self._text[self._skip()]
        if sign not in expected:
            raise ValueError
        self._at += 1
        return sign

    def _skip(self) -> int:
        found = _WHITE_SPACE(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return self._at
