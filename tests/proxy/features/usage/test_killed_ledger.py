"""A proxy killed with SIGKILL loses the usage of about its last second, and neither the file nor its sums."""

import os
import signal
import socket
import unittest
from contextlib import closing

from deepseek_cursor_proxy.storage.database import open_read_only
from tests.fake_deepseek import FakeDeepSeek
from tests.support.harness import chat_body, read_reply, request_bytes
from tests.support.polling import wait_until
from tests.support.program import PATIENCE, ServeTest, address


@unittest.skipIf(os.name == "nt", "signals are a POSIX thing")
class TestKilledLedger(ServeTest):
    may_fork = True

    def setUp(self) -> None:
        super().setUp()
        self.fake = self.enterContext(FakeDeepSeek())

    def ask(self, where: tuple[str, int], count: int) -> None:
        with closing(socket.create_connection(where, timeout=PATIENCE)) as sock:
            for _ in range(count):
                sock.sendall(request_bytes(chat_body()))
                self.assertEqual(200, read_reply(sock).status)

    def counts(self) -> tuple[int, int]:
        """The requests that have a row, and those in the sums of days."""
        with open_read_only(self.store) as connection:
            rows = connection.execute("SELECT count(*) FROM usage").fetchone()[0]
            return rows, connection.execute("SELECT total(requests) FROM usage_days").fetchone()[0]

    def test_a_killed_proxy_loses_the_usage_of_its_last_batch_only(self) -> None:
        process, welcome = self.serve("--base-url", self.fake.url)
        self.ask(address(welcome), 20)
        # Written while it runs, about a second later.
        wait_until(lambda: self.counts() == (20, 20))
        self.ask(address(welcome), 5)
        process.send(signal.SIGKILL)
        process.wait()
        rows, sums = self.counts()
        self.assertEqual(rows, sums)
        self.assertGreaterEqual(rows, 20)
        process, welcome = self.serve("--base-url", self.fake.url)
        self.ask(address(welcome), 3)
        process.send(signal.SIGTERM)
        self.expect_stopped(process)
        self.assertEqual((rows + 3, rows + 3), self.counts())
        self.expect_mode(self.store, 0o600)
