"""When the head, the pieces and the end of a streamed reply go out, and what becomes of its body."""

import socket
import threading
import time
import unittest
from collections.abc import Iterator
from types import SimpleNamespace

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import ClientGone
from deepseek_cursor_proxy.http1.messages import HttpReply
from deepseek_cursor_proxy.server.client_connection import ClientConnection
from tests.support.harness import PATIENCE
from tests.support.threads import in_background

REQUEST = b"GET / HTTP/1.0\r\nHost: x\r\n\r\n"
CHUNKED = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


class Body:
    def __init__(self, *pieces: bytes | Exception, finished_by: bytes | None = None) -> None:
        self.pieces = pieces
        self.finished_by = finished_by
        self.is_finished = self.is_closed = False

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            self.is_finished = piece == self.finished_by
            yield piece

    def close(self) -> None:
        self.is_closed = True


class Recorded(ClientConnection):
    """A connection that records every write, without the head of the reply."""

    sent: list[bytes]
    room = 10**9

    def _send_now(self, data: bytes | memoryview, flags: int = 0) -> int:
        _, mark, rest = bytes(data).rpartition(b"\r\n\r\n") if not self.sent else (b"", b"", bytes(data))
        rest = b"head|" + rest if mark else rest
        self.sent.append(rest[: self.room])
        return len(data) if len(rest) <= self.room else self.room


class TestStreams(unittest.TestCase):
    def open(
        self, body: Body, request: bytes = REQUEST, kind: type[ClientConnection] = Recorded, **settings: float
    ) -> ClientConnection:
        """A connection whose request has arrived."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.client = self.enterContext(socket.create_connection(listener.getsockname(), PATIENCE))
            ours = self.enterContext(listener.accept()[0])
        server = SimpleNamespace(app=lambda _: HttpReply(200, body), config=ProxyConfig(**settings))
        connection = kind(ours, server)
        self.client.sendall(request)
        return connection

    def send(self, body: Body, request: bytes = REQUEST, room: int = 10**9) -> list[bytes]:
        connection = self.open(body, request)
        assert isinstance(connection, Recorded)
        connection.sent, connection.room = [], room
        connection.serve()
        self.assertTrue(body.is_closed)
        return connection.sent

    def test_the_head_is_sent_before_the_first_piece_is_computed(self) -> None:
        may_go_on = threading.Event()

        class Late(Body):
            def __iter__(self) -> Iterator[bytes]:
                may_go_on.wait(PATIENCE)
                yield b"one"

        connection = self.open(Late(), kind=ClientConnection)
        thread = in_background(self, connection.serve)
        self.assertTrue(self.client.recv(1000).endswith(b"\r\n\r\n"))
        may_go_on.set()
        self.assertEqual(b"one", self.client.recv(1000))
        thread.join(PATIENCE)

    def test_every_piece_is_one_write(self) -> None:
        self.assertEqual([b"head|", b"one", b"two"], self.send(Body(b"one", b"two")))

    def test_what_comes_without_waiting_goes_out_with_the_end(self) -> None:
        sent = self.send(Body(b"one", b"two", b"three", finished_by=b"two"), CHUNKED)
        self.assertEqual([b"head|", b"3\r\none\r\n", b"8\r\ntwothree\r\n0\r\n\r\n"], sent)

    def test_an_answer_whose_end_nobody_foresaw_ends_all_the_same(self) -> None:
        self.assertEqual([b"head|", b"3\r\none\r\n", b"0\r\n\r\n"], self.send(Body(b"one"), CHUNKED))

    def test_a_client_that_takes_a_part_at_a_time_loses_nothing(self) -> None:
        self.assertEqual([b"abc", b"def", b"gh"], self.send(Body(b"abcdefgh"), room=3)[-3:])

    def test_a_client_that_does_not_read_a_stream_is_dropped_after_the_write_timeout(self) -> None:
        """It took twice as long if the system took a part of a piece."""
        body = Body(*[bytes(60_000)] * 1000)
        connection = self.open(body, kind=ClientConnection, write_timeout=1.0)
        started = time.monotonic()
        connection.serve()
        self.assertTrue(0.9 < time.monotonic() - started < 1.8)
        self.assertTrue(body.is_closed)

    def test_a_body_that_fails_is_closed_and_ends_the_connection(self) -> None:
        body = Body(b"one", ClientGone(), b"two")
        self.assertEqual([b"head|", b"one"], self.send(body))
