"""Undoing Content-Encoding, with a bound: a kilobyte of gzip can hold a gigabyte of nothing."""

import zlib
from collections.abc import Iterator


class TooMuch(ValueError):
    """What comes out exceeds the bound."""


# A file of several gzip members is legal; one of thousands only keeps us busy.
_MOST_MEMBERS = 16


class Unpacker:
    """Undoes one content coding piece by piece; `feed` raises TooMuch past the limit and ValueError for damage."""

    def __init__(self, coding: str, limit: int) -> None:
        self._window = _WINDOW_BITS.get(coding)
        self._zlib = zlib.decompressobj(self._window) if self._window is not None else None
        self._members = 1
        self._left = limit

    @property
    def is_complete(self) -> bool:
        return self._zlib is None or self._zlib.eof

    def feed(self, data: bytes) -> bytes:
        if self._zlib is not None:
            return b"".join(self._inflate(data))
        return self._counted(data)

    def _inflate(self, data: bytes) -> Iterator[bytes]:
        assert self._zlib is not None
        assert self._window is not None
        while data:
            if self._zlib.eof:
                # What follows the end must be another member; a finished one would only pile it up.
                self._members += 1
                if self._members > _MOST_MEMBERS:
                    raise ValueError("the compressed content has too many members")
                self._zlib = zlib.decompressobj(self._window)
            try:
                # One byte more than allowed is enough to know.
                yield self._counted(self._zlib.decompress(data, self._left + 1))
            except zlib.error as error:
                raise ValueError(f"the compressed content is damaged ({error})") from None
            data = self._zlib.unused_data

    def _counted(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left < 0:
            raise TooMuch("the unpacked content is too large")
        return data


# 32 lets zlib tell gzip from zlib by itself, which forgives servers that call the one the other.
_WINDOW_BITS = {"gzip": 32 + zlib.MAX_WBITS, "x-gzip": 32 + zlib.MAX_WBITS, "deflate": 32 + zlib.MAX_WBITS}


def is_known(coding: str) -> bool:
    """Whether a Content-Encoding, in lower case, can be undone."""
    return coding in ("", "identity") or coding in _WINDOW_BITS
