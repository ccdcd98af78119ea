"""The dialects of the fake: what each host refuses, and how it answers."""

import json
import unittest
from typing import Any

from tests.fake_deepseek.completion import Answer, PrefixCache
from tests.fake_deepseek.contract import Refusal
from tests.fake_deepseek.dialects import DIALECTS

MODEL = "deepseek-ai/DeepSeek-V4-Pro"
REFUSED: dict[str, list[dict[str, Any]]] = {
    "openrouter": [{"thinking": {}}, {"reasoning": {"effort": "max"}}, {"reasoning": {"x": 1}}, {"model": "deepseek"}],
    "vllm": [{"thinking": {}}, {"user_id": "x"}],
    "sglang": [{"reasoning": {}}],
    "siliconflow": [{"thinking": {}}, {"thinking_budget": 100_000}],
    "fireworks": [{"thinking": {}, "reasoning_effort": "high"}, {"reasoning_effort": "max"}],
    "ark": [{"reasoning_effort": "max"}],
    "together": [{"reasoning_effort": "max"}, {"thinking": {}}],
    "plain": [{"reasoning_effort": "high"}],
}


def read(host: str, *messages: dict[str, Any], **fields: Any) -> dict[str, Any] | Refusal:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "q"}, *messages], **fields}
    return DIALECTS[host].read(json.dumps(body).encode())


class TestDialects(unittest.TestCase):
    def test_a_host_refuses_words_that_it_does_not_have(self) -> None:
        self.assertEqual(REFUSED.keys(), DIALECTS.keys())
        for host, bodies in REFUSED.items():
            self.assertNotIsInstance(read(host), Refusal)
            for fields in bodies:
                with self.subTest(host, fields=fields):
                    self.assertIsInstance(read(host, **fields), Refusal)

    def test_a_host_takes_reasoning_back_under_its_own_name_alone(self) -> None:
        for host, dialect in DIALECTS.items():
            for name in ("reasoning_content", "reasoning", "reasoning_details", "thinking"):
                own = {dialect.reasoning, *(["reasoning"] if dialect.reasoning == "reasoning_details" else [])}
                value: Any = [{"text": "r", "index": 0, "format": "x"}] if name == "reasoning_details" else "r"
                with self.subTest(host, name=name):
                    found = read(host, {"role": "assistant", "content": "a", name: value})
                    self.assertEqual(name not in own, isinstance(found, Refusal), found)
                    if not isinstance(found, Refusal):
                        self.assertEqual("r", found["messages"][1]["reasoning_content"])

    def test_details_that_were_cut_or_reordered_are_refused(self) -> None:
        first, second = ({"text": str(index), "index": index, "format": "x"} for index in range(2))
        for details, is_refused in (([first, second], False), ([second, first], True), ([second], True), ([], True)):
            found = read("openrouter", {"role": "assistant", "content": "a", "reasoning_details": details})
            self.assertEqual(is_refused, isinstance(found, Refusal), details)

    def test_an_answer_has_the_reasoning_where_the_host_writes_it(self) -> None:
        for host, dialect in DIALECTS.items():
            with self.subTest(host):
                payload = {"model": "m", "messages": [], "thinking": {"type": "enabled"}}
                answer = Answer(reasoning="rea", content="con", piece=1)
                whole = json.loads(dialect.writer(answer, payload, PrefixCache(), "1", 0).body())
                message = whole["choices"][0]["message"]
                self.assertNotIn("reasoning_content" if dialect.reasoning != "reasoning_content" else "-", message)
                events = list(dialect.writer(answer, payload, PrefixCache(), "1", 0).events())[:-1]
                deltas = [json.loads(event[6:])["choices"][0]["delta"] for event in events]
                content = "".join(delta.get("content") or "" for delta in deltas)
                if host == "plain":
                    self.assertEqual("<think>rea</think>\n\ncon", message["content"])
                    self.assertEqual(message["content"], content)
                    continue
                name = "reasoning" if host == "openrouter" else dialect.reasoning
                self.assertEqual("con", content)
                self.assertEqual("rea", "".join(delta.get(name) or "" for delta in deltas))
                self.assertEqual("rea", message[name])
