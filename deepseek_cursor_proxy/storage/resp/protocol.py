"""RESP2 and RESP3 as bytes: `encode` writes commands, `ReplyParser` reads replies in pieces of any size.

It does no I/O. A reply is bounded in bytes, elements and depth; past a bound, and for anything that is not RESP, the
parser raises ProtocolError, after which its connection is of no use. The streamed types of RESP3 ($?, *?) are refused:
no server sends them. Attributes and pushes are read and dropped, because no command of ours asks for them.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast

# Far above the largest value that a store keeps, far below what would hurt.
MAX_REPLY_BYTES = 128 * 1024 * 1024
MAX_ELEMENTS = 1_000_000
MAX_DEPTH = 32
_MAX_LINE_BYTES = 64 * 1024

Command: TypeAlias = tuple[bytes, ...]
Reply: TypeAlias = "bytes | int | float | bool | str | list[Reply] | dict[Reply, Reply] | ReplyError | None"


class EngineDown(Exception):
    """The server cannot be used now; the text is one line, without the password."""


class EngineRefused(EngineDown):
    """The server, or its machine, said no: trying again at once is pointless."""


class ProtocolError(ValueError):
    """The other side does not speak RESP."""


@dataclass(frozen=True)
class ReplyError:
    """An error reply: a value, because the other replies of a pipeline stand beside it."""

    text: str

    @property
    def code(self) -> str:
        """The first word, such as ERR, OOM or NOSCRIPT."""
        return self.text.partition(" ")[0]


def encode(commands: Iterable[Command]) -> bytes:
    parts = []
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in command]
    return b"".join(parts)


def as_dict(reply: Reply) -> dict[Reply, Reply]:
    """A map, which RESP2 sends as a flat array; empty for any other reply."""
    if isinstance(reply, list):
        return dict(zip(reply[::2], reply[1::2], strict=False))
    return reply if isinstance(reply, dict) else {}


class ReplyParser:
    """Used by the one thread that has the connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._position = 0
        # The arrays, maps, … that are not complete, the outermost first.
        self._open: list[_Aggregate] = []
        # Kind and length of the bulk string whose header has been read.
        self._bulk: tuple[bytes, int] | None = None
        self._bytes = 0
        self._elements = 0

    @property
    def is_between_replies(self) -> bool:
        return not self._buffer and not self._open and self._bulk is None

    def feed(self, data: bytes) -> list[Reply]:
        """The replies that these bytes complete."""
        self._buffer += data
        replies = []
        while (value := self._read_value()) is not _INCOMPLETE:
            if (reply := self._close_aggregates(value)) is not _INCOMPLETE:
                self._bytes = self._elements = 0
                replies += [reply] if reply is not _DROPPED else []
        del self._buffer[: self._position]
        self._position = 0
        return cast(list[Reply], replies)

    def _read_value(self) -> object:
        """The next value without elements, an empty aggregate included; _INCOMPLETE if more bytes are needed."""
        while self._bulk is None:
            end = self._buffer.find(b"\r\n", self._position, self._position + _MAX_LINE_BYTES)
            if end < 0:
                _require(len(self._buffer) - self._position < _MAX_LINE_BYTES, "has a line that is too long")
                return _INCOMPLETE
            line = self._take(end)
            kind, rest = line[:1], line[1:]
            if rest == b"-1" or kind not in _LENGTHS:
                return _simple_value(kind, rest)
            _require(rest.isdigit() and len(rest) < 12 and int(rest) <= MAX_REPLY_BYTES, "has a length out of bounds")
            if kind in _BULKS:
                self._bulk = kind, int(rest)
            elif (aggregate := self._open_aggregate(kind, int(rest))).missing == 0:
                self._open.pop()
                return aggregate.value()
        return self._read_bulk(*self._bulk)

    def _read_bulk(self, kind: bytes, length: int) -> object:
        _require(self._bytes + length <= MAX_REPLY_BYTES, "is too large")
        end = self._position + length
        if len(self._buffer) < end + 2:
            return _INCOMPLETE
        _require(self._buffer[end : end + 2] == b"\r\n", "has a string that does not end where it should")
        data = self._take(end)
        self._bulk = None
        if kind == b"!":
            return ReplyError(_one_line(data))
        # A verbatim string begins with its format: "txt:".
        return data[4:] if kind == b"=" else data

    def _take(self, end: int) -> bytes:
        """What stands before the end of a line, which is passed as well."""
        with memoryview(self._buffer) as view:
            data = bytes(view[self._position : end])
        self._bytes += len(data) + 2
        _require(self._bytes <= MAX_REPLY_BYTES, "is too large")
        self._position = end + 2
        return data

    def _open_aggregate(self, kind: bytes, length: int) -> "_Aggregate":
        length *= 2 if kind in b"%|" else 1
        self._elements += length
        _require(self._elements <= MAX_ELEMENTS and len(self._open) < MAX_DEPTH, "has too many elements")
        self._open.append(_Aggregate(kind, length))
        return self._open[-1]

    def _close_aggregates(self, value: object) -> object:
        """Put a value where it belongs: the whole reply, if the value completes it, else _INCOMPLETE."""
        while self._open:
            inner = self._open[-1]
            if value is not _DROPPED:
                inner.items.append(value)
                inner.missing -= 1
            if inner.missing:
                return _INCOMPLETE
            self._open.pop()
            value = inner.value()
        return value


_INCOMPLETE: Final = object()
_DROPPED: Final = object()
# The kinds whose first line is a length.
_BULKS = b"$=!"
_LENGTHS = b"$=!*%~>|"


@dataclass
class _Aggregate:
    kind: bytes
    missing: int
    items: list[object] = field(default_factory=list)

    def value(self) -> object:
        if self.kind in b">|":
            return _DROPPED
        if self.kind != b"%":
            return self.items
        _require(not any(isinstance(key, list | dict) for key in self.items[::2]), "has a map with a key that is none")
        return dict(zip(self.items[::2], self.items[1::2], strict=True))


def _simple_value(kind: bytes, rest: bytes) -> object:
    match kind:
        case b"+":
            return rest.decode("utf-8", "replace")
        case b"-":
            return ReplyError(_one_line(rest))
        # int() takes blanks and underscores too, and refuses more than 4,300 digits.
        case b":" | b"(" if rest.removeprefix(b"-").removeprefix(b"+").isdigit() and len(rest) < 1_000:
            return int(rest)
        case b"_" | b"$" | b"*":
            return None
        case b"#" if rest in (b"t", b"f"):
            return rest == b"t"
        case b"," if _NUMBER.fullmatch(rest):
            return float(rest)
    raise ProtocolError("a reply is not in the form of RESP")


_NUMBER = re.compile(rb"[-+]?(?:inf|nan|[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)")


def _require(is_met: bool, fault: str) -> None:
    if not is_met:
        raise ProtocolError(f"a reply {fault}")


def _one_line(text: bytes) -> str:
    return " ".join(text.decode("utf-8", "replace").split())
