"""One client connection: which requests it reads, and when and how it ends."""

import contextlib
import gzip
import json
import select
import socket
import threading
import time
import unittest
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from unittest import mock

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import (
    BadRequest,
    ClientGone,
    Overloaded,
    ProxyError,
    RequestTimeout,
    TooLarge,
    UnknownEncoding,
)
from deepseek_cursor_proxy.http1.heads import RequestHead
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest
from deepseek_cursor_proxy.net.wait import pause
from deepseek_cursor_proxy.server.client_connection import ClientConnection, RequestBody, StopStage
from deepseek_cursor_proxy.server.connections import Connections
from tests.support.harness import PATIENCE, read_reply, read_to_the_end
from tests.support.polling import wait_until
from tests.support.threads import in_background

# More than the system buffers between the two.
LARGE = 30_000_000

App = Callable[[HttpRequest], HttpReply]


def get(path: str = "/", *fields: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *fields, "", ""]).encode()


def echo(request: HttpRequest) -> HttpReply:
    return HttpReply(200, request.path.encode() + request.read_body())


class StreamedText:
    """A streamed body that says whether it was read and closed."""

    is_finished = is_read = is_closed = False

    def __iter__(self) -> Iterator[bytes]:
        self.is_read = True
        yield b"words"

    def close(self) -> None:
        self.is_closed = True


class TestClientConnection(unittest.TestCase):
    def setUp(self) -> None:
        self.connections = Connections("test-client", Overloaded("Too many."))
        self.addCleanup(self.stop, StopStage.ABORT)

    def serve(self, app: App = echo, **settings: float) -> tuple[ClientConnection, socket.socket]:
        """A connection that is served, and the client's end of it."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            theirs = self.enterContext(socket.create_connection(listener.getsockname(), PATIENCE))
            ours, _ = listener.accept()
        server = SimpleNamespace(app=app, config=ProxyConfig(**settings))  # type: ignore[arg-type]
        connection = ClientConnection(ours, server)
        self.connections.start(ours, 100, partial(self.connections.serve, connection), server)
        wait_until(lambda: connection in self.connections._open)
        return connection, theirs

    def stop(self, stage: StopStage) -> None:
        """What the server does to stop; the connections have ended, or a while has passed."""
        self.connections.stop(stage, PATIENCE)
        if stage is StopStage.ABORT:
            self.connections.close()

    def serve_waiting(self, reply: App, *headers: str) -> tuple[ClientConnection, socket.socket]:
        """A connection whose app has been called and waits before it replies."""
        is_called = threading.Event()

        def app(request: HttpRequest) -> HttpReply:
            is_called.set()
            return reply(request)

        connection, client = self.serve(app)
        client.sendall(get("/", *headers))
        self.assertTrue(is_called.wait(PATIENCE))
        return connection, client

    def assert_ended(self, client: socket.socket) -> None:
        with contextlib.suppress(ConnectionResetError):
            self.assertEqual(b"", client.recv(1))

    def test_requests_sent_in_advance_are_answered_in_order_until_one_says_close(self) -> None:
        _, client = self.serve()
        client.sendall(get("/one") + get("/two", "Content-Length: 3") + b"abc" + get("/three", "Connection: close"))
        with client.makefile("rb") as file:
            replies = [reply.split(b"\r\n") for reply in file.read().split(b"HTTP/1.1 200 OK\r\n")[1:]]
        self.assertEqual([b"/one", b"/twoabc", b"/three"], [reply[-1] for reply in replies])
        self.assertEqual([b"keep-alive", b"keep-alive", b"close"], [reply[-3].split()[1] for reply in replies])

    def test_a_body_that_the_app_did_not_read_ends_the_connection(self) -> None:
        _, client = self.serve(lambda request: HttpReply(404, b""))
        client.sendall(get("/", "Content-Length: 40") + get("/smuggled"))
        status, headers, _ = read_reply(client)
        self.assertEqual((404, "close"), (status, headers["connection"]))
        client.shutdown(socket.SHUT_WR)
        self.assert_ended(client)

    def test_an_incomplete_head_is_a_400_and_a_late_one_a_408(self) -> None:
        for status, seconds in ((400, PATIENCE), (408, 0.05)):
            _, client = self.serve(header_timeout=seconds)
            client.sendall(get()[:-2])
            if status == 400:
                client.shutdown(socket.SHUT_WR)
            self.assertEqual(status, read_reply(client)[0])

    def test_no_reply_to_head_has_a_body_and_the_next_request_is_answered(self) -> None:
        streams = [StreamedText(), StreamedText()]
        replies = iter(
            [
                HttpReply(200, streams[0]),
                HttpReply(200, b"seven b", (("Content-Type", "text/plain"),)),
                HttpReply(404, b"nothing"),
                HttpReply(200, streams[1]),
            ]
        )
        _, client = self.serve(lambda _: next(replies))
        head = get().replace(b"GET", b"HEAD")
        client.sendall(head * 3 + get("/", "Connection: close"))
        answers = read_to_the_end(client).split(b"HTTP/1.1 ")[1:]
        bodies = [each.split(b"\r\n\r\n", 1)[1] for each in answers]
        self.assertEqual([b"", b"", b"", b"5\r\nwords\r\n0\r\n\r\n"], bodies)
        for answer, header in zip(answers, (b"Transfer-Encoding: chunked", b"Content-Length: 7", b"404"), strict=False):
            self.assertIn(header, answer)
        self.assertEqual(([False, True], [True, True]), ([x.is_read for x in streams], [x.is_closed for x in streams]))

    def test_a_reply_without_content_has_neither_body_nor_length(self) -> None:
        for status in (204, 304):
            replies = iter([HttpReply(status, b"lost"), HttpReply(200, b"next")])
            _, client = self.serve(lambda _, replies=replies: next(replies))
            client.sendall(get() + get("/", "Connection: close"))
            first, second = read_to_the_end(client).split(b"HTTP/1.1 ")[1:]
            self.assertTrue(first.endswith(b"\r\n\r\n") and b"Content-Length" not in first, first)
            self.assertTrue(second.endswith(b"next"))

    def test_an_idle_client_is_closed_without_a_reply(self) -> None:
        for sent in (b"", b"\r\n"):
            _, client = self.serve(idle_timeout=0.05, header_timeout=0.05)
            client.sendall(sent)
            self.assert_ended(client)

    def test_a_connection_with_a_request_ends_after_its_response(self) -> None:
        may_reply = threading.Event()
        connection, client = self.serve_waiting(
            lambda _: HttpReply(200, b"late" if may_reply.wait(PATIENCE) else b"never")
        )
        connection.stop(StopStage.FINISH_RESPONSES)
        may_reply.set()
        status, headers, body = read_reply(client)
        self.assertEqual((200, "close", b"late"), (status, headers["connection"], body))
        self.assert_ended(client)

    def test_end_response_interrupts_the_waits_of_the_app_with_a_503(self) -> None:
        def wait_for_ever(request: HttpRequest) -> HttpReply:
            pause(PATIENCE, request.peer)
            raise AssertionError("not interrupted")

        connection, client = self.serve_waiting(wait_for_ever)
        connection.stop(StopStage.END_RESPONSES)
        status, _, body = read_reply(client)
        self.assertEqual((503, "proxy_stopping"), (status, json.loads(body)["error"]["code"]))

    def test_half_a_request_is_refused_when_the_server_stops(self) -> None:
        connection, client = self.serve()
        client.sendall(get()[:-2])
        wait_until(lambda: not select.select([connection.sock], (), (), 0)[0])
        self.stop(StopStage.FINISH_RESPONSES)
        status, _, body = read_reply(client)
        self.assertEqual((503, "proxy_stopping"), (status, json.loads(body)["error"]["code"]))

    def test_a_body_that_is_read_when_the_server_stops_is_read_to_its_end(self) -> None:
        connection, client = self.serve_waiting(echo, "Content-Length: 3")
        connection.stop(StopStage.FINISH_RESPONSES)
        client.sendall(b"abc")
        self.assertEqual(b"/abc", read_reply(client).body)

    def test_a_request_that_was_sent_in_advance_is_refused_when_the_server_stops(self) -> None:
        send_now = ClientConnection._send_now

        def stop_then(connection: ClientConnection, data: bytes, flags: int = 0) -> int:
            connection.stop(StopStage.FINISH_RESPONSES)
            return send_now(connection, data, flags)

        with mock.patch.object(ClientConnection, "_send_now", stop_then):
            _, client = self.serve()
            client.sendall(get("/first") + get("/second"))
            first, second = read_to_the_end(client).split(b"HTTP/1.1 ")[1:]
        self.assertTrue(first.endswith(b"/first") and b"keep-alive" in first, first)
        self.assertTrue(second.startswith(b"503 ") and b"proxy_stopping" in second, second)

    def test_a_client_that_half_closes_and_does_not_read_has_left(self) -> None:
        """Writing to it meets nothing but a full buffer, for as long as a client may refuse to read."""
        _, client = self.serve(lambda _: HttpReply(200, bytes(LARGE)), write_timeout=PATIENCE)
        client.sendall(get())
        client.shutdown(socket.SHUT_WR)
        wait_until(lambda: len(self.connections) == 0, PATIENCE / 2)

    def test_a_client_that_does_not_read_times_out(self) -> None:
        _, client = self.serve(lambda _: HttpReply(200, bytes(LARGE)), write_timeout=1.0)
        client.sendall(get())
        started = time.monotonic()
        wait_until(lambda: len(self.connections) == 0)
        # Less than twice the time: it counts once, from the last byte that the client took.
        self.assertLess(time.monotonic() - started, 1.9)
        self.assertLess(len(read_to_the_end(client)), LARGE)


class Source:
    """A connection on which these pieces arrive behind the head; None is a piece that does not come in time."""

    close_reason: ProxyError | None = None

    def __init__(self, *pieces: bytes | None) -> None:
        self.pieces = list(pieces)
        self.sent, self.rest = b"", b""
        self.seconds: list[float] = []

    def send(self, data: bytes) -> None:
        self.sent += data

    def receive(self, until: float) -> bytes | None:
        self.seconds.append(until - time.monotonic())
        return self.pieces.pop(0) if self.pieces else b""

    def take_rest(self) -> bytes:
        return self.rest

    def unread(self, rest: bytes) -> None:
        self.rest = rest


def body(source: Source, settings: dict[str, float] | None = None, **headers: str) -> RequestBody:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    config = ProxyConfig(**(settings or {}))  # type: ignore[arg-type]
    return RequestBody(source, RequestHead("POST", "/", (1, 1), named), config)


class TestRequestBody(unittest.TestCase):
    def test_a_body_is_read_on_demand_and_the_bytes_behind_it_are_put_back(self) -> None:
        source = Source(b"hel", b"loGET /")
        read = body(source, content_length="5")
        self.assertEqual((False, 2), (read.is_read, len(source.pieces)))
        self.assertEqual((b"hello", b"GET /", True), (read.read(), source.rest, read.is_read))

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
