"""The processes that the benchmark and the soak start answer and end."""

import os
import tempfile
import unittest
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

from tests.bench import load_upstream
from tests.bench.load_clients import Client, get, post
from tests.bench.requests import question
from tests.support import processes
from tests.support.processes import BenchmarkFailed, Server


class TestProcesses(unittest.TestCase):
    def setUp(self) -> None:
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_the_proxy_and_its_deepseek_answer_and_are_gone_afterwards(self) -> None:
        # A setting of the person who runs the benchmark is none of the benchmark's.
        mine = patch.dict(os.environ, {"DEEPSEEK_CURSOR_PROXY_HOST": "0.0.0.0"})
        with mine, processes.running_deepseek(self.place / "a", load_upstream.__name__) as direct:
            with processes.running_proxy(direct, self.place / "b") as proxy, closing(Client(proxy.url)) as client:
                client.ask(get(proxy.url, "/v1/models"))
                client.ask(post(f"{proxy.url}/v1", question("bench:stream 4", stream=True)), is_stream=True)
        self.assertTrue((self.place / "b" / ".deepseek-cursor-proxy").is_dir())
        for server in (direct, proxy):
            with self.assertRaises(OSError):
                Client(server.url).ask(b"")

    def test_a_process_that_does_not_start_or_is_gone_says_so(self) -> None:
        with self.assertRaisesRegex(BenchmarkFailed, "No module named.*nothing_of_the_kind"):
            with processes._run_process(self.place, "-m", "nothing_of_the_kind"):
                self.fail("it did not start")
        # Beyond the largest process number there is.
        nobody = Server("", 2**27)
        self.assertEqual((None, None), (nobody.cpu_seconds(), nobody.resident_megabytes()))
