"""A proxy killed with SIGKILL loses the usage of about its last second, and neither the file nor its sums."""

import os
import signal
import unittest

from deepseek_cursor_proxy.storage.database import open_read_only
from tests.support.harness import chat_body
from tests.support.polling import wait_until
from tests.support.program import UpstreamServeTest


@unittest.skipIf(os.name == "nt", "signals are a POSIX thing")
class TestKilledLedger(UpstreamServeTest):
    def ask(self, count: int) -> None:
        for _ in range(count):
            self.send("POST", "/v1/chat/completions", chat_body())

    def counts(self) -> tuple[int, int]:
        with open_read_only(self.store) as connection:
            rows = connection.execute("SELECT count(*) FROM usage").fetchone()[0]
            return rows, connection.execute("SELECT total(requests) FROM usage_days").fetchone()[0]

    def test_a_killed_proxy_loses_the_usage_of_its_last_batch_only(self) -> None:
        process = self.start()
        self.ask(20)
        # Written while it runs, about a second later.
        wait_until(lambda: self.counts() == (20, 20))
        self.ask(5)
        self.kill(process)
        rows, sums = self.counts()
        self.assertEqual(rows, sums)
        self.assertGreaterEqual(rows, 20)
        process = self.start()
        self.ask(3)
        process.send(signal.SIGTERM)
        self.expect_stopped(process)
        self.assertEqual((rows + 3, rows + 3), self.counts())
        self.expect_mode(self.store, 0o600)
