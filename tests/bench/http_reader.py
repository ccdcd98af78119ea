"""As much HTTP as finding the end of a response takes, and cheap: its cost is part of every measure.

Pure: bytes of a socket come in, and only a short tail of them is kept.
"""

import re

from tests.support.processes import BenchmarkFailed

_LENGTH = re.compile(rb"(?i)\r\ncontent-length:[ \t]*(\d+)")
_CHUNKED = re.compile(rb"(?i)\r\ntransfer-encoding:[ \t]*chunked")
_CONNECTION_CLOSE = re.compile(rb"(?i)\r\nconnection:[ \t]*close")
# The end of a chunked body with the chunk and the event before it: enough to see whether the stream ended properly.
_TAIL_BYTES = 64
# A chat's, a response's (which closes with its usage only if it was completed), a message's.
_LAST_EVENT = re.compile(rb'data: \[DONE\]|"total_tokens":\d+\}\}\}\n\n|"type":"message_stop"\}')


def content_length(data: bytes | bytearray, end: int) -> int | None:
    found = _LENGTH.search(data, 0, end)
    return int(found[1]) if found else None


class ResponseReader:
    __slots__ = ("_head", "_is_chunked", "_left", "closes", "tail")

    def __init__(self) -> None:
        self._head: bytes | None = b""
        self._left: int | None = None
        self._is_chunked = False
        # Whether the connection ends with this answer.
        self.closes = False
        self.tail = b"\r\n"

    def feed(self, data: bytes) -> bool:
        """Take the next bytes, none at the end; whether the response is complete. BenchmarkFailed unless it's a 200."""
        if not data:
            if self._head is not None or self._is_chunked or self._left is not None:
                raise BenchmarkFailed("an answer was broken off")
            return True
        if self._head is not None:
            data = self._head + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._head = data
                return False
            self._read_head(data, end)
            data = data[end + 4 :]
        if self._left is not None:
            self._left -= len(data)
            return self._left <= 0
        self.tail = (self.tail + data[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        return self._is_chunked and self.tail.endswith(b"\r\n0\r\n\r\n")

    @property
    def is_done_stream(self) -> bool:
        """Whether the last event ends a stream of any of the three APIs."""
        return _LAST_EVENT.search(self.tail) is not None

    def _read_head(self, data: bytes, end: int) -> None:
        if not data.startswith((b"HTTP/1.1 200 ", b"HTTP/1.0 200 ")):
            raise BenchmarkFailed(f"an answer was {data[:300].decode(errors='replace')!r}")
        self._head = None
        self._left = content_length(data, end)
        self._is_chunked = self._left is None and _CHUNKED.search(data, 0, end) is not None
        is_framed = self._left is not None or self._is_chunked
        self.closes = (
            not is_framed or data.startswith(b"HTTP/1.0") or _CONNECTION_CLOSE.search(data, 0, end) is not None
        )


def body(answer: bytes) -> bytes:
    """The body of a complete answer, without the lengths between its chunks."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    if not _CHUNKED.search(head):
        return rest
    pieces = []
    while (length := int(rest.partition(b"\r\n")[0].partition(b";")[0], 16)) > 0:
        start = rest.index(b"\r\n") + 2
        pieces.append(rest[start : start + length])
        rest = rest[start + length + 2 :]
    return b"".join(pieces)
