"""Which tools of its own the fake takes on chat completions, and where it wants their fields."""

import json
import unittest
from typing import Any

from deepseek_cursor_proxy.json_codec import encode_json
from tests.fake_deepseek import contract, web_tools
from tests.fake_deepseek.completion import Answer, Completion, PrefixCache
from tests.fake_deepseek.contract import Refusal

SEARCH = {"type": "deepseek_web_search"}
FUNCTION = {"type": "function", "function": {"name": "f"}}
QUESTION = {"role": "user", "content": "q"}
TURN = {"role": "assistant", "content": "a", "reasoning_content": "r"}


def read(**fields: Any) -> dict[str, Any] | Refusal:
    parsed = web_tools.read(encode_json({"model": "deepseek-flash", "messages": [QUESTION], **fields}))
    return parsed if isinstance(parsed, Refusal) else contract.refusal(parsed) or parsed


class TestRead(unittest.TestCase):
    def refused(self, words: str, **fields: Any) -> None:
        found = read(**fields)
        self.assertIsInstance(found, Refusal)
        self.assertIn(words, found.message if isinstance(found, Refusal) else "")

    def test_the_two_tools_are_taken_with_flash(self) -> None:
        found = read(tools=[FUNCTION, SEARCH, {"type": "deepseek_read_url"}])
        assert isinstance(found, dict)
        self.assertEqual(([FUNCTION], 2), (found["tools"], len(found["server_tools"])))
        self.refused("not available", tools=[SEARCH], model="deepseek-v4-pro")

    def test_every_other_type_is_an_unknown_variant(self) -> None:
        for kind in ("web_search", "web_search_20250305", "file_search", "mcp"):
            self.refused(f"unknown variant `{kind}`", tools=[SEARCH, {"type": kind}])

    def test_a_search_is_forced_without_thinking_and_if_it_is_there(self) -> None:
        off = {"thinking": {"type": "disabled"}}
        self.assertIsInstance(read(tools=[SEARCH], tool_choice=SEARCH, **off), dict)
        self.refused(contract.FORCED_TOOL, tools=[SEARCH], tool_choice=SEARCH)
        self.refused("no tool of type", tools=[SEARCH], tool_choice={"type": "deepseek_read_url"}, **off)

    def test_fields_belong_to_a_request_with_such_a_tool(self) -> None:
        turn = {**TURN, "citations": [1]}
        self.refused("unknown field `citations`", messages=[QUESTION, turn, QUESTION])
        found = read(messages=[QUESTION, turn, QUESTION], tools=[SEARCH])
        assert isinstance(found, dict)
        self.assertEqual({**TURN, "server_fields": {"citations": [1]}}, found["messages"][1])

    def test_a_history_with_such_a_tool_needs_its_reasoning(self) -> None:
        turn = {"role": "assistant", "content": "a"}
        self.refused(contract.MISSING_REASONING, messages=[QUESTION, turn, QUESTION], tools=[SEARCH])


class TestAnswers(unittest.TestCase):
    def test_a_turn_that_comes_back_as_it_was_is_in_the_cache(self) -> None:
        for fields in (web_tools.ASSUMED, web_tools.ASSUMED_BLOCKS):
            with self.subTest(fields[0][0]):
                cache, chat = PrefixCache(), read(tools=[SEARCH])
                assert isinstance(chat, dict)
                answer = Answer(reasoning="r", content="a" if fields is web_tools.ASSUMED else None, fields=fields)
                body = json.loads(Completion(answer, chat, cache, "id", 0).body())
                turn = body["choices"][0]["message"]
                again = read(messages=[QUESTION, turn], tools=[SEARCH])
                changed = read(messages=[QUESTION, {**turn, fields[0][0]: [{"type": "x"}]}], tools=[SEARCH])
                assert isinstance(again, dict)
                assert isinstance(changed, dict)
                hits = [cache.read(each) for each in (again, changed)]
                self.assertEqual(hits[0].tokens, hits[0].hit)
                self.assertLess(hits[1].hit, hits[1].tokens)

    def test_nothing_is_searched_without_the_tool(self) -> None:
        chat = read()
        assert isinstance(chat, dict)
        completion = Completion(Answer(content="a", fields=web_tools.ASSUMED), chat, PrefixCache(), "id", 0)
        self.assertNotIn("citations", json.loads(completion.body())["choices"][0]["message"])
