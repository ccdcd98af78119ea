"""Answers of chat completions, asked for with the official `openai` package, held strictly against its types.

Whatever a test asks, every byte that comes back is checked when the test ends (see typed_chat).
"""

from typing import Any

import openai

from tests.fake_deepseek import Answer, Call, Failure
from tests.interop import typed_chat
from tests.interop.command_line import KEY, MODEL
from tests.interop.typed import SECONDS, THOUGHT, Answered, Json, RecordedCase
from tests.support.cursor import WEATHER_TOOLS

CALLS = (Call("call_0", "get_location", "{}"), Call("call_1", "get_weather", '{"city": "雨"}'))
OFF = {"extra_body": {"thinking": {"type": "disabled"}}}
FENCES = f"{THOUGHT}```html\n<!-- </details>\n~~~\n"

# What the model says, and what is asked for it.
VARIANTS: dict[str, tuple[Answer, Json]] = {
    "text only": (Answer(None, "Rain – 雨."), OFF),
    "reasoning and text": (Answer(THOUGHT, "Rain."), {}),
    "fences in reasoning": (Answer(FENCES, "Rain."), {}),
    "reasoning alone": (Answer(THOUGHT, None), {}),
    "nothing at all": (Answer(None, None), {}),
    "parallel calls": (Answer(THOUGHT, None, CALLS), {"tools": WEATHER_TOOLS}),
    "text and a call": (Answer(THOUGHT, "I look.", CALLS[1:]), {"tools": WEATHER_TOOLS, "parallel_tool_calls": True}),
    "a forced call": (Answer(None, None, CALLS[:1]), {"tools": WEATHER_TOOLS, "tool_choice": "required"}),
    "a forced call in words": (Answer(None, '{"name": "get_location", "arguments": {}}'), {
        "tools": WEATHER_TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "get_location"}},
    }),
    "json": (Answer(THOUGHT, '{"sky": "rain"}'), {"response_format": {"type": "json_object"}}),
    "length": (Answer(THOUGHT, "It is ra", finish_reason="length"), {"max_tokens": 1040}),
    "content filter": (Answer(THOUGHT, "It is", finish_reason="content_filter"), {}),
    "two choices": (Answer(THOUGHT, "Rain."), {"n": 2}),
}  # fmt: skip


class ChatCase(RecordedCase):
    def check(self, answer: Answered) -> None:
        typed_chat.check(answer)

    def client(self, **settings: Any) -> openai.OpenAI:
        self.recorders.append(typed_chat.Recorder())
        url = f"{self.start_proxy(**settings)}/v1"
        http: Any = self.recorders[-1]
        # No retries: a test wants to see the first answer.
        client = openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=SECONDS, http_client=http)
        return self.enterContext(client)

    def last_chunks(self) -> list[Json]:
        return typed_chat.chunks(self.recorders[-1].answers[-1])


class VariantTest(ChatCase):
    def assert_every_kind(self, display: str) -> None:
        client = self.client(display_reasoning=display)
        for name, (answer, asked) in VARIANTS.items():
            for extra in ({}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}):
                with self.subTest(name, **extra):
                    self.fake.answer(*[answer] * asked.get("n", 1))
                    question = [{"role": "user", "content": "The weather as JSON?"}]
                    done = client.chat.completions.create(model=MODEL, messages=question, **asked, **extra)
                    told = list(done) if extra else []
                    has_own_chunk = any(chunk.usage and not chunk.choices for chunk in told)
                    self.assertEqual("stream_options" in extra, has_own_chunk)
                    # Nothing but JSON may stand in an answer that is asked for as JSON.
                    is_shown = display == "on" and answer.reasoning is not None and "response_format" not in asked
                    if extra:
                        self.assert_told_once(answer.reasoning or "", is_shown)

    def assert_told_once(self, thought: str, is_shown: bool) -> None:
        """A stream tells the thinking in the content where it is shown, else in reasoning_content."""
        choices = [choice for chunk in self.last_chunks() for choice in chunk["choices"] if choice["index"] == 0]
        reasoning = "".join(choice["delta"].get("reasoning_content") or "" for choice in choices)
        content = "".join(choice["delta"].get("content") or "" for choice in choices)
        self.assertEqual(reasoning, "" if is_shown else thought)
        self.assertEqual(is_shown, content.startswith("<details>"), content)

    def test_every_kind_of_answer_for_a_client_with_a_place_for_thinking(self) -> None:
        self.assert_every_kind("auto")

    def test_every_kind_of_answer_with_the_thinking_shown(self) -> None:
        self.assert_every_kind("on")

    def test_every_kind_of_answer_with_the_thinking_hidden(self) -> None:
        self.assert_every_kind("off")


class FailureTest(ChatCase):
    def test_refusals_fit_the_types(self) -> None:
        client = self.client()
        for status in (400, 401, 402, 422, 429, 500, 503):
            for stream in (False, True):
                with self.subTest(status=status, stream=stream):
                    self.fake.answer(Failure(status))
                    question = [{"role": "user", "content": "Hello?"}]
                    with self.assertRaises(openai.APIStatusError) as caught:
                        client.chat.completions.create(model=MODEL, messages=question, stream=stream)
                    self.assertEqual(caught.exception.status_code, status)
