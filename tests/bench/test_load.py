"""The load's clients read answers to their end, and the benchmark's DeepSeek answers every command."""

import json
import select
import socket
import unittest
from contextlib import closing
from itertools import pairwise

from deepseek_cursor_proxy.json_codec import encode_json
from tests.bench import http_reader, load_answers
from tests.bench.http_reader import ResponseReader
from tests.bench.load_answers import MARK, Command, marked_chunk, parse_command
from tests.bench.load_clients import Client, Crowd, get, post, requests_per_second, run_crowd
from tests.bench.load_upstream import LoadUpstream
from tests.bench.requests import question
from tests.fake_deepseek import Failure, FakeDeepSeek, Raw
from tests.support.processes import BenchmarkFailed

SIZED = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
CHUNKED = HEAD + b"5\r\nhello\r\ne\r\ndata: [DONE]\n\n\r\n" + END


class TestResponseReader(unittest.TestCase):
    def test_the_end_of_a_response_is_found_however_it_is_split(self) -> None:
        for answer in (SIZED, CHUNKED, HEAD + END):
            for cut in range(1, len(answer)):
                reader = ResponseReader()
                self.assertEqual((False, True), (reader.feed(answer[:cut]), reader.feed(answer[cut:])))
        self.assertEqual([b"hello", b"hellodata: [DONE]\n\n"], [http_reader.body(each) for each in (SIZED, CHUNKED)])

    def test_a_stream_without_its_last_event_is_not_done(self) -> None:
        completed, failed = b'"usage":{"total_tokens":12}}}\n\n', b'"usage":null}}\n\n'
        for last, is_done in (
            (b"data: [DONE]\n\n", True),
            (b"", False),
            (completed, True),
            (failed, False),
            (b'data: {"type":"message_stop"}\n\n', True),
        ):
            reader = ResponseReader()
            reader.feed(CHUNKED.replace(b"data: [DONE]\n\n", last))
            self.assertEqual(is_done, reader.is_done_stream, last)

    def test_a_connection_is_reused_unless_the_response_closes_it(self) -> None:
        closing = SIZED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        for answer, closes in ((SIZED, False), (CHUNKED, False), (closing, True), (SIZED.replace(b".1", b".0"), True)):
            reader = ResponseReader()
            reader.feed(answer)
            self.assertEqual(closes, reader.closes)
        unframed = ResponseReader()
        self.assertEqual((False, True), (unframed.feed(b"HTTP/1.0 200 OK\r\n\r\nhello"), unframed.feed(b"")))

    def test_what_is_cut_or_refused_is_a_failure(self) -> None:
        for answer in (b"", SIZED[:-1], CHUNKED[:-1], b"HTTP/1.1 503 Busy\r\nContent-Length: 5\r\n\r\nBusy."):
            with self.assertRaisesRegex(BenchmarkFailed, "broken off|503.*Busy"):
                reader = ResponseReader()
                reader.feed(answer)
                reader.feed(b"")


class TestClients(unittest.TestCase):
    def setUp(self) -> None:
        self.fake = self.enterContext(FakeDeepSeek())
        self.client = self.enterContext(closing(Client(self.fake.url)))
        self.plain, self.stream = (post(self.fake.url, question("hello", stream=stream)) for stream in (False, True))

    def test_answers_of_both_kinds_are_read_to_their_end_over_one_connection(self) -> None:
        for request in (self.stream, self.plain, self.stream, self.plain):
            timing = self.client.ask(request, is_stream=request is self.stream)
            self.assertGreaterEqual(timing.whole, timing.first)
        self.assertEqual((4, 1), (len(self.fake.accepted), self.fake.connections))

    def test_a_connection_that_was_closed_meanwhile_is_opened_again(self) -> None:
        """As every client does: a server ends what is idle, while another column is waited for."""
        self.fake.answer(Raw(SIZED.replace(b"hello", b'{"a":')))
        self.client.ask(self.plain)
        self.assertTrue(select.select([self.client._socket], [], [], 5)[0])
        self.client.ask(self.plain)
        self.assertEqual((2, 2), (len(self.fake.seen), self.fake.connections))

    def test_many_clients_keep_their_connections_unless_they_are_closed(self) -> None:
        self.fake.answer(Raw(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"), Failure(503))
        with self.assertRaisesRegex(BenchmarkFailed, "503"):
            requests_per_second(self.fake.url, 1, self.plain, 30)
        self.assertEqual(2, self.fake.connections)
        self.assertGreater(requests_per_second(self.fake.url, 3, self.plain, 0.01), 0)
        # One of them may still be waiting to be let in.
        self.assertLessEqual(self.fake.connections, 5)

    def heard_of(self, *chunks: bytes) -> tuple[int, list[str]]:
        """What a crowd of one hears when three chunks are due."""
        self.fake.answer(Raw(b"".join(chunks)))
        result = run_crowd(Crowd(self.fake.url, self.stream, 1, 3, 100))
        return len(result.lags), result.failures

    def test_a_crowd_counts_every_chunk_once_and_says_what_failed(self) -> None:
        first, second, third = (marked_chunk(moment, True) for moment in (1, 2, 3))
        # As a proxy does that shows the thinking in the text.
        self.assertEqual((3, []), self.heard_of(HEAD, first + first, second, third, END))
        self.assertEqual((1, ["an answer was broken off"]), self.heard_of(HEAD, first))
        self.assertEqual((1, ["a stream ended after 1 of 3 chunks"]), self.heard_of(HEAD, first, END))
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            result = run_crowd(Crowd(url, self.stream, 2, 1, 1000, grace=0.01))
        self.assertEqual(["nothing came in time"] * 2, result.failures)
        # What is merely late has not failed.
        self.fake.answer(Raw(HEAD + first, then_stall=True))
        result = run_crowd(Crowd(self.fake.url, self.stream, 1, 3, 1000, grace=0.5))
        self.assertEqual((1, []), (len(result.lags), result.failures))


class TestUpstream(unittest.TestCase):
    def setUp(self) -> None:
        self.upstream = self.enterContext(LoadUpstream())
        self.client = self.enterContext(closing(Client(self.upstream.url)))

    def test_every_command_is_answered_over_one_connection(self) -> None:
        url = self.upstream.url
        thoughts, ids = set(), set()
        for _ in range(2):
            plain = self.client.fetch(post(url, question("bench:plain")))["choices"][0]
            turn = self.client.fetch(post(url, question("bench:turn")))["choices"][0]
            self.assertEqual(("stop", "tool_calls"), (plain["finish_reason"], turn["finish_reason"]))
            thoughts |= {each["message"]["reasoning_content"] for each in (plain, turn)}
            ids |= {call["id"] for call in turn["message"]["tool_calls"]}
            self.assertEqual("list", self.client.fetch(get(f"{url}/v1", "/models"))["object"])
            self.client.ask(post(url, question("bench:stream 40000", stream=True)), is_stream=True)
            self.client.ask(post(url, question("bench:paced 1000/s 2", stream=True)), is_stream=True)
        self.assertEqual((4, 2), (len(thoughts), len(ids)))
        with self.assertRaisesRegex(BenchmarkFailed, "400.*only answers the benchmark"):
            self.client.ask(post(url, question("hello")))

    def test_the_reasonings_of_the_last_turn_are_counted_but_blank_ones(self) -> None:
        turns = [{"role": "assistant", "reasoning_content": each} for each in ("a", " b", '"', "", " ", "\n \t", None)]
        quoted = {"role": "tool", "content": json.dumps({"reasoning_content": "quoted"})}
        body = encode_json({"messages": [{"role": "user", "content": "bench:turn"}, *turns, quoted]})
        self.client.ask(post(self.upstream.url, body))
        self.assertEqual(3, self.client.fetch(get(self.upstream.url, "/restored")))

    def test_paced_chunks_come_in_the_order_of_their_moments(self) -> None:
        request = post(self.upstream.url, question("bench:paced 500/s 20", stream=True))
        midway: list[bool] = []
        result = run_crowd(Crowd(self.upstream.url, request, 7, 20, 500), lambda: midway.append(True))
        self.assertEqual((140, [], [True]), (len(result.lags), result.failures, midway))
        pieces: list[bytes] = []
        self.client._exchange(request, True, pieces.append)
        marks = [int(mark) for mark in MARK.findall(b"".join(pieces))]
        self.assertEqual(20, len(marks))
        self.assertTrue(all(before < after for before, after in pairwise(marks)))

    def test_the_last_command_of_a_request_counts(self) -> None:
        for words, wanted in (
            (b"bench:turn for file 3", Command("turn")),
            (b"bench:paced 200/s 400", Command("paced", 400, 200)),
            (b'bench:plain", "bench:stream 10000', Command("stream", 10000)),
            *((words, None) for words in (b"", b"hello", b"bench:dance", b"bench:paced 20", b"bench:paced 0/s 5")),
        ):
            self.assertEqual(wanted, parse_command(b'{"content":"' + words + b'"}'), words)

    def test_chunks_are_as_long_as_real_ones(self) -> None:
        self.assertTrue(250 < len(load_answers.stream(1000, 7)) / 1000 < 300)
