"""Bodies of HTTP/1.1 messages, requests and responses: where one ends, the payload in its framing, its coding.

A body has one kind of length, and the numbers in it are plain digits: as in `heads`, what two readers could understand
differently is refused. A client's fault is a ProtocolError or TooLarge with the status to answer, DeepSeek's a
ValueError, which `upstream` translates. Reading is linear in the bytes, however they were split. Content codings are
decoded within a bound: a megabyte of gzip can hold a gigabyte of zeros.
"""

import re
import sys
import zlib
from collections.abc import Iterator, Mapping

from deepseek_cursor_proxy.errors import TooLarge
from deepseek_cursor_proxy.http1.heads import TEXT, TOKEN, Fault, RequestHead, ResponseHead, bad_response

LAST_CHUNK = b"0\r\n\r\n"
_MAX_SIZE_LINE, _MAX_TRAILERS = 4096, 16 * 1024  # bytes; no client uses extensions or trailers, but RFC 9112 has them

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;[\t\x20-\x7e]*+)?\r\n")
_DATA_END = re.compile(rb"\r\n")
_TRAILER = re.compile(rf"(?:{TOKEN}++:{TEXT}*+)?\r\n".encode())


class IncompleteBody(ValueError):
    """The peer closed its connection in the middle of a body."""


class BodyDecoder:
    """Turns the bytes after a head into payload until it is complete; `rest` has those after the body."""

    is_complete = False
    rest = b""

    def feed(self, data: bytes) -> bytes:
        return data

    def end(self) -> None:
        """The peer closed its connection; raises IncompleteBody when the body needed more."""
        if not self.is_complete:
            raise IncompleteBody("the connection was closed in the middle of a body")


def response_decoder(head: ResponseHead) -> BodyDecoder:
    """The decoder for the body of a response to a POST; where there cannot be one, it is complete from the start."""
    if head.status < 200 or head.status in (204, 304):
        return LengthBody(0)
    return body_decoder(head, None, bad_response) or UntilCloseBody()


def body_decoder(head: RequestHead | ResponseHead, limit: int | None, fault: Fault) -> BodyDecoder | None:
    """The decoder for a framed body, None without one; a length above the limit is refused at once."""
    length, coding = head.headers.get("content-length"), head.headers.get("transfer-encoding")
    if coding is not None:
        if length is not None or head.version < (1, 1):  # used to smuggle requests
            raise fault("Transfer-Encoding excludes both Content-Length and HTTP/1.0.", 400)
        if coding.lower() != "chunked":
            # RFC 9112, 6.1: where a body ends is known only if chunked comes last.
            codings = [each.strip() for each in coding.lower().rstrip(", ").split(",")]
            status = 400 if "chunked" in codings and codings[-1] != "chunked" else 501
            raise fault(f"The transfer coding {coding[:40]!a} is not supported; use chunked.", status)
        return ChunkedBody(limit, fault)
    if length is None:
        return None
    # int() alone also takes signs, underscores, white space and the digits of other scripts.
    if not (length.isascii() and length.isdigit() and len(length) <= 19):
        raise fault(f"Content-Length {length[:40]!a} is not a number of 1 to 19 digits.", 400)
    if limit is not None and int(length) > limit:
        raise _too_large(limit)
    return LengthBody(int(length))


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The request body is larger than {limit} bytes; shorten it or raise max_request_body_bytes.")


class LengthBody(BodyDecoder):
    def __init__(self, length: int) -> None:
        self._left, self.is_complete = length, length == 0

    def feed(self, data: bytes) -> bytes:
        payload = data[: self._left]
        self._left -= len(payload)
        self.rest += data[len(payload) :]
        self.is_complete = self._left == 0
        return payload


class UntilCloseBody(BodyDecoder):
    def end(self) -> None:
        self.is_complete = True


class ChunkedBody(BodyDecoder):
    """The payload of chunks; extensions and trailers are checked and dropped. No limit means any size."""

    def __init__(self, limit: int | None, fault: Fault) -> None:
        self._limit, self._fault = limit, fault
        self._total = self._left = 0  # bytes of all chunks so far, and those that the current one lacks
        self._line = bytearray()
        self._expected, self._max_line = _SIZE_LINE, _MAX_SIZE_LINE

    def feed(self, data: bytes) -> bytes:
        if self._expected is _SIZE_LINE and not (self._left or self._line):
            single = _single_chunk(data)
            if single is not None and (self._limit is None or self._total + len(single) <= self._limit):
                self._total += len(single)
                return single
        payload: list[bytes] = []
        position = 0
        while position < len(data) and not self.is_complete:
            if not (self._left or self._line) and self._expected is _SIZE_LINE:
                position = self._whole_chunks(data, position, payload)
            if self._left or position == len(data):
                piece = data[position : position + self._left]
                payload.append(piece)
                self._left -= len(piece)
            elif not self._line and (match := self._expected.match(data, position)) and len(match[0]) <= self._max_line:
                piece = match[0]
                self._take_line(match)
            else:
                piece = data[position : data.find(b"\n", position) + 1 or len(data)]
                self._feed_line(piece)
            position += len(piece)
        self.rest += data[position:]
        return b"".join(payload)

    def _whole_chunks(self, data: bytes, position: int, payload: list[bytes]) -> int:
        """The end of the whole chunks from `position` on: one by one, a megabyte of tiny ones took seconds."""
        total, limit = self._total, sys.maxsize if self._limit is None else self._limit
        match_size = _SIZE_LINE.match
        while match := match_size(data, position):
            start, size = match.end(), int(match[1], 16)
            end = start + size
            if not size or total + size > limit or data[end : end + 2] != b"\r\n" or start - position > _MAX_SIZE_LINE:
                break
            payload.append(data[start:end])
            total += size
            position = end + 2
        self._total = total
        return position

    def _feed_line(self, piece: bytes) -> None:
        self._line += piece
        match = self._expected.fullmatch(bytes(self._line)) if piece.endswith(b"\n") else None
        if len(self._line) > self._max_line or (match is None and piece.endswith(b"\n")):
            raise self._fault("A line between the chunks of the body is malformed or too long.", 400)
        if match is not None:
            self._line.clear()
            self._take_line(match)

    def _take_line(self, match: re.Match[bytes]) -> None:
        if self._expected is _SIZE_LINE:
            self._left = int(match[1], 16)
            self._total += self._left
            if self._limit is not None and self._total > self._limit:
                raise _too_large(self._limit)
            self._expected, self._max_line = (_DATA_END, 2) if self._left else (_TRAILER, _MAX_TRAILERS)
        elif self._expected is _DATA_END:
            self._expected, self._max_line = _SIZE_LINE, _MAX_SIZE_LINE
        else:
            self._max_line -= len(match[0])
            self.is_complete = match[0] == b"\r\n"


def _single_chunk(data: bytes) -> bytes | None:
    """The content if these bytes are exactly one chunk, as most events arrive; None for any other."""
    line, _, rest = data.partition(b"\r\n")
    size = len(rest) - 2
    return rest[:size] if size > 0 and line == b"%x" % size and rest.endswith(b"\r\n") else None


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; nothing for no data, because an empty chunk would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


# Content codings …

# The most that is decoded at once: one packet can decode to sixty megabytes, which take more when split into lines.
_PIECE_BYTES = 64 * 1024
# Text compresses to a tenth, a stream of chunks to a twentieth. Below a hundredth it is a bomb, however small: a
# gigabyte of empty lines fits into a megabyte and keeps a reader busy for minutes.
_MOST_RATIO = 100
_UNSUSPICIOUS_BYTES = 1024 * 1024
# A file of several gzip members is legal; one of thousands only keeps us busy.
_MOST_MEMBERS = 16
_CODINGS = ("gzip", "x-gzip", "deflate")
# 32 lets zlib detect gzip or zlib itself, which forgives servers that call the one the other.
_ANY_CODING = 32 + zlib.MAX_WBITS


class DecodedTooLarge(ValueError):
    """The decoded bytes exceed the bound."""


class UnknownCoding(ValueError):
    """A Content-Encoding that cannot be decoded."""


def content_decoder(headers: Mapping[str, str], limit: int) -> "ContentDecoder | None":
    """The decoder for the content of a message, None if it is not encoded; raises UnknownCoding."""
    coding = headers.get("content-encoding", "").strip().lower()
    if coding in ("", "identity"):
        return None
    if coding not in _CODINGS:
        raise UnknownCoding(repr(coding[:40]))
    return ContentDecoder(limit)


class ContentDecoder:
    """Decodes one body piece by piece; raises DecodedTooLarge past the limit and ValueError for damage."""

    def __init__(self, limit: int) -> None:
        self._zlib = zlib.decompressobj(_ANY_CODING)
        self._members = 1
        self._read = self._given = 0
        self._left = limit

    @property
    def is_complete(self) -> bool:
        return self._zlib.eof

    def decode(self, data: bytes) -> bytes:
        return b"".join(self.decode_pieces(data))

    def decode_pieces(self, data: bytes) -> Iterator[bytes]:
        """Like `decode`, a bounded amount at a time."""
        piece = b""
        # zlib may have read all of `data` and still hold output: a full piece is rarely the last.
        while data or len(piece) == _PIECE_BYTES:
            if data and self._zlib.eof:
                # What follows the end must be another member; the finished object would only collect it.
                self._members += 1
                if self._members > _MOST_MEMBERS:
                    raise ValueError("the compressed content has too many members")
                self._zlib = zlib.decompressobj(_ANY_CODING)
            try:
                # One byte more than allowed proves that it is too large.
                piece = self._zlib.decompress(data, min(self._left + 1, _PIECE_BYTES))
            except zlib.error as error:
                raise ValueError(f"the compressed content is damaged ({error})") from None
            rest = self._zlib.unconsumed_tail or self._zlib.unused_data
            self._read += len(data) - len(rest)
            data = rest
            self._given += len(piece)
            self._left -= len(piece)
            if self._left < 0 or self._given > max(_UNSUSPICIOUS_BYTES, _MOST_RATIO * self._read):
                raise DecodedTooLarge("the unpacked content is too large")
            if piece:
                yield piece
