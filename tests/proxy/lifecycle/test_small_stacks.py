"""A process whose threads have small stacks survives deep JSON."""

import json
import socket
import unittest

from tests.support.harness import read_reply, request_bytes
from tests.support.program import PATIENCE, WINDOWS, ServeTest, address


@unittest.skipIf(WINDOWS, "limits of a process are a POSIX thing")
class TestSmallStacks(ServeTest):
    prefix = ("/bin/sh", "-c", 'ulimit -s 256; exec "$@"', "sh")

    def test_deep_json_does_not_kill_a_process_with_small_stacks(self) -> None:
        """Python 3.13.0 dies of it on a thread with half a megabyte."""
        _, welcome = self.serve()
        for depth in (5_000, 400_000):
            for opening, closing in (("[", "]"), ('{"a":', "}")):
                with socket.create_connection(address(welcome), PATIENCE) as sock:
                    sock.sendall(request_bytes((opening * depth + "1" + closing * depth).encode()))
                    status, _, body = read_reply(sock)
                self.assertEqual(400, status)
                self.assertIn("nested too deeply", json.loads(body)["error"]["message"])
