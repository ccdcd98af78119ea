"""However a stream is cut into pieces, and with or without templates, it says the same."""

import json
import random
import unittest
from collections.abc import Iterator
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.api.reply import write_events
from deepseek_cursor_proxy.conversation import Batch, Batches, ChatRequest, Delta, Reply
from deepseek_cursor_proxy.deepseek.apis import chat_stream
from deepseek_cursor_proxy.deepseek.apis.chat_stream import StreamReader
from deepseek_cursor_proxy.errors import UpstreamFailed
from deepseek_cursor_proxy.protocols.chat_writer import ChunkWriter
from deepseek_cursor_proxy.reasoning import thinking_blocks
from deepseek_cursor_proxy.reasoning.display import show_reasoning
from tests.support.width import width
from tests.unit.deepseek.apis.test_repeated_chunks import TEXTS, chunk, event

REQUEST = ChatRequest("gpt-5", "deepseek-v4-pro", (), stream=True)
WORDS = [*TEXTS, "<details>", "</det", "ails>", "<", "\\", "think>", ""]
DONE = b"data: [DONE]\n\n"


def stream(rng: random.Random) -> Iterator[bytes]:
    """Long rows of one shape, now and then something else in between."""
    options = rng.choice([{}, {}, {"ensure_ascii": True}, {"separators": (", ", ": ")}])
    for field in ("reasoning_content", "content"):
        for _ in range(rng.randrange(12)):
            parsed: dict[str, Any] = {field: rng.choice(WORDS)}
            if rng.random() < 0.2:
                parsed["role"] = "assistant"
            if field == "reasoning_content" and rng.random() < 0.9:
                parsed = {"content": None, **parsed}
            yield event(chunk(parsed), **options)
            if rng.random() < 0.1:
                yield b": keep-alive\n\n"
    if rng.random() < 0.5:
        for piece in ('{"a"', ": 1}"):
            yield event(chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"arguments": piece}}]}), **options)
    yield event(chunk({"content": ""}, finish_reason="stop"), **options)
    yield DONE


def split(rng: random.Random, data: bytes, at_most: int) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = rng.randint(1, at_most)
        yield data[at : at + size]
        at += size


def written(pieces: Iterator[bytes], form: thinking_blocks.Form | None) -> tuple[bytes, Any]:
    """What a client gets of these pieces, and what is remembered."""
    reader, reply = StreamReader(), Reply()

    def batches() -> Batches:
        for piece in pieces:
            parsed = reader.read(piece)
            for item in parsed.batch:
                if isinstance(item, Delta):
                    reply.add(item)
            yield parsed.batch
            if parsed.is_over:
                return

    shown = show_reasoning(batches(), form, lambda choice: "A notice.\n\n")
    return b"".join(write_events(mock.Mock(), shown, ChunkWriter(REQUEST, 1))), reply.message()


class TestSplits(unittest.TestCase):
    def test_a_chat_stream_in_pieces_of_any_size_is_read_alike_with_and_without_templates(self) -> None:
        for seed in range(width(5, 25)):
            data = b"".join(stream(random.Random(seed)))
            for form in (thinking_blocks.COLLAPSIBLE, thinking_blocks.PLAIN, None):
                with mock.patch.object(chat_stream, "_MAX_UNUSED", 0):
                    expected = written(iter([data]), form)
                for at_most in (len(data), 1000, 100, 7, 1):
                    with self.subTest(seed, form=form and form.tag, at_most=at_most):
                        self.assertEqual(expected, written(split(random.Random(seed), data, at_most), form))

    def test_a_model_named_like_the_template_filling_is_written_correctly(self) -> None:
        data = b"".join(event(chunk({"content": text})) for text in "abcd") + DONE
        with mock.patch(f"{__name__}.REQUEST", ChatRequest("=the text=", "m", (), stream=True)):
            found, _ = written(iter([data]), None)
        parsed = [json.loads(line[6:]) for line in found.decode().split("\n\n") if line and line != "data: [DONE]"]
        self.assertEqual(["=the text="] * 4, [each["model"] for each in parsed])
        self.assertEqual("A notice.\n\nabcd", "".join(each["choices"][0]["delta"]["content"] for each in parsed))


class TestStreamReader(unittest.TestCase):
    def texts(self, batch: Batch) -> list[str | None]:
        return [item.text for item in batch if isinstance(item, Delta)]

    def test_chunks_that_differ_in_their_text_alone_are_one_delta(self) -> None:
        parsed = StreamReader().read(b"".join(event(chunk({"content": text})) for text in "abcd"))
        self.assertEqual(["a", "bcd"], self.texts(parsed.batch))

    def test_nothing_is_read_after_the_end_of_a_chat_stream(self) -> None:
        more = event(chunk({"content": "x"}))
        parsed = StreamReader().read(more + more + DONE + more)
        self.assertEqual((["x", "x"], True, None), (self.texts(parsed.batch), parsed.is_done, parsed.problem))

    def test_nothing_is_read_after_a_problem_in_a_chat_stream(self) -> None:
        more = event(chunk({"content": "x"}))
        deep = b"data: " + b"[" * 2000 + b"\n\n"
        for bad in (b"data: {no json\n\n", event({"error": {"message": "overloaded"}}), deep):
            with self.subTest(bad[:30]):
                parsed = StreamReader().read(more + bad + more)
                self.assertEqual((["x"], False), (self.texts(parsed.batch), parsed.is_done))
                self.assertIsInstance(parsed.problem, UpstreamFailed)

    def test_an_event_that_is_too_long_is_a_problem(self) -> None:
        reader = StreamReader()
        pieces = (b"data: " + b"x" * 1_000_000 for _ in range(20))
        parsed = next(parsed for parsed in map(reader.read, pieces) if parsed.is_over)
        self.assertIsInstance(parsed.problem, UpstreamFailed)
