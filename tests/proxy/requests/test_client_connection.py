"""One client connection: how it writes replies and streams, and when it ends."""

import contextlib
import socket
import threading
import unittest
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import ClientGone
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest, Peer
from deepseek_cursor_proxy.net.wait import wait_until_client_reads
from deepseek_cursor_proxy.server import connections
from deepseek_cursor_proxy.server.connections import ClientConnection, StopStage
from tests.support.harness import PATIENCE, read_to_the_end
from tests.support.threads import in_background

# More than the system buffers between the two.
LARGE = 30_000_000

App = Callable[[HttpRequest], HttpReply]


def get(path: str = "/", *fields: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *fields, "", ""]).encode()


class ConnectionTest(unittest.TestCase):
    def connect(self, app: App, kind: type[ClientConnection] = ClientConnection, **settings: float) -> ClientConnection:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.client = self.enterContext(socket.create_connection(listener.getsockname(), PATIENCE))
            ours = self.enterContext(listener.accept()[0])
        return kind(ours, SimpleNamespace(app=app, config=ProxyConfig(**settings)))  # type: ignore[arg-type]


class TestClientConnection(ConnectionTest):
    def serve(self, app: App, data: bytes, **settings: float) -> threading.Thread:
        def run() -> None:
            with contextlib.closing(connection):
                connection.serve()

        connection = self.connect(app, **settings)
        self.client.sendall(data)
        return in_background(self, run)

    def test_a_reply_without_content_has_neither_body_nor_length(self) -> None:
        for status in (204, 304):
            replies = iter([HttpReply(status, b"lost"), HttpReply(200, b"next")])
            self.serve(lambda _, replies=replies: next(replies), get() + get("/", "Connection: close"))
            first, second = read_to_the_end(self.client).split(b"HTTP/1.1 ")[1:]
            self.assertTrue(first.endswith(b"\r\n\r\n") and b"Content-Length" not in first, first)
            self.assertTrue(second.endswith(b"next"))

    def test_when_the_server_stops_a_body_is_read_to_its_end_and_no_request_after_it(self) -> None:
        def echo(request: HttpRequest) -> HttpReply:
            connection.stop(StopStage.FINISH_RESPONSES)
            self.client.sendall(b"abc" + get("/second"))
            return HttpReply(200, request.read_body())

        connection = self.connect(echo)
        self.client.sendall(get("/", "Content-Length: 3"))
        with contextlib.closing(connection):
            connection.serve()
        first, *others = read_to_the_end(self.client).split(b"HTTP/1.1 ")[1:]
        self.assertTrue(first.endswith(b"abc") and b"Connection: close" in first, first)
        self.assertEqual([], others)

    def test_a_request_that_was_sent_in_advance_is_refused_when_the_server_stops(self) -> None:
        send = ClientConnection.send

        def stop_then(connection: ClientConnection, data: bytes, flags: int = 0) -> None:
            connection.stop(StopStage.FINISH_RESPONSES)
            send(connection, data, flags)

        with mock.patch.object(ClientConnection, "send", stop_then):
            self.serve(lambda request: HttpReply(200, request.path.encode()), get("/first") + get("/second"))
            first, second = read_to_the_end(self.client).split(b"HTTP/1.1 ")[1:]
        self.assertTrue(first.endswith(b"/first") and b"keep-alive" in first, first)
        self.assertTrue(second.startswith(b"503 ") and b"proxy_stopping" in second, second)

    def test_a_client_that_half_closes_and_does_not_read_has_left(self) -> None:
        """Writing to it meets nothing but a full buffer, for as long as a client may refuse to read."""
        thread = self.serve(lambda _: HttpReply(200, bytes(LARGE)), get(), write_timeout=PATIENCE)
        self.client.shutdown(socket.SHUT_WR)
        thread.join(PATIENCE / 2)
        self.assertFalse(thread.is_alive())


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


class RecordedSocket(socket.socket):
    """Records every write, without the head of the reply, and takes `room` bytes of it."""

    sent: list[bytes]
    room = 10**9

    def send(self, data: Any, flags: int = 0) -> int:
        if not self.sent:
            self.sent.append(b"head|" + bytes(data).partition(b"\r\n\r\n")[2])
            return len(data)
        self.sent.append(bytes(data[: self.room]))
        return len(self.sent[-1])


class Recorded(ClientConnection):
    def __init__(self, sock: socket.socket, *others: Any) -> None:
        super().__init__(RecordedSocket(fileno=sock.detach()), *others)


class TestStreams(ConnectionTest):
    def open(
        self, body: Body, request: bytes = REQUEST, kind: type[ClientConnection] = Recorded, **settings: float
    ) -> ClientConnection:
        connection = self.connect(lambda _: HttpReply(200, body), kind, **settings)
        self.client.sendall(request)
        return connection

    def send(self, body: Body, request: bytes = REQUEST, room: int = 10**9) -> list[bytes]:
        connection = self.open(body, request)
        sock = connection.sock
        assert isinstance(sock, RecordedSocket)
        sock.sent, sock.room = [], room
        with contextlib.closing(connection):
            connection.serve()
        self.assertTrue(body.is_closed)
        return sock.sent

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
        body, waits = Body(*[bytes(60_000)] * 1000), list[tuple[float, bool]]()

        def wait(client: Peer, seconds: float) -> bool:
            waits.append((seconds, wait_until_client_reads(client, seconds)))
            return waits[-1][1]

        connection = self.open(body, kind=ClientConnection, write_timeout=0.1)
        with mock.patch.object(connections, "wait_until_client_reads", wait):
            connection.serve()
        self.assertEqual([(0.1, False)], [each for each in waits if not each[1]])
        self.assertTrue(body.is_closed)

    def test_a_body_that_fails_is_closed_and_ends_the_connection(self) -> None:
        body = Body(b"one", ClientGone(), b"two")
        self.assertEqual([b"head|", b"one"], self.send(body))
