import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from deepseek_cursor_proxy.errors import ProtocolError, ProxyError
from deepseek_cursor_proxy.http1 import bodies, heads
from deepseek_cursor_proxy.http1.heads import Head, HeadBuffer, RequestHead, ResponseHead
from tests.support.request_heads import read_request_head

LIMIT = 1000
HOST = b"Host: localhost:9000"


def splittings(data: bytes) -> Iterator[list[bytes]]:
    """The same bytes whole, byte by byte, and cut in two at every boundary."""
    yield [data]
    yield pieces(data, 1)
    for cut in range(1, len(data)):
        yield [data[:cut], data[cut:]]


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def head(*fields: bytes, line: bytes = b"POST /v1/chat/completions HTTP/1.1", host: bytes = HOST) -> bytes:
    lines = [line, host, *fields] if host else [line, *fields]
    return b"\r\n".join([*lines, b"", b""])


def answer(*fields: bytes, line: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join([line, *fields, b"", b""])


def chunked(body: bytes) -> bytes:
    return head(b"Transfer-Encoding: chunked") + body


@dataclass(frozen=True)
class Read:
    """What a reader made of the bytes on a connection."""

    head: RequestHead | ResponseHead
    payload: bytes
    rest: bytes


INCOMPLETE = "incomplete"


def assert_agreed(data: bytes, parse: Callable[[bytes], Head], buffer: HeadBuffer) -> bool:
    """Whether a head is read at once; then collecting it says the same, down to the order of its fields."""
    whole = heads.parse_whole_head(data, parse)
    if whole is None:
        return False
    collected = buffer.feed(data)
    assert collected is not None, data
    found = parse(collected)
    assert (found, list(found.headers), buffer.take_rest()) == (whole[0], list(whole[0].headers), whole[1]), data
    return True


def read_request(arriving: Sequence[bytes]) -> Read | int | str:
    """The request, the status it is refused with, or that it needs more bytes."""
    assert_agreed(b"".join(arriving), heads.parse_request_head, HeadBuffer())
    incoming = iter(arriving)
    try:
        request, rest = read_request_head(incoming)
        body = bodies.body_decoder(request, LIMIT, ProtocolError)
        if body is None:
            return Read(request, b"", rest + b"".join(incoming))
        payload = body.feed(rest) + b"".join([body.feed(piece) for piece in incoming])
        return Read(request, payload, body.rest) if body.is_complete else INCOMPLETE
    except heads.IncompleteHead:
        return INCOMPLETE
    except ProxyError as error:
        return error.status


def read_response(arriving: Sequence[bytes]) -> Read | type[ValueError] | str:
    """The response up to where the server closes, the error, or that the server closed too early."""
    assert_agreed(b"".join(arriving), heads.parse_response_head, HeadBuffer(heads.bad_response))
    incoming = iter(arriving)
    try:
        response, rest = heads.read_response_head(lambda: next(incoming, b""))
        body = bodies.response_decoder(response)
        payload = body.feed(rest) + b"".join([body.feed(piece) for piece in incoming])
        body.end()
        return Read(response, payload, body.rest)
    except (heads.IncompleteHead, bodies.IncompleteBody):
        return INCOMPLETE
    except ValueError as error:
        return type(error)


class Http1Test(unittest.TestCase):
    def assert_read(self, data: bytes, payload: bytes = b"", rest: bytes = b"") -> RequestHead:
        found = self.only_result({repr(result := read_request(p)): result for p in splittings(data)}, payload, rest)
        assert isinstance(found, RequestHead)
        return found

    def assert_answer(self, data: bytes, payload: bytes = b"", rest: bytes = b"") -> ResponseHead:
        results = {repr(result := read_response(p)): result for p in splittings(data)}
        found = self.only_result(results, payload, rest)
        assert isinstance(found, ResponseHead)
        return found

    def only_result(self, results: Mapping[str, object], payload: bytes, rest: bytes) -> RequestHead | ResponseHead:
        self.assertEqual(len(results), 1, "the result depends on how the bytes were split")
        (result,) = results.values()
        assert isinstance(result, Read), result
        self.assertEqual((result.payload, result.rest), (payload, rest))
        return result.head

    def assert_refused(self, status: int, *cases: bytes) -> None:
        for data in cases:
            self.assertEqual({read_request(p) for p in splittings(data)}, {status}, data)

    def assert_refused_early(self, data: bytes, status: int) -> None:
        """For inputs too large to be cut at every boundary."""
        self.assertEqual({read_request(pieces(data, size)) for size in (len(data), 4096, 7)}, {status})

    def assert_large_read(self, data: bytes) -> None:
        whole = read_request([data])
        self.assertIsInstance(whole, Read)
        self.assertEqual([read_request(pieces(data, size)) for size in (4096, 7)], [whole, whole])

    def assert_bad_answers(self, *cases: bytes) -> None:
        for data in cases:
            self.assertEqual({read_response(p) for p in splittings(data)}, {ValueError}, data)


class RequestLine(Http1Test):
    def test_a_request_head_is_read_as_it_was_sent(self) -> None:
        found = self.assert_read(b"GET /v1/models?a=%20b HTTP/1.1\r\nHost: localhost\r\nX-One:  two \t\r\n\r\n")
        expected = RequestHead("GET", "/v1/models?a=%20b", (1, 1), {"host": "localhost", "x-one": "two"})
        self.assertEqual(found, expected)

    def test_http_1_0_is_read_with_its_version_and_needs_no_host(self) -> None:
        self.assertEqual(self.assert_read(b"GET / HTTP/1.0\r\n\r\n").version, (1, 0))

    def test_any_token_is_a_method(self) -> None:
        for method in (b"GET", b"post", b"M-SEARCH", b"x" * 32, b"!#$%&'*+-.^_`|~9"):
            self.assertEqual(self.assert_read(head(line=method + b" / HTTP/1.1")).method, method.decode(), method)

    def test_the_four_forms_of_a_target_are_kept_as_given(self) -> None:
        targets = (
            *(b"GET /", b"GET //double//", b"GET /a?b=c?d/e!f", b"OPTIONS *", b"GET http://localhost:9000/v1/models"),
            *(b"GET HTTPS://Example.com", b"GET http://[::1]:80/?q", b"GET http://host?q=http://other/"),
        )
        for line in targets:
            with self.subTest(line):
                self.assertEqual(self.assert_read(head(line=line + b" HTTP/1.1")).target, line.split(b" ")[1].decode())

    def test_empty_lines_before_a_request_are_skipped_unless_they_are_many(self) -> None:
        for count in range(5):
            self.assertEqual(self.assert_read(b"\r\n" * count + head(line=b"GET / HTTP/1.1")).target, "/")
        self.assert_refused(400, b"\r\n" * 5 + head(), b"\r\n" * 200)

    def test_the_longest_target_is_read_and_a_longer_one_is_414(self) -> None:
        longest = b"/" + b"x" * (heads.MAX_TARGET_BYTES - 1)
        self.assert_large_read(head(line=b"GET " + longest + b" HTTP/1.1"))
        self.assert_large_read(head(line=b"x" * 32 + b" " + longest + b" HTTP/1.1"))
        for target in (longest + b"x", longest * 2, longest * 5):
            self.assert_refused_early(head(line=b"GET " + target + b" HTTP/1.1"), 414)


class Fields(Http1Test):
    def test_names_are_lower_case_and_values_are_stripped_of_spaces_and_tabs_only(self) -> None:
        found = self.assert_read(head(b"X-ONE:\t a b\t c \t", b"x-Two:", b"x-three: \xa0\xe4\x85 "))
        expected = {"host": "localhost:9000", "x-one": "a b\t c", "x-two": "", "x-three": "\xa0\xe4\x85"}
        self.assertEqual(found.headers, expected)

    def test_repeated_lists_are_joined_in_order(self) -> None:
        found = self.assert_read(head(b"Accept: a", b"Accept:  b, c", b"ACCEPT: d"))
        self.assertEqual(found.headers["accept"], "a, b, c, d")

    def test_a_forbidden_byte_is_refused_before_the_head_is_complete(self) -> None:
        self.assert_refused(400, b"GET / HTTP/1.1\n", b"GET /\0", b"GET / HTTP/1.1\rX")

    def test_a_hundred_fields_are_read_and_one_more_is_431(self) -> None:
        fields = [b"X-%d: y" % number for number in range(100)]
        self.assert_large_read(head(*fields[:99]))
        self.assert_refused_early(head(*fields), 431)
        self.assert_refused_early(head(*fields, *fields), 431)
        # Before the head is complete.
        self.assert_refused_early(b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 102, 431)

    def test_a_head_of_64_kib_is_read_and_one_byte_more_is_431(self) -> None:
        data = head(b"X: " + b"y" * (heads.MAX_HEAD_BYTES - len(head(b"X: "))))
        self.assertEqual(len(data), heads.MAX_HEAD_BYTES)
        self.assert_large_read(data)
        longer = data.replace(b"X: ", b"X:  ")
        self.assert_refused_early(longer, 431)
        self.assertEqual({read_request([longer[:-cut], longer[-cut:]]) for cut in range(1, 6)}, {431})

    def test_a_bound_reached_first_is_reported_first(self) -> None:
        self.assert_refused_early(b"x" * 70000 + b"\0", 414)
        self.assert_refused_early(head(*[b"X: a"] * 101, b"\0"), 431)
        self.assert_refused_early(head(*[b"X: a"] * 90, b"\0", *[b"X: a"] * 90), 400)

    def test_the_refusal_of_a_field_never_shows_its_value(self) -> None:
        with self.assertRaises(ProtocolError) as caught:
            heads.parse_request_head(head(b"Authorization : Bearer sk-secret")[:-4])
        self.assertNotIn("secret", caught.exception.message)
        self.assertIn("Authorization", caught.exception.message)


class Host(Http1Test):
    def test_every_form_of_a_host_is_accepted(self) -> None:
        for host in (b"a", b"a.b-c.d", b"A_b~", b"127.0.0.1", b"127.0.0.1:80", b"[::1]", b"[2001:db8::1]:65535", b"a:"):
            self.assertEqual(self.assert_read(head(host=b"Host: " + host)).headers["host"], host.decode(), host)
        self.assert_read(head(host=b"Host: xn--bcher-kva.example"))
        self.assert_read(head(host=b"Host: b%C3%BCcher.example:80"))


class Connections(Http1Test):
    def test_an_incomplete_head_says_whether_it_began_and_whether_it_is_late(self) -> None:
        cases: list[tuple[list[bytes | None], bool, bool]] = [
            ([b""], True, False),
            ([None], True, True),
            # An empty line is not the start of a head.
            ([b"\r\n", None], True, True),
            ([b"\r\n", b"H", b""], False, False),
            ([b"HTTP/1.1 200 OK\r\n", None], False, True),
        ]
        for received, is_empty, is_late in cases:
            with self.subTest(received), self.assertRaises(heads.IncompleteHead) as caught:
                heads.read_response_head(iter(received).__next__)
            self.assertEqual((is_empty, is_late), (caught.exception.is_empty, caught.exception.is_late))

    def test_the_bytes_behind_a_head_are_returned_once(self) -> None:
        buffer = HeadBuffer()
        self.assertEqual(buffer.feed(b"GET / HTTP/1.0\r\n\r\nrest"), b"GET / HTTP/1.0")
        self.assertEqual((buffer.take_rest(), buffer.take_rest(), buffer.is_empty), (b"rest", b"", True))

    def test_only_100_continue_can_be_expected(self) -> None:
        def expecting(value: str, version: tuple[int, int] = (1, 1)) -> RequestHead:
            return RequestHead("POST", "/", version, {"expect": value})

        self.assertTrue(heads.expects_continue(expecting("100-Continue")))
        self.assertFalse(heads.expects_continue(RequestHead("POST", "/", (1, 1), {})))
        self.assertFalse(heads.expects_continue(expecting("100-continue", (1, 0))), "RFC 9110 10.1.1")
        for value in ("", "200-ok", "100-continue, x", "100"):
            with self.assertRaises(ProtocolError) as caught:
                heads.expects_continue(expecting(value))
            self.assertEqual(caught.exception.status, 417)

    def test_who_keeps_a_connection_alive(self) -> None:
        for version, expected, connections in (
            ((1, 1), True, (None, "keep-alive", "closed, x-close")),
            ((1, 1), False, ("close", "TE,\tClose ", "keep-alive, close")),
            ((1, 0), True, ("Keep-Alive", "upgrade , keep-alive")),
            ((1, 0), False, (None, "keep-alive, close")),
        ):
            for connection in connections:
                with self.subTest(version=version, connection=connection):
                    headers = {} if connection is None else {"connection": connection}
                    self.assertIs(heads.keeps_alive(version, headers), expected)

    def test_a_target_splits_into_path_query_and_authority(self) -> None:
        cases = {
            **{path: (path, "", "") for path in ("/", "/a#b", "//a/b", "/http://a/b", "*")},
            "/a%2Fb?c=%20d": ("/a%2Fb", "c=%20d", ""), "/a?b?c": ("/a", "b?c", ""),
            "/?u=http://a/b": ("/", "u=http://a/b", ""),
            "http://localhost:9000/v1/models?x": ("/v1/models", "x", "localhost:9000"),
            "HTTPS://localhost": ("/", "", "localhost"), "http://localhost?x=/": ("/", "x=/", "localhost"),
            "http://[::1]:80/a": ("/a", "", "[::1]:80"), "http://a/http://b/c": ("/http://b/c", "", "a"),
        }  # fmt: skip
        for target, expected in cases.items():
            self.assertEqual(heads.split_target(target), expected, target)


class Responses(Http1Test):
    def test_a_status_line_may_lack_its_reason(self) -> None:
        for line in (b"HTTP/1.1 200 OK", b"HTTP/1.1 200 ", b"HTTP/1.1 200", b"HTTP/1.1 200 very \xe4 fine\t!"):
            found = self.assert_answer(answer(b"X-A: b", b"x-a: c", line=line))
            self.assertEqual(found, ResponseHead(200, (1, 1), {"x-a": "b, c"}))
        self.assertEqual(self.assert_answer(answer(line=b"HTTP/1.0 503 Busy")).version, (1, 0))

    def test_a_malformed_response_head_is_a_value_error(self) -> None:
        lines = (
            *(b"HTTP/2.0 200 OK", b"HTTP/1.10 200 OK", b"http/1.1 200 OK", b"ICY 200 OK", b"200 OK", b"{}"),
            *(b"HTTP/1.1 20 OK", b"HTTP/1.1 2000 OK", b"HTTP/1.1 099 X", b"HTTP/1.1 +20 X", b"HTTP/1.1 200OK"),
            *(b"HTTP/1.1  200 OK", b" HTTP/1.1 200 OK", b"HTTP/1.1 200 O\0K", b"HTTP/1.1 200 OK\n", b"HTTP/1.1 2\xb20"),
        )
        fields = (b"A : b", b"A: b\r\n c", b"abc", b": b", b"A: b\nC: d", b"A: b\rC: d", b"A: \0")
        self.assert_bad_answers(*(answer(b"Content-Length: 0", line=line) for line in lines))
        self.assert_bad_answers(*(answer(b"Content-Length: 0", field) for field in fields))

    def test_a_response_head_is_bounded_as_a_request_head_is(self) -> None:
        for data in (b"H" * 70000, answer(b"A: " + b"x" * 70000), answer(*[b"A: b"] * 101)):
            self.assertEqual({read_response([data]), read_response(pieces(data, 7))}, {ValueError})

    def test_ambiguous_framing_of_a_response_is_a_value_error(self) -> None:
        five, coding = b"Content-Length: 5", b"Transfer-Encoding: chunked"
        lengths = (b" 5, 5", b" -5", b" +5", b"", b" five", b" 00000000000000000005")
        pairs = ((five, five), (five, b"Content-Length: 6"), (five, coding), (coding, coding))
        codings = (b"Transfer-Encoding: gzip", b"Transfer-Encoding: gzip, chunked")
        self.assert_bad_answers(*(answer(b"Content-Length:" + each) + b"hello" for each in lengths))
        self.assert_bad_answers(*(answer(*fields) + b"hello" for fields in (*pairs, codings[:1], codings[1:])))
        self.assert_bad_answers(answer(coding, line=b"HTTP/1.0 200 OK") + b"hello")
        for chunks in (b"x\r\nhello", b"5\r\nhelloXX3\r\nabc\r\n0\r\n\r\nhello"):
            self.assert_bad_answers(answer(coding) + chunks)

    def test_a_response_without_framing_lasts_until_the_close(self) -> None:
        self.assert_answer(answer() + b"0\r\n\r\nall of it", payload=b"0\r\n\r\nall of it")
        body = bodies.UntilCloseBody()
        self.assertFalse(body.is_complete)
        body.end()
        self.assertTrue(body.is_complete)

    def test_some_responses_never_have_a_body(self) -> None:
        for status in (100, 103, 199, 204, 304):
            data = answer(b"Content-Length: 5", line=b"HTTP/1.1 %d X" % status)
            self.assertEqual(self.assert_answer(data + b"HTTP/", rest=b"HTTP/").status, status)

    def test_a_response_that_is_cut_off_is_incomplete(self) -> None:
        for data in (answer(b"Content-Length: 5") + b"hell", answer(b"Transfer-Encoding: chunked") + b"5\r\nhello\r\n"):
            self.assertEqual({read_response(p) for p in splittings(data)}, {INCOMPLETE})


class Written(Http1Test):
    def test_a_reply_has_a_status_line_its_fields_and_a_blank_line(self) -> None:
        written = heads.reply_head(200, [("Content-Type", "application/json"), ("X-Empty", "")])
        self.assertEqual(written, b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Empty: \r\n\r\n")
        self.assertEqual(heads.reply_head(100, ()), b"HTTP/1.1 100 Continue\r\n\r\n")
        self.assertEqual(heads.reply_head(529, ()), b"HTTP/1.1 529 \r\n\r\n")

    def test_what_is_written_is_read_back(self) -> None:
        fields = [("Host", "api.deepseek.com"), ("X-Text", "a: b\t\xe4"), ("Content-Length", "5")]
        found = self.assert_read(heads.request_head("POST", "/v1/chat?x=y", fields) + b"hello", payload=b"hello")
        expected = {"host": "api.deepseek.com", "x-text": "a: b\t\xe4", "content-length": "5"}
        self.assertEqual(found, RequestHead("POST", "/v1/chat?x=y", (1, 1), expected))
        self.assertEqual(self.assert_answer(heads.reply_head(204, fields)).headers, expected)

    def test_a_field_that_would_become_two_is_never_written(self) -> None:
        values = ("a\r\nSet-Cookie: b", "a\nb", "a\rb", "a\r\n b", "\0", "\x1b[0m", "\x7f", "€")
        names = ("", "X:", "X: y", "X Y", "X\r\nY", "X\n", "X\0", "Ä", "€", " X", "X ")
        fields = [("X", value) for value in values] + [(name, "x") for name in names]
        for field in fields:
            with self.subTest(field):
                with self.assertRaises(ValueError):
                    heads.reply_head(200, [field])
                with self.assertRaises(ValueError):
                    heads.request_head("POST", "/", [("Host", "a"), field])

    def test_a_request_line_that_would_become_two_is_never_written(self) -> None:
        lines = (("GET", "/ HTTP/1.1\r\nX: y"), ("GET", "/a b"), ("GET", ""), ("GET", "/ä"), ("", "/"), ("G T", "/"))
        for method, target in lines:
            with self.subTest(target), self.assertRaises(ValueError):
                heads.request_head(method, target, ())
