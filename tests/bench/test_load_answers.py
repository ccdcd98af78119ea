"""TestAnswers of the benchmark's DeepSeek look like the real one's, and no two have the same reasoning."""

import json
import unittest
from typing import Any

from tests.bench import http_reader, load_answers
from tests.bench.load_answers import MARK, Command, parse_command


def events(answer: bytes) -> list[Any]:
    """The data of every event, each of which has to be an HTTP chunk of its own."""
    found, rest = [], answer.partition(b"\r\n\r\n")[2]
    while True:
        length, _, rest = rest.partition(b"\r\n")
        chunk, rest = rest[: int(length, 16)], rest[int(length, 16) + 2 :]
        if not chunk:
            assert not rest
            return found
        assert chunk.startswith(b"data: ")
        assert chunk.endswith(b"\n\n")
        assert chunk.count(b"\n") == 2
        found.append("[DONE]" if chunk == b"data: [DONE]\n\n" else json.loads(chunk[6:]))


class TestCommands(unittest.TestCase):
    def test_the_last_command_of_a_request_counts(self) -> None:
        for words, wanted in (
            (b"bench:plain", Command("plain")),
            (b"bench:turn for file 3", Command("turn")),
            (b"bench:stream 8", Command("stream", 8)),
            (b"bench:paced 200/s 400", Command("paced", 400, 200)),
            (b'bench:plain", "bench:stream 10000', Command("stream", 10000)),
            (b'bench:stream 8", "include_usage":true', Command("stream", 8, counts_usage=True)),
        ):
            with self.subTest(words):
                self.assertEqual(parse_command(b'{"content":"' + words + b'"}'), wanted)

    def test_other_text_is_no_command(self) -> None:
        for words in (b"", b"hello", b"bench:", b"bench:dance", b"bench:paced 20", b"bench:paced 0/s 5"):
            self.assertIsNone(parse_command(words))

    def test_blank_reasoning_is_not_counted(self) -> None:
        said = [{"reasoning_content": each} for each in ("a", " b", "\nc", '"', "", " ", "\n \t", None)]
        quoted = {"role": "tool", "content": json.dumps({"reasoning_content": "quoted"})}
        self.assertEqual(load_answers.count_reasonings(json.dumps([*said, quoted]).encode()), 4)
        self.assertEqual(load_answers.count_reasonings(json.dumps(said, separators=(",", ":")).encode()), 4)


class TestAnswers(unittest.TestCase):
    def whole(self, answer: bytes) -> Any:
        head, _, body = answer.partition(b"\r\n\r\n")
        self.assertEqual(http_reader.content_length(answer, len(head)), len(body))
        return json.loads(body)

    def test_plain_answers_have_different_reasonings(self) -> None:
        first, second = (self.whole(load_answers.plain(serial))["choices"][0] for serial in (1, 99999))
        self.assertEqual(first["finish_reason"], "stop")
        self.assertEqual(first["message"]["content"], second["message"]["content"])
        self.assertNotEqual(first["message"]["reasoning_content"], second["message"]["reasoning_content"])

    def test_a_turn_has_reasoning_and_a_call_with_its_own_id(self) -> None:
        first, second = (self.whole(load_answers.turn(serial))["choices"][0] for serial in (1, 2))
        self.assertEqual(first["finish_reason"], "tool_calls")
        calls = [each["message"]["tool_calls"][0] for each in (first, second)]
        for call in calls:
            self.assertRegex(call["id"], r"\Acall_00_[A-Za-z0-9]{24}\Z")
            self.assertEqual(list(json.loads(call["function"]["arguments"])), ["path"])
        self.assertNotEqual(calls[0]["id"], calls[1]["id"])
        self.assertNotEqual(first["message"]["reasoning_content"], second["message"]["reasoning_content"])

    def test_models_are_listed(self) -> None:
        self.assertIn("deepseek-v4-pro", [model["id"] for model in self.whole(load_answers.MODELS)["data"]])


class TestStreams(unittest.TestCase):
    def test_the_first_half_of_a_stream_is_reasoning_and_the_second_text(self) -> None:
        for chunks in (2, 8, 9):
            opening, *deltas, last, done = events(load_answers.stream(chunks, 7, False))
            self.assertEqual(opening["choices"][0]["delta"]["role"], "assistant")
            thinks = [each["choices"][0]["delta"]["reasoning_content"] is not None for each in deltas]
            self.assertEqual(thinks, [True] * (chunks // 2) + [False] * (chunks - chunks // 2))
            self.assertEqual(last["choices"][0]["finish_reason"], "stop")
            self.assertIn("prompt_cache_hit_tokens", last["usage"])
            self.assertEqual(done, "[DONE]")

    def test_chunks_are_as_long_as_real_ones(self) -> None:
        answer = load_answers.stream(1000, 7, False)
        self.assertTrue(250 < len(answer) / 1000 < 300, len(answer))

    def test_two_streams_have_different_reasonings(self) -> None:
        self.assertNotEqual(load_answers.stream(8, 7, False), load_answers.stream(8, 8, False))

    def test_requested_usage_is_null_in_every_chunk(self) -> None:
        for counts in (True, False):
            _, first, *_ = events(load_answers.stream(2, 7, counts))
            self.assertEqual("usage" in first, counts)

    def test_a_marked_chunk_contains_its_moment(self) -> None:
        for is_thinking, name in ((True, "reasoning_content"), (False, "content")):
            chunk = load_answers.marked_chunk(123456789, is_thinking, False)
            [event] = events(b"\r\n\r\n" + chunk + b"0\r\n\r\n")
            self.assertEqual([int(mark) for mark in MARK.findall(chunk)], [123456789])
            self.assertRegex(event["choices"][0]["delta"][name], "@.*@")
