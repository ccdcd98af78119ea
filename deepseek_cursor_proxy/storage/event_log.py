"""Events of a stream, packed: an answer of a megabyte has a hundred megabytes of them, one like the other.

A log grows while its answer is written and can be read from any byte on meanwhile. What it has packed in the end is
kept by the store; unpacked again, piece by piece, it is the same bytes. This file knows no event but where one ends.
"""

import zlib
from bisect import bisect_right
from collections.abc import Generator

_FASTEST = 1
# So many bytes are packed together, and unpacked for whoever reads one of them.
_BLOCK_BYTES = 64 * 1024
# Packed bytes that are unpacked at once: events pack to a twentieth.
_READ_BYTES = 8 * 1024
_END_OF_EVENT = b"\n\n"


class EventLog:
    """Bytes that are appended and read. Whoever shares it between threads has the lock."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        # Where each of them begins.
        self._starts: list[int] = []
        self._tail = bytearray()
        self._size = 0

    def __len__(self) -> int:
        """How many bytes have been appended."""
        return self._size

    def append(self, piece: bytes) -> None:
        self._tail += piece
        self._size += len(piece)
        if len(self._tail) >= _BLOCK_BYTES:
            self._starts.append(self._size - len(self._tail))
            self._blocks.append(_compress(self._tail))
            self._tail = bytearray()

    def read(self, start: int) -> bytes:
        """The bytes from a place on, up to the end of their block."""
        tail_start = self._size - len(self._tail)
        if start >= tail_start:
            return bytes(self._tail[start - tail_start :])
        index = bisect_right(self._starts, start) - 1
        return zlib.decompress(self._blocks[index])[start - self._starts[index] :]

    def pack(self, last: bytes = b"") -> bytes:
        """All of it and a last piece, for `unpacked`."""
        return b"".join([*self._blocks, _compress(self._tail + last)])


def unpack(data: bytes) -> Generator[bytes, None, None]:
    """The events that were packed, some whole ones at a time; ValueError when the data is damaged."""
    reader, rest = zlib.decompressobj(), bytearray()
    for start in range(0, len(data), _READ_BYTES):
        some = data[start : start + _READ_BYTES]
        while some:
            try:
                rest += reader.decompress(some)
            except zlib.error as error:
                raise ValueError(f"stored events are damaged ({error})") from None
            some = reader.unused_data
            if reader.eof:
                # One block ends, and the next may begin.
                reader = zlib.decompressobj()
        if end := rest.rfind(_END_OF_EVENT) + 1:
            yield bytes(rest[: end + 1])
            del rest[: end + 1]
    if rest:
        yield bytes(rest)


def _compress(data: bytes | bytearray) -> bytes:
    return zlib.compress(data, _FASTEST)
