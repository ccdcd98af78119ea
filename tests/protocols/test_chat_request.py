import unittest
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import ChatRequest, Message, ToolCall
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.protocols.chat_request import parse
from tests.histories import TOOLS

HI = [{"role": "user", "content": "hi"}]


def parsed(_settings: dict[str, Any] | None = None, **body: Any) -> ChatRequest:
    return parse({"model": "deepseek-v4-pro", "messages": HI, **body}, ProxyConfig(**(_settings or {})))


def message(**fields: Any) -> Message:
    return parsed(messages=[fields]).messages[0]


class TestFields(unittest.TestCase):
    def test_what_deepseek_knows_is_forwarded(self) -> None:
        fields = {
            "max_tokens": 5,
            "response_format": {"type": "json_object"},
            "stop": ["a"],
            "temperature": 0.5,
            "top_p": 1,
            "presence_penalty": 0,
            "frequency_penalty": 0.1,
            "logprobs": True,
            "top_logprobs": 3,
            "seed": 7,
            "logit_bias": {"1": 2},
            "user_id": "me",
        }
        self.assertEqual(fields, parsed(**fields).params)

    def test_what_it_calls_differently_is_translated(self) -> None:
        self.assertEqual({"max_tokens": 5}, parsed(max_completion_tokens=5).params)
        self.assertEqual({"max_tokens": 3}, parsed(max_completion_tokens=5, max_tokens=3).params)
        self.assertEqual({"user_id": "abc-1_2"}, parsed(user="abc-1_2").params)

    def test_a_user_that_is_no_legal_user_id_is_left_out(self) -> None:
        for user in ("", "ä", "a b", "x" * 513):
            self.assertEqual({}, parsed(user=user).params)

    def test_null_counts_as_absent(self) -> None:
        names = "max_tokens stop tools tool_choice stream user temperature n reasoning reasoning_effort functions"
        self.assertEqual(parsed(), parsed(**dict.fromkeys(names.split())))

    def test_what_nobody_knows_is_dropped_and_named(self) -> None:
        request = parsed(parallel_tool_calls=True, store=False, metadata={}, thinking={"type": "disabled"})
        self.assertEqual(("metadata", "parallel_tool_calls", "store", "thinking"), request.dropped)
        self.assertEqual({}, request.params)
        self.assertTrue(request.thinking)

    def test_values_that_mean_nothing_to_it_are_named_too(self) -> None:
        self.assertEqual(("reasoning_effort galactic", "user"), parsed(user="a b", reasoning_effort="galactic").dropped)
        self.assertEqual((), parsed(user="ab", reasoning_effort="none").dropped)

    def test_the_model_is_remembered_as_asked(self) -> None:
        request = parsed(model="gpt-9")
        self.assertEqual(("gpt-9", "deepseek-v4-pro"), (request.asked_model, request.model))
        self.assertEqual("mine", parsed({"upstream_model": "mine"}, model=None).asked_model)

    def test_one_to_eight_choices_may_be_asked_for(self) -> None:
        self.assertEqual([1, 1, 8], [parsed(n=n).choices for n in (None, 1, 8)])
        self.assertEqual({}, parsed(n=2).params)
        for n in (0, -1, 9, 10**30):
            with self.assertRaises(BadRequest) as caught:
                parsed(n=n)
            self.assertEqual("n", caught.exception.param)

    def test_every_field_of_a_wrong_type_is_named(self) -> None:
        wrong: dict[str, list[Any]] = {
            "model": [7, []],
            "messages": [7, None, {}, "hi"],
            "stream": ["yes", 1],
            "stream_options": [True],
            "max_tokens": ["5", -1, 1.5, True],
            "max_completion_tokens": ["5", True],
            "temperature": ["hot", True, []],
            "top_p": [{}],
            "stop": [7, [7]],
            "tools": [7, {}],
            "functions": [7],
            "tool_choice": [7, []],
            "logprobs": [1],
            "logit_bias": [[]],
            "seed": ["x"],
            "user": [7],
            "user_id": [7],
            "n": ["2", 1.5],
            "reasoning": ["high"],
            "reasoning_effort": [7],
            "response_format": ["json"],
        }
        for name, values in wrong.items():
            for value in values:
                with self.subTest(name=name, value=value), self.assertRaises(BadRequest) as caught:
                    parsed(**{name: value})
                self.assertEqual(name, caught.exception.param)


class TestThinking(unittest.TestCase):
    def test_efforts_follow_deepseeks_table(self) -> None:
        for asked, sent in {
            "minimal": "low",
            "low": "low",
            "medium": "high",
            "high": "high",
            "xhigh": "high",
            "max": "max",
            "ultra": "max",
        }.items():
            self.assertEqual(sent, parsed(reasoning_effort=asked).effort)
            self.assertEqual(sent, parsed(reasoning={"effort": asked}).effort)
            self.assertEqual(sent, parsed({"reasoning_effort": asked}).effort)

    def test_a_word_nobody_knows_gets_the_configured_effort(self) -> None:
        self.assertEqual("max", parsed({"reasoning_effort": "max"}, reasoning_effort="galactic").effort)

    def test_none_turns_thinking_off_for_this_request(self) -> None:
        self.assertFalse(parsed(reasoning_effort="none").thinking)
        self.assertFalse(parsed(reasoning={"effort": "none"}).thinking)

    def test_a_forced_tool_turns_it_off_too(self) -> None:
        named = {"type": "function", "function": {"name": "read_file"}}
        self.assertFalse(parsed(tools=TOOLS, tool_choice="required").thinking)
        self.assertFalse(parsed(tools=TOOLS, tool_choice=named).thinking)
        self.assertTrue(parsed(tools=TOOLS, tool_choice="auto").thinking)

    def test_the_configuration_can_turn_it_off_for_all(self) -> None:
        self.assertFalse(parsed({"thinking": "disabled"}).thinking)


class TestTools(unittest.TestCase):
    def test_nested_tools_pass_as_they_are(self) -> None:
        self.assertEqual(tuple(TOOLS), parsed(tools=TOOLS).tools)

    def test_flat_and_legacy_functions_are_nested(self) -> None:
        function = {"name": "read_file", "parameters": {}}
        nested = {"type": "function", "function": function}
        self.assertEqual((nested,), parsed(tools=[{"type": "function", **function}]).tools)
        legacy = parsed(functions=[function], function_call={"name": "read_file"})
        self.assertEqual((nested,), legacy.tools)
        self.assertEqual({"type": "function", "function": {"name": "read_file"}}, legacy.tool_choice)

    def test_an_empty_list_is_no_tools(self) -> None:
        self.assertEqual((), parsed(tools=[]).tools)

    def test_odd_tools_are_named(self) -> None:
        for tool, param in (
            (7, "tools[0]"),
            ({"type": "custom", "name": "x"}, "tools[0].type"),
            ({"type": "function"}, "tools[0].function"),
            ({"type": "function", "function": {}}, "tools[0].function.name"),
            ({"type": "function", "function": {"name": ""}}, "tools[0].function.name"),
        ):
            with self.subTest(tool), self.assertRaises(BadRequest) as caught:
                parsed(tools=[tool])
            self.assertEqual(param, caught.exception.param)


class TestMessages(unittest.TestCase):
    def test_roles_deepseek_does_not_know_are_translated(self) -> None:
        for asked, role in {"developer": "system", "wizard": "user", "system": "system", "user": "user"}.items():
            self.assertEqual(Message(role, "x"), message(role=asked, content="x"))

    def test_text_parts_are_joined_and_nothing_is_text(self) -> None:
        parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c", {"text": "d"}]
        self.assertEqual("a\nb\nc\nd", message(role="user", content=parts).content)
        for nothing in (None, [], ""):
            self.assertEqual("", message(role="assistant", content=nothing).content)
        self.assertEqual("", message(role="assistant").content)

    def test_pictures_stay_parts_and_unknown_parts_their_own_json(self) -> None:
        picture = {"type": "image_url", "image_url": {"url": "x"}}
        self.assertEqual(
            ({"type": "text", "text": "see"}, picture),
            message(role="user", content=[{"type": "text", "text": "see"}, picture]).content,
        )
        self.assertEqual('{"type":"video","id":1}', message(role="user", content=[{"type": "video", "id": 1}]).content)

    def test_calls_are_read_and_arguments_become_a_string(self) -> None:
        for arguments, expected in (('{"a": 1}', '{"a": 1}'), ({"a": 1}, '{"a":1}'), (None, ""), ([], "[]")):
            call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}, "index": 0}
            found = message(role="assistant", content=None, tool_calls=[call])
            self.assertEqual((ToolCall("c", "f", expected),), found.tool_calls)

    def test_reasoning_is_told_apart_from_its_absence(self) -> None:
        self.assertEqual("", message(role="assistant", content="x", reasoning_content="").reasoning)
        self.assertIsNone(message(role="assistant", content="x", reasoning_content=None).reasoning)
        self.assertIsNone(message(role="assistant", content="x").reasoning)

    def test_legacy_function_messages_get_the_same_id_on_both_sides(self) -> None:
        history = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "1"},
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "2"},
        ]
        found = parsed(messages=history).messages
        self.assertEqual(["tool", "tool"], [found[2].role, found[4].role])
        self.assertEqual(
            [found[2].tool_call_id, found[4].tool_call_id], [found[1].tool_calls[0].id, found[3].tool_calls[0].id]
        )
        self.assertNotEqual(found[2].tool_call_id, found[4].tool_call_id)

    def test_odd_messages_are_named(self) -> None:
        call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
        for odd, param in (
            (7, ""),
            ({}, ".role"),
            ({"role": []}, ".role"),
            ({"role": "user", "content": 7}, ".content"),
            ({"role": "user", "content": {"a": 1}}, ".content"),
            ({"role": "user", "content": [7]}, ".content[0]"),
            ({"role": "user", "content": [{"type": "text", "text": 7}]}, ".content[0].text"),
            ({"role": "user", "content": "x", "name": 7}, ".name"),
            ({"role": "assistant", "tool_calls": 7}, ".tool_calls"),
            ({"role": "assistant", "tool_calls": [7]}, ".tool_calls[0]"),
            ({"role": "assistant", "tool_calls": [{}]}, ".tool_calls[0].function"),
            ({"role": "assistant", "tool_calls": [{**call, "id": 7}]}, ".tool_calls[0].id"),
            ({"role": "assistant", "tool_calls": [{"function": {"name": 7}}]}, ".tool_calls[0].function.name"),
            ({"role": "assistant", "reasoning_content": 7}, ".reasoning_content"),
            ({"role": "assistant", "prefix": 7}, ".prefix"),
            ({"role": "assistant", "function_call": 7}, ".function_call"),
            ({"role": "tool", "tool_call_id": 7}, ".tool_call_id"),
        ):
            with self.subTest(odd), self.assertRaises(BadRequest) as caught:
                parsed(messages=[*HI, odd])
            self.assertEqual("messages[1]" + param, caught.exception.param)

    def test_no_messages_is_a_clear_400(self) -> None:
        with self.assertRaises(BadRequest):
            parsed(messages=[])
