"""Decodes Content-Encoding with a bound: a megabyte of gzip can hold a gigabyte of zeros."""

import zlib
from collections.abc import Iterator


class DecodedTooLarge(ValueError):
    """The decoded bytes exceed the bound."""


# The most that is decoded at once: one packet can decode to sixty megabytes, which take more when split into lines.
_PIECE_BYTES = 64 * 1024
# Text compresses to a tenth, a stream of chunks to a twentieth. Below a hundredth it is a bomb, however small: a
# gigabyte of empty lines fits into a megabyte and keeps a reader busy for minutes.
_MOST_RATIO = 100
_UNSUSPICIOUS_BYTES = 1024 * 1024
# A file of several gzip members is legal; one of thousands only keeps us busy.
_MOST_MEMBERS = 16


class ContentDecoder:
    """Decodes one body piece by piece; raises DecodedTooLarge past the limit and ValueError for damage."""

    def __init__(self, coding: str, limit: int) -> None:
        self._window = _WINDOW_BITS.get(coding)
        self._zlib = zlib.decompressobj(self._window) if self._window is not None else None
        self._members = 1
        self._read = self._given = 0
        self._left = limit

    @property
    def is_identity(self) -> bool:
        """Whether the bytes are not encoded and only counted."""
        return self._zlib is None

    @property
    def is_complete(self) -> bool:
        return self._zlib is None or self._zlib.eof

    def decode(self, data: bytes) -> bytes:
        return b"".join(self.decode_pieces(data))

    def decode_pieces(self, data: bytes) -> Iterator[bytes]:
        """Like `decode`, a bounded amount at a time."""
        if self._zlib is not None:
            yield from self._inflate(data)
        elif data:
            yield self.count(data)

    def _inflate(self, data: bytes) -> Iterator[bytes]:
        assert self._zlib is not None
        assert self._window is not None
        piece = b""
        # zlib may have read all of `data` and still hold output: a full piece is rarely the last.
        while data or len(piece) == _PIECE_BYTES:
            if data and self._zlib.eof:
                # What follows the end must be another member; the finished object would only collect it.
                self._members += 1
                if self._members > _MOST_MEMBERS:
                    raise ValueError("the compressed content has too many members")
                self._zlib = zlib.decompressobj(self._window)
            try:
                # One byte more than allowed proves that it is too large.
                piece = self._zlib.decompress(data, min(self._left + 1, _PIECE_BYTES))
            except zlib.error as error:
                raise ValueError(f"the compressed content is damaged ({error})") from None
            rest = self._zlib.unconsumed_tail or self._zlib.unused_data
            self._read += len(data) - len(rest)
            data = rest
            self._given += len(piece)
            if self._given > max(_UNSUSPICIOUS_BYTES, _MOST_RATIO * self._read):
                raise _too_large()
            if piece:
                yield self.count(piece)

    def count(self, data: bytes) -> bytes:
        """The same bytes; DecodedTooLarge when there are too many by now."""
        self._left -= len(data)
        if self._left < 0:
            raise _too_large()
        return data


def _too_large() -> DecodedTooLarge:
    return DecodedTooLarge("the unpacked content is too large")


# 32 lets zlib detect gzip or zlib itself, which forgives servers that call the one the other.
_WINDOW_BITS = {"gzip": 32 + zlib.MAX_WBITS, "x-gzip": 32 + zlib.MAX_WBITS, "deflate": 32 + zlib.MAX_WBITS}


def can_decode(coding: str) -> bool:
    """Whether we can decode this Content-Encoding (in lower case)."""
    return coding in ("", "identity") or coding in _WINDOW_BITS
