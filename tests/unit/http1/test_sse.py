import unittest
from collections.abc import Iterable, Iterator

from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.http1.sse import Comment, Event
from tests.unit.http1.test_heads import pieces, splittings

Found = list[Event | Comment]
A, B, C, BOM = Event("a"), Event("b"), Event("c"), b"\xef\xbb\xbf"


def splittings_with_gaps(data: bytes) -> Iterator[list[bytes]]:
    for arriving in splittings(data):
        yield arriving
        yield [each for piece in arriving for each in (piece, b"")]


def parse(arriving: Iterable[bytes]) -> Found:
    parser = sse.Parser()
    return [item for piece in arriving for item in parser.feed(piece)]


_ENDS = "a\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029b"
_UNKNOWN = ("foo: bar", "foo", "Data: a", "data : a", " data: a", "dat", "database: x", "events: x", '{"error":1}')
_UNENDED = (b"data: a", b"data: a\n", b"data: a\r", b"data: a\r\n", b"event: a\ndata: b\n", b": a", b"da")
# What a stream shows, its bytes, its events and comments.
STREAMS: tuple[tuple[str, bytes, Found], ...] = (
    ("line ends may be mixed", b"data: a\rdata: b\r\ndata: c\n\r\ndata: b\r\rdata: c\n\r", [Event("a\nb\nc"), B, C]),
    ("two LFs after a CR are two line ends", b"data: a\r\n\ndata: b\n\n", [A, B]),
    ("a byte order mark is skipped at the start", BOM + b"data: a\n\n", [A]),
    ("a byte order mark may stand alone", BOM + b"\ndata: a\n\n", [A]),
    ("a later byte order mark is text", b"data: a\n\n" + BOM + b"data: b\n\n", [A, Comment("\ufeffdata: b")]),
    ("a second byte order mark is text", BOM + BOM + b"data: a\n\n", [Comment("\ufeffdata: a")]),
    ("characters of many bytes survive every split", "data: ä€😀\n\n".encode(), [Event("ä€😀")]),
    ("so do those of names and comments", "event: ä\ndata: €\n\n: 😀\n".encode(), [Event("€", "ä"), Comment(": 😀")]),
    ("invalid UTF-8 is replaced", b"data: a\xffb\xe2\x82\n\n: \xc3\n", [Event("a\ufffdb\ufffd"), Comment(": \ufffd")]),
    ("no space is needed after the colon", b"data:a\n\n", [A]),
    ("one space after the colon is no part of the value", b"data: a\n\n", [A]),
    ("a second space is", b"data:  a\n\n", [Event(" a")]),
    ("a tab is", b"data:\ta\n\n", [Event("\ta")]),
    ("a space at the end is", b"data: a \n\n", [Event("a ")]),
    ("a value may contain colons", b'data: {"a":"b: c"}\n\n', [Event('{"a":"b: c"}')]),
    ("data lines are joined by line feeds", b"data: a\ndata:\ndata:b\ndata\n\n", [Event("a\n\nb\n")]),
    ("an empty data field is an event, as in the standard", b"data\n\ndata\ndata\n\ndata:", [Event(""), Event("\n")]),
    ("so is one with a colon", b"data:\n\ndata: \n\n", [Event(""), Event("")]),
    ("blank lines alone are no event", b"\n\n\r\n\r\r\n\n", []),
    ("an event has the last name it was given", b"event: a\nevent:b\ndata: c\n\n", [Event("c", "b")]),
    ("its name may follow its data", b"data: c\nevent: a\n\n", [Event("c", "a")]),
    ("its name may be taken back", b"event: a\nevent\ndata: c\n\n", [C]),
    ("a name lasts for one event", b"event: a\ndata: b\n\ndata: c\n\n", [Event("b", "a"), C]),
    ("a name without data is no event", b"event: a\n\ndata: b\n\n", [B]),
    ("id and retry are ignored", b"id: 1\nretry: 5\nid\nretry\ndata: a\nid: 2\n\n", [A]),
    ("comments keep their order", b": x\n\ndata: a\n:b\n\n:\n", [Comment(": x"), Comment(":b"), A, Comment(":")]),
    ("a line of control characters is no comment", b"\0\x1b\n\ndata: a\n\n", [A]),
    ("data keeps its control characters", b"data: \0\x1b\t\n\n", [Event("\0\x1b\t")]),
    ("no other character ends a line", f"data: {_ENDS}\n\n".encode(), [Event(_ENDS)]),
    ("a comment loses its control characters and stays one line",
     ": a\x1b[31m\0\tb\x7f\x85c\u2028data: d\u2029\n".encode(), [Comment(": a[31mbcdata: d")]),
    *((f"{line} is no field", line.encode() + b"\n\ndata: a\n\n", [Comment(line), A]) for line in _UNKNOWN),
    *((f"{end!r} ends no event", b"data: a\n\n" + end, [A]) for end in _UNENDED),
    ("events after DONE are still events", sse.DONE + b"data: a\n\n", [Event("[DONE]"), A]),
    ("written events are read back", sse.event(b" a") + sse.event("ä".encode(), "b"), [Event(" a"), Event("ä", "b")]),
)  # fmt: skip


class SseTest(unittest.TestCase):
    def assert_parsed(self, data: bytes, *expected: Event | Comment) -> None:
        for arriving in splittings_with_gaps(data):
            self.assertEqual(parse(arriving), list(expected), arriving)


class Parsing(SseTest):
    def test_every_stream_has_its_events_and_comments_however_it_is_cut(self) -> None:
        for name, data, expected in STREAMS:
            with self.subTest(name):
                self.assert_parsed(data, *expected)

    def test_lf_crlf_and_cr_each_end_a_line(self) -> None:
        for end in (b"\n", b"\r\n", b"\r"):
            with self.subTest(end):
                data = b"data: a||data: b|data: c||: d|".replace(b"|", end)
                self.assert_parsed(data, A, Event("b\nc"), Comment(": d"))

    def test_a_crlf_is_one_line_end_wherever_it_is_split(self) -> None:
        parser = sse.Parser()
        self.assertEqual(parser.feed(b"data: a\r"), [])
        self.assertEqual(parser.feed(b""), [])
        self.assertEqual(parser.feed(b"\n"), [], "the LF belongs to the CR before it")
        self.assertEqual(parser.feed(b"\r"), [A], "a CR ends its line without waiting for an LF")
        self.assertEqual(parser.feed(b"\ndata: b\n\n"), [B])


class Limits(unittest.TestCase):
    def verdict(self, data: bytes, limit: int) -> set[str]:
        """What becomes of the stream: the same for every split."""
        found = set()
        for arriving in splittings_with_gaps(data):
            parser = sse.Parser(limit)
            try:
                found.add("".join(repr(item) for piece in arriving for item in parser.feed(piece)))
            except sse.EventTooLarge as error:
                found.add(f"more than {limit}" if str(limit) in str(error) else "unclear")
        return found

    def test_an_event_within_the_limit_is_read_again_and_again(self) -> None:
        self.assertEqual(self.verdict(b"data: 1234\n\n" * 3, 10), {repr(Event("1234")) * 3})

    def test_a_larger_event_is_refused_however_it_comes(self) -> None:
        streams = {
            "one line": b"data: 12345\n\n", "a line without end": b"data: 12345", "two lines": b"data: 1\ndata: 2\n\n",
            "lines without a value": b"data\n" * 3, "lines without end": b"data:\n" * 3, "a comment": b": 123456789\n",
            "an unknown field": b"x" * 11, "a name": b"event: 12345\n",
        }  # fmt: skip
        for name, data in streams.items():
            self.assertEqual(self.verdict(data, 10), {"more than 10"}, name)

    def test_comments_between_events_never_add_up(self) -> None:
        self.assertEqual(self.verdict(b": 123\n" * 9, 10), {repr(Comment(": 123")) * 9})

    def test_millions_of_short_lines_are_too_large_as_well(self) -> None:
        for line in (b"data:\n", b"data: ab\n", b"data\n"):
            parser = sse.Parser()
            with self.subTest(line), self.assertRaises(sse.EventTooLarge):
                for _ in range(200):
                    parser.feed(line * 1000)

    def test_a_long_line_may_come_byte_by_byte(self) -> None:
        """Takes long, not a moment, when the parser looks at its bytes again and again."""
        text = "x" * 64 * 1024
        self.assertEqual(parse(pieces(f"data: {text}\n\n".encode(), 1)), [Event(text)])

    def test_one_event_may_have_a_hundred_thousand_lines(self) -> None:
        self.assertEqual(parse([b"data: x\n" * 100_000 + b"\n"]), [Event("\n".join("x" * 100_000))])


class Writing(SseTest):
    def test_a_comment_is_one_line_whatever_it_says(self) -> None:
        for text in ("a\ndata: b", "a\rdata: b", "a\r\n\r\ndata: b", "a\u2028data: b", "a\x85data: b", "\x1badata: b"):
            with self.subTest(text):
                self.assert_parsed(sse.comment(text), Comment(": adata: b"))
        for text, written in (("keep-alive", b": keep-alive\n\n"), ("\ud800", b": ?\n\n"), ("", b": \n\n")):
            self.assertEqual(sse.comment(text), written)

    def test_an_upstream_comment_is_passed_on_and_an_unknown_field_becomes_one(self) -> None:
        for line in (": keep-alive", ":", ":x", ": ä"):
            self.assert_parsed(sse.comment(Comment(line).line), Comment(line))
        self.assert_parsed(sse.comment(Comment("foo: bar").line), Comment(": foo: bar"))
