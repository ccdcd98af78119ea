"""Chat completions by the official `openai` package, held strictly against its types, and by `curl`.

Whatever a test asks, every byte that comes back to the package is checked when the test ends (see typed_chat). In loops
the history is rebuilt from role, content and tool_calls alone, as Cursor does it.
"""

import itertools
import json
import subprocess
from collections.abc import Callable
from typing import Any

import openai

from tests.fake_deepseek import Answer, Call, Failure, weather_responder
from tests.interop import typed_chat
from tests.interop.command_line import KEY, MODEL, ClientCase
from tests.interop.typed import SECONDS, THOUGHT, Answered, Json, RecordedCase
from tests.support.cursor import WEATHER_TOOLS, ClientAnswer, add_up, echo, run_weather_tool

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

    def client(self, url: str, kind: type[Any] = openai.OpenAI, **options: Any) -> Any:
        self.recorders.append(typed_chat.Recorder())
        http: Any = self.recorders[-1]
        # No retries: a test wants to see the first answer.
        place = options or {"base_url": f"{url}/v1"}
        return self.enterContext(kind(api_key=KEY, max_retries=0, timeout=SECONDS, http_client=http, **place))

    def last_chunks(self) -> list[Json]:
        return typed_chat.chunks(self.recorders[-1].answers[-1])


HELLO: Any = [{"role": "user", "content": "Hello?"}]
# One request with these messages: the events of a stream, or one whole completion.
Ask = Callable[[list[Json]], list[Json]]


def curl(url: str, *options: str, body: Json | None = None) -> str:
    # -q: no .curlrc of whoever runs this; no proxy of theirs either.
    command = ["curl", "-q", "--noproxy", "*", "-sS", "--max-time", "20", *options]
    if body is not None:
        command += ["-H", "Content-Type: application/json", "--data-binary", "@-"]
    done = subprocess.run([*command, url], input=json.dumps(body or {}).encode(), capture_output=True, check=False)
    if done.returncode:
        raise AssertionError(f"curl ended with {done.returncode}: {done.stderr.decode()}")
    return done.stdout.decode()


class VariantTest(ChatCase):
    def assert_every_kind(self, display: str) -> None:
        client = self.client(self.start_proxy(display_reasoning=display))
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

    def test_every_kind_of_answer_with_the_thinking_in_its_place_shown_and_hidden(self) -> None:
        for display in ("auto", "on", "off"):
            self.assert_every_kind(display)


class FailureTest(ChatCase):
    def test_refusals_fit_the_types(self) -> None:
        client = self.client(self.start_proxy())
        for status in (400, 401, 402, 422, 429, 500, 503):
            for stream in (False, True):
                with self.subTest(status=status, stream=stream):
                    self.fake.answer(Failure(status))
                    question = [{"role": "user", "content": "Hello?"}]
                    with self.assertRaises(openai.APIStatusError) as caught:
                        client.chat.completions.create(model=MODEL, messages=question, stream=stream)
                    self.assertEqual(caught.exception.status_code, status)


def play(ask: Ask) -> list[ClientAnswer]:
    """The weather loop: a question with two tool calls, then a second question. What the client got, in order."""
    messages: list[Json] = [{"role": "system", "content": "You are a coding assistant."}]
    answers: list[ClientAnswer] = []
    for question in ("What is the weather here?", "Should I take an umbrella?"):
        messages.append({"role": "user", "content": question})
        # A loop that goes wrong may never end; eight answers are twice what it takes.
        while messages[-1]["role"] != "assistant" and len(answers) < 8:
            answers.append(add_up(ask(messages)))
            messages.append(echo(answers[-1]))
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": run_weather_tool(call.name, call.arguments)}
                for call in answers[-1].calls
            ]
    return answers


def visible(answer: Answer) -> str:
    return f"<details>\n<summary>Thinking</summary>\n\n{answer.reasoning}\n</details>\n\n{answer.content or ''}"


class WeatherLoopTest(ChatCase):
    """Each way to ask, with the thinking shown and not: hidden, nothing but the store can bring it back."""

    def script(self, payload: Json) -> Answer:
        return weather_responder(payload)

    def ways(self, url: str) -> dict[str, Ask]:
        sdk = self.client(url)
        azure = self.client(url, openai.AzureOpenAI, azure_endpoint=url, api_version="2024-12-01-preview")
        asked: Json = {"model": MODEL, "tools": WEATHER_TOOLS}

        def by_helper(messages: list[Json]) -> list[Json]:
            # The helper takes only strict tools by its own parameter, and DeepSeek takes those only on its beta path.
            tools = {"tools": list(WEATHER_TOOLS)}
            with sdk.chat.completions.stream(model=MODEL, messages=messages, extra_body=tools) as stream:
                for _ in stream:
                    pass
                return [stream.get_final_completion().model_dump(exclude_none=True)]

        def by_curl(messages: list[Json], stream: bool) -> list[Json]:
            key, path = ("-H", f"Authorization: Bearer {KEY}"), f"{url}/v1/chat/completions"
            text = curl(path, "-N", "--fail", *key, body={**asked, "messages": messages, "stream": stream})
            if not stream:
                return [json.loads(text)]
            *events, done = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
            self.assertEqual("[DONE]", done)
            return [json.loads(event) for event in events]

        def streamed(messages: list[Json]) -> list[Json]:
            chunks = sdk.chat.completions.create(**asked, messages=messages, stream=True)
            return [chunk.model_dump(exclude_none=True) for chunk in chunks]

        ways: dict[str, Ask] = {
            "whole": lambda messages: [sdk.chat.completions.create(**asked, messages=messages).model_dump()],
            "azure": lambda messages: [azure.chat.completions.create(**asked, messages=messages).model_dump()],
            "streamed": streamed,
            "helper": by_helper,
            "curl": lambda messages: by_curl(messages, False),
            "curl, streamed": lambda messages: by_curl(messages, True),
        }
        in_turn = itertools.cycle(ways.values())
        return {**ways, "all in turn": lambda messages: next(in_turn)(messages)}

    def test_every_way_to_ask_completes_the_loop(self) -> None:
        for name in self.ways(""):
            for display in (True, False):
                with self.subTest(name, display=display):
                    self.said.clear()
                    self.fake.forget()
                    answers = play(self.ways(self.start_proxy(display_reasoning=display))[name])
                    self.assert_shown(answers, display)
                    self.assertEqual(4, len(self.said))
                    self.assert_nothing_lost()

    def assert_shown(self, answers: list[ClientAnswer], display: bool) -> None:
        shown = [visible(said) if display else said.content or "" for said in self.said]
        self.assertEqual([answer.content for answer in answers], shown)
        for answer, said in zip(answers, self.said, strict=True):
            # A stream that shows the thinking does not tell it again beside the text.
            self.assertIn(answer.reasoning or "", (said.reasoning, "") if display else (said.reasoning,))


class AnswerTest(ChatCase):
    def test_usage_counts_the_cached_tokens_where_the_sdk_looks_for_them(self) -> None:
        create = self.client(self.start_proxy()).chat.completions.create
        create(model=MODEL, messages=HELLO)
        again = create(model=MODEL, messages=HELLO)
        self.assertEqual(again.usage.prompt_tokens_details.cached_tokens, again.usage.prompt_tokens)
        chunks = create(model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True})
        usage = [chunk.usage for chunk in chunks if chunk.usage]
        self.assertEqual(usage[-1].prompt_tokens_details.cached_tokens, again.usage.prompt_tokens)

    def test_a_stream_that_breaks_off_raises(self) -> None:
        self.fake.answer(Answer("Thinking.", "A long answer that never ends.", cut_after=4))
        client = self.client(self.start_proxy())
        with self.assertRaises(openai.APIError):
            list(client.chat.completions.create(model=MODEL, messages=HELLO, stream=True))


class CurlTest(ClientCase):
    def test_the_azure_path_takes_the_key_from_its_own_header(self) -> None:
        self.fake.answer(Answer("A thought.", "Hello."))
        path = "/openai/deployments/deepseek-flash/chat/completions?api-version=2024-12-01-preview"
        text = curl(self.start_proxy() + path, "--fail", "-H", f"api-key: {KEY}", body={"messages": HELLO})
        self.assertEqual(json.loads(text)["model"], "deepseek-flash")
        self.assertEqual(self.fake.seen[-1].headers["authorization"], f"Bearer {KEY}")
        self.assertEqual(self.fake.accepted[-1]["model"], "deepseek-flash")

    def test_without_a_key_curl_reads_what_to_do(self) -> None:
        text = curl(f"{self.start_proxy()}/v1/chat/completions", "-w", "\n%{http_code}", body={"messages": []})
        answer, _, status = text.rpartition("\n")
        self.assertEqual(status, "401")
        self.assertIn("DeepSeek key", json.loads(answer)["error"]["message"])
