"""TestClient read responses to their end, and a crowd counts the chunks it received."""

import json
import socket
import threading
import unittest
from contextlib import closing
from urllib.parse import urlsplit

from tests.bench.load_answers import marked_chunk
from tests.bench.load_clients import Client, Crowd, get, post, requests_per_second, run_crowd
from tests.bench.load_upstream import LoadUpstream
from tests.bench.requests import question
from tests.fake_deepseek import Answer, Failure, FakeDeepSeek, Raw
from tests.support.processes import BenchmarkFailed

PLAIN, STREAM = question("hello"), question("hello", stream=True)
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


class TestRequests(unittest.TestCase):
    def test_a_base_url_may_have_a_path(self) -> None:
        posted = post("http://a:1/v1/", b"{}")
        self.assertTrue(posted.startswith(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a:1\r\n"))
        self.assertTrue(get("http://a:1", "/models").startswith(b"GET /models HTTP/1.1\r\nHost: a:1\r\n"))
        self.assertTrue(post("http://a:1", b"{}").endswith(b"\r\nContent-Length: 2\r\n\r\n{}"))


class FakeTest(unittest.TestCase):
    def setUp(self) -> None:
        threads = threading.active_count()
        self.addCleanup(lambda: self.assertEqual(threading.active_count(), threads))
        self.fake = self.enterContext(FakeDeepSeek())
        self.client = self.enterContext(closing(Client(self.fake.url)))
        self.plain, self.stream = post(self.fake.url, PLAIN), post(self.fake.url, STREAM)


class TestClient(FakeTest):
    def test_answers_of_both_kinds_are_read_to_their_end_over_one_connection(self) -> None:
        for request in (self.stream, self.plain, self.stream, self.plain):
            timing = self.client.ask(request, is_stream=request is self.stream)
            self.assertGreaterEqual(timing.whole, timing.first)
        self.assertEqual((len(self.fake.accepted), self.fake.connections), (4, 1))

    def test_a_long_stream_is_read_to_its_end(self) -> None:
        self.fake.answer(*(Answer("x" * 9000, "y" * 9000, piece=4) for _ in range(2)))
        self.client.ask(self.stream, is_stream=True)
        self.client.ask(self.stream, is_stream=True)
        self.assertEqual((len(self.fake.accepted), self.fake.connections), (2, 1))

    def test_fetch_returns_the_json_of_a_response(self) -> None:
        self.fake.answer(Answer("Hm.", "Hello."))
        self.assertEqual(self.client.fetch(self.plain)["choices"][0]["message"]["content"], "Hello.")
        self.fake.answer(Raw(HEAD + b'2\r\n{"\r\n5\r\na":1}\r\n' + END, then_close=False))
        self.assertEqual(self.client.fetch(self.plain), {"a": 1})

    def test_a_refusal_or_a_response_without_its_end_or_json_is_no_sample(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: "
        cut_stream = Raw(HEAD + b"7\r\ndata: {\r\n" + END, then_close=False)
        for answer, words, ask in (
            (Raw(head + b"2\r\n\r\n{]"), "no JSON", lambda client: client.fetch(self.plain)),
            (Failure(503, "Busy."), "503(?s:.*)Busy", lambda client: client.ask(self.plain)),
            (Raw(head + b'99\r\n\r\n{"choices"'), "broken off", lambda client: client.ask(self.plain)),
            (cut_stream, "a stream ended with", lambda client: client.ask(self.stream, is_stream=True)),
        ):
            with self.subTest(words), self.assertRaisesRegex(BenchmarkFailed, words):
                self.fake.answer(answer)
                with closing(Client(self.fake.url)) as client:
                    ask(client)

    def test_a_proxy_that_closes_after_each_answer_is_asked_over_new_connections(self) -> None:
        body = json.dumps({"a": 1}).encode()
        for head in (b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 8\r\n"):
            self.fake.answer(Raw(head + b"\r\n" + body))
        self.assertEqual([self.client.fetch(self.plain), self.client.fetch(self.plain)], [{"a": 1}, {"a": 1}])
        self.assertEqual(self.fake.connections, 2)


class TestManyClients(FakeTest):
    def test_many_clients_use_kept_alive_connections(self) -> None:
        self.assertGreater(requests_per_second(self.fake.url, 3, self.plain, 0.01), 0)
        # One of them may still be waiting to be let in.
        self.assertLessEqual(self.fake.connections, 3)

    def test_clients_whose_connection_was_closed_reconnect(self) -> None:
        self.fake.answer(Raw(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"), Failure(503))
        with self.assertRaisesRegex(BenchmarkFailed, "503"):
            requests_per_second(self.fake.url, 1, self.plain, 30)
        self.assertEqual(self.fake.connections, 2)

    def test_a_refusal_to_many_clients_is_a_failure(self) -> None:
        self.fake.answer(Failure(503, "Busy."))
        with self.assertRaisesRegex(BenchmarkFailed, "503"):
            requests_per_second(self.fake.url, 2, self.plain, 30)


class TestCrowds(FakeTest):
    def heard_of(self, *chunks: bytes) -> tuple[int, list[str]]:
        """What a crowd of one hears when three chunks are due."""
        self.fake.answer(Raw(b"".join(chunks)))
        result = run_crowd(Crowd(self.fake.url, self.stream, 1, 3, 100))
        return len(result.lags), result.failures

    def test_every_chunk_of_every_stream_counts_once(self) -> None:
        with LoadUpstream() as upstream:
            request = post(upstream.url, question("bench:paced 200/s 5", stream=True))
            midway: list[bool] = []
            result = run_crowd(Crowd(upstream.url, request, 7, 5, 200), lambda: midway.append(True))
        self.assertEqual((len(result.lags), result.failures, midway), (35, [], [True]))
        self.assertGreaterEqual(min(result.lags), 0)

    def test_a_chunk_that_shows_its_thinking_twice_counts_once(self) -> None:
        first, second, third = (marked_chunk(moment, True, False) for moment in (1, 2, 3))
        self.assertEqual(self.heard_of(HEAD, first + first, second, third, END), (3, []))

    def test_a_stream_that_is_cut_or_ends_too_soon_has_failed(self) -> None:
        for end, failure in ((b"", "an answer was broken off"), (END, "a stream ended after 1 of 3 chunks")):
            self.assertEqual(self.heard_of(HEAD, marked_chunk(1, True, False), end), (1, [failure]))

    def test_a_refused_stream_has_failed(self) -> None:
        self.fake.answer(Failure(503, "Busy."))
        [failure] = run_crowd(Crowd(self.fake.url, self.stream, 1, 3, 100)).failures
        self.assertIn("503", failure)

    def test_streams_without_an_answer_have_failed(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            result = run_crowd(Crowd(url, self.stream, 2, 1, 1000, grace=0.01))
        self.assertEqual((len(result.lags), result.failures), (0, ["nothing came in time"] * 2))
        # Nobody listens there any more.
        result = run_crowd(Crowd(url, self.stream, 2, 1, 1000))
        self.assertEqual(len(result.failures), 2)

    def test_a_stream_that_is_merely_late_has_not_failed(self) -> None:
        self.fake.answer(Raw(HEAD + marked_chunk(1, True, False), then_stall=True))
        result = run_crowd(Crowd(self.fake.url, self.stream, 1, 3, 1000, grace=0.5))
        self.assertEqual((len(result.lags), result.failures), (1, []))

    def test_a_mark_may_be_cut_anywhere(self) -> None:
        chunk = marked_chunk(1, True, False)
        address = urlsplit(self.fake.url)
        with socket.create_server((str(address.hostname), 0)) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            at = chunk.index(b"@") + 5

            def serve() -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    connection.recv(65536)
                    for piece in (HEAD, chunk[:at], chunk[at:], END):
                        connection.sendall(piece)

            thread = threading.Thread(target=serve)
            thread.start()
            result = run_crowd(Crowd(url, self.stream, 1, 1, 1000))
            thread.join()
        self.assertEqual((len(result.lags), result.failures), (1, []))
