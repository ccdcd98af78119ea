"""The event stream by the WHATWG rules; every stream is fed whole, byte by byte, and cut in two at every boundary."""

import unittest
from collections.abc import Iterable, Iterator

from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.http1.sse import Comment, Event

Found = list[Event | Comment]


def splittings(data: bytes) -> Iterator[list[bytes]]:
    yield [data]
    yield pieces(data, 1)
    for cut in range(1, len(data)):
        yield [data[:cut], data[cut:]]
        yield [data[:cut], b"", data[cut:]]


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def parse(arriving: Iterable[bytes]) -> Found:
    parser = sse.Parser()
    return [item for piece in arriving for item in parser.feed(piece)]


class SseTest(unittest.TestCase):
    def assert_parsed(self, data: bytes, *expected: Event | Comment) -> None:
        for arriving in splittings(data):
            self.assertEqual(parse(arriving), list(expected), arriving)


class Lines(SseTest):
    def test_lf_crlf_and_cr_each_end_a_line(self) -> None:
        expected = (Event("a"), Event("b\nc"), Comment(": d"))
        for end in (b"\n", b"\r\n", b"\r"):
            with self.subTest(end):
                self.assert_parsed(b"data: a||data: b|data: c||: d|".replace(b"|", end), *expected)

    def test_line_ends_may_be_mixed(self) -> None:
        self.assert_parsed(
            b"data: a\rdata: b\r\ndata: c\n\r\ndata: d\r\rdata: e\n\r", *map(Event, ("a\nb\nc", "d", "e"))
        )

    def test_a_crlf_is_one_line_end_wherever_it_is_split(self) -> None:
        parser = sse.Parser()
        self.assertEqual(parser.feed(b"data: a\r"), [])
        self.assertEqual(parser.feed(b""), [])
        self.assertEqual(parser.feed(b"\n"), [], "the LF belongs to the CR before it")
        self.assertEqual(parser.feed(b"\r"), [Event("a")], "a CR ends its line without waiting for an LF")
        self.assertEqual(parser.feed(b"\ndata: b\n\n"), [Event("b")])

    def test_two_lfs_after_a_cr_are_two_line_ends(self) -> None:
        self.assert_parsed(b"data: a\r\n\ndata: b\n\n", Event("a"), Event("b"))

    def test_no_other_character_ends_a_line(self) -> None:
        text = "a\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029b"
        self.assert_parsed(f"data: {text}\n\n".encode(), Event(text))

    def test_a_byte_order_mark_is_skipped_at_the_start_only(self) -> None:
        bom = b"\xef\xbb\xbf"
        self.assert_parsed(bom + b"data: a\n\n", Event("a"))
        self.assert_parsed(bom + b"\ndata: a\n\n", Event("a"))
        self.assert_parsed(b"data: a\n\n" + bom + b"data: b\n\n", Event("a"), Comment("\ufeffdata: b"))
        self.assert_parsed(bom + bom + b"data: a\n\n", Comment("\ufeffdata: a"))

    def test_characters_of_many_bytes_survive_every_split(self) -> None:
        self.assert_parsed("data: ä€😀\n\n".encode(), Event("ä€😀"))
        self.assert_parsed("event: ä\ndata: €\n\n: 😀\n".encode(), Event("€", "ä"), Comment(": 😀"))

    def test_invalid_utf8_becomes_replacement_characters(self) -> None:
        self.assert_parsed(b"data: a\xffb\xe2\x82\n\n: \xc3\n", Event("a\ufffdb\ufffd"), Comment(": \ufffd"))


class Fields(SseTest):
    def test_one_space_after_the_colon_is_no_part_of_the_value(self) -> None:
        cases = {b"data:a": "a", b"data: a": "a", b"data:  a": " a", b"data:\ta": "\ta", b"data: a ": "a "}
        for line, expected in cases.items():
            with self.subTest(line):
                self.assert_parsed(line + b"\n\n", Event(expected))

    def test_a_value_may_contain_colons(self) -> None:
        self.assert_parsed(b'data: {"a":"b: c"}\n\n', Event('{"a":"b: c"}'))

    def test_data_lines_are_joined_by_line_feeds(self) -> None:
        self.assert_parsed(b"data: a\ndata:\ndata:b\ndata\n\n", Event("a\n\nb\n"))

    def test_an_empty_data_field_is_an_event(self) -> None:
        """The example in the standard: two events, and a third that never gets its blank line."""
        self.assert_parsed(b"data\n\ndata\ndata\n\ndata:", Event(""), Event("\n"))
        self.assert_parsed(b"data:\n\ndata: \n\n", Event(""), Event(""))

    def test_blank_lines_alone_are_no_event(self) -> None:
        self.assert_parsed(b"\n\n\r\n\r\r\n\n")

    def test_an_event_has_the_last_name_it_was_given(self) -> None:
        self.assert_parsed(b"event: a\nevent:b\ndata: c\n\n", Event("c", "b"))
        self.assert_parsed(b"data: c\nevent: a\n\n", Event("c", "a"))
        self.assert_parsed(b"event: a\nevent\ndata: c\n\n", Event("c"))

    def test_a_name_lasts_for_one_event(self) -> None:
        self.assert_parsed(b"event: a\ndata: b\n\ndata: c\n\n", Event("b", "a"), Event("c"))

    def test_a_name_without_data_is_no_event(self) -> None:
        self.assert_parsed(b"event: a\n\ndata: b\n\n", Event("b"))

    def test_id_and_retry_are_ignored(self) -> None:
        self.assert_parsed(b"id: 1\nretry: 5\nid\nretry\ndata: a\nid: 2\n\n", Event("a"))

    def test_comments_are_reported_in_order_with_the_events(self) -> None:
        self.assert_parsed(
            b": keep-alive\n\ndata: a\n:b\n\n:\n", Comment(": keep-alive"), Comment(":b"), Event("a"), Comment(":")
        )

    def test_an_unknown_field_is_reported_as_its_line(self) -> None:
        for line in (
            "foo: bar",
            "foo",
            "Data: a",
            "data : a",
            " data: a",
            "dat",
            "database: x",
            "events: x",
            '{"error":1}',
        ):
            with self.subTest(line):
                self.assert_parsed(line.encode() + b"\n\ndata: a\n\n", Comment(line), Event("a"))

    def test_comments_lose_their_control_characters(self) -> None:
        forged = ": a\x1b[31m\0\tb\x7f\x85c\u2028data: d\u2029"
        self.assert_parsed(forged.encode() + b"\n", Comment(": a[31mbcdata: d"))

    def test_a_line_of_control_characters_is_no_comment(self) -> None:
        self.assert_parsed(b"\0\x1b\n\ndata: a\n\n", Event("a"))

    def test_data_keeps_its_control_characters(self) -> None:
        self.assert_parsed(b"data: \0\x1b\t\n\n", Event("\0\x1b\t"))


class Ends(SseTest):
    def test_an_event_without_its_blank_line_is_dropped(self) -> None:
        for data in (b"data: a", b"data: a\n", b"data: a\r", b"data: a\r\n", b"event: a\ndata: b\n", b": a", b"da"):
            with self.subTest(data):
                self.assert_parsed(b"data: whole\n\n" + data, Event("whole"))

    def test_an_empty_stream_has_no_events(self) -> None:
        self.assertEqual(parse([]), [])
        self.assertEqual(parse([b"", b""]), [])

    def test_events_after_done_are_still_events(self) -> None:
        self.assert_parsed(sse.DONE + b"data: a\n\n", Event("[DONE]"), Event("a"))


class Limits(unittest.TestCase):
    def verdict(self, data: bytes, limit: int) -> set[str]:
        """What becomes of the stream: the same for every split."""
        found = set()
        for arriving in splittings(data):
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
            "one line": b"data: 12345\n\n",
            "a line without end": b"data: 12345",
            "two lines": b"data: 1\ndata: 2\n\n",
            "lines without a value": b"data\n" * 3,
            "lines without end": b"data:\n" * 3,
            "a comment": b": 123456789\n",
            "an unknown field": b"x" * 11,
            "a name": b"event: 12345\n",
        }
        for name, data in streams.items():
            with self.subTest(name):
                self.assertEqual(self.verdict(data, 10), {"more than 10"})

    def test_comments_between_events_never_add_up(self) -> None:
        self.assertEqual(self.verdict(b": 123\n" * 9, 10), {repr(Comment(": 123")) * 9})

    def test_sixteen_megabytes_without_a_line_end_are_too_large(self) -> None:
        parser = sse.Parser()
        with self.assertRaises(sse.EventTooLarge):
            for _ in range(17):
                parser.feed(b"x" * 1024 * 1024)

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

    def test_two_megabytes_may_come_in_small_pieces(self) -> None:
        text = "x" * 2 * 1024 * 1024
        self.assertEqual(parse(pieces(f"data: {text}\n\n".encode(), 61)), [Event(text)])

    def test_one_event_may_have_a_hundred_thousand_lines(self) -> None:
        self.assertEqual(parse([b"data: x\n" * 100_000 + b"\n"]), [Event("\n".join("x" * 100_000))])


class Writing(SseTest):
    def test_an_event_is_read_back(self) -> None:
        self.assertEqual(sse.event(b'{"a":1}'), b'data: {"a":1}\n\n')
        self.assertEqual(sse.event(b"{}", "message_stop"), b"event: message_stop\ndata: {}\n\n")
        self.assert_parsed(sse.event(b" a") + sse.event("ä".encode(), "b"), Event(" a"), Event("ä", "b"))

    def test_done_is_an_event(self) -> None:
        self.assertEqual(sse.DONE, sse.event(b"[DONE]"))

    def test_a_comment_is_one_line_whatever_it_says(self) -> None:
        self.assertEqual(sse.comment("keep-alive"), b": keep-alive\n\n")
        for text in ("a\ndata: b", "a\rdata: b", "a\r\n\r\ndata: b", "a\u2028data: b", "a\x85data: b", "\x1badata: b"):
            with self.subTest(text):
                self.assert_parsed(sse.comment(text), Comment(": adata: b"))
        self.assertEqual(sse.comment("\ud800"), b": ?\n\n")
        self.assertEqual(sse.comment(""), b": \n\n")

    def test_an_upstream_comment_is_passed_on_as_it_came(self) -> None:
        for line in (": keep-alive", ":", ":x", ": ä"):
            self.assert_parsed(sse.comment(Comment(line).line), Comment(line))

    def test_an_unknown_field_is_passed_on_as_a_comment(self) -> None:
        self.assert_parsed(sse.comment(Comment("foo: bar").line), Comment(": foo: bar"))


if __name__ == "__main__":
    unittest.main()
