"""The processes that the benchmark and the soak start answer and end."""

import os
import tempfile
import unittest
from contextlib import closing
from functools import partial
from pathlib import Path
from unittest.mock import patch

from tests.bench import load_upstream
from tests.bench.load_clients import Client, get, post
from tests.bench.requests import question
from tests.soak import clients
from tests.support import processes
from tests.support.processes import BenchmarkFailed, Server

made_up = partial(processes.running_deepseek, module=load_upstream.__name__)


class TestProcesses(unittest.TestCase):
    def setUp(self) -> None:
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_the_proxy_and_its_deepseek_answer_and_are_gone_afterwards(self) -> None:
        # A setting of whoever runs the benchmark is none of the benchmark's.
        mine = {"DEEPSEEK_CURSOR_PROXY_HOST": "0.0.0.0"}
        with patch.dict(os.environ, mine), made_up(self.place / "a") as direct:
            with processes.running_proxy(direct, self.place / "b") as proxy, closing(Client(proxy.url)) as client:
                client.ask(get(proxy.url, "/v1/models"))
                client.ask(post(f"{proxy.url}/v1", question("bench:stream 4", stream=True)), is_stream=True)
                client.ask(post(f"{proxy.url}/v1", question("bench:plain")))
        self.assertTrue((self.place / "b" / ".deepseek-cursor-proxy").is_dir())
        for server in (direct, proxy):
            with self.assertRaises(OSError):
                Client(server.url).ask(b"")

    def test_the_port_of_deepseek_can_be_chosen(self) -> None:
        with made_up(self.place / "a") as first:
            port = int(first.url.rpartition(":")[2])
        with made_up(self.place / "a", port=port) as second:
            self.assertEqual(second.url, first.url)
            with self.assertRaisesRegex(BenchmarkFailed, f"did not start: port {port} cannot be used"):
                with made_up(self.place / "b", port=port):
                    self.fail("it is taken")

    def test_the_soak_has_a_deepseek_of_its_own(self) -> None:
        with processes.running_deepseek(self.place, clients.__name__) as deepseek:
            with closing(Client(deepseek.url)) as client:
                client.ask(post(deepseek.url, question("short")))

    def test_a_process_that_does_not_start_is_reported_with_its_last_words(self) -> None:
        with self.assertRaisesRegex(BenchmarkFailed, "No module named.*nothing_of_the_kind"):
            with processes._run_process(self.place, "-m", "nothing_of_the_kind"):
                self.fail("it did not start")

    def test_a_process_that_is_gone_has_no_figures(self) -> None:
        # Beyond the largest process number there is.
        nobody = Server("", 2**27)
        self.assertIsNone(nobody.cpu_seconds())
        self.assertIsNone(nobody.resident_megabytes())
