"""The usage of an answer: which tokens the context cache gives back, and to whom."""

import json
import unittest
from typing import Any

from tests.fake_deepseek.completion import Answer, Completion, PrefixCache

Payload = dict[str, Any]

USER = {"role": "user", "content": "Hello?"}
TOOL = {"type": "function", "function": {"name": "look"}}
OTHER = {"type": "function", "function": {"name": "listen"}}
PAST = {"role": "assistant", "content": "Hello.", "reasoning_content": "Hmm."}


class TestContextCache(unittest.TestCase):
    def setUp(self) -> None:
        self.cache = PrefixCache()

    def usage(self, *messages: Payload, **fields: Any) -> Payload:
        payload = {"model": "deepseek-v4-pro", "messages": list(messages), **fields}
        completion = Completion(Answer("Hmm.", "Hello."), payload, self.cache, "id", 0)
        usage: Payload = json.loads(completion.body())["usage"]
        return usage

    def hit(self, *messages: Payload, **fields: Any) -> int:
        return int(self.usage(*messages, **fields)["prompt_cache_hit_tokens"])

    def test_a_token_is_four_bytes_and_the_parts_add_up(self) -> None:
        self.usage(USER)
        usage = self.usage(USER, PAST, {"role": "user", "content": "é" * 100})
        self.assertEqual(usage["completion_tokens_details"]["reasoning_tokens"], 1)
        self.assertEqual(usage["completion_tokens"], 1 + 2)
        self.assertGreater(usage["prompt_cache_hit_tokens"], 0)
        self.assertGreater(usage["prompt_cache_miss_tokens"], 50)
        self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_cache_hit_tokens"])
        parts = usage["prompt_cache_hit_tokens"] + usage["prompt_cache_miss_tokens"]
        self.assertEqual((usage["prompt_tokens"], usage["total_tokens"]), (parts, parts + 3))

    def test_a_history_sent_back_whole_hits_the_cache_up_to_its_last_answer(self) -> None:
        self.assertEqual(self.hit(USER, tools=[TOOL]), 0)
        prompt = self.hit(USER, tools=[TOOL])
        self.assertGreater(self.hit(USER, PAST, USER, tools=[TOOL]), prompt)

    def test_changed_reasoning_is_another_prefix(self) -> None:
        self.hit(USER, tools=[TOOL])
        prompt = self.hit(USER, tools=[TOOL])
        for reasoning in (" ", "Hm.", None):
            with self.subTest(reasoning):
                self.assertEqual(self.hit(USER, PAST | {"reasoning_content": reasoning}, USER, tools=[TOOL]), prompt)

    def test_without_tools_past_reasoning_is_no_part_of_a_prompt(self) -> None:
        self.hit(USER, PAST, USER)
        prompt = self.hit(USER, PAST, USER)
        self.assertEqual(self.hit(USER, PAST | {"reasoning_content": "Hm."}, USER), prompt)

    def test_key_order_and_empty_fields_do_not_change_a_prefix(self) -> None:
        self.hit(USER, tools=[TOOL])
        prompt = self.hit(USER, tools=[TOOL])
        rewritten: Payload = {**dict(reversed(PAST.items())), "tool_calls": [], "name": None}
        self.assertGreater(self.hit(USER, rewritten, USER, tools=[TOOL]), prompt)

    def test_the_order_of_tools_the_model_and_the_user_are_part_of_the_prefix(self) -> None:
        self.hit(USER, tools=[TOOL, OTHER])
        self.assertGreater(self.hit(USER, tools=[TOOL, OTHER]), 0)
        self.assertGreater(self.hit(USER, tools=[TOOL, OTHER], tool_choice="none"), 0)
        self.assertEqual(self.hit(USER), 0)
        self.assertEqual(self.hit(USER, tools=[OTHER, TOOL]), 0)
        self.assertEqual(self.hit(USER, tools=[TOOL, OTHER], user_id="someone"), 0)
        self.assertEqual(self.hit(USER, tools=[TOOL, OTHER], model="deepseek-flash"), 0)
        self.assertEqual(self.hit(USER, tools=[TOOL, OTHER], reasoning_effort="max"), 0)
