import json
import unittest
from typing import Any

from deepseek_cursor_proxy.conversation import Delta
from deepseek_cursor_proxy.deepseek.usage import TokenLogprobs, Tokens, add_usage, read_usage


class TestUsage(unittest.TestCase):
    def test_a_usage_is_read_in_the_words_of_every_host(self) -> None:
        details = {"completion_tokens_details": {"reasoning_tokens": 7}, "prompt_tokens": 100, "completion_tokens": 20}
        cases: dict[str, tuple[dict[str, Any], Tokens]] = {
            "DeepSeek": ({**details, "prompt_cache_hit_tokens": 60}, Tokens(60, 40, 20, 7)),
            "others": ({**details, "prompt_tokens_details": {"cached_tokens": 30}}, Tokens(30, 70, 20, 7)),
            "no cache": ({"prompt_tokens": 5, "completion_tokens": 1}, Tokens(0, 5, 1)),
            "searches": ({"prompt_tokens": 5, "server_tool_use": {"web_search_requests": 2}}, Tokens(0, 5, 0, 0, 2)),
            "pages": ({"server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 1}}, Tokens(0, 0, 0, 0, 3)),
            "nothing": ({}, Tokens(0, 0, 0)),
        }
        for name, (usage, expected) in cases.items():
            self.assertEqual(expected, read_usage(usage), name)
        self.assertEqual(100, read_usage(cases["DeepSeek"][0]).prompt)

    def test_what_is_no_sensible_number_counts_as_0(self) -> None:
        for odd in (-1, 10**9, 10**15, 10**5000, 1e308, float("nan"), 1.5, True, "7", None, [7], {"a": 7}):
            fields = ("prompt_tokens", "completion_tokens", "prompt_cache_hit_tokens")
            usage: dict[str, Any] = dict.fromkeys(fields, odd)
            usage["prompt_tokens_details"] = usage["completion_tokens_details"] = usage["server_tool_use"] = odd
            self.assertEqual(Tokens(0, 0, 0), read_usage(usage), str(type(odd)))

    def test_parts_are_never_more_than_the_whole(self) -> None:
        usage = {"prompt_tokens": 5, "prompt_cache_hit_tokens": 9, "completion_tokens": 2}
        tokens = read_usage({**usage, "completion_tokens_details": {"reasoning_tokens": 9}})
        self.assertEqual(Tokens(5, 0, 2, 2), tokens)

    def test_usages_are_added_up_however_deep(self) -> None:
        one = {"a": 1, "b": {"c": 2}, "d": None, "e": "x", "f": True}
        other = {"a": 2, "b": {"c": 3, "e": 1.5}, "d": 4, "e": 5, "f": True, "g": {"h": 1}}
        total = {"a": 3, "b": {"c": 5, "e": 1.5}, "d": 4, "e": 5, "f": True, "g": {"h": 1}}
        self.assertEqual(total, add_usage(one, other))

    def test_a_sum_of_absurd_numbers_stays_a_number_that_json_has(self) -> None:
        for odd in (1e308, 10**4299, -5, -1e308, float("inf"), float("nan"), 9 * 10**17):
            with self.subTest(str(odd)[:10]):
                total: dict[str, Any] = {"prompt_tokens": odd, "details": {"cost": odd}}
                for one in ({"prompt_tokens": odd, "details": {"cost": 1.5}}, {"prompt_tokens": 3, "details": {}}):
                    total = add_usage(total, one)
                json.loads(json.dumps(total, allow_nan=False))
                self.assertTrue(0 <= total["prompt_tokens"] <= 10**18, total)
                self.assertGreaterEqual(total["details"]["cost"], 1.5)

    def test_a_damaged_log_probability_ends_the_list(self) -> None:
        """Without it "\\nx" is found in "\\n\\nx", and the second line end gets the number of the first."""
        collected, number = TokenLogprobs(), {"logprob": -0.5}
        for text, entry in (("\n", number), ("\n", {"logprob": None}), ("x", number)):
            tokens = [{"token": text, "bytes": list(text.encode()), **entry}]
            collected.add(Delta(chunk={"choices": [{"logprobs": {"content": tokens, "reasoning_content": 5}}]}))
        self.assertEqual(([{"token": "\n", "logprob": -0.5, "bytes": [10]}], []), (collected.text, collected.reasoning))
        collected.clear()
        collected.add(Delta(chunk={"choices": [{"logprobs": {"reasoning_content": [{"token": "x", **number}]}}]}))
        self.assertEqual(([], [{"token": "x", "logprob": -0.5, "bytes": [120]}]), (collected.text, collected.reasoning))
