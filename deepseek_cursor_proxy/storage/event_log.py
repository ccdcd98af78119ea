"""The events of a stream, compressed: an answer of 1 MB has 100 MB of nearly equal events.

A log grows while its answer is streamed, and can be read from any byte on meanwhile. `pack` returns what the store
keeps; `unpack` returns the same bytes again, piece by piece. This module knows no file, and of events only their end.
"""

import zlib
from bisect import bisect_right
from collections.abc import Generator

from deepseek_cursor_proxy.compression import compress

# Compressed together, and decompressed together to read any byte of them.
_BLOCK_BYTES = 64 * 1024
# Compressed bytes that `unpack` takes at once: events shrink to a twentieth.
_READ_BYTES = 8 * 1024
_END_OF_EVENT = b"\n\n"


class EventLog:
    """Bytes that are appended and read. Not thread-safe: a background job guards it with its own lock."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        # The offset of each block.
        self._starts: list[int] = []
        self._tail = bytearray()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, piece: bytes) -> None:
        self._tail += piece
        self._size += len(piece)
        if len(self._tail) >= _BLOCK_BYTES:
            self._starts.append(self._size - len(self._tail))
            self._blocks.append(compress(self._tail))
            self._tail = bytearray()

    def read(self, start: int) -> bytes:
        """The bytes from offset `start` up to the end of its block."""
        tail_start = self._size - len(self._tail)
        if start >= tail_start:
            return bytes(self._tail[start - tail_start :])
        index = bisect_right(self._starts, start) - 1
        return zlib.decompress(self._blocks[index])[start - self._starts[index] :]

    def pack(self, last: bytes = b"") -> bytes:
        """The whole log and a last piece, for `unpack`."""
        return b"".join([*self._blocks, compress(self._tail + last)])


def unpack(data: bytes) -> Generator[bytes, None, None]:
    """Yield the packed events, whole ones, several at a time; ValueError when the data is damaged."""
    reader, rest = zlib.decompressobj(), bytearray()
    for start in range(0, len(data), _READ_BYTES):
        compressed = data[start : start + _READ_BYTES]
        while compressed:
            try:
                rest += reader.decompress(compressed)
            except zlib.error as error:
                raise ValueError(f"stored events are damaged ({error})") from None
            compressed = reader.unused_data
            if reader.eof:
                # The next block may begin.
                reader = zlib.decompressobj()
        if end := rest.rfind(_END_OF_EVENT) + 1:
            yield bytes(rest[: end + 1])
            del rest[: end + 1]
    if rest:
        yield bytes(rest)
