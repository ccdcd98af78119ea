"""Records the bytes of a streamed answer while they are read, and plays them again in the place of a response.

Nothing is interpreted here: the reader of the upstream's API reads the bytes, both times. Of its heartbeats only those
of the first time mean something.
"""

import zlib
from collections.abc import Generator, Iterator

from deepseek_cursor_proxy.conversation import Heartbeat
from deepseek_cursor_proxy.deepseek.apis.chat_stream import EventReader, ParsedEvents
from deepseek_cursor_proxy.http1.lull import Lull

# Some fifty chunks: so few writes that a long answer takes milliseconds, so small that the first text comes at once.
_BYTES_PER_PIECE = 16 * 1024
# Of an ordinary answer about one piece, of blanks a megabyte.
_PACKED_BYTES_PER_STEP = 1024
# Chunks repeat each other: the fastest level leaves a tenth of them or less.
_FASTEST = 1
# Packed. A million tokens have less; what has more is not worth keeping.
_MOST_BYTES = 32 * 1024 * 1024


class AnswerRecorder(EventReader):
    """Reads one stream with another reader, and keeps its bytes. Used by one thread."""

    def __init__(self, reader: EventReader) -> None:
        super().__init__()
        self._reader = reader
        self._packer = zlib.compressobj(_FASTEST)
        self._packed: list[bytes] = []
        self._size = 0

    def read(self, data: bytes) -> ParsedEvents:
        if self._size <= _MOST_BYTES:
            self._add(self._packer.compress(data))
        return self._reader.read(data)

    def pack(self) -> bytes | None:
        """All bytes, once the stream is over; None if they are too many."""
        self._add(self._packer.flush())
        return b"".join(self._packed) if self._size <= _MOST_BYTES else None

    def _add(self, packed: bytes) -> None:
        self._packed.append(packed)
        self._size += len(packed)


def unpack(packed: bytes) -> Iterator[bytes]:
    """The bytes of an answer, piece by piece, because they are ten times as many; zlib.error if they are damaged."""
    unpacker = zlib.decompressobj()
    for start in range(0, len(packed), _PACKED_BYTES_PER_STEP):
        data = unpacker.decompress(packed[start : start + _PACKED_BYTES_PER_STEP])
        for at in range(0, len(data), _BYTES_PER_PIECE):
            yield data[at : at + _BYTES_PER_PIECE]
    if not unpacker.eof:
        raise zlib.error("the end is missing")


def is_damaged(packed: bytes) -> bool:
    try:
        for _ in unpack(packed):
            pass
    except zlib.error:
        return True
    return False


class ReplayReader(EventReader):
    """Reads a recorded stream with another reader, without its heartbeats. Used by one thread."""

    def __init__(self, reader: EventReader) -> None:
        super().__init__()
        self._reader = reader

    def read(self, data: bytes) -> ParsedEvents:
        events = self._reader.read(data)
        early = events.batch[: events.early_count]
        events.early_count -= sum(isinstance(each, Heartbeat) for each in early)
        events.batch = [each for each in events.batch if not isinstance(each, Heartbeat)]
        return events


class ReplayedResponse:
    """A recorded answer with the interface of an UpstreamResponse. Used by one thread."""

    # No connection was needed.
    connect_seconds: float | None = None

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    def stream(self, *, with_lulls: bool) -> Generator[bytes | Heartbeat | Lull, None, None]:
        yield from unpack(self._packed)

    # There are no deadlines, and nothing to close …

    def note_progress(self) -> None: ...

    def note_keep_alive(self) -> None: ...

    def end_soon(self) -> None: ...

    def close(self, *, was_complete: bool = False) -> None: ...
