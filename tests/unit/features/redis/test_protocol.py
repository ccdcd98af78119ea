import contextlib
import random
import unittest
from unittest import mock

from deepseek_cursor_proxy.features.redis import connection as protocol
from deepseek_cursor_proxy.features.redis.connection import ProtocolError, Reply, ReplyError, ReplyReader, encode
from tests.support.fuzzing import cases
from tests.support.traced_memory import traced_memory

# Bytes of a server, and the replies in them.
REPLIES: list[tuple[bytes, list[Reply]]] = [
    (b"+OK\r\n", ["OK"]), (b"+\r\n", [""]), (b"-ERR no such thing\r\n", [ReplyError("ERR no such thing")]),
    (b":0\r\n:-12\r\n", [0, -12]), (b"$5\r\nhello\r\n", [b"hello"]), (b"$0\r\n\r\n", [b""]),
    (b"$4\r\n\r\n\r\n\r\n", [b"\r\n\r\n"]), (b"$-1\r\n*-1\r\n", [None, None]), (b"*0\r\n", [[]]),
    (b"*3\r\n:1\r\n*2\r\n$1\r\na\r\n*0\r\n$-1\r\n", [[1, [b"a", []], None]]),
]  # fmt: skip
WRONG = [
    *(b"\r\n", b"OK\r\n", b"?\r\n", b":\r\n", b":1 \r\n", b":1_0\r\n", b":--1\r\n", b":0x1\r\n", b"#t\r\n", b"_\r\n"),
    *(b"$\r\n", b"$-2\r\n", b"$1 \r\n", b"$a\r\n", b"*-2\r\n", b"$1\r\nab\r\n", b"$?\r\n", b"*?\r\n"),
    *(b"$99999999999999\r\n", b"*99999999999999\r\n", b":" + b"1" * 5000 + b"\r\n", b"%1\r\n+a\r\n:1\r\n"),
    *(b"*1000001\r\n", b"$134217729\r\n", b"+" + b"x" * 70_000, b"*1\r\n" * 40, b"*1000000\r\n*1\r\n"),
]


class NoMore(Exception):
    """The server has sent all that it sends."""


class Server:
    def __init__(self, *pieces: bytes) -> None:
        self._pieces = iter(pieces)
        self.reader = ReplyReader(self._receive)

    def _receive(self) -> bytes:
        for piece in self._pieces:
            return piece
        raise NoMore

    def read_all(self) -> list[Reply]:
        replies = []
        try:
            while True:
                replies.append(self.reader.read())
        except NoMore:
            return replies


class TestProtocol(unittest.TestCase):
    def test_a_command_is_an_array_of_strings(self) -> None:
        commands = [(b"SET", b"k", b"a\r\n\x00"), (b"GET", b"k")]
        self.assertEqual(
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\n\x00\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", encode(commands)
        )

    def test_replies_are_read_whole_and_byte_by_byte(self) -> None:
        for data, replies in REPLIES:
            with self.subTest(data):
                for server in (Server(data), Server(*(bytes([byte]) for byte in data))):
                    self.assertEqual(replies, server.read_all())
                    self.assertFalse(server.reader.has_rest)

    def test_replies_are_read_however_they_are_split(self) -> None:
        data = b"".join(each for each, _ in REPLIES)
        expected = [reply for _, replies in REPLIES for reply in replies]
        for end in range(len(data)):
            self.assertEqual(expected, Server(data[:end], data[end:]).read_all(), end)

    def test_what_is_not_resp_is_refused(self) -> None:
        for data in WRONG:
            with self.subTest(data[:40]), self.assertRaises(ProtocolError):
                Server(data).read_all()

    def test_a_truncated_reply_is_no_reply(self) -> None:
        for data, replies in REPLIES:
            self.assertEqual(replies[:-1], Server(data[:-1]).read_all())

    def test_a_reply_is_bounded_in_bytes_over_all_its_parts(self) -> None:
        with mock.patch.object(protocol, "MAX_REPLY_BYTES", 1000):
            text = b"$400\r\n" + b"x" * 400 + b"\r\n"
            self.assertEqual([[b"x" * 400] * 2] * 5, Server((b"*2\r\n" + text * 2) * 5).read_all())
            with self.assertRaises(ProtocolError):
                Server(b"*3\r\n" + text * 3).read_all()

    def test_elements_are_counted_for_each_reply(self) -> None:
        with mock.patch.object(protocol, "MAX_ELEMENTS", 3):
            self.assertEqual([[1, [2]]] * 5, Server(b"*2\r\n:1\r\n*1\r\n:2\r\n" * 5).read_all())

    def test_a_length_alone_takes_no_memory(self) -> None:
        with traced_memory() as memory:
            Server(b"*1000000\r\n$100000000\r\nab").read_all()
            self.assertLess(memory.peak(), 100_000)

    def test_garbage_is_refused_or_waits_for_more(self) -> None:
        data = b"".join(each for each, _ in REPLIES)
        for name, generator in cases(1000):
            with self.subTest(name):
                _feed_garbage(data, generator)


def _feed_garbage(data: bytes, generator: random.Random) -> None:
    changed = bytearray(data)
    for _ in range(generator.randrange(1, 8)):
        place = generator.randrange(len(changed))
        changed[place : place + generator.randrange(3)] = generator.choice(
            [b"\r\n", b"*", b"$9", b"-", b"\xff", b"%2\r\n", b"_", generator.randbytes(4)]
        )
    pieces = []
    while changed:
        size = generator.randrange(1, 40)
        pieces.append(bytes(changed[:size]))
        del changed[:size]
    with contextlib.suppress(ProtocolError):
        Server(*pieces).read_all()
