import unittest
from typing import Any

from deepseek_cursor_proxy.config.loaded_config import SETTINGS
from deepseek_cursor_proxy.conversation import ChatRequest, Message
from deepseek_cursor_proxy.deepseek import chat_api, hosts
from deepseek_cursor_proxy.deepseek.chat_api import read_reasoning
from deepseek_cursor_proxy.deepseek.hosts import ReasoningForm, choose
from deepseek_cursor_proxy.deepseek.rules import FILLER

URLS = {
    "https://api.deepseek.com": "deepseek", "https://API.DeepSeek.com/beta": "deepseek",
    "https://openrouter.ai/api/v1": "openrouter", "https://api.siliconflow.cn/v1": "siliconflow",
    "https://api.fireworks.ai/inference/v1": "fireworks", "https://ark.cn-beijing.volces.com/api/v3": "ark",
    "https://api.together.xyz/v1": "together", "http://127.0.0.1:8000/v1": "auto",
    "https://notopenrouter.ai/v1": "auto", "https://openrouter.ai.example.com/v1": "auto",
}  # fmt: skip
THINKING_FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "deepseek": ({"thinking": {"type": "enabled"}, "reasoning_effort": "max"}, {"thinking": {"type": "disabled"}}),
    "openrouter": ({"reasoning": {"effort": "xhigh"}}, {"reasoning": {"enabled": False}}),
    "vllm": (
        {"chat_template_kwargs": {"thinking": True, "reasoning_effort": "max"}},
        {"chat_template_kwargs": {"thinking": False}},
    ),
    "sglang": (
        {"chat_template_kwargs": {"thinking": True, "reasoning_effort": "max"}, "separate_reasoning": True},
        {"chat_template_kwargs": {"thinking": False}, "separate_reasoning": True},
    ),
    "siliconflow": ({"enable_thinking": True, "thinking_budget": 32768}, {"enable_thinking": False}),
    "fireworks": ({"reasoning_effort": "xhigh", "reasoning_history": "preserved"}, {"reasoning_effort": "none"}),
    "ark": ({"thinking": {"type": "enabled"}, "reasoning_effort": "high"}, {"thinking": {"type": "disabled"}}),
    "together": ({"reasoning": {"enabled": True}, "reasoning_effort": "high"}, {"reasoning": {"enabled": False}}),
    "plain": ({}, {}),
}


class TestHosts(unittest.TestCase):
    def test_a_base_url_means_the_host_of_its_domain(self) -> None:
        for url, name in URLS.items():
            with self.subTest(url):
                self.assertEqual(name, choose("auto", url).name)
                self.assertEqual("vllm", choose("vllm", url).name)

    def test_the_setting_has_every_host_of_the_table(self) -> None:
        (setting,) = (each for each in SETTINGS if each.field == "upstream_host")
        self.assertEqual(("auto", *(host.name for host in hosts.HOSTS)), setting.choices)

    def test_thinking_and_effort_have_the_fields_of_each_host(self) -> None:
        for host in hosts.HOSTS:
            with self.subTest(host.name):
                self.assertEqual(
                    THINKING_FIELDS[host.name], (host.thinking_fields(True, "max"), host.thinking_fields(False, "max"))
                )

    def test_reasoning_goes_back_in_the_form_of_the_host(self) -> None:
        details = '[{"type":"reasoning.text","text":"r"}]'
        expected = {
            ReasoningForm.CONTENT: {"content": "a", "reasoning_content": "r"},
            ReasoningForm.REASONING: {"content": "a", "reasoning": "r"},
            ReasoningForm.DETAILS: {"content": "a", "reasoning_details": [{"type": "reasoning.text", "text": "r"}]},
            ReasoningForm.THINK: {"content": "<think>r</think>\n\na"},
            ReasoningForm.NONE: {"content": "a"},
        }
        for form, fields in expected.items():
            with self.subTest(form):
                host = hosts.Host("x", form, lambda thinking, effort: {})
                known = Message("assistant", "a", "r", details=details)
                unknown = Message("assistant", "a", FILLER)
                request = ChatRequest("m", "m", (known, unknown))
                sent, without = chat_api.payload(request, host)["messages"]
                self.assertEqual({"role": "assistant", **fields}, sent)
                self.assertEqual({"role": "assistant", "content": "a"}, without)
        host = hosts.choose("openrouter", "")
        (sent,) = chat_api.payload(ChatRequest("m", "m", (Message("assistant", "a", "r"),)), host)["messages"]
        self.assertEqual({"role": "assistant", "content": "a", "reasoning": "r"}, sent)

    def test_the_first_name_with_text_counts(self) -> None:
        text, summary = {"type": "reasoning.text", "text": "c"}, {"type": "reasoning.summary", "summary": "d"}
        table: list[tuple[dict[str, Any], str]] = [
            ({"reasoning_content": "a", "reasoning": "b", "reasoning_details": [text]}, "a"),
            ({"reasoning_content": "", "reasoning": "b", "reasoning_details": [text]}, "b"),
            ({"reasoning": None, "reasoning_details": [text, summary, 1]}, "cd"),
            ({"reasoning": ""}, ""),
        ]
        for fields, expected in table:
            with self.subTest(fields):
                known, other = read_reasoning({"content": "x", **fields})
                self.assertEqual({"content": "x", "reasoning_content": expected}, known)
                self.assertEqual(expected == "a", other.is_native)

    def test_a_signature_alone_is_no_reasoning(self) -> None:
        known, other = read_reasoning({"content": "x", "reasoning_details": [{"signature": "s"}]})
        self.assertEqual(({"content": "x"}, ({"signature": "s"},)), (known, other.details))
