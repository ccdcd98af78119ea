"""The fake plays the searches that DeepSeek runs itself on its Responses API, and takes them back."""

import json
from typing import Any

from tests.fake_deepseek import Answer, Citation, Search
from tests.fake_deepseek.contract import FORCED_TOOL
from tests.fake_deepseek.test_fake_deepseek import FakeCase
from tests.fake_deepseek.test_native import SAID, USER, body, refused

TOOL = {"type": "web_search"}
CHOICE = {"tools": [TOOL], "tool_choice": TOOL, "reasoning": {"effort": "none"}}
CITED = Citation("https://a.example", "A", 0, 3)
ANSWER = Answer(
    reasoning="So it is.",
    content="It rains.",
    searches=(
        Search(("rain", "weather"), reasoning="Where? "),
        Search(url="https://a.example", text="Let me read.", has_id=False),
        Search(url="https://a.example", pattern="rain", reasoning="There? ", status="failed"),
        Search(raw='{"type": "odd_call", "status": "completed", "id": "odd_1"}'),
    ),
    citations=(CITED,),
)


class TestSearches(FakeCase):
    def answer(self, *items: Any, **fields: Any) -> dict[str, Any]:
        return self.ask(body(*items, **{"tools": [TOOL], **fields}), path="/responses")

    def test_searches_are_played_in_their_places(self) -> None:
        self.fake.answer(ANSWER)
        output = self.answer()["output"]
        kinds = [item["type"] for item in output]
        search = "web_search_call"
        before = ["reasoning", search, "message", search, "reasoning", search, "odd_call"]
        self.assertEqual([*before, "reasoning", "message"], kinds)
        actions = [item["action"]["type"] for item in output if item["type"] == search]
        self.assertEqual(["search", "open_page", "find_in_page"], actions)
        self.assertEqual([CITED.annotation()], output[-1]["content"][0]["annotations"])

    def test_a_stream_has_the_events_of_each_step(self) -> None:
        self.fake.answer(ANSWER)
        data = self.send(body(tools=[TOOL], stream=True), path="/responses").read().decode()
        events = [json.loads(block.partition("\ndata: ")[2]) for block in data.split("\n\n") if block]
        steps = [event["type"] for event in events if "web_search_call" in event["type"]]
        whole = [f"response.web_search_call.{step}" for step in ("in_progress", "searching", "completed")]
        self.assertEqual([*whole, *whole, whole[0]], steps)
        cited = [event["annotation"] for event in events if event["type"].endswith("annotation.added")]
        self.assertEqual([CITED.annotation()], cited)
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        self.assertEqual(done, events[-1]["response"]["output"])

    def test_a_turn_that_comes_back_is_in_the_cache_with_and_without_ids(self) -> None:
        self.fake.answer(ANSWER)
        output = self.answer()["output"]
        without = [{name: value for name, value in item.items() if name != "id"} for item in output]
        moved = [without[1], without[0], *without[2:]]
        hits = []
        for history in (output, without, moved):
            usage = self.answer(USER, *history, USER)["usage"]
            hits.append(usage["input_tokens_details"]["cached_tokens"] > usage["input_tokens"] // 2)
        self.assertEqual([True, True, False], hits)

    def test_without_its_tool_no_search_is_played(self) -> None:
        for fields in ({"tools": []}, {"tools": [{"type": "file_search"}]}, {"tool_choice": "none"}):
            with self.subTest(fields):
                self.fake.answer(ANSWER)
                self.assertEqual(["reasoning", "message"], [item["type"] for item in self.answer(**fields)["output"]])

    def test_a_forced_search_is_made(self) -> None:
        self.fake.answer(Answer(content="It rains."))
        self.assertEqual(["web_search_call", "message"], [item["type"] for item in self.answer(**CHOICE)["output"]])

    def test_the_tool_may_be_ignored_without_a_word(self) -> None:
        self.fake.runs_server_tools = False
        self.fake.answer(ANSWER)
        self.assertEqual(["message"], [item["type"] for item in self.answer(**CHOICE)["output"]])

    def test_what_does_not_fit_is_refused(self) -> None:
        search = {"type": "web_search_call", "action": {"type": "search"}}
        for asked, words in (
            (body(**{**CHOICE, "reasoning": {"effort": "low"}}), FORCED_TOOL),
            (body(**{**CHOICE, "tools": []}), "not among the tools"),
            (body(USER, {**search, "action": "search"}), "expected a map"),
            (body(USER, {**search, "id": None}), "invalid type: null"),
            (body(USER, search, SAID, tools=[TOOL]), "reasoning_text"),
        ):
            with self.subTest(words):
                self.assertIn(words, refused(asked) or "taken")
