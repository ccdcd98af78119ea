"""Undoing Content-Encoding, with a bound: a kilobyte of gzip can hold a gigabyte of nothing."""

import zlib


class TooMuch(ValueError):
    """What comes out exceeds the bound."""


class Unpacker:
    """Undoes one content coding piece by piece; `feed` raises TooMuch past the limit and ValueError for damage."""

    def __init__(self, coding: str, limit: int) -> None:
        self._zlib = zlib.decompressobj(_WINDOW_BITS[coding]) if coding in _WINDOW_BITS else None
        self._left = limit

    @property
    def is_complete(self) -> bool:
        return self._zlib is None or self._zlib.eof

    def feed(self, data: bytes) -> bytes:
        if self._zlib is not None:
            data = self._inflate(data)
        self._left -= len(data)
        if self._left < 0:
            raise TooMuch("the unpacked content is too large")
        return data

    def _inflate(self, data: bytes) -> bytes:
        assert self._zlib is not None
        try:
            # One byte more than allowed is enough to know.
            return self._zlib.decompress(data, max(self._left, 0) + 1) if data else b""
        except zlib.error as error:
            raise ValueError(f"the compressed content is damaged ({error})") from None


# 32 lets zlib tell gzip from zlib by itself, which forgives servers that call the one the other.
_WINDOW_BITS = {"gzip": 32 + zlib.MAX_WBITS, "x-gzip": 32 + zlib.MAX_WBITS, "deflate": 32 + zlib.MAX_WBITS}


def is_known(coding: str) -> bool:
    """Whether a Content-Encoding, in lower case, can be undone."""
    return coding in ("", "identity") or coding in _WINDOW_BITS
