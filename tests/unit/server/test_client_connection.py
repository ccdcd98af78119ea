"""One client connection: which requests it reads, and when and how it ends."""

import contextlib
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
from deepseek_cursor_proxy.errors import Overloaded
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest
from deepseek_cursor_proxy.net.wait import pause
from deepseek_cursor_proxy.server import client_connection
from deepseek_cursor_proxy.server.client_connection import ClientConnection, StopStage
from deepseek_cursor_proxy.server.connections import Connections
from tests.support.harness import PATIENCE, read_reply, read_to_the_end
from tests.support.polling import wait_until

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

    def test_a_client_that_never_stops_sending_is_read_for_a_while_only(self) -> None:
        connection, _ = self.serve()
        patience = time.monotonic() + 1

        def receive(_until: float) -> bytes:
            self.assertLess(time.monotonic(), patience)
            return b"x"

        with mock.patch.object(client_connection, "_DRAIN_SECONDS", 0.05):
            with mock.patch.object(connection, "receive", receive):
                connection._drain()

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
