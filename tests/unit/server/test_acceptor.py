"""The door: nobody who comes is left without an answer, however little there is to answer with."""

import contextlib
import errno
import json
import os
import socket
import threading
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.errors import Overloaded
from deepseek_cursor_proxy.resource_limits import raise_descriptors
from deepseek_cursor_proxy.server import acceptor as door
from deepseek_cursor_proxy.server.acceptor import Acceptor
from deepseek_cursor_proxy.server.client_connection import refusal
from tests.proxy.test_serve import WINDOWS, ServeTest, address
from tests.support.gauges import eventually
from tests.support.harness import PATIENCE, SocketTestCase, read_reply, request_bytes

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
NO = refusal(Overloaded("No room.", retry_after=1))


class Listener:
    """A listening socket whose accept() fails as often as it is told to."""

    def __init__(self, failures: list[OSError]) -> None:
        self.real = socket.create_server(("127.0.0.1", 0))
        self.failures = failures
        self.calls = 0

    def accept(self) -> tuple[socket.socket, Any]:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return self.real.accept()

    def fileno(self) -> int:
        return self.real.fileno()

    def setblocking(self, value: bool) -> None:
        self.real.setblocking(value)


class DoorTestCase(unittest.TestCase):
    def open(self, *failures: int, admit: Callable[[socket.socket, Any], None] | None = None) -> Listener:
        """A running door, and the listener behind it."""
        self.let_in: list[socket.socket] = []
        self.came = threading.Event()
        listener = Listener([OSError(number, os.strerror(number)) for number in failures])
        self.addCleanup(listener.real.close)
        self.door = Acceptor(listener, admit or self.admit, NO)  # type: ignore[arg-type]
        thread = threading.Thread(target=self.door.run)
        thread.start()
        self.addCleanup(thread.join, PATIENCE)
        self.addCleanup(self.door.stop)
        return listener

    def admit(self, sock: socket.socket, _: Any) -> None:
        self.let_in.append(sock)
        self.addCleanup(sock.close)
        self.came.set()

    def connect(self, listener: Listener) -> socket.socket:
        sock = socket.create_connection(listener.real.getsockname(), PATIENCE)
        self.addCleanup(sock.close)
        return sock


class TestDoor(DoorTestCase):
    def test_whoever_comes_is_let_in(self) -> None:
        listener = self.open()
        self.connect(listener)
        self.assertTrue(self.came.wait(PATIENCE))
        self.assertTrue(self.let_in[0].getblocking())

    def test_stopping_is_heard_at_once_and_before_the_start_too(self) -> None:
        self.open()
        self.door.stop()
        never_run = Acceptor(socket.socket(), self.admit, NO)
        self.addCleanup(never_run._listener.close)
        never_run.stop()
        never_run.run()

    def test_stopped_and_closed_before_the_start_it_ends_without_a_word(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        door = Acceptor(listener, lambda *_: None, b"")
        door.stop()
        listener.close()
        door.run()

    def test_a_client_that_left_before_it_was_let_in_does_not_matter(self) -> None:
        listener = self.open(errno.ECONNABORTED, errno.EPROTO)
        self.connect(listener)
        self.assertTrue(self.came.wait(PATIENCE))

    def test_out_of_descriptors_the_reserve_serves_to_tell(self) -> None:
        for number in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            with self.subTest(errno.errorcode[number]), self.assertLogs(door.__name__, "WARNING") as logged:
                listener = self.open(number)
                status, headers, body = read_reply(self.connect(listener))
                self.assertEqual((503, "1"), (status, headers["retry-after"]))
                self.assertEqual("overloaded", json.loads(body)["error"]["code"])
                self.connect(listener)
                self.assertTrue(self.came.wait(PATIENCE))
                self.door.stop()
            self.assertIn("raise the limit of open files", logged.output[0])

    def test_a_shortage_is_told_once_in_a_while(self) -> None:
        with self.assertLogs(door.__name__, "WARNING") as logged:
            listener = self.open(*[errno.EMFILE] * 1)
            read_reply(self.connect(listener))
            listener.failures = [OSError(errno.EMFILE, "too many")]
            read_reply(self.connect(listener))
        self.assertEqual(1, len(logged.output))

    def test_without_even_a_reserve_it_waits_and_does_not_spin(self) -> None:
        paused = threading.Semaphore(0)
        listener = self.open()
        with mock.patch.object(door, "_descriptor", return_value=None), self.assertLogs(door.__name__, "WARNING"):
            # Used up by the first: from then on there is nothing to answer with.
            listener.failures = [OSError(errno.EMFILE, "too many") for _ in range(7)]
            with mock.patch.object(self.door._is_stopping, "wait", side_effect=lambda _: paused.release()) as wait:
                self.connect(listener)
                for _ in range(3):
                    self.assertTrue(paused.acquire(timeout=PATIENCE))
                self.assertEqual(door._PAUSE_SECONDS, wait.call_args.args[0])
                self.assertTrue(self.came.wait(PATIENCE), "and goes on when there is room again")

    def test_a_bug_of_ours_costs_one_client_only(self) -> None:
        said = []

        def broken_once(sock: socket.socket, address: Any) -> None:
            if not said:
                said.append(1)
                raise LookupError("a bug")
            self.admit(sock, address)

        with self.assertLogs(door.__name__, "ERROR") as logged:
            listener = self.open(admit=broken_once)
            self.assertEqual(b"", self.connect(listener).recv(1))
            self.connect(listener)
            self.assertTrue(self.came.wait(PATIENCE))
        self.assertIn("unexpected LookupError", logged.output[0])

    def test_many_who_are_turned_away_and_stay_are_let_go_in_the_end(self) -> None:
        with mock.patch.multiple(door, _LINGERING=3, _LINGER_SECONDS=0.05):
            listener = self.open(admit=lambda sock, _: self.door.reject(sock))
            for sock in [self.connect(listener) for _ in range(9)]:
                self.assertEqual(503, read_reply(sock)[0])
            for _ in range(1000):
                if not self.door._lingering:
                    break
                threading.Event().wait(0.01)
            self.assertEqual({}, self.door._lingering)


class TestNoRoom(SocketTestCase):
    def test_those_turned_away_can_send_all_they_have_and_still_read_why(self) -> None:
        proxy = self.proxy(max_connections=1)
        first = self.connect(proxy)
        first.sendall(HEALTH)
        self.assertEqual(200, read_reply(first)[0])
        request = request_bytes(b" " * 300_000)
        for _ in range(20):
            sock = self.connect(proxy)
            sock.sendall(request)
            status, headers, body = read_reply(sock)
            self.assertEqual((503, "1", "close"), (status, headers["retry-after"], headers["connection"]))
            self.assertEqual("overloaded", json.loads(body)["error"]["code"])
        first.close()
        for _ in range(1000):
            if len(proxy.server.connections) == 0:
                break
            threading.Event().wait(0.01)
        sock = self.connect(proxy)
        sock.sendall(HEALTH)
        self.assertEqual(200, read_reply(sock)[0])

    def test_without_threads_clients_are_told_to_come_back(self) -> None:
        proxy = self.proxy()
        with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
            status, headers, _ = read_reply(self.connect(proxy))
        self.assertEqual((503, "1"), (status, headers["retry-after"]))
        self.assertEqual(0, len(proxy.server.connections))
        sock = self.connect(proxy)
        sock.sendall(HEALTH)
        self.assertEqual(200, read_reply(sock)[0])

    def test_a_burst_of_300_is_answered(self) -> None:
        # Both ends of every connection are ours, and macOS begins with 256.
        raise_descriptors(1024)
        proxy = self.proxy()
        socks = [self.connect(proxy) for _ in range(300)]
        for sock in socks:
            sock.sendall(HEALTH)
        self.assertEqual({200}, {read_reply(sock)[0] for sock in socks})


@unittest.skipIf(WINDOWS, "limits of a process are a POSIX thing")
class TestFewDescriptors(ServeTest):
    prefix = ("/bin/sh", "-c", 'ulimit -n 40; exec "$@"', "sh")

    def test_a_process_out_of_descriptors_answers_everybody_and_recovers(self) -> None:
        process, welcome = self.serve()
        with contextlib.ExitStack() as stack:
            held = [stack.enter_context(socket.create_connection(address(welcome), PATIENCE)) for _ in range(60)]
            statuses = []
            for sock in held:
                with contextlib.suppress(OSError):
                    sock.sendall(HEALTH)
                statuses.append(read_reply(sock)[0])
            self.assertEqual({200, 503}, set(statuses))
        for _ in range(1000):
            with socket.create_connection(address(welcome), PATIENCE) as sock:
                sock.sendall(HEALTH)
                if read_reply(sock)[0] == 200:
                    break
        else:
            self.fail("it never recovered")
        # The log has a thread of its own.
        self.assertTrue(eventually(lambda: "raise the limit of open files" in process.errors), process.errors)
        self.assertEqual(1, process.errors.count("raise the limit of open files"))
        self.assertNotIn("Traceback", process.errors)
