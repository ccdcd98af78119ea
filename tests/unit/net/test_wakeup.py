"""Idle clients do not hold up the end of the proxy, on any system."""

import contextlib
import socket
import time
import unittest
from unittest import mock

from deepseek_cursor_proxy.net import wait
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
            received = [connection.receive(time.monotonic() + PATIENCE) for _ in range(2)]
        self.assertEqual([HEALTH, b""], received)


class TestWakeup(unittest.TestCase):
    def test_it_wakes_whoever_waits_now_or_later(self) -> None:
        wakeup = Wakeup()
        self.addCleanup(wakeup.close)
        for system in systems().values():
            with mock.patch.multiple(wait, **system):
                with soon(wakeup.set), self.assertRaises(wait.ClientGone):
                    wait.pause(PATIENCE, wakeup)
