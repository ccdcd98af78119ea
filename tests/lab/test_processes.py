"""The processes the benchmark starts answer and end, and its client reads answers to their end."""

import os
import tempfile
import unittest
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

from deepseek_cursor_proxy.lab import processes
from deepseek_cursor_proxy.lab.fake_deepseek import Failure, FakeDeepSeek, Raw
from deepseek_cursor_proxy.lab.processes import MODELS_REQUEST, BenchmarkFailed, Client, Server, completion_request


class Processes(unittest.TestCase):
    def setUp(self) -> None:
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_the_proxy_and_its_deepseek_answer_and_are_gone_afterwards(self) -> None:
        # A setting of whoever runs the benchmark is none of the benchmark's.
        mine = {"DEEPSEEK_CURSOR_PROXY_HOST": "0.0.0.0"}
        with patch.dict(os.environ, mine), processes.made_up_deepseek(self.place / "a") as direct:
            with processes.running_proxy(direct, self.place / "b") as proxy, closing(Client(proxy.url)) as client:
                client.ask(MODELS_REQUEST)
                client.ask(completion_request(4, stream=True))
                client.ask(completion_request(4))
        self.assertTrue((self.place / "b" / ".deepseek-cursor-proxy").is_dir())
        for server in (direct, proxy):
            with self.assertRaises(OSError):
                Client(server.url)

    def test_a_process_that_does_not_start_is_reported_with_its_last_words(self) -> None:
        with self.assertRaisesRegex(BenchmarkFailed, "No module named.*nothing_of_the_kind"):
            with processes._running(self.place, "-m", "nothing_of_the_kind"):
                self.fail("it did not start")

    def test_a_process_that_is_gone_has_no_figures(self) -> None:
        # Beyond the largest process number there is.
        nobody = Server("", 2**27)
        self.assertIsNone(nobody.cpu_seconds())
        self.assertIsNone(nobody.resident_megabytes())


class Clients(unittest.TestCase):
    def setUp(self) -> None:
        self.fake = self.enterContext(FakeDeepSeek())
        self.client = self.enterContext(closing(Client(self.fake.url)))

    def test_answers_of_both_kinds_are_read_to_their_end_over_one_connection(self) -> None:
        for stream in (True, False, True, False):
            timing = self.client.ask(completion_request(4, stream=stream))
            self.assertGreaterEqual(timing.whole, timing.first)
        self.assertEqual((len(self.fake.accepted), self.fake.connections), (4, 1))

    def test_a_long_stream_is_read_to_its_end(self) -> None:
        self.fake.answer(*(processes.Answer("x" * 9000, "y" * 9000, piece=4) for _ in range(2)))
        self.client.ask(completion_request(4, stream=True))
        self.client.ask(completion_request(4, stream=True))
        self.assertEqual((len(self.fake.accepted), self.fake.connections), (2, 1))

    def test_a_refusal_is_no_sample(self) -> None:
        self.fake.answer(Failure(503, "Busy."))
        with self.assertRaisesRegex(BenchmarkFailed, "503(?s:.*)Busy"):
            self.client.ask(completion_request(4))

    def test_an_answer_that_breaks_off_is_no_sample(self) -> None:
        self.fake.answer(Raw(b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"choices"'))
        with self.assertRaisesRegex(BenchmarkFailed, "broken off"):
            self.client.ask(completion_request(4))


if __name__ == "__main__":
    unittest.main()
