import json
import random
import unittest
from collections.abc import Sequence
from itertools import count
from typing import Any

from deepseek_cursor_proxy.conversation import ChatRequest, Delta, Reply
from deepseek_cursor_proxy.deepseek.chat_api import chunk_delta
from deepseek_cursor_proxy.deepseek.chat_stream import StreamReader, read_completion
from deepseek_cursor_proxy.features.written_calls.converter import WrittenCalls
from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.json_codec import encode_json
from tests.support.chunks import written_chunk, written_completion
from tests.support.width import width

SCHEMA = {
    "type": "object",
    "properties": {"q": {"type": "string"}, "n": {"type": ["integer", "null"]}, "x": {}, "o": {"type": "object"}},
    "required": ["q"],
}
TOOLS = (
    {"type": "function", "function": {"name": "search", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
)
ARGUMENTS = {"q": "cats"}


def block(name: str = "search", arguments: object = None, blanks: str = "\n") -> str:
    value = {"name": name, "arguments": ARGUMENTS if arguments is None else arguments}
    return f"<tool_call>{blanks}{json.dumps(value, ensure_ascii=False)}{blanks}</tool_call>"


BLOCK = block()


def chunk(finish: str | None = None, part: str = "delta", **fields: Any) -> dict[str, Any]:
    return {"id": "c", "model": "m", "choices": [{"index": 0, part: fields, "finish_reason": finish}]}


class Answer:
    """What becomes of an answer: the text and the calls in their order, and the whole as a Reply."""

    def __init__(self, *chunks: dict[str, Any], part: str = "delta", **request: Any) -> None:
        numbers, with_hermes = count(), request.pop("with_hermes", True)
        self.structured = 0
        calls = WrittenCalls(
            ChatRequest("m", "m", request.pop("messages", ()), request.pop("tools", TOOLS), **request),
            lambda: f"call_{next(numbers)}",
            self._count,
            with_hermes=with_hermes,
        )
        self.deltas: list[Delta] = []
        for body in chunks:
            for delta in read_completion(body) if part == "message" else [chunk_delta(body)]:
                is_plain = part == "delta" and calls.read_plain(delta)
                self.deltas += [delta] if is_plain else calls.convert(delta, is_whole=part == "message")
        self.reply = Reply()
        for delta in self.deltas:
            self.reply.add(delta)

    def _count(self) -> None:
        self.structured += 1

    @property
    def text(self) -> object:
        return self.reply.message().content

    @property
    def calls(self) -> list[tuple[str, Any]]:
        return [(call.name, json.loads(call.arguments)) for call in self.reply.message().tool_calls]

    @property
    def order(self) -> list[str]:
        found: list[str] = []
        for delta in self.deltas:
            found += [delta.text] if delta.text else []
            found += [f"[{piece.name}]" for piece in delta.calls if piece.name]
        return found


def streamed(text: str, size: int = 1000, finish: str = "stop", **request: Any) -> Answer:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return Answer(*[chunk(content=piece) for piece in pieces], chunk(finish), **request)


def plain(text: str, finish: str = "stop", **request: Any) -> Answer:
    return Answer(chunk(finish, "message", role="assistant", content=text), part="message", **request)


class TestCalls(unittest.TestCase):
    def check(self, text: str, expected: str, calls: Sequence[tuple[str, Any]], **request: Any) -> None:
        finish = "tool_calls" if calls else "stop"
        for answer in [plain(text, **request), *[streamed(text, size, **request) for size in (1, 2, 3, 7, 1000)]]:
            self.assertEqual((expected, list(calls)), (answer.text, answer.calls), text)
            self.assertEqual(finish, answer.reply.finish_reason)

    def test_a_block_is_a_call_and_the_text_around_it_stays_in_order(self) -> None:
        one = ("search", ARGUMENTS)
        for text, expected, calls in (
            (BLOCK, "", [one]), (block(blanks=""), "", [one]), (f"I look.\n\n{BLOCK}\n", "I look.", [one]),
            (f"I look. {BLOCK} Wait.", "I look.  Wait.", [one]),
            (f"a\r\n{BLOCK}\n{block('now', {})}\n\n", "a", [one, ("now", {})]),
            (f"{BLOCK} \n {BLOCK}", "", [one, one]), (block("search", json.dumps(ARGUMENTS)), "", [one]),
            (f"They write <tool_call> tags. {BLOCK}", "They write <tool_call> tags. ", [one]),
            (f"it`s\n\n{BLOCK}", "it`s", [one]), (f"`a` ``b ` c``\n{BLOCK}", "`a` ``b ` c``", [one]),
            (f"```\nx\n```\n{BLOCK}", "```\nx\n```", [one]),
            (f"<details>x</details>{BLOCK}", "<details>x</details>", [one]),
        ):  # fmt: skip
            with self.subTest(text):
                self.check(text, expected, calls)
        order = streamed(f"a{BLOCK}b{block('now', {})}c", client_api="responses").order
        self.assertEqual(["a", "[search]", "b", "[now]", "c"], order)

    def test_what_is_no_call_of_a_declared_tool_stays_text_to_the_byte(self) -> None:
        for text in (
            block("delete"), block("search", {}), block("search", {"q": 7}), block("search", {"q": "x", "n": "7"}),
            block("search", {"q": "x", "n": True}), block("search", ["cats"]), block("search", "no json"),
            '<tool_call>{"name": "search"}</tool_call>', '<tool_call>[{"name": "now", "arguments": {}}]</tool_call>',
            '<tool_call>{"name": "now", "arguments": {},}</tool_call>',
            '<tool_call>{"name": "now", "arguments": {}} x</tool_call>\n', "<tool_call></tool_call>", BLOCK[:-1],
            f"\n\n{BLOCK[:20]}\n\n", "a < b <tool_cal", "\n\n<\n", "<tool_call>{\n",
        ):  # fmt: skip
            with self.subTest(text):
                self.check(text, text, [])

    def test_text_stays_before_the_thoughts_that_follow_it(self) -> None:
        chunks = [chunk(content="a\n<"), chunk(reasoning_content="Hm."), chunk(content="b\n"), chunk("stop")]
        answer = Answer(*chunks)
        order = [each.text or each.reasoning for each in answer.deltas if each.text or each.reasoning]
        self.assertEqual(["a", "\n<", "Hm.", "b", "\n"], order)
        bodies = [written_chunk(each)["choices"][0]["delta"] for each in answer.deltas]
        self.assertEqual([{"content": "\n<"}, {"reasoning_content": "Hm."}], bodies[1:3])

    def test_the_model_knows_a_tool_by_the_name_that_it_got(self) -> None:
        answer = streamed(block("search_1"), sent_names={"search": "search_1"})
        self.assertEqual([("search_1", ARGUMENTS)], answer.calls)

    def test_a_marker_is_held_no_longer_than_needed(self) -> None:
        calls = WrittenCalls(ChatRequest("m", "m", (), TOOLS), str, with_hermes=True)
        for piece, expected in (("a <", "a "), ("b", "<b"), ("c <tool_call", "c "), ("s", "<tool_calls"), ("x\n", "x")):
            self.assertEqual(expected, "".join(each.text or "" for each in calls.convert(Delta(text=piece))))

    def test_chunks_have_the_calls_as_a_server_sends_them(self) -> None:
        chunks = [chunk(role="assistant", content="Hi"), chunk(content=BLOCK), chunk("stop", content="")]
        bodies = [written_chunk(delta)["choices"][0] for delta in Answer(*chunks).deltas]
        function = {"name": "search", "arguments": '{"q": "cats"}'}
        call = {"id": "call_0", "type": "function", "function": function}
        self.assertEqual({"role": "assistant", "content": "Hi"}, bodies[0]["delta"])
        self.assertEqual({"content": ""}, bodies[1]["delta"])
        self.assertEqual({"content": "", "tool_calls": [{"index": 0, **call}]}, bodies[2]["delta"])
        self.assertEqual("tool_calls", bodies[2]["finish_reason"])
        (whole,) = plain(f"Hi{BLOCK}").deltas
        expected = {"role": "assistant", "content": "Hi", "tool_calls": [call]}
        self.assertEqual(expected, written_completion(whole)["choices"][0]["message"])


class TestStructuredCalls(unittest.TestCase):
    def sent(self, arguments: str, name: str = "search") -> dict[str, Any]:
        function = {"name": name, "arguments": arguments}
        return chunk(tool_calls=[{"index": 0, "id": "sent", "type": "function", "function": function}])

    def test_a_call_is_never_made_twice(self) -> None:
        for arguments in ('{"q":"cats"}', "", "{}", "{ }"):
            for chunks in (
                [self.sent(arguments), chunk(content=BLOCK)],
                [chunk(content=BLOCK), self.sent(arguments)],
                [chunk(content=BLOCK[:9]), self.sent(arguments), chunk(content=BLOCK[9:])],
            ):
                with self.subTest(arguments, chunks=chunks):
                    answer = Answer(*chunks, chunk("stop"))
                    self.assertEqual(("", [("search", ARGUMENTS)]), (answer.text, answer.calls))
                    self.assertEqual("tool_calls", answer.reply.finish_reason)
            message = {**self.sent(arguments)["choices"][0]["delta"], "content": f"Hi\n{BLOCK}"}
            answer = Answer(chunk("stop", "message", **message), part="message")
            self.assertEqual(("Hi", [("search", ARGUMENTS)]), (answer.text, answer.calls))

    def test_a_call_after_a_marker_waits_for_the_end(self) -> None:
        first, call, last = Answer(chunk(content=BLOCK), self.sent('{"q": "dogs"}'), chunk("stop")).deltas
        self.assertEqual({"content": ""}, written_chunk(first)["choices"][0]["delta"])
        self.assertEqual({}, written_chunk(call)["choices"][0]["delta"])
        names = [(each["index"], each["id"]) for each in written_chunk(last)["choices"][0]["delta"]["tool_calls"]]
        self.assertEqual([(0, "call_0"), (1, "sent")], names)

    def test_all_of_a_text_comes_before_the_calls_of_the_server(self) -> None:
        call = self.sent('{"q":"cats"}')["choices"][0]["delta"]
        for text in ("Rain.", "Rain.\n", "Rain.\r\n\n", "\n", "a <", "a\n<"):
            for chunks in (
                [chunk(content=text), chunk(**call), chunk("tool_calls")],
                [chunk(content=text, **call), chunk("tool_calls")],
                [chunk("tool_calls", content=text, **call)],
            ):
                with self.subTest(text, chunks=chunks):
                    deltas = Answer(*chunks, client_api="responses").deltas
                    first = next(at for at, each in enumerate(deltas) if each.calls)
                    self.assertEqual(text, "".join(each.text or "" for each in deltas[: first + 1]))

    def test_different_calls_are_both_made(self) -> None:
        other = self.sent('{"q": "dogs"}')
        for chunks in ([other, chunk(content=BLOCK)], [chunk(content=BLOCK), other]):
            answer = Answer(*chunks, chunk("stop"))
            self.assertCountEqual([("search", ARGUMENTS), ("search", {"q": "dogs"})], answer.calls)

    def test_a_call_that_began_with_a_brace_takes_the_rest_from_its_block(self) -> None:
        for pieces in (("",), ("{",), ("{", "}"), ("{}",), (" {", "\n", "}")):
            deltas = [
                chunk(tool_calls=[{"index": 0, "id": "c", "function": {"name": "search", "arguments": piece}}])
                for piece in pieces
            ]
            answer = Answer(*deltas, chunk(content=BLOCK), chunk("stop"))
            self.assertEqual([("search", ARGUMENTS)], answer.calls, pieces)

    def test_a_whole_answer_without_written_calls_stays_as_it_came(self) -> None:
        for arguments in ("{}", "", '{"q": 1}'):
            for text in (None, "", "a < b", "Hi <tool_call", "<tool_call>{}</tool_call>"):
                with self.subTest(arguments, text=text):
                    message = {**self.sent(arguments, "now")["choices"][0]["delta"], "content": text}
                    body = chunk("tool_calls", "message", **message)
                    (whole,) = Answer(body, part="message").deltas
                    self.assertEqual(body, written_completion(whole))

    def test_a_server_that_sends_calls_is_reported(self) -> None:
        self.assertEqual(0, streamed(BLOCK).structured)
        self.assertGreater(Answer(self.sent("{}", "now"), chunk("tool_calls")).structured, 0)


class TestStream(unittest.TestCase):
    def read(self, *bodies: dict[str, Any]) -> list[Any]:
        calls, reader = WrittenCalls(ChatRequest("m", "m", (), TOOLS), lambda: "id", with_hermes=True), StreamReader()
        return [calls.read(reader.read, sse.event(encode_json(body))) for body in bodies]

    def test_a_written_call_is_stored_before_the_client_gets_it(self) -> None:
        begin, end, finish = self.read(
            chunk(content="a\n" + BLOCK[:30]), chunk(content=BLOCK[30:] + "b"), chunk("stop")
        )
        self.assertEqual((False, False), (begin.must_store_first, end.must_store_first))
        self.assertEqual((True, 0), (finish.must_store_first, finish.early_count))

    def test_what_is_held_is_not_lost_when_the_answer_breaks_off(self) -> None:
        for broken in ({"error": {"message": "x"}}, {"choices": 7, "error": "y"}):
            events = self.read(chunk(content="a\n" + BLOCK[:30]), broken)
            texts = [item.text for each in events for item in each.batch if item.text]
            self.assertEqual("a\n" + BLOCK[:30], "".join(texts))


WORDS = [
    "<tool_call>", "</tool_call>", "`", "```", "\n", "\n\n", "~~~\n", "<details>", "</details>", "<!--", "-->", " ",
    "<",
]  # fmt: skip
WORDS += ["{", "}", '"', "\\", "a", "é😀", block(), block("now", {}), block("none"), '{"name": "now", "arguments": {}}']


class TestLaws(unittest.TestCase):
    def test_no_text_raises_or_loses_a_byte_however_it_is_cut(self) -> None:
        chance = random.Random(7)
        for number in range(width(300, 30_000)):
            text = "".join(chance.choices(WORDS, k=chance.randrange(1, 12)))
            whole = plain(text)
            cuts = sorted(chance.randrange(len(text) + 1) for _ in range(chance.randrange(6)))
            pieces = [text[one:other] for one, other in zip([0, *cuts], [*cuts, len(text)], strict=True)]
            answer = Answer(*[chunk(content=piece) for piece in pieces], chunk("stop"))
            with self.subTest(number, text=text):
                self.assertEqual(whole.reply.message(), answer.reply.message())
                self.assertEqual(whole.reply.finish_reason, answer.reply.finish_reason)
                if not answer.calls:
                    self.assertEqual(text, answer.text)
