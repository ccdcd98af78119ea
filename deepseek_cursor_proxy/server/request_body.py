"""The body of one request: read when the app calls for it, decoded, bounded in size and time.

A body that the app does not read stays on the connection, which then ends after the reply: bytes that one side takes
for a body and the other for a request are how requests are smuggled.
"""

import time
from collections.abc import Iterable
from typing import Protocol

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import BadRequest, ProxyError, RequestTimeout, TooLarge, UnknownEncoding
from deepseek_cursor_proxy.http1 import bodies, heads
from deepseek_cursor_proxy.http1.content_encoding import ContentDecoder, DecodedTooLarge, can_decode

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class BodySource(Protocol):
    """The connection that a body comes from."""

    @property
    def close_reason(self) -> ProxyError | None: ...

    def send(self, data: bytes) -> None: ...

    # What arrives, b"" when the client closed, None when the moment `until` came first.
    def receive(self, until: float) -> bytes | None: ...

    # The bytes that arrived after the head; those after the body, which begin the next request, are put back.
    def take_rest(self) -> bytes: ...

    def put_back(self, rest: bytes) -> None: ...


class RequestBody:
    """Used by the thread that runs the connection."""

    def __init__(self, source: BodySource, head: heads.RequestHead, config: ProxyConfig) -> None:
        self._source = source
        self._config = config
        self._limit = config.max_request_body_bytes
        self._coding = head.headers.get("content-encoding", "").strip().lower()
        self._expects_continue = heads.expects_continue(head)
        self._decoder: bodies.BodyDecoder | None = None
        self._too_large: TooLarge | None = None
        try:
            self._decoder = bodies.request_decoder(head, self._limit)
        except TooLarge as error:
            # Raised by `read`: a wrong path or key is the more useful answer.
            self._too_large = error

    @property
    def is_read(self) -> bool:
        return self._too_large is None and (self._decoder is None or self._decoder.is_complete)

    def read(self) -> bytes:
        """Read and decode the whole body; raises BadRequest, RequestTimeout, TooLarge or UnknownEncoding."""
        if self._too_large is not None:
            raise self._too_large
        if not can_decode(self._coding):
            raise UnknownEncoding(f"Content-Encoding {self._coding[:40]!r} is unknown; send identity, gzip or deflate.")
        if self._decoder is None:
            return b""
        try:
            pieces = self._read_pieces(self._decoder)
            # BodyDecoder has counted a body that is not compressed.
            return self._unpack(pieces) if self._coding else b"".join(pieces)
        finally:
            # Also when this body is refused: the next request may follow it.
            self._source.put_back(self._decoder.rest)

    def _unpack(self, pieces: Iterable[bytes]) -> bytes:
        decoder = ContentDecoder(self._coding, self._limit)
        try:
            body = b"".join(map(decoder.decode, pieces))
        except DecodedTooLarge:
            raise TooLarge(f"The unpacked request body is larger than {self._limit} bytes.") from None
        except ValueError as error:
            raise BadRequest(f"The request body cannot be unpacked: {error}.") from None
        if not decoder.is_complete:
            raise BadRequest("The compressed request body is incomplete.")
        return body

    def _read_pieces(self, decoder: bodies.BodyDecoder) -> list[bytes]:
        data = self._source.take_rest()
        if self._expects_continue and not data:
            self._source.send(_CONTINUE)
        pieces = [decoder.feed(data)]
        until = time.monotonic() + self._config.body_timeout
        while not decoder.is_complete:
            # Every byte that came earns time for the next: a byte now and then does not keep a thread for ever.
            until += len(data) / self._config.body_rate
            more = self._source.receive(until)
            if more is None:
                raise RequestTimeout("The request body did not arrive in time.")
            if not more:
                raise self._source.close_reason or BadRequest(
                    "The request body ends before its announced end.", code="incomplete_body"
                )
            data = more
            pieces.append(decoder.feed(data))
        return pieces
