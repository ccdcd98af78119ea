import random
import unittest
from unittest import mock

from deepseek_cursor_proxy.storage.resp import protocol
from deepseek_cursor_proxy.storage.resp.protocol import (
    ProtocolError,
    Reply,
    ReplyError,
    ReplyParser,
    as_dict,
    encode,
)
from tests.support.fuzzing import cases
from tests.support.traced_memory import traced_memory

# Bytes of a server, and the replies in them.
REPLIES: list[tuple[bytes, list[Reply]]] = [
    (b"+OK\r\n", ["OK"]),
    (b"+\r\n", [""]),
    (b"-ERR no such thing\r\n", [ReplyError("ERR no such thing")]),
    (b":0\r\n:-12\r\n:+7\r\n", [0, -12, 7]),
    (b"$5\r\nhello\r\n", [b"hello"]),
    (b"$0\r\n\r\n", [b""]),
    (b"$4\r\n\r\n\r\n\r\n", [b"\r\n\r\n"]),
    (b"$-1\r\n*-1\r\n_\r\n", [None, None, None]),
    (b"*0\r\n", [[]]),
    (b"*3\r\n:1\r\n*2\r\n$1\r\na\r\n*0\r\n$-1\r\n", [[1, [b"a", []], None]]),
    (b"#t\r\n#f\r\n", [True, False]),
    (b",1.5\r\n,-2e3\r\n,inf\r\n,-inf\r\n,10\r\n", [1.5, -2000.0, float("inf"), float("-inf"), 10.0]),
    (b"(3492890328409238509324850943850943825024385\r\n", [3492890328409238509324850943850943825024385]),
    (b"!8\r\nERR a\r\nb\r\n", [ReplyError("ERR a b")]),
    (b"=7\r\ntxt:abc\r\n", [b"abc"]),
    (b"%2\r\n$1\r\na\r\n:1\r\n+b\r\n*1\r\n:2\r\n", [{b"a": 1, "b": [2]}]),
    (b"%0\r\n~2\r\n$1\r\na\r\n$1\r\nb\r\n", [{}, [b"a", b"b"]]),
    # A push and attributes belong to no command.
    (b">2\r\n+invalidate\r\n*0\r\n+OK\r\n", ["OK"]),
    (b"|1\r\n+ttl\r\n:3600\r\n*2\r\n:1\r\n|1\r\n+x\r\n:0\r\n:2\r\n", [[1, 2]]),
    (b"|0\r\n>0\r\n*1\r\n|0\r\n:1\r\n", [[1]]),
]
WRONG = [
    *(b"\r\n", b"OK\r\n", b"?\r\n", b":\r\n", b":1 \r\n", b":1_0\r\n", b":--1\r\n", b":0x1\r\n", b"#true\r\n"),
    *(
        b",\r\n",
        b",one\r\n",
        b", 1\r\n",
        b",1_0\r\n",
        b"$\r\n",
        b"$-2\r\n",
        b"$1 \r\n",
        b"$a\r\n",
        b"*-2\r\n",
        b"%-1\r\n",
    ),
    *(
        b"$1\r\nab\r\n",
        b"$?\r\n",
        b"*?\r\n",
        b"$99999999999999\r\n",
        b"*99999999999999\r\n",
        b"(" + b"1" * 5000 + b"\r\n",
    ),
    *(b"*1000001\r\n", b"%500001\r\n", b"$134217729\r\n", b"%1\r\n*0\r\n:1\r\n", b"+" + b"x" * 70_000),
    b"*1\r\n" * 40,
    b"*1000000\r\n*1\r\n",
]


class TestProtocol(unittest.TestCase):
    def test_a_command_is_an_array_of_strings(self) -> None:
        commands = [(b"SET", b"k", b"a\r\n\x00"), (b"GET", b"k")]
        self.assertEqual(
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\n\x00\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", encode(commands)
        )

    def test_replies_are_read_whole_and_byte_by_byte(self) -> None:
        for data, replies in REPLIES:
            with self.subTest(data):
                parser = ReplyParser()
                self.assertEqual(replies, parser.feed(data))
                pieces = ReplyParser()
                self.assertEqual(replies, [reply for byte in data for reply in pieces.feed(bytes([byte]))])
                self.assertTrue(parser.is_between_replies and pieces.is_between_replies)

    def test_replies_are_read_however_they_are_split(self) -> None:
        data = b"".join(each for each, _ in REPLIES)
        expected = [reply for _, replies in REPLIES for reply in replies]
        for end in range(len(data)):
            parser = ReplyParser()
            self.assertEqual(expected, parser.feed(data[:end]) + parser.feed(data[end:]), end)

    def test_what_is_not_resp_is_refused(self) -> None:
        for data in WRONG:
            with self.subTest(data[:40]), self.assertRaises(ProtocolError):
                ReplyParser().feed(data)

    def test_a_truncated_reply_is_no_reply(self) -> None:
        for data, replies in REPLIES:
            parser = ReplyParser()
            self.assertEqual(replies[:-1], parser.feed(data[:-1]))
            self.assertFalse(parser.is_between_replies)

    def test_a_reply_is_bounded_in_bytes_over_all_its_parts(self) -> None:
        with mock.patch.object(protocol, "MAX_REPLY_BYTES", 1000):
            parser = ReplyParser()
            for _ in range(5):
                self.assertEqual([[b"x" * 400] * 2], parser.feed(b"*2\r\n" + (b"$400\r\n" + b"x" * 400 + b"\r\n") * 2))
            with self.assertRaises(ProtocolError):
                parser.feed(b"*3\r\n" + (b"$400\r\n" + b"x" * 400 + b"\r\n") * 3)

    def test_a_reply_of_short_lines_is_bounded_as_well(self) -> None:
        with mock.patch.object(protocol, "MAX_REPLY_BYTES", 1000), self.assertRaises(ProtocolError):
            ReplyParser().feed(b"*100\r\n" + (b"+" + b"x" * 90 + b"\r\n") * 20)

    def test_elements_are_counted_for_each_reply(self) -> None:
        with mock.patch.object(protocol, "MAX_ELEMENTS", 3):
            self.assertEqual([[1, [2]]] * 5, ReplyParser().feed(b"*2\r\n:1\r\n*1\r\n:2\r\n" * 5))

    def test_a_length_alone_takes_no_memory(self) -> None:
        with traced_memory() as memory:
            parser = ReplyParser()
            parser.feed(b"*1000000\r\n$100000000\r\nab")
            self.assertLess(memory.peak(), 100_000)

    def test_garbage_is_refused_or_waits_for_more(self) -> None:
        data = b"".join(each for each, _ in REPLIES)
        for name, generator in cases(1000):
            with self.subTest(name):
                _feed_garbage(data, generator)

    def test_a_map_is_the_same_in_both_versions(self) -> None:
        self.assertEqual({b"a": b"1"}, as_dict([b"a", b"1"]))
        self.assertEqual({b"a": b"1"}, as_dict({b"a": b"1"}))
        self.assertEqual({}, as_dict(None))

    def test_the_code_of_an_error_is_its_first_word(self) -> None:
        self.assertEqual("OOM", ReplyError("OOM command not allowed").code)


def _feed_garbage(data: bytes, generator: random.Random) -> None:
    changed = bytearray(data)
    for _ in range(generator.randrange(1, 8)):
        place = generator.randrange(len(changed))
        changed[place : place + generator.randrange(3)] = generator.choice(
            [b"\r\n", b"*", b"$9", b"-", b"\xff", b"%2\r\n", b"_", generator.randbytes(4)]
        )
    parser = ReplyParser()
    try:
        while changed:
            size = generator.randrange(1, 40)
            parser.feed(bytes(changed[:size]))
            del changed[:size]
    except ProtocolError:
        pass
