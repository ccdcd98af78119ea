"""The benchmark's DeepSeek answers each command, sends paced chunks in order, and leaves nothing open."""

import contextlib
import io
import socket
import threading
import time
import unittest
from contextlib import closing
from itertools import pairwise
from unittest.mock import Mock, patch
from urllib.parse import urlsplit

from deepseek_cursor_proxy.json_codec import encode_json
from tests.bench import load_upstream
from tests.bench.load_answers import MARK, Command
from tests.bench.load_clients import Client, get, post
from tests.bench.load_upstream import LoadUpstream
from tests.bench.requests import question
from tests.support.processes import BenchmarkFailed


class UpstreamTest(unittest.TestCase):
    def setUp(self) -> None:
        threads = threading.active_count()
        self.addCleanup(lambda: self.assertEqual(threading.active_count(), threads))
        self.upstream = self.enterContext(LoadUpstream())
        self.client = self.enterContext(closing(Client(self.upstream.url)))

    def said(self, request: bytes) -> bytes:
        """Everything that comes back before the other side has nothing more to say."""
        address = urlsplit(self.upstream.url)
        with socket.create_connection((address.hostname, address.port), 10) as sock:
            sock.sendall(request)
            data = b""
            while not data.endswith(b"\r\n0\r\n\r\n"):
                data += sock.recv(65536)
        return data


class TestAnswers(UpstreamTest):
    def test_every_command_is_answered_over_one_connection(self) -> None:
        url = self.upstream.url
        for _ in range(2):
            plain = self.client.fetch(post(url, question("bench:plain")))
            self.assertTrue(plain["choices"][0]["message"]["reasoning_content"])
            turn = self.client.fetch(post(url, question("bench:turn")))
            self.assertEqual(turn["choices"][0]["finish_reason"], "tool_calls")
            models = self.client.fetch(get(f"{url}/v1", "/models"))
            self.assertEqual(models["object"], "list")
            self.client.ask(post(url, question("bench:stream 8", stream=True)), is_stream=True)
            self.client.ask(post(url, question("bench:paced 1000/s 2", stream=True)), is_stream=True)

    def test_a_stream_larger_than_any_buffer_arrives_whole(self) -> None:
        data = self.said(post(self.upstream.url, question("bench:stream 40000", stream=True)))
        self.assertEqual(data.count(b"data: {"), 40002)

    def test_a_request_may_come_in_pieces_or_two_at_once(self) -> None:
        request = post(self.upstream.url, question("bench:plain"))
        address = urlsplit(self.upstream.url)
        with socket.create_connection((address.hostname, address.port), 10) as sock:
            for at in range(0, len(request), 50):
                sock.sendall(request[at : at + 50])
            first = sock.recv(65536)
            sock.sendall(request + request)
            both = b""
            while both.count(b'"usage"') < 2:
                both += sock.recv(65536)
        self.assertTrue(first.startswith(b"HTTP/1.1 200"))
        self.assertEqual(both.count(b"HTTP/1.1 200"), 2)

    def test_a_request_without_a_command_is_refused(self) -> None:
        with self.assertRaisesRegex(BenchmarkFailed, "400.*only answers the benchmark"):
            self.client.ask(post(self.upstream.url, question("hello")))

    def test_restored_counts_the_reasonings_of_the_last_turn(self) -> None:
        turns = [{"role": "assistant", "reasoning_content": each} for each in ("a", "b", "")]
        body = encode_json({"messages": [{"role": "user", "content": "bench:turn"}, *turns]})
        self.client.ask(post(self.upstream.url, body))
        self.assertEqual(self.client.fetch(get(self.upstream.url, "/restored")), 2)

    def test_a_client_that_disconnects_from_a_stream_does_no_harm(self) -> None:
        address = urlsplit(self.upstream.url)
        for command in ("bench:stream 40000", "bench:paced 1000/s 5000"):
            with socket.create_connection((address.hostname, address.port), 10) as sock:
                sock.sendall(post(self.upstream.url, question(command, stream=True)))
                sock.recv(100)
        self.client.ask(post(self.upstream.url, question("bench:plain")))


class TestPacedStreams(UpstreamTest):
    def test_chunks_come_in_the_order_of_their_moments_and_not_before(self) -> None:
        began = time.monotonic_ns()
        data = self.said(post(self.upstream.url, question("bench:paced 500/s 20", stream=True)))
        marks = [int(mark) for mark in MARK.findall(data)]
        self.assertEqual(len(marks), 20)
        self.assertTrue(all(before < after for before, after in pairwise(marks)))
        for number, mark in enumerate(marks):
            self.assertGreaterEqual(mark - began, number * 2_000_000)

    def test_marks_grow_also_while_the_clock_stands(self) -> None:
        """That of Windows ticks every 15 ms; a chunk with the mark of the one before counted as not heard."""
        connection = Mock()
        paced_rounds = load_upstream._Paced(connection, Command("paced", 3, 100, False))
        with patch.object(time, "monotonic_ns", return_value=1_700_000_000_000_000_000):
            while paced_rounds.send():
                pass
        marks = [int(mark) for call in connection.send.mock_calls for mark in MARK.findall(call.args[0])]
        self.assertEqual(3, len(set(marks)), marks)


class TestProcess(unittest.TestCase):
    def test_a_port_in_use_is_one_line(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with self.assertRaisesRegex(SystemExit, f"port {port} cannot be used.*--upstream-port"):
                load_upstream.serve_deepseek(port)

    def test_the_process_prints_its_url_and_ends_with_its_input(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as out, patch("sys.stdin", io.StringIO()):
            with patch("signal.signal"):
                load_upstream.serve_deepseek()
        self.assertRegex(out.getvalue(), r"\Ahttp://127\.0\.0\.1:\d+\n\Z")
