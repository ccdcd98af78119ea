"""More clients than the proxy has connections, threads or descriptors for: every one of them is answered."""

import contextlib
import json
import socket
import threading
import unittest
from unittest import mock

from deepseek_cursor_proxy.resource_limits import raise_descriptors
from tests.support.harness import PATIENCE, SocketTestCase, read_reply, request_bytes
from tests.support.polling import eventually
from tests.support.program import WINDOWS, ServeTest, address

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


class TestLimits(SocketTestCase):
    def test_rejected_clients_can_send_a_whole_request_and_still_read_why(self) -> None:
        proxy = self.proxy(max_connections=1)
        first = self.connect(proxy, HEALTH)
        self.assertEqual(200, read_reply(first)[0])
        request = request_bytes(b" " * 300_000)
        for _ in range(20):
            status, headers, body = self.round_trip(proxy, request)
            self.assertEqual((503, "1", "close"), (status, headers["retry-after"], headers["connection"]))
            self.assertEqual("overloaded", json.loads(body)["error"]["code"])
        first.close()
        for _ in range(1000):
            if len(proxy.server.connections) == 0:
                break
            threading.Event().wait(0.01)
        self.assertEqual(200, self.round_trip(proxy, HEALTH)[0])

    def test_without_threads_clients_are_told_to_retry(self) -> None:
        proxy = self.proxy()
        with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
            status, headers, _ = read_reply(self.connect(proxy))
        self.assertEqual((503, "1"), (status, headers["retry-after"]))
        self.assertEqual(0, len(proxy.server.connections))
        self.assertEqual(200, self.round_trip(proxy, HEALTH)[0])

    def test_a_burst_of_300_clients_is_answered(self) -> None:
        # Both ends of every connection are ours, and macOS begins with 256.
        raise_descriptors(1024)
        socks = [self.connect(self.running) for _ in range(300)]
        for sock in socks:
            sock.sendall(HEALTH)
        self.assertEqual({200}, {read_reply(sock)[0] for sock in socks})


@unittest.skipIf(WINDOWS, "limits of a process are a POSIX thing")
class TestFewDescriptors(ServeTest):
    prefix = ("/bin/sh", "-c", 'ulimit -n 40; exec "$@"', "sh")

    def test_a_process_out_of_descriptors_answers_every_client_and_recovers(self) -> None:
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
