"""The acceptor: every client that connects is admitted or rejected with a reply, however few descriptors are left."""

import contextlib
import errno
import itertools
import json
import os
import socket
import threading
import time
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.errors import Overloaded
from deepseek_cursor_proxy.server import acceptor as acceptors
from deepseek_cursor_proxy.server.acceptor import Acceptor
from deepseek_cursor_proxy.server.client_connection import encode_refusal
from deepseek_cursor_proxy.server.event_loop import EventLoop
from tests.support.harness import PATIENCE, read_reply
from tests.support.polling import wait_until
from tests.support.threads import in_background

REJECTION = encode_refusal(Overloaded("Too many.", retry_after=1))


class Listener(socket.socket):
    """A listening socket whose accept() fails with these numbers first."""

    failures: list[int]
    failed_at: list[float]

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            self.failed_at.append(time.monotonic())
            raise OSError(number := self.failures.pop(0), os.strerror(number))
        return super().accept()


def listen(*failures: int) -> Listener:
    listener = Listener(fileno=socket.create_server(("127.0.0.1", 0)).detach())
    listener.failures, listener.failed_at = [*failures], []
    return listener


class TestAcceptor(unittest.TestCase):
    def open(self, *failures: int, admit: Callable[[socket.socket, Any], None] | None = None) -> Listener:
        """Run an acceptor; its listener."""
        self.admitted: list[socket.socket] = []
        self.has_admitted = threading.Event()
        listener = listen(*failures)
        self.addCleanup(listener.close)
        loop = EventLoop()
        self.addCleanup(loop.close)
        self.acceptor = Acceptor(loop, admit or self.admit, REJECTION)
        in_background(self, self.acceptor.run, listener)
        self.addCleanup(self.acceptor.stop)
        return listener

    def admit(self, sock: socket.socket, _: Any) -> None:
        self.admitted.append(sock)
        self.addCleanup(sock.close)
        self.has_admitted.set()

    def connect(self, listener: Listener) -> socket.socket:
        sock = socket.create_connection(listener.getsockname(), PATIENCE)
        self.addCleanup(sock.close)
        return sock

    def assert_admitted(self, listener: Listener) -> None:
        self.connect(listener)
        self.assertTrue(self.has_admitted.wait(PATIENCE))

    def test_a_client_that_connects_is_admitted(self) -> None:
        self.assert_admitted(self.open())
        self.assertTrue(self.admitted[0].getblocking())

    def test_stop_ends_it_at_once_and_before_it_runs_and_with_its_listener_closed(self) -> None:
        self.open()
        self.acceptor.stop()
        for is_closed in (False, True):
            with listen() as listener, contextlib.closing(EventLoop()) as loop:
                never_run = Acceptor(loop, self.admit, REJECTION)
                never_run.stop()
                if is_closed:
                    listener.close()
                never_run.run(listener)

    def test_a_client_that_left_before_it_was_accepted_does_not_matter(self) -> None:
        self.assert_admitted(self.open(errno.ECONNABORTED, errno.EPROTO))

    def test_out_of_descriptors_the_reserve_serves_to_reject(self) -> None:
        for number in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            with self.subTest(errno.errorcode[number]), self.assertLogs(acceptors.__name__, "WARNING") as logged:
                listener = self.open(number)
                status, headers, body = read_reply(self.connect(listener))
                self.assertEqual((503, "1"), (status, headers["retry-after"]))
                self.assertEqual("overloaded", json.loads(body)["error"]["code"])
                self.assert_admitted(listener)
                self.acceptor.stop()
            self.assertIn("raise the limit of open files", logged.output[0])

    def test_a_shortage_of_descriptors_is_logged_once_in_a_while(self) -> None:
        with self.assertLogs(acceptors.__name__, "WARNING") as logged:
            listener = self.open(errno.EMFILE)
            read_reply(self.connect(listener))
            listener.failures = [errno.EMFILE]
            read_reply(self.connect(listener))
        self.assertEqual(1, len(logged.output))

    def test_without_even_a_reserve_the_acceptor_waits_and_the_loop_goes_on(self) -> None:
        listener = self.open()
        with (
            mock.patch.object(acceptors, "_descriptor", return_value=None),
            mock.patch.object(acceptors, "_PAUSE_SECONDS", 0.1),
            self.assertLogs(acceptors.__name__, "WARNING"),
        ):
            # The first two use up the reserve.
            listener.failures = [errno.EMFILE] * 5
            self.connect(listener)
            wait_until(lambda: len(listener.failed_at) == 3)
            has_gone_on = threading.Event()
            self.acceptor._loop.post(has_gone_on.set)
            self.assertTrue(has_gone_on.wait(PATIENCE))
            self.assertTrue(self.has_admitted.wait(PATIENCE), "and goes on when there are descriptors again")
        pauses = [later - sooner for sooner, later in itertools.pairwise(listener.failed_at[2:])]
        self.assertGreaterEqual(min(pauses), 0.1)

    def test_it_can_be_stopped_while_it_waits(self) -> None:
        listener = self.open()
        with mock.patch.object(acceptors, "_descriptor", return_value=None), self.assertLogs(acceptors.__name__):
            listener.failures = [errno.EMFILE] * 3
            self.connect(listener)
            wait_until(lambda: len(listener.failed_at) == 3)
            self.acceptor.stop()

    def test_a_bug_in_admit_costs_one_client_only(self) -> None:
        bugs = [LookupError("a bug")]

        def break_once(sock: socket.socket, address: Any) -> None:
            if bugs:
                raise bugs.pop()
            self.admit(sock, address)

        with self.assertLogs(acceptors.__name__, "ERROR") as logged:
            listener = self.open(admit=break_once)
            self.assertEqual(b"", self.connect(listener).recv(1))
            self.assert_admitted(listener)
        self.assertIn("unexpected LookupError", logged.output[0])

    def test_rejected_clients_that_stay_connected_are_closed_in_the_end(self) -> None:
        with mock.patch.multiple(acceptors, _MOST_LINGERING=3, _LINGER_SECONDS=0.05):
            listener = self.open(admit=lambda sock, _: self.acceptor.reject(sock))
            for sock in [self.connect(listener) for _ in range(9)]:
                self.assertEqual(503, read_reply(sock)[0])
            wait_until(lambda: not self.acceptor._lingering_clients)
