"""The clients of a listener: each is served or refused with a reply, however few threads and descriptors are left."""

import contextlib
import errno
import itertools
import json
import os
import socket
import subprocess
import sys
import time
import unittest
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import Overloaded
from deepseek_cursor_proxy.http1.messages import HttpReply
from deepseek_cursor_proxy.server import connections
from deepseek_cursor_proxy.server.connections import ClientConnection, Connections, StopStage
from tests.support.harness import PATIENCE, SocketTestCase, read_reply, request_bytes
from tests.support.polling import eventually, wait_until
from tests.support.program import WINDOWS, ServeTest, address
from tests.support.systems import ROOT
from tests.support.threads import in_background

SERVER = SimpleNamespace(app=lambda _: HttpReply(200, b"served"), config=ProxyConfig())
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


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


def new_connections() -> Connections:
    return Connections("test-client", Overloaded("Too many.", retry_after=1))


class TestConnections(unittest.TestCase):
    def open(self, *failures: int, on_accept: Callable[[socket.socket, Any], None] | None = None) -> Listener:
        self.most = 100
        listener = listen(*failures)
        self.addCleanup(listener.close)
        self.connections = new_connections()
        self.addCleanup(self.connections.close)
        self.addCleanup(self.connections.stop, StopStage.ABORT, PATIENCE)
        in_background(self, self.connections.accept, listener, on_accept or self.serve)
        self.addCleanup(self.connections.stop_accepting)
        return listener

    def serve(self, sock: socket.socket, _: Any) -> None:
        connection = ClientConnection(sock, SERVER)
        self.connections.start(sock, self.most, lambda: self.connections.serve(connection), SERVER)

    def connect(self, listener: Listener) -> socket.socket:
        sock = socket.create_connection(listener.getsockname(), PATIENCE)
        self.addCleanup(sock.close)
        return sock

    def assert_served(self, listener: Listener) -> socket.socket:
        client = self.connect(listener)
        client.sendall(GET)
        self.assertEqual(b"served", read_reply(client).body)
        return client

    def assert_refused(self, client: socket.socket) -> None:
        status, headers, body = read_reply(client)
        self.assertEqual((503, "1"), (status, headers["retry-after"]))
        self.assertEqual("overloaded", json.loads(body)["error"]["code"])

    def test_accepting_stops_at_once_and_before_it_begins_and_with_its_listener_closed(self) -> None:
        self.open()
        self.connections.stop_accepting()
        for is_closed in (False, True):
            with listen() as listener, contextlib.closing(new_connections()) as never_run:
                never_run.stop_accepting()
                if is_closed:
                    listener.close()
                never_run.accept(listener, self.serve)

    def test_a_client_that_left_before_it_was_accepted_does_not_matter(self) -> None:
        self.assert_served(self.open(errno.ECONNABORTED, errno.EPROTO))

    def test_without_descriptors_clients_wait_until_there_are_some(self) -> None:
        for number in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            with (
                self.subTest(errno.errorcode[number]),
                self.assertLogs(connections.__name__, "WARNING") as logged,
                mock.patch.object(connections, "_PAUSE_SECONDS", 0.02),
            ):
                listener = self.open(*[number] * 3)
                self.assert_served(listener)
            # Once in a while, not for every client.
            self.assertEqual(1, len(logged.output))
            self.assertIn("raise the limit of open files", logged.output[0])
            pauses = [later - sooner for sooner, later in itertools.pairwise(listener.failed_at)]
            self.assertGreaterEqual(min(pauses), 0.02)

    def test_accepting_can_be_stopped_while_it_pauses(self) -> None:
        with mock.patch.object(connections, "_PAUSE_SECONDS", PATIENCE), self.assertLogs(connections.__name__):
            listener = self.open(errno.EMFILE)
            self.connect(listener)
            wait_until(lambda: len(listener.failed_at) == 1)
            self.connections.stop_accepting()

    def test_a_bug_costs_one_client_only(self) -> None:
        bugs = [LookupError("a bug")]

        def break_once(sock: socket.socket, address: Any) -> None:
            if bugs:
                raise bugs.pop()
            self.serve(sock, address)

        with self.assertLogs(connections.__name__, "ERROR") as logged:
            listener = self.open(on_accept=break_once)
            self.assertEqual(b"", self.connect(listener).recv(1))
            self.assert_served(listener)
        self.assertIn("unexpected LookupError", logged.output[0])

    def test_refused_clients_that_stay_connected_hold_few_threads_and_not_for_ever(self) -> None:
        with (
            mock.patch.object(connections, "_MOST_REFUSED", 3),
            mock.patch("deepseek_cursor_proxy.server.connections._DRAIN_SILENCE_SECONDS", 0.2),
        ):
            listener = self.open()
            self.most = 0
            for client in [self.connect(listener) for _ in range(9)]:
                self.assert_refused(client)
            self.assertLessEqual(len(self.connections), 3)
            wait_until(lambda: len(self.connections) == 0)

    def test_a_client_that_is_accepted_while_the_server_stops_is_stopped_as_well(self) -> None:
        listener = self.open()
        self.connections.stop(StopStage.FINISH_RESPONSES, 0)
        self.assertEqual(b"", self.connect(listener).recv(1))


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


class TestLimits(SocketTestCase):
    def test_rejected_clients_can_send_a_whole_request_and_still_read_why(self) -> None:
        proxy = self.proxy(max_connections=1)
        first = self.connect(proxy, HEALTH)
        self.assertEqual(200, read_reply(first)[0])
        request = request_bytes(b" " * 300_000)
        for _ in range(20):
            reply = self.round_trip(proxy, request)
            self.assertEqual((503, "overloaded"), (reply.status, reply.value["error"]["code"]))
            self.assertEqual(("1", "close"), (reply.headers["retry-after"], reply.headers["connection"]))
        first.close()
        wait_until(lambda: len(proxy.server.connections) == 0)
        self.assertEqual(200, self.round_trip(proxy, HEALTH)[0])

    def test_without_threads_clients_are_told_to_retry(self) -> None:
        proxy = self.proxy()
        with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
            status, headers, _ = read_reply(self.connect(proxy, HEALTH))
        self.assertEqual((503, "1"), (status, headers["retry-after"]))
        self.assertEqual(0, len(proxy.server.connections))
        self.assertEqual(200, self.round_trip(proxy, HEALTH)[0])


@unittest.skipIf(WINDOWS, "limits of a process are a POSIX thing")
class TestFewDescriptors(ServeTest):
    prefix = ("/bin/sh", "-c", 'ulimit -n 40; exec "$@"', "sh")

    def test_a_process_out_of_descriptors_answers_every_client_once_others_have_left(self) -> None:
        process, welcome = self.serve()
        with contextlib.ExitStack() as stack:
            held = [stack.enter_context(socket.create_connection(address(welcome), PATIENCE)) for _ in range(60)]
            self.assertTrue(eventually(lambda: "raise the limit of open files" in process.errors), process.errors)
            for sock in held:
                sock.sendall(HEALTH)
                self.assertIn(read_reply(sock)[0], (200, 503))
                sock.close()
        for _ in range(1000):
            with socket.create_connection(address(welcome), PATIENCE) as sock:
                sock.sendall(HEALTH)
                if read_reply(sock)[0] == 200:
                    break
        else:
            self.fail("it never recovered")
        self.assertEqual(1, process.errors.count("raise the limit of open files"))
        self.assertNotIn("Traceback", process.errors)


# A Python without these names, in a process of its own: the package looks for them when it is imported.
WITHOUT_THE_NAMES = """
import select, sys, unittest
for name in ("EPOLLRDHUP", "POLLRDHUP"):
    vars(select).pop(name, None)
names = "unit.net.test_wait proxy.test_walkthrough.TestChat"
unittest.main(None, argv=["", *("tests." + name for name in names.split())])
"""


class TestOtherPythons(unittest.TestCase):
    def test_streams_are_served_by_a_python_without_the_names_of_a_hang_up(self) -> None:
        """PyPy answered 500 to every chat."""
        done = subprocess.run([sys.executable, "-c", WITHOUT_THE_NAMES], capture_output=True, text=True, cwd=ROOT)
        self.assertEqual(0, done.returncode, done.stderr)
