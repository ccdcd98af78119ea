"""A template reads what parsing would read, or there is none."""

import json
import unittest
from typing import Any

from deepseek_cursor_proxy.conversation import Delta, Run
from deepseek_cursor_proxy.deepseek.apis import chat_api
from deepseek_cursor_proxy.deepseek.apis.chat_stream import ChunkTemplate, split_run


def chunk(delta: Any, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **more}
    return {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def data(value: Any, **options: Any) -> bytes:
    return json.dumps(value, **{"ensure_ascii": False, "separators": (",", ":"), **options}).encode()


def event(value: Any, **options: Any) -> bytes:
    return b"data: %b\n\n" % data(value, **options)


def cut(raw: bytes) -> ChunkTemplate | None:
    delta = chat_api.chunk_delta(json.loads(raw))
    return ChunkTemplate.derive(raw, delta)


def template_of(value: Any, **options: Any) -> ChunkTemplate:
    found = cut(data(value, **options))
    assert found is not None
    return found


def read_run(template: ChunkTemplate | None, raw: bytes, at: int = 0) -> tuple[Delta, int]:
    assert template is not None
    run, end = template.read(raw, at)
    assert run is not None
    return run, end


TEXTS = ["a", " b", 'say "hi"', "back\\slash", "\n\n\t", "Grüße 漢字 😀", "\u2028 \x7f"]
TEXTS += ["{}[],:", "content", "=the text="]


class TestRead(unittest.TestCase):
    def test_a_template_reads_chunks_like_the_parser(self) -> None:
        for make in (
            lambda text: {"content": text},
            lambda text: {"content": None, "reasoning_content": text},
            lambda text: {"role": "assistant", "reasoning_content": text, "content": ""},
            lambda text: {"content": text, "odd": {"content": ["content", {"content": "x"}]}},
        ):
            for options in ({}, {"separators": (", ", ": ")}):
                with self.subTest(make("…"), **options):
                    template = template_of(chunk(make("first")), **options)
                    run, _ = read_run(template, b"".join(event(chunk(make(text)), **options) for text in TEXTS))
                    parsed = [chat_api.chunk_delta(chunk(make(text))) for text in TEXTS]
                    self.assertEqual(parsed, split_run(run))
                    self.assertEqual("".join(TEXTS), run.text or run.reasoning)

    def test_a_template_stops_at_a_chunk_that_does_not_fit(self) -> None:
        template = template_of(chunk({"content": "x"}))
        good = event(chunk({"content": "y"}))
        for name, other in {
            "another id": event({**chunk({"content": "y"}), "id": "2"}),
            "an end": event(chunk({"content": "y"}, finish_reason="stop")),
            "another field": event(chunk({"content": "y", "role": "assistant"})),
            "reasoning": event(chunk({"reasoning_content": "y"})),
            "nothing said": event(chunk({"content": ""})),
            "no string": event(chunk({"content": None})),
            "escapes that we would not write": event(chunk({"content": "ü"}), ensure_ascii=True),
            "a control character": good.replace(b"y", b"\x01"),
            "a cut escape": good.replace(b"y", b"y\\"),
            "half an event": good[:-1],
            "another line end": good.replace(b"\n", b"\r\n"),
            "a second data line": good[:-1] + b"data: x\n\n",
            "a comment": b": hello\n\n",
            "the end": b"data: [DONE]\n\n",
            "nothing": b"",
        }.items():
            with self.subTest(name):
                run, at = read_run(template, b"?" + good + good + other, 1)
                self.assertEqual(("yy", 1 + 2 * len(good)), (run.text, at))
                self.assertEqual((None, 0), template.read(other, 0))

    def test_a_template_leaves_invalid_utf8_to_the_parser_also_if_two_halves_fit(self) -> None:
        template = template_of(chunk({"content": "x"}))
        bad, *halves = (event(chunk({"content": "y"})).replace(b"y", each) for each in (b"\xff", b"\xc3", b"\xbc"))
        for data in (bad, halves[0], halves[0] + halves[1]):
            self.assertEqual((None, 0), template.read(data, 0))


class TestTemplates(unittest.TestCase):
    def test_a_chunk_with_more_than_one_text_makes_no_template(self) -> None:
        call = {"index": 0, "function": {"arguments": "x"}}
        for value in (
            chunk({"content": "x"}, finish_reason="stop"),
            chunk({"content": "x", "reasoning_content": "y"}),
            chunk({"content": "", "reasoning_content": ""}),
            chunk({"role": "assistant"}),
            chunk({"content": "x", "tool_calls": [call]}),
            {**chunk({"content": "x"}), "usage": {"total_tokens": 1}},
        ):
            self.assertIsNone(cut(data(value)), value)

    def test_a_template_has_its_hole_exactly_at_the_text(self) -> None:
        value = {"note": {"content": "decoy"}, "content": "decoy", **chunk({"content": "text"})}
        self.assertEqual("other", read_run(template_of(value), event(value).replace(b"text", b"other"))[0].text)

    def test_an_event_of_several_data_lines_makes_no_template(self) -> None:
        self.assertIsNone(cut(json.dumps(chunk({"content": "x"}), indent=1).encode()))


class TestRuns(unittest.TestCase):
    def test_a_run_is_divided_into_its_chunks_again(self) -> None:
        template = template_of(chunk({"reasoning_content": "x"}))
        run = Delta(reasoning="yz", chunk={"choices": [{}]}, run=Run(template, [b"y", b"z"]))
        chunks = [chunk({"reasoning_content": text}) for text in "yz"]
        self.assertEqual(chunks, [each.chunk for each in split_run(run)])
