"""Answers of the Responses API, asked for with the official `openai` package, against the strict fake.

Whatever a test asks, every byte that comes back is checked against the package's own types when the test ends (see
typed).
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import openai

from tests.fake_deepseek import Answer, Call, Citation, Failure, Search
from tests.fake_deepseek.completion import PrefixCache
from tests.interop.command_line import MODEL
from tests.interop.typed import THOUGHT, Json
from tests.interop.typed_responses import LOOK_UP, PATCH_TEXT, SEALED, SEARCH, TOOLS, ResponsesCase, calls

# One answer, asked for in every way …


@dataclass(frozen=True)
class Variant:
    """A kind of answer, what is asked for it, and the events it takes besides those every stream has."""

    answer: Answer
    events: Sequence[str]
    asked: Json = field(default_factory=dict)
    status: str = "completed"

    @property
    def body(self) -> Json:
        return {"model": MODEL, "input": "What is the weather?", **self.asked}


TEXT = ("content_part.added", "output_text.delta", "output_text.done", "content_part.done")
REASONING = ("content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done")
SUMMARY = tuple(f"reasoning_summary_{name}" for name in ("part.added", "text.delta", "text.done", "part.done"))
CALLS = ("function_call_arguments.delta", "function_call_arguments.done")
CUSTOM = ("custom_tool_call_input.delta", "custom_tool_call_input.done")
ITEM = ("output_item.added", "output_item.done")
STEPS = tuple(f"web_search_call.{step}" for step in ("in_progress", "searching", "completed"))
PAGE = "https://weather.example/rome"
PREVIEW = {"type": "web_search_preview"}

SEARCHES = (
    *(Search(("rain", "雨"), reasoning="Where? "), Search(url=PAGE, text="I read on.")),
    *(Search(url=PAGE, pattern="rain", has_id=False), Search(status="failed")),
)
CITED = Answer(THOUGHT, "Rain in Rome.", searches=SEARCHES, citations=(Citation(PAGE, "Rome", 0, 4),))
EMPTY = Answer(None, "Rain.", searches=(Search(raw='{"type": "web_search_call"}'),))
TOLD = {"tools": TOOLS, "instructions": "Be short.", "metadata": {"a": "b"}, "temperature": 0.5, "top_p": 1}
OF_SCHEMA = {"type": "json_schema", "name": "place", "schema": LOOK_UP, "strict": True}
AS_JSON = {"input": "The weather as JSON?", "text": {"format": {"type": "json_object"}}}
ROME = ("get_weather", {"city": "Rom"})
TWO, ONE = calls(("get_weather", {"city": "雨"}), ROME), calls(ROME)
PATCHED, SPAWNED = calls(("apply_patch", {"input": PATCH_TEXT})), calls(("agents__spawn", {"city": "Rom"}))
CUT = Answer(THOUGHT, None, (Call("call_0", "get_weather", '{"ci'),), finish_reason="length")
SAID, CALLED = (*ITEM, *REASONING, *TEXT), (*ITEM, *REASONING, *CALLS)

VARIANTS = {
    "text only": Variant(Answer(None, "Rain – 雨."), (*ITEM, *TEXT), {"reasoning": {"effort": "none"}}),
    "reasoning and text": Variant(Answer(THOUGHT, "Rain."), SAID),
    "reasoning alone": Variant(Answer(THOUGHT, None), (*ITEM, *REASONING)),
    "nothing at all": Variant(Answer(None, None), ()),
    "parallel calls": Variant(Answer(THOUGHT, None, TWO), CALLED,
                              {"tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": True}),
    "text and a call": Variant(Answer(THOUGHT, "I look it up.", ONE), (*SAID, *CALLS), TOLD),
    "searches": Variant(CITED, (*SAID, *STEPS, "output_text.annotation.added"),
                        {"tools": TOOLS, "include": ["web_search_call.action.sources"]}),
    "a search that is forced": Variant(Answer(None, "Rain."), (*ITEM, *STEPS, *TEXT),
                                       {"tools": [PREVIEW], "tool_choice": PREVIEW}),
    "a search without fields": Variant(EMPTY, (*ITEM, *STEPS, *TEXT), {"tools": TOOLS}),
    "call of a custom tool": Variant(Answer(THOUGHT, None, PATCHED), (*ITEM, *REASONING, *CUSTOM), {"tools": TOOLS}),
    "call into a namespace": Variant(Answer(THOUGHT, None, SPAWNED), CALLED, {"tools": TOOLS}),
    "summary": Variant(Answer(THOUGHT, "Rain."), (*ITEM, *SUMMARY, *TEXT),
                       {"reasoning": {"effort": "high", "summary": "auto"}}),
    "sealed reasoning": Variant(Answer(THOUGHT, "Rain."), SAID, {"include": [SEALED], "store": False}),
    "json": Variant(Answer(THOUGHT, '{"weather": "rain"}'), SAID, AS_JSON),
    "json of a schema": Variant(Answer(THOUGHT, '{"city": "Rom"}'), SAID, {"text": {"format": OF_SCHEMA}}),
    "length": Variant(Answer(THOUGHT, "It is ra", finish_reason="length"), SAID, {"max_output_tokens": 1040},
                      "incomplete"),
    "length amid a call": Variant(CUT, (*ITEM, *REASONING, CALLS[0]), {"tools": TOOLS}, "incomplete"),
    "content filter": Variant(Answer(THOUGHT, "It is", finish_reason="content_filter"), SAID, {}, "incomplete"),
}  # fmt: skip


class VariantTest(ResponsesCase):
    def setUp(self) -> None:
        super().setUp()
        self.sdk = self.client(self.start_proxy())

    def test_every_kind_of_answer_is_the_same_whole_streamed_and_added_up(self) -> None:
        for name, variant in VARIANTS.items():
            with self.subTest(name):
                self.assert_same_in_every_way(variant)

    def assert_same_in_every_way(self, variant: Variant) -> None:
        whole = self.once(variant, lambda: self.sdk.responses.create(**variant.body)).to_dict()
        self.assertEqual(whole["status"], variant.status)
        events = self.once(variant, lambda: [*self.sdk.responses.create(**variant.body, stream=True)])
        self.assert_events(events, variant)
        self.assertEqual(neutral(events[-1].response.to_dict()), neutral(whole))
        self.assertEqual(neutral(self.once(variant, lambda: self.added_up(variant))), neutral(whole))
        if whole["store"]:
            self.assertEqual(self.sdk.responses.retrieve(whole["id"]).to_dict(), whole)

    def once(self, variant: Variant, ask: Callable[[], Any]) -> Any:
        # Without its cache DeepSeek counts the same tokens every time.
        self.fake.cache = PrefixCache()
        self.fake.answer(variant.answer)
        return ask()

    def added_up(self, variant: Variant) -> Json:
        """The answer as the package's own accumulator has it in the end."""
        body = dict(variant.body)
        # The helper wants tools as classes of its own, and these go on as they are.
        rest = {"tools": body.pop("tools")} if "tools" in body else None
        with self.sdk.responses.stream(**body, extra_body=rest) as stream:
            *_, last = stream
            found = stream.get_final_response() if variant.status == "completed" else last.response
        return found.to_dict()

    def assert_events(self, events: Sequence[Any], variant: Variant) -> None:
        frame = ("created", "in_progress", variant.status)
        self.assertEqual({event.type for event in events}, {f"response.{kind}" for kind in (*frame, *variant.events)})
        self.assertEqual([event.type for event in events[:2]], ["response.created", "response.in_progress"])


def neutral(response: Json) -> Json:
    """A response without what differs from one time to the next, and without what the package's helper adds."""
    text = json.dumps(without_parsed(response)).replace(response["id"].removeprefix("resp_"), "MARK")
    # The ids of searches are DeepSeek's own.
    text = re.sub(r'"ws_[0-9a-f]{32}"', '"ws_"', text)
    return {**json.loads(text), "created_at": 0, "completed_at": 0}


def without_parsed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_parsed(each) for name, each in value.items() if not name.startswith("parsed")}
    return [without_parsed(each) for each in value] if isinstance(value, list) else value


class ToldBackTest(ResponsesCase):
    """What a request said is told back in its response, in the form of this API whatever form it had."""

    def test_every_way_to_offer_and_to_choose_tools(self) -> None:
        sdk = self.client(self.start_proxy())
        name = "get_weather"
        bare = {"type": "function", "name": name}
        of_chat = {"type": "function", "function": {"name": name, "parameters": LOOK_UP}}
        built_in = [{"type": "file_search", "vector_store_ids": ["vs_1"]}, {"type": "local_shell"}, SEARCH]
        for tool in (bare, {**bare, "parameters": None, "strict": None}, of_chat):
            for choice in ("auto", "none", "required", bare, {"type": "function", "function": {"name": name}}):
                with self.subTest(tool=tool, choice=choice):
                    found = sdk.responses.create(model=MODEL, input="?", tools=[tool, *built_in], tool_choice=choice)
                    self.assertEqual(found.tools[0].name, name)
                    chosen = found.tool_choice if isinstance(choice, str) else found.tool_choice.name
                    self.assertEqual(chosen, choice if isinstance(choice, str) else name)


class FailureTest(ResponsesCase):
    def setUp(self) -> None:
        super().setUp()
        self.sdk = self.client(self.start_proxy())

    def assert_failed(self, answer: Answer, words: str) -> None:
        self.fake.answer(answer)
        with self.sdk.responses.stream(model=MODEL, input="Rain?") as stream:
            *_, last = stream
        self.assertEqual((last.type, last.response.status), ("response.failed", "failed"))
        self.assertEqual(last.response.error.code, "server_error")
        self.assertIn(words, last.response.error.message)
        self.assertEqual(self.sdk.responses.retrieve(last.response.id).to_dict(), last.response.to_dict())

    def test_an_answer_that_breaks_off_has_failed(self) -> None:
        self.assert_failed(Answer(THOUGHT, "A long answer that never ends.", cut_after=5), "cut off")

    def test_a_whole_answer_that_breaks_off_is_a_server_error(self) -> None:
        self.fake.answer(Answer(THOUGHT, "A long answer that never ends.", cut_after=5))
        with self.assertRaises(openai.InternalServerError):
            self.sdk.responses.create(model=MODEL, input="Rain?")

    def test_a_busy_deepseek_is_a_rate_limit_with_a_time_to_wait(self) -> None:
        for stream in (False, True):
            self.fake.answer(Failure(429, "Too many."))
            with self.subTest(stream=stream), self.assertRaises(openai.RateLimitError) as caught:
                self.sdk.responses.create(model=MODEL, input="Rain?", stream=stream)
            self.assertRegex(caught.exception.response.headers["retry-after"], r"^[0-9]+$")
