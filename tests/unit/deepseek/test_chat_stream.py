import json
import random
import unittest
from collections.abc import Iterator
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.api.endpoint import write_events
from deepseek_cursor_proxy.conversation import Batch, Batches, ChatRequest, Delta, Heartbeat, Reply, Run
from deepseek_cursor_proxy.deepseek import chat_api, chat_stream
from deepseek_cursor_proxy.deepseek.api import chat_api_for
from deepseek_cursor_proxy.deepseek.chat_stream import (
    ChunkTemplate,
    StreamReader,
    ThinkSplitter,
    join_stream,
    split_run,
)
from deepseek_cursor_proxy.deepseek.hosts import UNKNOWN, ReasoningForm
from deepseek_cursor_proxy.errors import UpstreamFailed
from deepseek_cursor_proxy.protocols.chat_writer import ChunkWriter
from deepseek_cursor_proxy.reasoning import thinking_blocks
from deepseek_cursor_proxy.reasoning.thinking_blocks import show_reasoning
from tests.support.chunks import written_chunk, written_completion
from tests.support.width import width


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
TEXTS += ["{}[],:", "content"]


class TestRead(unittest.TestCase):
    def test_a_template_reads_chunks_like_the_parser(self) -> None:
        for make in (
            lambda text: {"content": text},
            lambda text: {"content": None, "reasoning_content": text},
            lambda text: {"role": "assistant", "reasoning_content": text, "content": ""},
            lambda text: {"content": text, "odd": {"note": ["contents", {"other": "x"}]}},
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
            chunk({"content": "x"}, finish_reason="stop"), chunk({"content": "x", "reasoning_content": "y"}),
            chunk({"content": "", "reasoning_content": ""}), chunk({"role": "assistant"}),
            chunk({"content": "x", "tool_calls": [call]}), {**chunk({"content": "x"}), "usage": {"total_tokens": 1}},
            chunk({"reasoning": "x", "reasoning_content": "x"}),
            {"reasoning_content": "x", **chunk({"reasoning": "x"})},
        ):  # fmt: skip
            self.assertIsNone(cut(data(value)), value)

    def test_all_chunks_of_a_gateway_keep_an_empty_finish_reason_and_a_second_choice(self) -> None:
        second = chunk({"content": "x"})["choices"] + [{"index": 1, "delta": {}}]
        for more in ({"choices": second}, chunk({"content": "x"}, finish_reason="")):
            value = {**chunk({}), **more}
            found, _ = written(iter([event(value) * 4]), None)
            lines = [json.loads(line[6:]) for line in found.split(b"\n\n") if line.startswith(b"data: {")]
            self.assertEqual([value["choices"]] * 3, [line["choices"] for line in lines][1:])

    def test_a_chunk_with_two_fields_named_like_its_text_makes_no_template(self) -> None:
        for note in ({"content": "decoy"}, {"content": "text"}, {"content": []}):
            self.assertIsNone(cut(data({"note": note, **chunk({"content": "text"})})), note)
            self.assertIsNone(cut(data({**chunk({"content": "text"}), "note": note})), note)

    def test_a_name_that_an_escape_hides_makes_no_template(self) -> None:
        raw = data(chunk({"content": "text"}))
        self.assertIsNone(cut(raw.replace(b'"text"', b'"text","cont\\u0065nt":"text"')))

    def test_an_event_of_several_data_lines_makes_no_template(self) -> None:
        self.assertIsNone(cut(json.dumps(chunk({"content": "x"}), indent=1).encode()))


class TestRuns(unittest.TestCase):
    def test_a_run_is_divided_into_its_chunks_again(self) -> None:
        template = template_of(chunk({"reasoning_content": "x"}))
        run = Delta(reasoning="yz", chunk={"choices": [{}]}, run=Run(template, [b"y", b"z"]))
        chunks = [chunk({"reasoning_content": text}) for text in "yz"]
        self.assertEqual(chunks, [each.chunk for each in split_run(run)])


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
            if parsed.is_done or parsed.problem:
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


class TestStreamReader(unittest.TestCase):
    def texts(self, batch: Batch) -> list[str | None]:
        return [item.text for item in batch if isinstance(item, Delta)]

    def test_chunks_that_differ_in_their_text_alone_are_one_delta(self) -> None:
        parsed = StreamReader().read(b"".join(event(chunk({"content": text})) for text in "abcd"))
        self.assertEqual(["a", "bcd"], self.texts(parsed.batch))

    def test_a_byte_order_mark_may_stand_at_the_beginning_alone(self) -> None:
        first, mark = event(chunk({"content": "a"})), b"\xef\xbb\xbf"
        for raw, texts in ((mark + first, ["a"]), (first + mark + first, ["a", None])):
            with self.subTest(raw):
                items = StreamReader().read(raw).batch
                self.assertEqual(texts, [item.text if isinstance(item, Delta) else None for item in items])

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
        parsed = next(parsed for parsed in map(reader.read, pieces) if parsed.is_done or parsed.problem)
        self.assertIsInstance(parsed.problem, UpstreamFailed)


def joined(*choices: dict[str, Any], **fields: Any) -> dict[str, Any]:
    chunks = [{"id": "1", "object": "chat.completion.chunk", **fields, "choices": [each]} for each in choices]
    chunks.append({"id": "1", "choices": [], "usage": {"total_tokens": 3}})
    data = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in chunks)

    def batches() -> Batches:
        yield [Heartbeat()]
        yield StreamReader().read(data).batch

    *waiting, last = join_stream(batches(), has_server_tools=False)
    assert waiting == [[Heartbeat()], [Heartbeat()]]
    assert isinstance(last, list)
    (delta,) = last
    assert isinstance(delta, Delta)
    assert delta.chunk is not None
    return dict(delta.chunk)


def piece(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish_reason}


class TestJoinedCompletions(unittest.TestCase):
    def test_everything_is_added_up(self) -> None:
        call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}
        more = {"index": 0, "function": {"arguments": "{}"}}
        found = joined(
            piece(role="assistant", reasoning_content="", content=None),
            *(piece(reasoning_content=each) for each in ("Th", "in", "k")),
            *(piece(content=each) for each in ("a", "b", "c", "d")), piece(tool_calls=[call]),
            piece(tool_calls=[more]), piece("tool_calls"), system_fingerprint="fp",
        )  # fmt: skip
        function = {"name": "f", "arguments": "{}"}
        message = {
            "role": "assistant", "content": "abcd", "reasoning_content": "Think",
            "tool_calls": [{"index": 0, "id": "c", "type": "function", "function": function}],
        }  # fmt: skip
        self.assertEqual(
            {
                "id": "1",
                "object": "chat.completion",
                "system_fingerprint": "fp",
                "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
                "usage": {"total_tokens": 3},
            },
            found,
        )

    def test_an_answer_without_thinking_has_no_reasoning(self) -> None:
        message = joined(piece(content="a"), piece("stop"))["choices"][0]["message"]
        self.assertEqual({"role": "assistant", "content": "a"}, message)

    def test_log_probabilities_are_joined(self) -> None:
        choices = [
            {**piece(content=each), "logprobs": {"content": [{"token": each}], "reasoning_content": None}}
            for each in ("a", "b")
        ]
        found = joined(*choices, {**piece("stop"), "logprobs": None})["choices"][0]["logprobs"]
        self.assertEqual({"content": [{"token": "a"}, {"token": "b"}], "reasoning_content": None}, found)

    def test_blocks_stay_blocks_with_the_text_between_them(self) -> None:
        found, other = {"type": "search_result", "url": "u"}, {"type": "text", "text": "b"}
        message = joined(piece(content="a"), piece(content=[found, other]), piece(content="c"), piece("stop"))
        texts = [{"type": "text", "text": each} for each in ("a", "c")]
        self.assertEqual([texts[0], found, other, texts[1]], message["choices"][0]["message"]["content"])


# By content: the reasoning and the text in it.
CONTENTS = {
    "<think>r</think>\n\na": ("r", "a"), " \n<think>\nr\n</think>a": ("\nr\n", "a"), "<think></think>a": ("", "a"),
    "<think>r": ("r", ""), "<think>r</thin": ("r</thin", ""), "<think>a < b </ c</think>d": ("a < b </ c", "d"),
    "<think>r</think>a <think>b</think>": ("r", "a <think>b</think>"),
    "a <think>b</think>": ("", "a <think>b</think>"), "<thinking>a": ("", "<thinking>a"), "<th": ("", "<th"),
    "  a": ("", "  a"), "<think>r</think>  ": ("r", ""), "": ("", ""),
}  # fmt: skip


def read(*pieces: str) -> tuple[str | None, object]:
    splitter, reply = ThinkSplitter(), Reply()
    for at, piece in enumerate(pieces):
        finish = "stop" if at == len(pieces) - 1 else None
        chunk = {"choices": [{"delta": {"content": piece}, "finish_reason": finish}]}
        delta = splitter.split(Delta(text=piece, finish_reason=finish, chunk=chunk))
        fields = written_chunk(delta)["choices"][0]["delta"]
        assert (fields.get("reasoning_content"), fields["content"]) == (delta.reasoning, delta.text), fields
        reply.add(delta)
    message = reply.message()
    return message.reasoning, message.content


class TestThinkSplitter(unittest.TestCase):
    def test_a_leading_block_becomes_reasoning_however_it_is_cut(self) -> None:
        for content, expected in CONTENTS.items():
            with self.subTest(content):
                self.assertEqual(expected, read(content))
                self.assertEqual(expected, read(*content, ""))
                for at in range(len(content)):
                    self.assertEqual(expected, read(content[:at], content[at:]))

    def test_a_whole_message_needs_no_finish_reason(self) -> None:
        chunk = {"choices": [{"message": {"content": "<think>r</think>a"}}]}
        delta = ThinkSplitter().split(Delta(text="<think>r</think>a", chunk=chunk), is_whole=True)
        self.assertEqual(("r", "a"), (delta.reasoning, delta.text))

    def test_the_completion_of_a_whole_message_has_its_reasoning(self) -> None:
        host = UNKNOWN._replace(form=ReasoningForm.THINK)
        message = {"role": "assistant", "content": "<think>r</think>a"}
        (delta,) = chat_api_for(host).read_answer(
            {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        )
        # As a display that shows it in the text leaves it.
        shown = written_completion(delta._replace(reasoning=None))["choices"][0]["message"]
        self.assertEqual(("r", "a"), (shown["reasoning_content"], shown["content"]))
