"""When the head, the pieces and the end of a streamed reply go out, and what the connection waits for in between."""

import socket
import time
import unittest
import weakref
from collections.abc import Iterator
from types import SimpleNamespace

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import ClientGone
from deepseek_cursor_proxy.http1.lull import BLOCKING, Lull
from deepseek_cursor_proxy.http1.messages import HttpReply
from deepseek_cursor_proxy.server.client_connection import ClientConnection, Pause, Wait
from tests.unit.net.test_wait import socket_pair

REQUEST = b"GET / HTTP/1.0\r\nHost: x\r\n\r\n"


class Input:
    """A wait handle."""

    def __init__(self, test: unittest.TestCase) -> None:
        self.source, self.upstream = socket_pair(test)
        self.until = time.monotonic() + 10
        self.error: Exception | None = None

    def interrupt(self, error: Exception) -> None:
        self.error = error


class Body:
    def __init__(self, *pieces: bytes | Lull | Exception, finished_by: bytes | None = None) -> None:
        self.pieces = pieces
        self.finished_by = finished_by
        self.is_finished = self.is_closed = False

    def __iter__(self) -> Iterator[bytes | Lull]:
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

    def send_now(self, data: bytes | memoryview) -> int:
        _, mark, rest = bytes(data).rpartition(b"\r\n\r\n") if not self.sent else (b"", b"", bytes(data))
        rest = b"head|" + rest if mark else rest
        self.sent.append(rest[: self.room])
        return len(data) if len(rest) <= self.room else self.room


class TestStreams(unittest.TestCase):
    def setUp(self) -> None:
        self.input = Input(self)
        self.lull = Lull(self.input, then_blocks=False)

    def open(self, body: Body, request: bytes = REQUEST) -> Recorded:
        """A connection that has read its request and goes on with the reply when it is resumed."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.client = self.enterContext(socket.create_connection(listener.getsockname()))
            ours = self.enterContext(listener.accept()[0])
        server = SimpleNamespace(app=lambda _: HttpReply(200, body), config=ProxyConfig())
        connection = Recorded(ours, server)
        connection.sent = []
        self.assertIs(connection.resume(), Wait.READABLE)
        self.client.sendall(request)
        return connection

    def pauses(self, connection: ClientConnection) -> list[Pause]:
        return list(iter(connection.resume, None))

    def send(self, body: Body) -> list[bytes]:
        connection = self.open(body)
        self.pauses(connection)
        self.assertTrue(body.is_closed)
        return connection.sent

    def test_a_piece_that_is_there_goes_out_with_the_head(self) -> None:
        self.assertEqual(self.send(Body(b"one", self.lull, b"two")), [b"head|one", b"two"])

    def test_the_head_is_sent_before_anything_is_waited_for(self) -> None:
        connection = self.open(Body(self.lull, b"one"))
        self.assertIs(connection.resume(), self.lull)
        self.assertEqual(connection.sent, [b"head|"])

    def test_the_head_is_sent_before_a_body_that_blocks(self) -> None:
        self.assertEqual(self.send(Body(BLOCKING, b"one")), [b"head|", b"one"])

    def test_a_body_without_a_piece_has_a_head(self) -> None:
        self.assertEqual(self.send(Body()), [b"head|"])

    def test_it_sends_what_is_there_and_waits_for_the_handle(self) -> None:
        connection = self.open(Body(b"one", b"two", self.lull, b"three"))
        self.assertIs(connection.resume(), self.lull)
        self.assertEqual(connection.sent, [b"head|one", b"two"])

    def test_only_a_worker_goes_on_with_a_step_that_blocks_a_failure_and_the_end(self) -> None:
        self.assertEqual([BLOCKING, BLOCKING], self.pauses(self.open(Body(b"one", BLOCKING, b"two"))))
        body = Body(self.lull, ClientGone())
        connection = self.open(body)
        self.assertEqual([self.lull, BLOCKING], [connection.resume(), connection.resume()])
        self.assertFalse(body.is_closed)
        self.assertIsNone(connection.resume())
        self.assertTrue(body.is_closed)

    def test_a_body_that_never_pauses_is_left_to_a_worker(self) -> None:
        connection = self.open(Body(*[b"x"] * 100))
        self.assertIs(connection.resume(), BLOCKING)
        self.assertLess(len(connection.sent), 20)

    def test_an_answer_that_has_finished_ends_without_a_worker(self) -> None:
        request = REQUEST.replace(b"1.0", b"1.1")
        connection = self.open(Body(self.lull, b"one", b"two", finished_by=b"two"), request)
        self.assertEqual([self.lull, Wait.READABLE], [connection.resume(), connection.resume()])
        self.assertEqual([b"head|", b"3\r\none\r\n", b"3\r\ntwo\r\n0\r\n\r\n"], connection.sent)

    def test_a_request_that_was_sent_in_advance_is_left_to_a_worker(self) -> None:
        request = REQUEST.replace(b"1.0", b"1.1")
        connection = self.open(Body(self.lull, b"one", finished_by=b"one"), request)
        self.assertIs(connection.resume(), self.lull)
        self.client.sendall(request)
        self.assertTrue(connection.receive_early())
        self.assertEqual([BLOCKING, self.lull], [connection.resume(), connection.resume()])

    def test_what_comes_without_waiting_goes_out_with_the_end(self) -> None:
        connection = self.open(
            Body(BLOCKING, b"one", b"two", BLOCKING, b"three", finished_by=b"two"), REQUEST.replace(b"1.0", b"1.1")
        )
        for _ in range(2):
            connection.resume()
        self.assertEqual(connection.sent, [b"head|", b"3\r\none\r\n", b"8\r\ntwothree\r\n0\r\n\r\n"])

    def test_an_answer_whose_end_nobody_foresaw_ends_all_the_same(self) -> None:
        connection = self.open(Body(b"one"), REQUEST.replace(b"1.0", b"1.1"))
        self.assertIs(connection.resume(), BLOCKING)
        self.assertEqual(connection.sent, [b"head|3\r\none\r\n", b"0\r\n\r\n"])

    def test_a_client_that_does_not_read_is_waited_for_and_nothing_is_lost(self) -> None:
        connection = self.open(Body(self.lull, b"abcdefgh", self.lull))
        self.assertIs(connection.resume(), self.lull)
        connection.room = 3
        self.assertEqual([Wait.WRITABLE, Wait.WRITABLE, self.lull], [connection.resume() for _ in range(3)])
        self.assertEqual([b"abc", b"def", b"gh"], connection.sent[1:])

    def test_waiting_a_moment_sees_what_arrives_and_who_leaves(self) -> None:
        connection = self.open(Body(self.lull, b"one"))
        connection.resume()
        self.assertFalse(connection.wait(0.001))
        self.input.upstream.send(b"x")
        self.assertTrue(connection.wait(10))
        self.client.close()
        self.assertTrue(connection.wait(10))
        self.assertIsInstance(self.input.error, ClientGone)

    def test_an_idle_connection_holds_nothing_of_its_last_answer(self) -> None:
        connection = self.open(Body(self.lull, b"one", finished_by=b"one"), REQUEST.replace(b"1.0", b"1.1"))
        connection.resume()
        connection.wait(0.001)
        held = weakref.ref(self.input)
        self.assertIs(connection.resume(), Wait.READABLE)
        del self.input, self.lull
        connection._server = None  # type: ignore[assignment]
        self.assertIsNone(held())

    def test_early_requests_are_kept_up_to_a_bound_and_a_client_that_leaves_is_seen(self) -> None:
        connection = self.open(Body(self.lull))
        connection.resume()
        while connection.can_receive:
            self.client.sendall(bytes(10_000))
            self.assertTrue(connection.receive_early())
        self.assertTrue(connection.receive_early(), "nothing to read is no end")
        self.client.shutdown(socket.SHUT_WR)
        self.assertFalse(connection.receive_early())
