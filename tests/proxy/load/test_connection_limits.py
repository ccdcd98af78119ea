"""More clients than the proxy has connections, threads or descriptors for: every one of them is answered in the end."""

import contextlib
import socket
import unittest
from unittest import mock

from tests.support.harness import PATIENCE, SocketTestCase, read_reply, request_bytes
from tests.support.polling import eventually, wait_until
from tests.support.program import WINDOWS, ServeTest, address

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
