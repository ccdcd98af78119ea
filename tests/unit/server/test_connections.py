import gzip
import time
import unittest

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import BadRequest, ProxyError, RequestTimeout, TooLarge, UnknownEncoding
from deepseek_cursor_proxy.http1.heads import RequestHead
from deepseek_cursor_proxy.server.connections import RequestBody


class Source:
    """A connection on which these pieces arrive behind the head; None is a piece that does not come in time."""

    close_reason: ProxyError | None = None

    def __init__(self, *pieces: bytes | None) -> None:
        self.pieces = list(pieces)
        self.sent = b""
        self.seconds: list[float] = []

    def send(self, data: bytes) -> None:
        self.sent += data

    def receive(self, until: float) -> bytes | None:
        self.seconds.append(until - time.monotonic())
        return self.pieces.pop(0) if self.pieces else b""


def body(source: Source, settings: dict[str, float] | None = None, **headers: str) -> RequestBody:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    config = ProxyConfig(**(settings or {}))  # type: ignore[arg-type]
    return RequestBody(source, RequestHead("POST", "/", (1, 1), named), b"", config)


class TestRequestBody(unittest.TestCase):
    def test_a_body_is_read_on_demand_and_the_bytes_behind_it_are_put_back(self) -> None:
        source = Source(b"hel", b"loGET /")
        read = body(source, content_length="5")
        self.assertEqual((False, 2), (read.is_read, len(source.pieces)))
        self.assertEqual((b"hello", b"GET /", True), (read.read(), read.rest, read.is_read))

    def test_a_request_without_a_body_has_nothing_to_read(self) -> None:
        read = body(Source())
        self.assertEqual((True, b""), (read.is_read, read.read()))

    def test_a_body_that_is_announced_too_large_is_refused_when_it_is_read(self) -> None:
        read = body(Source(), {"max_request_body_bytes": 10}, content_length="11")
        self.assertFalse(read.is_read)
        with self.assertRaises(TooLarge):
            read.read()

    def test_a_compressed_body_is_decoded_within_the_same_limit(self) -> None:
        packed = gzip.compress(b"x" * 1000)
        headers = {"content_length": str(len(packed)), "content_encoding": "gzip"}
        self.assertEqual(b"x" * 1000, body(Source(packed), {"max_request_body_bytes": 1000}, **headers).read())
        with self.assertRaises(TooLarge):
            body(Source(packed), {"max_request_body_bytes": 999}, **headers).read()
        with self.assertRaises(UnknownEncoding):
            body(Source(), content_length="1", content_encoding="br").read()

    def test_a_client_that_waits_for_100_continue_gets_it_when_the_body_is_read(self) -> None:
        source = Source(b"hello")
        read = body(source, content_length="5", expect="100-continue")
        self.assertEqual(b"", source.sent)
        read.read()
        self.assertEqual(b"HTTP/1.1 100 Continue\r\n\r\n", source.sent)

    def test_every_byte_that_came_earns_time_for_the_next(self) -> None:
        source = Source(b"x" * 100, b"x" * 100, b"x" * 100)
        body(source, {"body_timeout": 10, "body_rate": 10}, content_length="300").read()
        for seconds, expected in zip(source.seconds, (10, 20, 30), strict=True):
            self.assertAlmostEqual(expected, seconds, delta=2)

    def test_a_late_body_is_a_timeout_and_one_that_ends_early_is_incomplete(self) -> None:
        with self.assertRaises(RequestTimeout):
            body(Source(b"he", None), content_length="5").read()
        with self.assertRaises(BadRequest) as caught:
            body(Source(b"he"), content_length="5").read()
        self.assertEqual("incomplete_body", caught.exception.code)
