import json
import random
import unittest
from collections.abc import Sequence
from typing import Any

from deepseek_cursor_proxy.conversation import CallPiece, ChatRequest, Delta, Reply, ToolCall
from deepseek_cursor_proxy.features.written_calls.call_markup import find_call
from deepseek_cursor_proxy.features.written_calls.converter import WrittenCalls
from tests.support.generated_answers import parts
from tests.support.width import width

NAMED = {"type": "function", "function": {"name": "look_up"}}
ARGUMENTS = {"path": 'a\n"b"', "deep": {"n": 1, "é": [None]}}
CALL_TEXT = json.dumps(ARGUMENTS)


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


def request(choice: Any = NAMED, *names: str) -> ChatRequest:
    tools = tuple(tool(name) for name in names or ("look_up", "other"))
    return ChatRequest("m", "deepseek-v4-pro", (), tools=tools, tool_choice=choice)


def forced(schema: Any) -> ChatRequest:
    declared = {"type": "function", "function": {"name": "look_up", "parameters": schema}}
    return ChatRequest("m", "deepseek-v4-pro", (), tools=(declared,), tool_choice=NAMED)


PATH = forced({"type": "object", "properties": {"path": {"type": "string"}}})


def find(text: str, chat: ChatRequest | None = None) -> tuple[str, Any] | None:
    call = find_call(text, chat or request())
    return None if call is None else (call[0], json.loads(call[1]))


CALLS = {
    "the arguments alone": CALL_TEXT,
    "under input": json.dumps({"input": ARGUMENTS}),
    "under arguments": json.dumps({"arguments": ARGUMENTS}),
    "under parameters": json.dumps({"parameters": ARGUMENTS}),
    "with the name": json.dumps({"name": "look_up", "input": ARGUMENTS}),
    "with another word for the name": json.dumps({"tool": "look_up", "arguments": ARGUMENTS}),
    "with the word of a call for the name": json.dumps({"function": "look_up", "arguments": ARGUMENTS}),
    "with the name beside them": json.dumps({"name": "look_up", **ARGUMENTS}),
    "as a block": json.dumps({"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": ARGUMENTS}),
    "as a call": json.dumps({"type": "function", "function": {"name": "look_up", "arguments": ARGUMENTS}}),
    "as a call with a string": json.dumps({"id": "a", "function": {"name": "look_up", "arguments": CALL_TEXT}}),
    "as a string": json.dumps({"name": "look_up", "arguments": CALL_TEXT}),
    "as a string without the name": json.dumps({"arguments": CALL_TEXT}),
    "in a list": json.dumps([{"name": "look_up", "input": ARGUMENTS}]),
    "with a result": json.dumps({"input": ARGUMENTS, "result": {"path": "made up"}}),
    "with a name and a result": json.dumps({"tool": "look_up", "arguments": CALL_TEXT, "output": "made up"}),
    "with a result in a call": json.dumps({"function": {"name": "look_up", "arguments": ARGUMENTS, "results": []}}),
    "with room around": f"\n\n  {CALL_TEXT} \n",
    "over several lines": json.dumps({"name": "look_up", "input": ARGUMENTS}, indent=2),
}
FENCES = ("```json\n{}\n```", "```\n{}\n```", "\n```JSON  \n{}```  \n", "```\n\n{}\n\n```")
BROKEN = {"name": "look_up", "arguments": CALL_TEXT[:-1]}
NO_CALLS = (
    *("", "I cannot do that.", f"Here it is: {CALL_TEXT}", f"```json\n{CALL_TEXT}\n```\nThat is all."),
    *(CALL_TEXT[:-1], CALL_TEXT + "}", "5", "null", '"look_up"', "[]", "[1, 2]", json.dumps([ARGUMENTS, ARGUMENTS])),
    *(json.dumps({"name": name, "input": ARGUMENTS}) for name in ("other", "of nobody")),
    json.dumps({"function": {"name": "of nobody", "arguments": CALL_TEXT}}),
    *(json.dumps(BROKEN), json.dumps({"function": BROKEN}), "```\n```", "``` ``` ```", "[" * 5000, "9" * 5000),
)


class TestFindCall(unittest.TestCase):
    def test_a_call_written_as_text_is_found_in_every_form(self) -> None:
        for name, text in CALLS.items():
            for answer in (text, *(fence.replace("{}", text) for fence in FENCES)):
                self.assertEqual(("look_up", ARGUMENTS), find(answer), (name, answer))

    def test_text_that_is_no_call_gives_none(self) -> None:
        for text in NO_CALLS:
            self.assertIsNone(find_call(text, request()), text[:60])

    def test_with_several_tools_a_call_as_text_must_name_its_tool(self) -> None:
        self.assertIsNone(find(CALL_TEXT, request("required")))
        self.assertEqual(("look_up", ARGUMENTS), find(CALL_TEXT, request("required", "look_up")))
        other = json.dumps({"name": "other", "input": ARGUMENTS})
        self.assertEqual(("other", ARGUMENTS), find(other, request("required")))

    def test_arguments_named_like_the_fields_of_a_call_stay_arguments(self) -> None:
        inputs = ({"input": "some text"}, {"input": [1]}, {"input": "5"}, {"arguments": {"a": 1}, "more": 2})
        for arguments in (*inputs, {"name": "Bob", "age": 3}, {"arguments": "some text", "name": "Bob"}):
            self.assertEqual(("look_up", arguments), find(json.dumps(arguments)))
        self.assertEqual(("look_up", {"input": "text"}), find('{"name": "look_up", "input": "text"}'))

    def test_a_call_as_text_with_broken_arguments_stays_text(self) -> None:
        """It became a call with a made-up argument named "arguments"."""
        for chat in (request(), PATH):
            for arguments in ('{"path": "a', "{path: a}", "[1", '{"path": "a"}}', "[1]", [1], 5, True, "a.py"):
                for field in ("arguments", "parameters"):
                    for written in (
                        {"name": "look_up", field: arguments},
                        {"type": "function", "id": "a", "function": {"name": "look_up", field: arguments}},
                        [{"tool": "look_up", field: arguments}],
                    ):
                        self.assertIsNone(find(json.dumps(written), chat), written)
            self.assertIsNone(find('{"input": "{broken"}', chat))

    def test_a_result_beside_a_call_is_no_argument_unless_the_tool_declares_it(self) -> None:
        for written in (
            {"input": {"path": "a"}, "result": {"text": "made up"}},
            {"result": None, "name": "look_up", "input": '{"path": "a"}'},
            {"path": "a", "result": "made up"},
        ):
            self.assertEqual(("look_up", {"path": "a"}), find(json.dumps(written), PATH))
        reporter = forced({"type": "object", "properties": {"input": {}, "result": {}}, "required": ["result"]})
        for arguments in ({"input": "q", "result": 5}, {"input": {"path": "a"}, "result": {}}, {"result": "done"}):
            self.assertEqual(("look_up", arguments), find(json.dumps(arguments), reporter))
        patch = forced({"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]})
        self.assertEqual(("look_up", {"input": "+ a"}), find('{"input": "+ a", "result": "Done."}', patch))
        self.assertIsNone(find('{"input": "{broken", "result": 1}'))
        self.assertIsNone(find('{"result": "I cannot do that."}', PATH))
        for arguments in ({"path": "a", "result": 1}, {"result": 1}):
            self.assertEqual(("look_up", arguments), find(json.dumps(arguments)))

    def test_parameters_named_like_the_fields_of_a_call_stay_parameters(self) -> None:
        for properties in (("name", "input"), ("input",), ("id", "arguments", "type")):
            arguments = {name: {"a": 1} if name in ("input", "arguments") else "Bob" for name in properties}
            schema = {"type": "object", "properties": {name: {} for name in properties}, "required": [properties[0]]}
            for written in (arguments, {"input": arguments}, {"name": "look_up", "input": arguments}):
                self.assertEqual(("look_up", arguments), find(json.dumps(written), forced(schema)), written)

    def test_json_that_does_not_fit_the_forced_tool_stays_text(self) -> None:
        chat = forced({"type": "object", "properties": {"path": {}, "tool": {}}, "required": ["path"]})
        for text in (
            '{"error": "I cannot do that."}', '{"look_up": {"path": "a"}}', '{"tool_calls": []}',
            '{"name": "of nobody", "input": {"path": "a"}}',
        ):  # fmt: skip
            self.assertIsNone(find(text, chat))
        for arguments in ({"path": "a", "more": 1}, {"tool": "x"}, {}):
            self.assertEqual(("look_up", arguments), find(json.dumps(arguments), chat))
        both = {"name": "look_up", "path": "a", "tool": "hammer"}
        self.assertEqual(("look_up", {"path": "a", "tool": "hammer"}), find(json.dumps(both), chat))

    def test_any_schema_of_a_forced_tool_is_tolerated(self) -> None:
        for schema in (None, {}, {"properties": 7}, {"properties": {"path": 7}, "required": [[], "x", 7]}):
            for text in ('{"path": "a"}', '{"input": {"path": "a"}}', '{"name": "look_up", "input": {"path": "a"}}'):
                self.assertEqual(("look_up", {"path": "a"}), find(text, forced(schema)))


class TestConversion(unittest.TestCase):
    def convert(self, *deltas: Delta, chat: ChatRequest | None = None) -> list[Delta]:
        calls = WrittenCalls(chat or request(), lambda: "call_x", with_markup=False)
        return [each for delta in deltas for each in ([delta] if calls.read_plain(delta) else calls.convert(delta))]

    def text(self, deltas: Sequence[Delta]) -> str:
        return "".join(delta.text or "" for delta in deltas)

    def test_streamed_text_of_a_call_becomes_one_call_however_it_is_cut(self) -> None:
        for seed in range(width(10, 50)):
            rng = random.Random(seed)
            text = rng.choice(list(CALLS.values()))
            deltas = [Delta(text=part) for part in parts(rng, text)]
            found = self.convert(Delta(reasoning=""), *deltas, Delta(finish_reason="stop", usage={"total_tokens": 1}))
            self.assertEqual("", self.text(found))
            [piece] = found[-1].calls
            self.assertEqual(("call_x", "look_up", ARGUMENTS), (piece.id, piece.name, json.loads(piece.arguments)))
            self.assertEqual(("tool_calls", {"total_tokens": 1}), (found[-1].finish_reason, found[-1].usage))

    def test_streamed_text_that_is_no_call_comes_unchanged(self) -> None:
        for seed, text in enumerate(NO_CALLS[1:-2]):
            deltas = [Delta(text=part) for part in parts(random.Random(seed), text)]
            found = self.convert(*deltas, Delta(finish_reason="stop"))
            self.assertEqual((text, "stop"), (self.text(found), found[-1].finish_reason))
            self.assertFalse([delta for delta in found if delta.calls])

    def test_only_a_finished_text_becomes_a_forced_call(self) -> None:
        for reason in ("length", "content_filter"):
            found = self.convert(Delta(text=CALL_TEXT), Delta(finish_reason=reason))
            self.assertEqual((CALL_TEXT, reason, ()), (self.text(found), found[-1].finish_reason, found[-1].calls))

    def test_an_answer_with_a_real_call_is_not_converted(self) -> None:
        piece = CallPiece(0, "a", "look_up", "{}")
        for deltas in ([Delta(text=CALL_TEXT), Delta(calls=(piece,))], [Delta(calls=(piece,)), Delta(text=CALL_TEXT)]):
            found = self.convert(*deltas, Delta(finish_reason="stop"))
            reply = Reply()
            for delta in found:
                reply.add(delta)
            self.assertEqual(CALL_TEXT, reply.message().content)
            self.assertEqual((ToolCall("a", "look_up", "{}"),), reply.message().tool_calls)

    def test_reasoning_is_not_held_back_for_a_forced_tool(self) -> None:
        found = self.convert(Delta(text="x"), Delta(reasoning="hm"))
        self.assertEqual([Delta(text=""), Delta(text="x"), Delta(reasoning="hm")], found)
