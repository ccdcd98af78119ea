import unittest
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.protocols.request import thinking_mode
from deepseek_cursor_proxy.protocols.request.parse import parse
from deepseek_cursor_proxy.protocols.request.thinking_mode import ThinkingOptions

ON, OFF = {"type": "enabled"}, {"type": "disabled"}


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], **fields}


class TestRead(unittest.TestCase):
    def test_every_field_that_switches_thinking_is_read(self) -> None:
        for fields, thinking in (
            ({}, None),
            ({"thinking": OFF}, False),
            ({"thinking": ON}, True),
            ({"thinking": False}, False),
            ({"thinking": {"type": "adaptive"}}, None),
            ({"thinking": {}}, None),
            ({"enable_thinking": False}, False),
            ({"enable_thinking": True}, True),
            ({"chat_template_kwargs": {"thinking": False}}, False),
            ({"chat_template_kwargs": {"enable_thinking": True}}, True),
            ({"extra_body": {"enable_thinking": False}}, False),
            ({"extra_body": {"chat_template_kwargs": {"thinking": True}}}, True),
            ({"extra_body": {"reasoning_effort": "none"}}, False),
            ({"reasoning": {"enabled": False}}, False),
            ({"reasoning_effort": "none"}, False),
            ({"reasoning": {"effort": "none"}}, False),
            (dict.fromkeys(thinking_mode.NAMES), None),
        ):
            self.assertEqual(thinking, thinking_mode.read(fields).thinking, fields)

    def test_of_two_contradicting_thinking_fields_the_more_direct_wins(self) -> None:
        for fields, thinking in (
            ({"thinking": ON, "enable_thinking": False, "reasoning_effort": "none"}, True),
            ({"thinking": OFF, "reasoning_effort": "max"}, False),
            ({"enable_thinking": True, "chat_template_kwargs": {"thinking": False}}, True),
            ({"chat_template_kwargs": {"thinking": True, "enable_thinking": False}}, True),
            ({"enable_thinking": False, "extra_body": {"thinking": ON}}, False),
            ({"thinking": {"type": "adaptive"}, "enable_thinking": False}, False),
            ({"reasoning": {"enabled": True, "effort": "none"}}, True),
        ):
            self.assertEqual(thinking, thinking_mode.read(fields).thinking, fields)

    def test_the_effort_is_read_from_every_field_that_may_hold_it(self) -> None:
        for fields, effort in (
            ({"reasoning_effort": "low", "reasoning": {"effort": "max"}}, "low"),
            ({"reasoning": {"effort": "max"}}, "max"),
            ({"chat_template_kwargs": {"reasoning_effort": "max", "thinking": True}}, "max"),
            ({"extra_body": {"reasoning_effort": "max"}}, "max"),
        ):
            self.assertEqual(effort, thinking_mode.read(fields).effort, fields)

    def test_unknown_thinking_options_are_reported_as_dropped(self) -> None:
        fields = {
            "thinking": {"type": "galactic", "budget_tokens": 5},
            "chat_template_kwargs": {"tools_in_user": True},
            "extra_body": {"top_k": 1},
            "reasoning": {"effort": "huge", "summary": "auto"},
        }
        named = "thinking.budget_tokens chat_template_kwargs.tools_in_user extra_body.top_k reasoning.summary"
        dropped = (*named.split(), "thinking.type galactic", "reasoning_effort huge")
        self.assertEqual(ThinkingOptions(None, "huge", dropped), thinking_mode.read(fields))
        self.assertEqual((), thinking_mode.read({"thinking": OFF, "enable_thinking": True}).dropped)

    def test_a_thinking_field_of_the_wrong_type_is_a_400_that_names_it(self) -> None:
        for fields, param in (
            ({"thinking": "yes"}, "thinking"),
            ({"thinking": {"type": 1}}, "thinking.type"),
            ({"enable_thinking": "false"}, "enable_thinking"),
            ({"chat_template_kwargs": []}, "chat_template_kwargs"),
            ({"chat_template_kwargs": {"thinking": 1}}, "chat_template_kwargs.thinking"),
            ({"extra_body": "x"}, "extra_body"),
            ({"extra_body": {"thinking": 1}}, "extra_body.thinking"),
            ({"reasoning": {"enabled": 1}}, "reasoning.enabled"),
            ({"reasoning_effort": 1}, "reasoning_effort"),
        ):
            with self.subTest(param), self.assertRaises(BadRequest) as caught:
                thinking_mode.read(fields)
            self.assertEqual(param, caught.exception.param)


class TestPriority(unittest.TestCase):
    def test_thinking_in_the_body_beats_the_model_name_which_beats_the_setting(self) -> None:
        for setting, name, fields, thinking in (
            ("enabled", "deepseek-v4-pro", {}, True),
            ("disabled", "deepseek-v4-pro", {}, False),
            ("disabled", "deepseek-v4-pro-thinking", {}, True),
            ("enabled", "deepseek-v4-pro-nothink", {}, False),
            ("enabled", "deepseek-v4-pro-thinking", {"thinking": OFF}, False),
            ("enabled", "deepseek-v4-pro", {"enable_thinking": False}, False),
            ("disabled", "deepseek-v4-pro", {"thinking": ON}, True),
            ("enabled", "deepseek-v4-pro-nothink", {"thinking": ON}, True),
            ("disabled", "deepseek-v4-pro-nothink", {"chat_template_kwargs": {"thinking": True}}, True),
            ("enabled", "deepseek-v4-pro-nothink", {"thinking": {"type": "adaptive"}}, False),
            ("disabled", "deepseek-v4-pro", {"reasoning_effort": "max"}, False),
        ):
            request = parse(body(model=name, **fields), ProxyConfig(thinking=setting))
            self.assertEqual(thinking, request.thinking, (setting, name, fields))

    def test_thinking_enabled_beside_effort_none_gets_the_configured_effort(self) -> None:
        request = parse(body(thinking=ON, reasoning_effort="none"), ProxyConfig(reasoning_effort="max"))
        self.assertEqual((True, "max"), (request.thinking, request.effort))

    def test_a_forced_tool_turns_thinking_off_whatever_the_body_says(self) -> None:
        tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
        request = parse(body(thinking=ON, tools=[tool], tool_choice="required"), ProxyConfig())
        self.assertFalse(request.thinking)
