"""Idle clients do not hold up the end of the proxy, on any system."""

import contextlib
import socket
import time
import unittest
from unittest import mock

from deepseek_cursor_proxy.errors import ProxyStopping
from deepseek_cursor_proxy.net import wait
from deepseek_cursor_proxy.net.deadline import Deadline
from deepseek_cursor_proxy.net.wakeup import Wakeup
from deepseek_cursor_proxy.server.client_connection import ClientConnection
from tests.support.harness import PATIENCE, RunningProxy, read_reply
from tests.unit.net.test_wait import soon, systems

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


class TestStopping(unittest.TestCase):
    def test_an_idle_client_does_not_hold_up_the_end(self) -> None:
        """On Windows nobody notices that we shut down a socket: the end took all of its grace, 7 seconds."""
        for name, system in systems().items():
            with (
                self.subTest(name),
                mock.patch.multiple(wait, **system),
                mock.patch.object(ClientConnection, "_shut"),
                contextlib.closing(RunningProxy("http://127.0.0.1:9")) as proxy,
                socket.create_connection(proxy.address, timeout=PATIENCE) as sock,
            ):
                sock.sendall(HEALTH)
                self.assertEqual(200, read_reply(sock)[0])
                proxy.server.shutdown()
                started = time.monotonic()
                proxy.server.drain(PATIENCE)
                self.assertLess(time.monotonic() - started, PATIENCE / 2)
                self.assertEqual((b"", 0), (sock.recv(1), len(proxy.server.connections)))

    def test_what_has_arrived_when_the_end_begins_is_still_read(self) -> None:
        wakeup = Wakeup()
        self.addCleanup(wakeup.close)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            connection = ClientConnection(ours, mock.Mock(stopping=wakeup))
            connection._begin_idling()
            theirs.sendall(HEALTH)
            wakeup.set()
            received = [connection.receive(Deadline.after(PATIENCE)) for _ in range(2)]
        self.assertEqual([HEALTH, b""], received)


class TestWakeup(unittest.TestCase):
    def setUp(self) -> None:
        self.wakeup = Wakeup()
        self.addCleanup(self.wakeup.close)

    def test_set_ends_the_waits_that_take_it_for_their_client_now_and_later(self) -> None:
        for system in systems().values():
            with mock.patch.multiple(wait, **system):
                with soon(self.wakeup.set), self.assertRaises(wait.ClientGone):
                    wait.pause(PATIENCE, self.wakeup)

    def test_set_with_a_reason_ends_waits_with_a_new_error_each(self) -> None:
        self.wakeup.set(ProxyStopping)
        errors = []
        for _ in range(2):
            with self.assertRaises(ProxyStopping) as caught:
                wait.pause(PATIENCE, self.wakeup)
            errors.append(caught.exception)
        self.assertIsNot(*errors)
        self.assertFalse(self.wakeup.has_left())

    def test_only_the_first_set_counts_and_none_after_close(self) -> None:
        self.assertEqual([True, False], [self.wakeup.set(), self.wakeup.set(ProxyStopping)])
        self.assertEqual((True, None), (self.wakeup.has_left(), self.wakeup.close_reason))
        closed = Wakeup()
        closed.close()
        self.assertEqual((False, False), (closed.set(), closed.has_left()))

    def test_each_notification_makes_it_readable_until_it_is_cleared(self) -> None:
        for system in systems().values():
            with mock.patch.multiple(wait, **system):
                self.wakeup.notify()
                self.wakeup.notify()
                self.wakeup.clear(1)
                self.assertTrue(wait.wait_readable(self.wakeup, 0, None))
                self.wakeup.clear()
                self.assertFalse(wait.wait_readable(self.wakeup, 0, None))
