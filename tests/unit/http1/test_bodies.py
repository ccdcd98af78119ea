"""Every rule about lengths, transfer codings and chunks, as bytes and a verdict."""

import sys
from types import FrameType

from deepseek_cursor_proxy.errors import ProtocolError, TooLarge
from deepseek_cursor_proxy.http1 import bodies, heads
from deepseek_cursor_proxy.http1.heads import RequestHead
from tests.unit.http1.test_heads import LIMIT, Http1Test, chunked, head, pieces, read_request


class Lengths(Http1Test):
    def test_without_a_length_there_is_no_body(self) -> None:
        self.assert_read(head() + b"GET /next", rest=b"GET /next")

    def test_a_body_has_exactly_its_length(self) -> None:
        self.assert_read(head(b"Content-Length: 5") + b"helloGET /", payload=b"hello", rest=b"GET /")
        self.assert_read(head(b"Content-Length: 0") + b"GET /", rest=b"GET /")
        self.assert_read(head(b"Content-Length:\t0005 ") + b"\r\n\0\xff\n", payload=b"\r\n\0\xff\n")
        self.assert_read(head(b"Content-Length: 1000") + b"x" * LIMIT, payload=b"x" * LIMIT)

    def test_a_length_of_zero_is_complete_from_the_start(self) -> None:
        body = bodies.request_decoder(RequestHead("POST", "/", (1, 1), {"content-length": "0"}), LIMIT)
        self.assertTrue(body is None or body.is_complete)

    def test_a_length_is_plain_ascii_digits(self) -> None:
        values = {
            "empty": b"",
            "a sign": b"+5",
            "negative": b"-5",
            "an underscore": b"1_0",
            "hexadecimal": b"0x5",
            "a fraction": b"5.0",
            "an exponent": b"5e1",
            "a list of equals": b"5, 5",
            "a list": b"5,6",
            "a space inside": b"5 5",
            "a word": b"five",
            "a semicolon": b"5;",
            "Arabic digits": "٥".encode(),
            "a superscript": b"5\xb2",
            "a no-break space": b"\xa05",
            "twenty digits": b"0" * 19 + b"5",
            "thousands of digits": b"1" * 5000,
        }
        cases = {name: b"Content-Length: " + value for name, value in values.items()}
        for name, field in cases.items():
            with self.subTest(name):
                self.assertEqual(read_request([head(field) + b"hello"]), 400)

    def test_a_length_above_the_limit_is_413_before_a_byte_of_it_came(self) -> None:
        self.assert_refused({str(n): head(b"Content-Length: %d" % n) for n in (LIMIT + 1, 10**18 * 9)}, 413)

    def test_the_refusal_of_a_large_body_names_the_limit_and_the_remedy(self) -> None:
        with self.assertRaisesRegex(TooLarge, "1000 bytes.*max_request_body_bytes"):
            bodies.request_decoder(RequestHead("POST", "/", (1, 1), {"content-length": "1001"}), LIMIT)

    def test_a_body_that_breaks_off_is_incomplete(self) -> None:
        body = bodies.LengthBody(5)
        self.assertEqual(body.feed(b"hell"), b"hell")
        with self.assertRaises(bodies.IncompleteBody):
            body.end()
        self.assertEqual((body.feed(b"o!"), body.rest, body.is_complete), (b"o", b"!", True))
        body.end()


class Codings(Http1Test):
    def test_a_length_and_a_coding_exclude_each_other(self) -> None:
        both = (b"Content-Length: 5", b"Transfer-Encoding: chunked")
        zero = (b"Transfer-Encoding: chunked", b"Content-Length: 0")
        unknown = (b"Content-Length: 5", b"Transfer-Encoding: identity")
        self.assert_refused({str(pair): head(*pair) + b"0\r\n\r\n" for pair in (both, zero, unknown)}, 400)

    def test_http_1_0_has_no_coding(self) -> None:
        self.assert_refused({"1.0": head(b"Transfer-Encoding: chunked", line=b"POST / HTTP/1.0")}, 400)

    def test_the_coding_chunked_is_known_in_any_case(self) -> None:
        self.assert_read(head(b"Transfer-Encoding: CHUNKED") + b"0\r\n\r\n")

    def test_any_other_transfer_coding_is_a_501(self) -> None:
        codings = (b"gzip", b"identity", b"gzip, chunked", b"chunked, chunked", b"chunked;q=1", b"xchunked", b"c")
        cases = {str(coding): head(b"Transfer-Encoding: " + coding) for coding in (*codings, b"", b"\xa0chunked")}
        self.assert_refused(cases, 501)


class Chunks(Http1Test):
    def test_chunks_are_joined_and_the_bytes_behind_them_are_the_rest(self) -> None:
        self.assert_read(chunked(b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\nGET /"), payload=b"hello world", rest=b"GET /")
        self.assert_read(chunked(b"0\r\n\r\n"))

    def test_a_size_may_have_either_case_and_leading_zeros(self) -> None:
        body = b"000000000000000A\r\n012345678\n\r\nb\r\n0123456789\r\r\n00\r\n\r\n"
        self.assert_read(chunked(body), payload=b"012345678\n0123456789\r")

    def test_the_data_of_a_chunk_may_be_any_bytes(self) -> None:
        self.assert_read(chunked(b"7\r\n\r\n0\r\n\r\n\r\n0\r\n\r\n"), payload=b"\r\n0\r\n\r\n")

    def test_chunk_extensions_are_dropped(self) -> None:
        self.assert_read(chunked(b'5;a=b\r\nhello\r\n0;x;y="z \t"\r\n\r\n'), payload=b"hello")
        self.assert_read(chunked(b"1;\r\nx\r\n0\r\n\r\n"), payload=b"x")

    def test_trailers_are_dropped(self) -> None:
        self.assert_read(chunked(b"1\r\nx\r\n0\r\nA: b\r\nContent-Length: 5\r\n\r\nrest"), payload=b"x", rest=b"rest")

    def test_malformed_chunks_are_refused(self) -> None:
        bodies = {
            "an empty size": b"\r\nhello\r\n",
            "a sign": b"+5\r\nhello\r\n",
            "a negative size": b"-5\r\nhello\r\n",
            "an underscore": b"0_5\r\nhello\r\n",
            "a prefix": b"0x5\r\nhello\r\n",
            "no hexadecimal digit": b"g\r\nhello\r\n",
            "a space before the size": b" 5\r\nhello\r\n",
            "a space after the size": b"5 \r\nhello\r\n",
            "a space before an extension": b"5 ;a\r\nhello\r\n",
            "a tab after the size": b"5\t\r\nhello\r\n",
            "seventeen digits": b"00000000000000005\r\nhello\r\n",
            "another script's digit": "٥\r\nhello\r\n".encode(),
            "a bare LF after the size": b"5\nhello\r\n",
            "a bare CR in the size line": b"5\rx\r\nhello\r\n",
            "CR CR LF after the size": b"5\r\r\nhello\r\n",
            "a NUL in an extension": b"5;a\0\r\nhello\r\n",
            "an extension beyond ASCII": b"5;\xe4\r\nhello\r\n",
            "a bare CR in an extension": b"5;a\rb\r\nhello\r\n",
            "a bare LF ends an extension": b"5;a\nhello\r\n",
            "data longer than its size": b"5\r\nhello!\r\n",
            "any two bytes after the data": b"5\r\nhelloXX3\r\nabc\r\n",
            "a bare LF after the data": b"5\r\nhello\n0\r\n\r\n",
            "a bare CR after the data": b"5\r\nhello\r0\r\n\r\n",
            "no line break after the data": b"5\r\nhello0\r\n\r\n",
            "a bare LF as the end": b"0\r\n\n",
            "a trailer without a colon": b"0\r\nabc\r\n\r\n",
            "a trailer with a space before the colon": b"0\r\nA : b\r\n\r\n",
            "a folded trailer": b"0\r\nA: b\r\n c\r\n\r\n",
            "a trailer without a name": b"0\r\n: b\r\n\r\n",
            "a NUL in a trailer": b"0\r\nA: \0\r\n\r\n",
            "a bare LF ends a trailer": b"0\r\nA: b\n\r\n",
        }
        self.assert_refused({name: chunked(body) for name, body in bodies.items()}, 400)

    def test_a_size_line_is_bounded_whether_it_ends_or_not(self) -> None:
        for body in (b"5;" + b"x" * 5000, b"5;" + b"x" * 5000 + b"\r\nhello\r\n", b"5" * 5000):
            self.assert_refused_early(chunked(body), 400)
        self.assert_large_read(chunked(b"5;" + b"x" * 4092 + b"\r\nhello\r\n0\r\n\r\n"))

    def test_trailers_are_bounded_together(self) -> None:
        for body in (b"0\r\n" + b"A: b\r\n" * 3000, b"0\r\nA: " + b"x" * 17000):
            self.assert_refused_early(chunked(body), 400)
        self.assert_large_read(chunked(b"0\r\n" + b"A: b\r\n" * 2000 + b"\r\n"))

    def test_more_payload_than_the_limit_is_413_as_soon_as_it_is_announced(self) -> None:
        cases = {
            "in one chunk": chunked(b"3e9\r\n"),
            "in many": chunked(b"3e8\r\n" + b"x" * LIMIT + b"\r\n1\r\n"),
            "in sixteen digits": chunked(b"f" * 16 + b"\r\n"),
        }
        self.assert_refused(cases, 413)
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

    def test_two_megabytes_of_extensions_may_come_in_small_pieces(self) -> None:
        body, data = bodies.ChunkedBody(None, heads.bad_response), (b"1;" + b"e" * 4000 + b"\r\nx\r\n") * 500
        self.assertEqual(b"".join([body.feed(piece) for piece in pieces(data, 31)]), b"x" * 500)

    def test_many_chunks_in_one_piece_are_one_payload(self) -> None:
        body = bodies.ChunkedBody(None, heads.bad_response)
        self.assertEqual(body.feed(b"1\r\nx\r\n" * 30_000 + bodies.LAST_CHUNK), b"x" * 30_000)

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

    def test_the_limit_holds_for_tiny_chunks_too(self) -> None:
        with self.assertRaises(TooLarge):
            bodies.ChunkedBody(1000, ProtocolError).feed(b"1\r\nx\r\n" * 1001 + bodies.LAST_CHUNK)

    def test_chunks_that_come_one_by_one_are_counted_together(self) -> None:
        body = bodies.ChunkedBody(1000, ProtocolError)
        for _ in range(1000):
            self.assertEqual(b"x", body.feed(b"1\r\nx\r\n"))
        with self.assertRaises(TooLarge):
            body.feed(b"1\r\nx\r\n")
