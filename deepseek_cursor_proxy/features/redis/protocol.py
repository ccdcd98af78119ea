"""RESP2 as bytes: `encode` writes commands, a ReplyReader reads replies.

A reply is bounded in bytes, elements and depth. Past a bound, and for anything that is not RESP2, the reader raises
ProtocolError, after which its connection is of no use. Nothing here knows of sockets.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

# Far above the largest value that a store keeps, far below what would hurt.
MAX_REPLY_BYTES = 128 * 1024 * 1024
MAX_ELEMENTS = 1_000_000
MAX_DEPTH = 32
_MAX_LINE_BYTES = 64 * 1024

Command: TypeAlias = tuple[bytes, ...]
Reply: TypeAlias = "bytes | int | str | list[Reply] | ReplyError | None"


class RedisUnavailable(Exception):
    """The server cannot be used now; the text is one line, without the password."""


class RedisRefused(RedisUnavailable):
    """The server, or its machine, said no: trying again at once is pointless."""


class ProtocolError(ValueError):
    """The server does not send RESP2."""


@dataclass(frozen=True)
class ReplyError:
    """An error reply: a value, because the other replies of a pipeline stand beside it."""

    text: str

    @property
    def code(self) -> str:
        """The first word, such as ERR, OOM or NOSCRIPT; Redis 6.2 has it at the end if a command of a script failed."""
        found = re.match(r"ERR Error running script .*: -(\w+)", self.text)
        return found[1] if found else self.text.partition(" ")[0]


def encode(commands: Iterable[Command]) -> bytes:
    parts = []
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in command]
    return b"".join(parts)


class ReplyReader:
    """Used by the one thread that has the connection."""

    def __init__(self, receive: Callable[[], bytes]) -> None:
        """`receive` returns the next bytes of the server, at least one, or raises."""
        self._receive = receive
        self._buffer = bytearray()
        # Of the reply that is being read.
        self._bytes_left = self._elements_left = 0

    @property
    def has_rest(self) -> bool:
        """Whether bytes arrived after the reply that was read last."""
        return bool(self._buffer)

    def read(self) -> Reply:
        self._bytes_left, self._elements_left = MAX_REPLY_BYTES, MAX_ELEMENTS
        return self._read_value(MAX_DEPTH)

    def _read_value(self, depth: int) -> Reply:
        line = self._read_line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest.decode("utf-8", "replace")
        if kind == b"-":
            return ReplyError(" ".join(rest.decode("utf-8", "replace").split()))
        if kind == b":":
            return _number(rest)
        if kind not in (b"$", b"*"):
            raise ProtocolError("a reply is not in the form of RESP2")
        length = _number(rest)
        if length == -1:
            return None
        if kind == b"$":
            return self._read_string(length)
        self._elements_left -= length
        _require(length >= 0 and self._elements_left >= 0 and depth > 0, "has too many elements")
        return [self._read_value(depth - 1) for _ in range(length)]

    def _read_line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n", 0, _MAX_LINE_BYTES)) < 0:
            _require(len(self._buffer) < _MAX_LINE_BYTES, "has a line that is too long")
            self._buffer += self._receive()
        return self._take(end)

    def _read_string(self, length: int) -> bytes:
        _require(0 <= length <= self._bytes_left, "is too large")
        while len(self._buffer) < length + 2:
            self._buffer += self._receive()
        _require(self._buffer[length : length + 2] == b"\r\n", "has a string that does not end where it should")
        return self._take(length)

    def _take(self, end: int) -> bytes:
        """What stands before the end of a line, which is taken as well."""
        data = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        self._bytes_left -= end + 2
        _require(self._bytes_left >= 0, "is too large")
        return data


def _number(text: bytes) -> int:
    # int() takes blanks and underscores too.
    _require(text.removeprefix(b"-").isdigit() and len(text) < 20, "has a number that is none")
    return int(text)


def _require(is_met: bool, fault: str) -> None:
    if not is_met:
        raise ProtocolError(f"a reply {fault}")
