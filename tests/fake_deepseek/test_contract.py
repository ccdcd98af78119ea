"""What DeepSeek refuses, as tables: a body, and the words it earns."""

import unittest
from collections.abc import Iterable
from typing import Any

from tests.fake_deepseek import contract
from tests.fake_deepseek.contract import (
    DESERIALIZE,
    MISSING_REASONING,
    NEWEST_RULES,
    Rules,
    refusal,
)

Payload = dict[str, Any]

BETA = Rules(is_beta=True)
USER = {"role": "user", "content": "Hello?"}
SYSTEM = {"role": "system", "content": "Be brief."}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
NAMED = {"type": "function", "function": {"name": "look"}}
OFF = {"type": "disabled"}


def call(id: str = "call_1", **function: Any) -> Payload:
    return {"id": id, "type": "function", "function": {"name": "look", "arguments": "{}", **function}}


def calls(*ids: str, reasoning: str | None = "Let me look.") -> Payload:
    message = {"role": "assistant", "content": None, "tool_calls": [call(id) for id in ids]}
    return message if reasoning is None else {**message, "reasoning_content": reasoning}


def says(text: str = "Hello.", reasoning: str | None = "I greet.") -> Payload:
    message = {"role": "assistant", "content": text}
    return message if reasoning is None else {**message, "reasoning_content": reasoning}


def result(id: str = "call_1") -> Payload:
    return {"role": "tool", "tool_call_id": id, "content": "seen"}


def body(*messages: Any, **fields: Any) -> Payload:
    return {"model": "deepseek-v4-pro", "messages": list(messages) or [USER], **fields}


def without(message: Payload, *names: str) -> Payload:
    return {name: value for name, value in message.items() if name not in names}


class ContractCase(unittest.TestCase):
    def assert_accepted(self, payload: object, rules: Rules = NEWEST_RULES) -> None:
        self.assertIsNone(refusal(payload, rules))

    def assert_refused(self, payload: object, words: str, rules: Rules = NEWEST_RULES) -> None:
        found = refusal(payload, rules)
        self.assertEqual(found and found.status, 400)
        self.assertIn(words, found.message)

    def assert_all_refused(self, rows: Iterable[tuple[str, object]]) -> None:
        for words, payload in rows:
            with self.subTest(words, payload=str(payload)[:80]):
                self.assert_refused(payload, words)


class TestAcceptedBodies(ContractCase):
    def test_what_a_careful_client_sends_is_accepted(self) -> None:
        bodies = {
            "one question": body(USER),
            "null means absent": body(
                USER, tools=None, stream=None, stream_options=None, thinking=None, max_tokens=None
            ),
            "unknown top-level fields": body(USER, prompt_cache_key="x", parallel_tool_calls=True),
            "a whole tool loop": body(
                SYSTEM, USER, calls("a", "b"), result("b"), result("a"), says(), USER, tools=[TOOL]
            ),
            "a system message in the middle": body(USER, says(), SYSTEM, USER, tools=[TOOL]),
            "the server's own reminder role": body({"role": "latest_reminder", "content": "Mind the time."}, USER),
            "text parts": body({"role": "user", "content": [{"type": "text", "text": "Hi"}]}),
            "an image for flash": body({"role": "user", "content": [IMAGE]}) | {"model": "deepseek-flash"},
            "an image for pro, which reads a placeholder": body({"role": "user", "content": [IMAGE]}),
            "any user": body(user_id="me@example.com"),
            "usage with a stream": body(USER, stream=True, stream_options={"include_usage": True}),
            "a forced tool without thinking": body(USER, tools=[TOOL], tool_choice=NAMED, thinking=OFF),
            "automatic tools": body(USER, tools=[TOOL], tool_choice="auto"),
            "effort none": body(USER, reasoning_effort="none"),
            "all limits": body(USER, max_tokens=393216, temperature=2, top_p=1, stop=["x"] * 16, user_id="a-Z_0" * 100),
            "JSON output": body(USER, response_format={"type": "json_object"}),
        }
        for name, payload in bodies.items():
            with self.subTest(name):
                self.assert_accepted(payload)

    def test_prefix_and_strict_functions_are_for_the_beta_path(self) -> None:
        strict = {"type": "function", "function": {"name": "look", "strict": True}}
        begun = {**says("Once"), "prefix": True}
        for name, payload in {"prefix": body(USER, begun), "strict": body(USER, tools=[strict])}.items():
            with self.subTest(name):
                self.assert_accepted(payload, BETA)
                self.assert_refused(payload, "/beta")
        self.assert_refused(body(USER, begun, USER), "last message", BETA)
        self.assert_refused(body(USER, tools=[strict, TOOL | {"function": {"name": "b"}}]), "all of them", BETA)


class TestRefusedTypes(ContractCase):
    def test_a_value_of_the_wrong_type_is_named_with_its_place(self) -> None:
        bodies = {
            "invalid type: sequence, expected a map": [],
            "missing field `model`": without(body(), "model"),
            "missing field `messages`": without(body(), "messages"),
            "model: invalid type: integer `5`, expected a string": body() | {"model": 5},
            "messages: invalid type: map, expected a sequence": body() | {"messages": {}},
            'messages[0]: invalid type: string "hi", expected a map': body("hi"),
            "stream: invalid type: integer `1`, expected a boolean": body(stream=1),
            "max_tokens: invalid type: boolean `true`, expected an integer": body(max_tokens=True),
            "max_tokens: invalid type: floating point `1.5`, expected an integer": body(max_tokens=1.5),
            'temperature: invalid type: string "1"': body(temperature="1"),
            "tools: invalid type: map": body(tools={}),
            "tools[0].function: missing field `name`": body(tools=[{"type": "function", "function": {}}]),
            "thinking: missing field `type`": body(thinking={}),
            "stop: invalid type: integer `3`, expected a string or a sequence": body(stop=3),
            "user_id: invalid type: integer `3`": body(user_id=3),
        }
        self.assert_all_refused((DESERIALIZE + words, payload) for words, payload in bodies.items())

    def test_a_word_outside_its_list_is_an_unknown_variant(self) -> None:
        bodies = {
            "messages[0].role: unknown variant `developer`, expected one of `system`, `user`, `assistant`, `tool`, "
            "`latest_reminder`": body({"role": "developer", "content": "x"}),
            "messages[1].role: unknown variant `function`": body(USER, {"role": "function", "content": "x"}),
            "tools[0].type: unknown variant `custom`, expected `function`": body(tools=[{"type": "custom"}]),
            "reasoning_effort: unknown variant `huge`": body(reasoning_effort="huge"),
            "thinking.type: unknown variant `adaptive`, expected `enabled` or `disabled`": body(
                thinking={"type": "adaptive"}
            ),
            "tool_choice: unknown variant `any`, expected one of": body(tools=[TOOL], tool_choice="any"),
            "tool_choice.type: unknown variant `tool`": body(tools=[TOOL], tool_choice={"type": "tool"}),
            "messages[0].content[0].type: unknown variant `input_text`": body(
                {"role": "user", "content": [{"type": "input_text", "text": "x"}]}
            ),
        }
        self.assert_all_refused((DESERIALIZE + words, payload) for words, payload in bodies.items())

    def test_each_role_has_its_own_content(self) -> None:
        parts = [{"type": "text", "text": "x"}]
        messages = {
            "messages[0]: missing field `content`": {"role": "user"},
            "messages[0].content: invalid type: null, expected a string or a sequence": {
                "role": "user",
                "content": None,
            },
            "messages[0].content: invalid type: sequence, expected a string": {"role": "system", "content": parts},
            "messages[0].content: invalid type: sequence, expected a string or null": {**says(), "content": parts},
        }
        for words, message in messages.items():
            with self.subTest(words):
                self.assert_refused(body(message), DESERIALIZE + words)
        self.assert_refused(body(without(says(), "content")), DESERIALIZE + "messages[0]: missing field `content`")
        self.assert_refused(
            body(USER, calls("call_1"), {**result(), "content": parts}),
            DESERIALIZE + "messages[2].content: invalid type: sequence, expected a string",
        )


class TestRefusedFields(ContractCase):
    def test_a_field_out_of_bounds_or_against_another_is_refused(self) -> None:
        limits = "Invalid max_tokens value, the valid range of max_tokens is [1, 393216]"
        rows: list[tuple[str, Payload]] = [
            ("Model Not Exist", body() | {"model": "deepseek-chat"}),
            (limits, body(max_tokens=0)),
            (limits, body(max_tokens=393217)),
            ("Invalid temperature value", body(temperature=2.1)),
            ("Invalid 'stop'", body(stop=["x"] * 17)),
            ("Invalid 'stop'", body(stop=[1])),
            ("stream_options should be set along with stream = true", body(stream_options={"include_usage": True})),
            ("response_format type is unavailable", body(response_format={"type": "json_schema"})),
            ("Invalid 'user_id': longer than 512 bytes", body(user_id="é" * 257)),
            ("Tool names must be unique.", body(tools=[TOOL, TOOL])),
            ("Invalid function name 'a b'", body(tools=[{"type": "function", "function": {"name": "a b"}}])),
            ("at most 128 functions", body(tools=[TOOL] * 129)),
            ("Empty input messages", body() | {"messages": []}),
            (contract.FORCED_TOOL, body(tools=[TOOL], tool_choice="required")),
            (contract.FORCED_TOOL, body(tools=[TOOL], tool_choice=NAMED)),
            (contract.EFFORT_WITHOUT_THINKING, body(thinking=OFF, reasoning_effort="high")),
            ("unknown field `reasoning_details`", body(USER, {**says(), "reasoning_details": []}, USER)),
        ]
        self.assert_all_refused(rows)


class TestToolHistories(ContractCase):
    def test_every_call_needs_its_result_before_anything_else(self) -> None:
        rows: list[tuple[str, Payload]] = [
            ("no result at all", body(USER, calls("a"))),
            ("one of two", body(USER, calls("a", "b"), result("a"), USER)),
            ("a user in between", body(USER, calls("a"), USER, result("a"))),
            ("a second assistant in between", body(USER, calls("a"), calls("b"), result("a"), result("b"))),
        ]
        for name, payload in rows:
            with self.subTest(name):
                self.assert_refused(payload, contract.UNANSWERED_CALLS)

    def test_every_result_needs_its_call(self) -> None:
        rows: list[tuple[str, Payload]] = [
            ("no call at all", body(USER, result("a"))),
            ("another id", body(USER, calls("a"), result("b"))),
            ("answered twice", body(USER, calls("a"), result("a"), result("a"))),
            ("the call is too far back", body(USER, calls("a"), result("a"), USER, result("a"))),
        ]
        for name, payload in rows:
            with self.subTest(name):
                self.assert_refused(payload, contract.ORPHAN_RESULT)

    def test_calls_and_results_need_ids_and_text_arguments(self) -> None:
        broken = {"role": "assistant", "content": None, "reasoning_content": "x"}
        rows: list[tuple[str, Payload]] = [
            ("tool_calls[0]: missing field `id`", body(USER, {**broken, "tool_calls": [without(call(), "id")]})),
            ("tool_calls[0].id: invalid type: null", body(USER, {**broken, "tool_calls": [call() | {"id": None}]})),
            ("must not be empty", body(USER, calls(""), result(""))),
            ("must not be empty", body(USER, calls("a"), result(""))),
            ("messages[2]: missing field `tool_call_id`", body(USER, calls("a"), without(result(), "tool_call_id"))),
            ("arguments: invalid type: map", body(USER, {**broken, "tool_calls": [call(arguments={})]})),
        ]
        self.assert_all_refused(rows)


class TestReasoning(ContractCase):
    bare = staticmethod(lambda *ids: calls(*ids, reasoning=None))
    plain = says(reasoning=None)

    def test_since_august_a_request_with_tools_owes_the_reasoning_of_every_turn(self) -> None:
        rows: list[tuple[str, Payload]] = [
            ("a plain answer", body(USER, self.plain, USER, tools=[TOOL])),
            ("a call", body(USER, self.bare("a"), result("a"), tools=[TOOL])),
            ("the answer after the result", body(USER, calls("a"), result("a"), self.plain, USER, tools=[TOOL])),
            ("null is not a string", body(USER, {**says(), "reasoning_content": None}, USER, tools=[TOOL])),
            ("thinking said out loud", body(USER, self.plain, USER, tools=[TOOL], thinking={"type": "enabled"})),
        ]
        for name, payload in rows:
            with self.subTest(name):
                self.assert_refused(payload, MISSING_REASONING)
                self.assertEqual(refusal(payload), contract.Refusal(MISSING_REASONING))

    def test_without_tools_only_the_loop_the_history_ends_in_is_owed(self) -> None:
        loop = [USER, self.bare("a"), result("a")]
        self.assert_refused(body(*loop), MISSING_REASONING)
        self.assert_refused(body(USER, calls("a"), result("a"), self.bare("b"), result("b")), MISSING_REASONING)
        self.assert_accepted(body(*loop, USER))
        self.assert_accepted(body(USER, self.plain, USER))
        self.assert_accepted(body(USER, self.plain, calls("a"), result("a")))

    def test_in_april_only_the_turns_that_used_a_tool_were_owed(self) -> None:
        self.assert_accepted(body(USER, self.plain, USER, tools=[TOOL]), Rules("april"))
        for tools in ([TOOL], []):
            closed = body(USER, calls("a"), result("a"), self.plain, USER, tools=tools)
            self.assert_refused(closed, MISSING_REASONING, Rules("april"))

    def test_without_thinking_nothing_is_owed(self) -> None:
        for off in ({"thinking": OFF}, {"reasoning_effort": "none"}):
            self.assert_accepted(body(USER, self.bare("a"), result("a"), tools=[TOOL], **off))

    def test_empty_reasoning_passes_unless_told_otherwise_and_a_space_always(self) -> None:
        empty = body(USER, says(reasoning=""), USER, tools=[TOOL])
        space = body(USER, says(reasoning=" "), USER, tools=[TOOL])
        self.assert_accepted(empty)
        self.assert_refused(empty, MISSING_REASONING, Rules(refuses_empty=True))
        self.assert_accepted(space, Rules(refuses_empty=True))

    def test_v4_pro_refuses_empty_reasoning_with_a_call(self) -> None:
        empty = body(USER, calls("a") | {"reasoning_content": ""}, result("a"), tools=[TOOL])
        self.assert_refused(empty, MISSING_REASONING)
        self.assert_accepted(empty | {"model": "deepseek-flash"})
        self.assert_accepted(body(USER, calls("a") | {"reasoning_content": " "}, result("a"), tools=[TOOL]))

    def test_the_order_of_a_history_is_judged_before_its_reasoning(self) -> None:
        self.assert_refused(body(USER, self.bare("a"), USER, tools=[TOOL]), contract.UNANSWERED_CALLS)

    def test_an_unknown_month_is_a_mistake_of_the_test(self) -> None:
        with self.assertRaisesRegex(ValueError, "july"):
            Rules("july")
