import unittest
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.protocols.request import THINKING_FIELDS, ThinkingOptions, parse, read_thinking
from tests.support.bad_requests import assert_named

ON, OFF = {"type": "enabled"}, {"type": "disabled"}


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], **fields}


class TestRead(unittest.TestCase):
    def test_every_field_that_switches_thinking_is_read(self) -> None:
        for thinking, *bodies in (
            (None, {}, {"thinking": {"type": "adaptive"}}, {"thinking": {}}, dict.fromkeys(THINKING_FIELDS)),
            (True, {"thinking": ON}, {"enable_thinking": True}, {"chat_template_kwargs": {"enable_thinking": True}}),
            (True, {"extra_body": {"chat_template_kwargs": {"thinking": True}}}),
            (False, {"thinking": OFF}, {"thinking": False}, {"enable_thinking": False}),
            (False, {"chat_template_kwargs": {"thinking": False}}, {"extra_body": {"enable_thinking": False}}),
            (False, {"extra_body": {"reasoning_effort": "none"}}, {"reasoning": {"enabled": False}}),
            (False, {"reasoning_effort": "none"}, {"reasoning": {"effort": "none"}}),
        ):
            for fields in bodies:
                self.assertEqual(thinking, read_thinking(fields).thinking, fields)

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
            self.assertEqual(thinking, read_thinking(fields).thinking, fields)

    def test_the_effort_is_read_from_every_field_that_may_hold_it(self) -> None:
        for fields, effort in (
            ({"reasoning_effort": "low", "reasoning": {"effort": "max"}}, "low"),
            ({"reasoning": {"effort": "max"}}, "max"),
            ({"chat_template_kwargs": {"reasoning_effort": "max", "thinking": True}}, "max"),
            ({"extra_body": {"reasoning_effort": "max"}}, "max"),
        ):
            self.assertEqual(effort, read_thinking(fields).effort, fields)

    def test_unknown_thinking_options_are_reported_as_dropped(self) -> None:
        fields = {
            "thinking": {"type": "galactic", "budget_tokens": 5},
            "chat_template_kwargs": {"tools_in_user": True},
            "extra_body": {"top_k": 1},
            "reasoning": {"effort": "huge", "summary": "auto"},
        }
        named = "thinking.budget_tokens chat_template_kwargs.tools_in_user extra_body.top_k reasoning.summary"
        dropped = (*named.split(), "thinking.type galactic", "reasoning_effort huge")
        self.assertEqual(ThinkingOptions(None, "huge", dropped), read_thinking(fields))
        self.assertEqual((), read_thinking({"thinking": OFF, "enable_thinking": True}).dropped)

    def test_a_thinking_field_of_the_wrong_type_is_a_400_that_names_it(self) -> None:
        fields = {"thinking": "yes", "enable_thinking": "false", "chat_template_kwargs": [], "extra_body": "x"}
        inner = ("thinking.type", "chat_template_kwargs.thinking", "extra_body.thinking", "reasoning.enabled")
        rows = [(name, {name: value}) for name, value in {**fields, "reasoning_effort": 1}.items()]
        rows += [(path, {path.split(".")[0]: {path.split(".")[1]: 1}}) for path in inner]
        assert_named(self, read_thinking, "", *rows)


class TestPriority(unittest.TestCase):
    def test_thinking_in_the_body_beats_the_model_name_which_beats_the_setting(self) -> None:
        for setting, suffix, fields, thinking in (
            ("enabled", "", {}, True),
            ("disabled", "", {}, False),
            ("disabled", "-thinking", {}, True),
            ("enabled", "-nothink", {}, False),
            ("enabled", "-thinking", {"thinking": OFF}, False),
            ("enabled", "", {"enable_thinking": False}, False),
            ("enabled", "", {"reasoning_effort": "none"}, False),
            ("enabled", "", {"reasoning": {"effort": "none"}}, False),
            ("disabled", "", {"thinking": ON}, True),
            ("enabled", "-nothink", {"thinking": ON}, True),
            ("disabled", "-nothink", {"chat_template_kwargs": {"thinking": True}}, True),
            ("enabled", "-nothink", {"thinking": {"type": "adaptive"}}, False),
            ("disabled", "", {"reasoning_effort": "max"}, False),
        ):
            request = parse(body(model=f"deepseek-v4-pro{suffix}", **fields), ProxyConfig(thinking=setting))
            self.assertEqual(thinking, request.thinking, (setting, suffix, fields))

    def test_a_short_answer_is_written_without_thinking_unless_the_client_names_it(self) -> None:
        """Thinking counts into the limit and would use it up."""
        named = (
            {"thinking": ON},
            {"enable_thinking": True},
            {"reasoning_effort": "low"},
            {"reasoning": {"effort": "x"}},
        )
        unnamed = (
            {},
            {"thinking": {"type": "adaptive"}},
            {"reasoning": {"summary": "auto"}},
            {"reasoning_effort": None},
        )
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            for limit, fields, thinking in (
                *((999, fields, True) for fields in named),
                *((999, fields, False) for fields in unnamed),
                *((limit, fields, True) for limit in (1000, None) for fields in (*named, *unnamed)),
            ):
                for suffix in ("", "[1m]"):
                    asked = body(model=f"deepseek-v4-pro{suffix}", **{name: limit}, **fields)
                    self.assertEqual(thinking, parse(asked, ProxyConfig(reasoning_effort="max")).thinking, asked)
                for suffix, expected in (("-thinking", True), ("-max", True), ("-nothink", False)):
                    asked = body(model=f"deepseek-v4-pro{suffix}", **{name: limit})
                    self.assertEqual(expected, parse(asked, ProxyConfig()).thinking, asked)

    def test_thinking_enabled_beside_effort_none_gets_the_configured_effort(self) -> None:
        request = parse(body(thinking=ON, reasoning_effort="none"), ProxyConfig(reasoning_effort="max"))
        self.assertEqual((True, "max"), (request.thinking, request.effort))
