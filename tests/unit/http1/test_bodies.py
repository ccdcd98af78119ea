import gzip
import random
import sys
import unittest
import zlib
from types import FrameType

from deepseek_cursor_proxy.errors import ProtocolError, TooLarge
from deepseek_cursor_proxy.http1 import bodies, heads
from deepseek_cursor_proxy.http1.bodies import ContentDecoder, DecodedTooLarge, UnknownCoding, content_decoder
from deepseek_cursor_proxy.http1.heads import RequestHead
from tests.unit.http1.test_heads import LIMIT, Http1Test, chunked, head, pieces


class Lengths(Http1Test):
    def test_without_a_length_there_is_no_body(self) -> None:
        self.assert_read(head() + b"GET /next", rest=b"GET /next")

    def test_a_body_has_exactly_its_length(self) -> None:
        self.assert_read(head(b"Content-Length: 5") + b"helloGET /", payload=b"hello", rest=b"GET /")
        self.assert_read(head(b"Content-Length: 0") + b"GET /", rest=b"GET /")
        self.assert_read(head(b"Content-Length:\t0005 ") + b"\r\n\0\xff\n", payload=b"\r\n\0\xff\n")
        self.assert_read(head(b"Content-Length: 1000") + b"x" * LIMIT, payload=b"x" * LIMIT)

    def test_a_length_above_the_limit_is_at_once_a_413_with_the_remedy(self) -> None:
        self.assert_refused(413, *(head(b"Content-Length: %d" % n) for n in (LIMIT + 1, 10**18 * 9)))
        with self.assertRaisesRegex(TooLarge, "1000 bytes.*max_request_body_bytes"):
            bodies.body_decoder(RequestHead("POST", "/", (1, 1), {"content-length": "1001"}), LIMIT, ProtocolError)

    def test_a_body_that_breaks_off_is_incomplete(self) -> None:
        body = bodies.LengthBody(5)
        self.assertEqual(body.feed(b"hell"), b"hell")
        with self.assertRaises(bodies.IncompleteBody):
            body.end()
        self.assertEqual((body.feed(b"o!"), body.rest, body.is_complete), (b"o", b"!", True))
        body.end()


class Chunks(Http1Test):
    def test_chunks_are_joined_and_everything_else_in_them_is_dropped(self) -> None:
        for name, data, payload, rest in (
            ("chunks are joined", b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\nGET /", b"hello world", b"GET /"),
            ("no chunk is no body", b"0\r\n\r\n", b"", b""),
            ("a size in either case", b"A\r\n012345678\n\r\na\r\n0123456789\r\n0\r\n\r\n", b"012345678\n0123456789",
             b""),
            ("a size has leading zeros", b"0000000000000001\r\nx\r\n00\r\n\r\n", b"x", b""),
            ("data may be any bytes", b"7\r\n\r\n0\r\n\r\n\r\n0\r\n\r\n", b"\r\n0\r\n\r\n", b""),
            ("extensions are dropped", b'5;a=b\r\nhello\r\n0;x;y="z \t"\r\n\r\n', b"hello", b""),
            ("an extension may be empty", b"1;\r\nx\r\n0\r\n\r\n", b"x", b""),
            ("trailers are dropped", b"1\r\nx\r\n0\r\nA: b\r\nContent-Length: 5\r\n\r\nrest", b"x", b"rest"),
        ):  # fmt: skip
            with self.subTest(name):
                self.assert_read(chunked(data), payload=payload, rest=rest)

    def test_a_size_line_is_bounded_whether_it_ends_or_not(self) -> None:
        for body in (b"5;" + b"x" * 5000, b"5;" + b"x" * 5000 + b"\r\nhello\r\n", b"5" * 5000):
            self.assert_refused_early(chunked(body), 400)
        self.assert_large_read(chunked(b"5;" + b"x" * 4092 + b"\r\nhello\r\n0\r\n\r\n"))

    def test_trailers_are_bounded_together(self) -> None:
        for body in (b"0\r\n" + b"A: b\r\n" * 3000, b"0\r\nA: " + b"x" * 17000):
            self.assert_refused_early(chunked(body), 400)
        self.assert_large_read(chunked(b"0\r\n" + b"A: b\r\n" * 2000 + b"\r\n"))

    def test_more_payload_than_the_limit_is_413_as_soon_as_it_is_announced(self) -> None:
        in_two_chunks = b"3e8\r\n" + b"x" * LIMIT + b"\r\n1\r\n"
        self.assert_refused(413, *map(chunked, (b"3e9\r\n", in_two_chunks, b"f" * 16 + b"\r\n")))
        self.assert_read(chunked(b"3e8\r\n" + b"x" * LIMIT + b"\r\n0\r\n\r\n"), payload=b"x" * LIMIT)

    def test_chunks_that_break_off_are_incomplete_everywhere(self) -> None:
        whole = b"5;a\r\nhello\r\n0\r\nA: b\r\n\r\n"
        for length in range(len(whole)):
            body = bodies.ChunkedBody(None, heads.bad_response)
            body.feed(whole[:length])
            with self.assertRaises(bodies.IncompleteBody):
                body.end()

    def test_a_long_chunk_may_come_byte_by_byte(self) -> None:
        """Takes long, not a moment, when a decoder looks at its bytes again and again."""
        body, size = bodies.ChunkedBody(None, heads.bad_response), 64 * 1024
        parts = [body.feed(piece) for piece in pieces(bodies.chunk(b"x" * size) + bodies.LAST_CHUNK, 1)]
        self.assertEqual((sum(map(len, parts)), body.is_complete), (size, True))

    def test_tiny_chunks_cost_no_step_each(self) -> None:
        """A megabyte of them is one request of a stranger's; steps are counted because seconds differ by machine."""
        body, steps = bodies.ChunkedBody(1000, ProtocolError), 0

        def count(_frame: FrameType, event: str, _detail: object) -> None:
            nonlocal steps
            steps += event == "call"

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            payload = body.feed(b"1\r\nx\r\n" * 1000 + bodies.LAST_CHUNK)
        finally:
            sys.setprofile(before)
        self.assertEqual((payload, body.is_complete), (b"x" * 1000, True))
        self.assertLess(steps, 100)

    def test_chunks_that_come_one_by_one_are_counted_together(self) -> None:
        body = bodies.ChunkedBody(1000, ProtocolError)
        for _ in range(1000):
            self.assertEqual(b"x", body.feed(b"1\r\nx\r\n"))
        with self.assertRaises(TooLarge):
            body.feed(b"1\r\nx\r\n")


class TestUnpacker(unittest.TestCase):
    def test_every_known_coding_is_decoded_in_any_pieces(self) -> None:
        data = bytes(range(256)) * 50
        zipped = gzip.compress(data)
        codings = {"gzip": zipped, "X-Gzip ": zipped, "deflate": zlib.compress(data)}
        for coding, packed in codings.items():
            for step in (1, 7, len(packed)):
                with self.subTest(coding=coding, step=step):
                    decoder = content_decoder({"content-encoding": coding}, len(data))
                    assert decoder is not None
                    pieces = [decoder.decode(packed[start : start + step]) for start in range(0, len(packed), step)]
                    self.assertEqual(data, b"".join(pieces))
                    self.assertTrue(decoder.is_complete)

    def test_content_is_stopped_at_the_limit(self) -> None:
        with self.assertRaises(DecodedTooLarge):
            ContentDecoder(1000).decode(gzip.compress(b"\0" * 10_000_000))

    def test_what_compresses_well_is_decoded_in_bounded_pieces(self) -> None:
        data = random.Random(1).randbytes(40) * 25_000
        decoder = ContentDecoder(len(data))
        pieces = list(decoder.decode_pieces(gzip.compress(data)))
        self.assertEqual(data, b"".join(pieces))
        self.assertLessEqual(max(map(len, pieces)), 64 * 1024)
        self.assertTrue(decoder.is_complete)

    def test_a_bomb_is_stopped_long_before_the_limit(self) -> None:
        """A gigabyte of empty lines, within the limit of a stream, would keep its reader busy for minutes."""
        bomb, decoder = gzip.compress(b"\n" * 20_000_000), ContentDecoder(1024**3)
        given = 0
        with self.assertRaises(DecodedTooLarge):
            for piece in decoder.decode_pieces(bomb):
                given += len(piece)
        self.assertLess(given, 3_000_000)

    def test_text_that_compresses_as_text_does_is_no_bomb(self) -> None:
        chunk = '{"id":"5f3a","object":"chat.completion.chunk","model":"m","choices":[{"delta":{"content":"%d"}}]}'
        data = "".join(chunk % random.Random(at).randrange(10**5) for at in range(20_000)).encode()
        self.assertEqual(data, ContentDecoder(len(data)).decode(gzip.compress(data, 9)))

    def test_several_gzip_members_are_one_content(self) -> None:
        packed = gzip.compress(b"one ") + gzip.compress(b"two")
        for step in (1, len(packed)):
            decoder = ContentDecoder(100)
            pieces = [decoder.decode(packed[start : start + step]) for start in range(0, len(packed), step)]
            self.assertEqual(b"one two", b"".join(pieces))

    def test_damaged_gzip_and_bytes_after_it_that_are_no_few_more_members_are_an_error(self) -> None:
        """A finished decompressor piles up whatever it is fed, at quadratic cost."""
        member = gzip.compress(b"{}")
        for data in (b"no gzip", member + b"\0" * 100, member + b"junk", member + gzip.compress(b"") * 100):
            with self.subTest(data[:30]), self.assertRaises(ValueError):
                ContentDecoder(1000).decode(data)

    def test_half_a_gzip_is_not_complete(self) -> None:
        decoder = ContentDecoder(1000)
        decoder.decode(gzip.compress(b"hello")[:-4])
        self.assertFalse(decoder.is_complete)

    def test_unknown_codings_cannot_be_decoded_and_plain_content_need_not_be(self) -> None:
        with self.assertRaisesRegex(UnknownCoding, "'br'"):
            content_decoder({"content-encoding": "br"}, 1000)
        for headers in ({}, {"content-encoding": ""}, {"content-encoding": "Identity"}):
            self.assertIsNone(content_decoder(headers, 1000))
