"""The pool of upstream connections: which are reused and which are not."""

import socket
import ssl
import threading
import time
import unittest
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import ClientGone
from deepseek_cursor_proxy.net.wait import no_action, wait_readable
from deepseek_cursor_proxy.upstream import connections
from deepseek_cursor_proxy.upstream.connections import Connection, ConnectionPool, Connector, Origin
from tests.unit.net.test_wait import Client

SOON = 10.0


class PoolTestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.listener = self.enterContext(socket.create_server(("127.0.0.1", 0)))
        self.origin = Origin("http", *self.listener.getsockname())
        self.pool = ConnectionPool(Connector(ProxyConfig(connect_timeout=SOON), {}).open)
        self.addCleanup(self.pool.close)

    def take(self, *, is_new: bool = False) -> Connection:
        taken = self.pool.take(self.origin, None, no_action, is_new=is_new)
        self.addCleanup(taken.close)
        return taken

    def kept(self) -> Connection:
        taken = self.take()
        self.pool.give_back(taken)
        return taken

    def accept(self) -> socket.socket:
        accepted, _ = self.listener.accept()
        self.addCleanup(accepted.close)
        return accepted


class TestPool(PoolTestCase):
    def test_the_connection_that_was_used_last_is_taken_first(self) -> None:
        taken = [self.take() for _ in range(3)]
        for connection in taken:
            self.pool.give_back(connection)
        self.assertEqual(taken[::-1], [self.take() for _ in range(3)])

    def test_another_origin_gets_a_connection_of_its_own(self) -> None:
        other_listener = self.enterContext(socket.create_server(("127.0.0.1", 0)))
        first = self.kept()
        other = self.pool.take(Origin("http", *other_listener.getsockname()), None, no_action)
        self.addCleanup(other.close)
        self.assertIsNot(first, other)

    def test_a_kept_connection_that_the_server_closed_or_wrote_to_is_not_reused(self) -> None:
        for deed in (socket.socket.close, lambda sock: sock.sendall(b"HTTP/1.1 200 smuggled")):
            first = self.kept()
            deed(self.accept())
            wait_readable(first._sock, SOON, None)
            self.assertIsNot(first, self.take())
            self.accept()

    def test_a_connection_that_was_idle_for_too_long_is_not_reused(self) -> None:
        """The clock that we measure with stands still while the computer sleeps."""
        late = connections._IDLE_SECONDS + 1
        for clock, seconds in (("idle_since", -late), ("idle_since_wall", late), ("idle_since_wall", -late)):
            first = self.kept()
            setattr(first, clock, getattr(first, clock) + seconds)
            self.assertIsNot(first, self.take(), clock)

    def test_the_number_of_kept_connections_is_bounded(self) -> None:
        taken = [self.take() for _ in range(connections._IDLE_CONNECTIONS + 3)]
        for each in taken:
            self.pool.give_back(each)
        self.assertEqual([-1] * 3, [each._sock.fileno() for each in taken[:3]])
        self.assertNotEqual(-1, taken[3]._sock.fileno())


class KeyUpdate(socket.socket):
    """A socket whose TLS has to write before it can read on, which needs room that is not there at first."""

    is_due = True

    def recv(self, *what: Any) -> bytes:
        if self.is_due:
            self.is_due = False
            raise ssl.SSLWantWriteError(ssl.SSL_ERROR_WANT_WRITE, "The operation did not complete (write)")
        return super().recv(*what)


class TestReceiving(PoolTestCase):
    def test_tls_that_has_to_write_before_it_reads_on_is_waited_for(self) -> None:
        ours, theirs = socket.socketpair()
        self.addCleanup(theirs.close)
        connection = Connection(self.origin, KeyUpdate(fileno=ours.detach()))
        self.addCleanup(connection.close)
        theirs.sendall(b"answer")
        # Nothing more arrives: after the first try it is its own writing that it waits for.
        self.assertEqual(b"answer", connection.receive(time.monotonic() + SOON, None))
        self.assertIsNone(connection.receive(time.monotonic() + 0.01, None))

    def test_a_response_is_read_although_its_server_closed_before_it_had_read_the_request(self) -> None:
        connection = self.take()
        with self.accept() as other:
            connection.send(b"the beginning of a request", SOON, None)
            # Unread bytes turn its close into a reset.
            wait_readable(other, SOON, None)
            other.sendall(b"too large")
        wait_readable(connection._sock, SOON, None)
        for _ in range(2):
            # The first write may still be taken; one of them meets the reset.
            if not connection.has_unsent_bytes:
                connection.send(b"more of it", SOON, None)
        self.assertTrue(connection.has_unsent_bytes)
        self.assertEqual(b"too large", connection.receive(time.monotonic() + SOON, None))

    def test_before_it_waits_for_room_there_is_something_to_do(self) -> None:
        connection, done = self.take(), []
        with self.assertRaises(TimeoutError):
            connection.send(b"x" * 30_000_000, 0.01, None, lambda: done.append("waits"))
        self.assertEqual("waits", done[0])

    def test_receive_distinguishes_data_the_end_and_the_deadline(self) -> None:
        connection = self.take()
        other = self.accept()
        connection.send(b"hello", SOON, None)
        self.assertEqual(b"hello", other.recv(10))
        self.assertIsNone(connection.receive(time.monotonic() + 0.01, None))
        other.sendall(b"world")
        self.assertEqual(b"world", connection.receive(time.monotonic() + SOON, None))
        other.close()
        self.assertEqual(b"", connection.receive(time.monotonic() + SOON, None))

    def test_a_client_that_leaves_is_noticed_while_upstream_is_silent(self) -> None:
        for leave in (socket.socket.close, lambda sock: sock.shutdown(socket.SHUT_WR)):
            ours, theirs = map(self.enterContext, socket.socketpair())
            connection = self.take(is_new=True)
            connection.send(b"x", SOON, None)
            threading.Timer(0.05, leave, (theirs,)).start()
            with self.assertRaises(ClientGone):
                connection.receive(time.monotonic() + SOON, Client(ours))

    def test_a_client_that_sends_early_has_not_left(self) -> None:
        ours, theirs = map(self.enterContext, socket.socketpair())
        theirs.sendall(b"the next request")
        connection = self.take()
        connection.send(b"x", SOON, None)
        self.accept().sendall(b"answer")
        self.assertEqual(b"answer", connection.receive(time.monotonic() + SOON, Client(ours)))
        self.assertIsNone(connection.receive(time.monotonic() + 0.01, Client(ours)))
