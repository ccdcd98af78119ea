"""The official `openai` package through the proxy, against the strict fake.

The history is rebuilt from role, content and tool_calls alone, as Cursor does it, so every reasoning DeepSeek sees
after the first request was put there by the proxy.
"""

import unittest
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tests.fake_deepseek import Answer, FakeDeepSeek, weather_responder
from tests.support.cursor import WEATHER_TOOLS, run_weather_tool
from tests.support.harness import running_proxy

try:
    import openai
except ImportError:
    raise unittest.SkipTest("the openai package is not installed: pip install '.[interop]'") from None

MODEL = "deepseek-v4-pro"
Json = dict[str, Any]
Ask = Callable[[list[Json]], Json]


class SdkCase(unittest.TestCase):
    def setUp(self) -> None:
        self.stack = ExitStack()
        self.addCleanup(self.stack.close)
        self.said: list[Answer] = []
        self.fake = self.stack.enter_context(FakeDeepSeek(responder=self.respond, keys={"sk-right"}))

    def respond(self, payload: Json) -> Answer:
        self.said.append(weather_responder(payload))
        return self.said[-1]

    def proxy(self, upstream: str | None = None, **settings: Any) -> str:
        return self.stack.enter_context(running_proxy(upstream or self.fake.url, **settings))

    def client(self, url: str, key: str = "sk-right") -> openai.OpenAI:
        # No retries: a test wants to see the first answer. No environment: a proxy set there is not for loopback.
        http = openai.DefaultHttpxClient(trust_env=False)
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=http)
        return self.stack.enter_context(client)

    def azure_client(self, url: str) -> openai.AzureOpenAI:
        http = openai.DefaultHttpxClient(trust_env=False)
        client = openai.AzureOpenAI(
            azure_endpoint=url,
            api_key="sk-right",
            api_version="2024-12-01-preview",
            max_retries=0,
            http_client=http,
        )
        return self.stack.enter_context(client)


def visible(answer: Answer) -> str:
    """What a client shows of an answer when the thinking folds."""
    return f"<details>\n<summary>Thinking</summary>\n\n{answer.reasoning}\n</details>\n\n{answer.content or ''}"


class AskPlain:
    """One request, one whole completion."""

    def __init__(self, client: openai.OpenAI) -> None:
        self._client = client

    def __call__(self, messages: list[Json]) -> Json:
        completion = self._client.chat.completions.create(model=MODEL, messages=messages, tools=WEATHER_TOOLS)
        return completion.choices[0].message.model_dump(exclude_none=True)


class AskStreamed:
    """One request, its chunks added up by hand, the way most programs do it."""

    def __init__(self, client: openai.OpenAI) -> None:
        self._client = client

    def __call__(self, messages: list[Json]) -> Json:
        chunks = self._client.chat.completions.create(model=MODEL, messages=messages, tools=WEATHER_TOOLS, stream=True)
        content, reasoning, calls = "", "", {}
        for chunk in chunks:
            delta = chunk.choices[0].delta
            content += delta.content or ""
            reasoning += getattr(delta, "reasoning_content", None) or ""
            for piece in delta.tool_calls or ():
                call = calls.setdefault(piece.index, {"id": piece.id, "name": piece.function.name, "arguments": ""})
                call["arguments"] += piece.function.arguments or ""
        found = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in calls.values()
        ]
        return {"content": content, "reasoning_content": reasoning, **({"tool_calls": found} if found else {})}


class AskByHelper:
    """One request through the SDK's own streaming helper, which adds the chunks up itself."""

    def __init__(self, client: openai.OpenAI) -> None:
        self._client = client

    def __call__(self, messages: list[Json]) -> Json:
        # The helper takes only strict tools by its own parameter, and DeepSeek takes those only on its beta path.
        tools = {"tools": list(WEATHER_TOOLS)}
        with self._client.chat.completions.stream(model=MODEL, messages=messages, extra_body=tools) as stream:
            for _ in stream:
                pass
            return stream.get_final_completion().choices[0].message.model_dump(exclude_none=True)


def play(ask: Ask) -> list[Json]:
    """The weather loop: a question with two tool calls, then a second question. What the SDK handed out, in order."""
    messages: list[Json] = [{"role": "system", "content": "You are a coding assistant."}]
    answers: list[Json] = []
    for question in ("What is the weather here?", "Should I take an umbrella?"):
        messages.append({"role": "user", "content": question})
        # A loop that goes wrong may never end; eight answers are twice what it takes.
        while messages[-1]["role"] != "assistant" and len(answers) < 8:
            answers.append(ask(messages))
            messages.append(stripped(answers[-1]))
            messages += [result(call) for call in answers[-1].get("tool_calls", ())]
    return answers


def stripped(answer: Json) -> Json:
    """An answer as Cursor sends it back."""
    message = {"role": "assistant", "content": answer.get("content")}
    if answer.get("tool_calls"):
        kept = ("name", "arguments")
        message["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {name: call["function"][name] for name in kept}}
            for call in answer["tool_calls"]
        ]
    return message


def result(call: Json) -> Json:
    content = run_weather_tool(call["function"]["name"], call["function"]["arguments"])
    return {"role": "tool", "tool_call_id": call["id"], "content": content}


class WeatherLoopTest(SdkCase):
    """Each way to ask, with the thinking shown and not: hidden, nothing but the store can bring it back."""

    def assert_loop(self, ways: Callable[[str], Ask]) -> None:
        for display in (True, False):
            with self.subTest(display=display):
                self.said.clear()
                self.fake.forget()
                answers = play(ways(self.proxy(display_reasoning=display)))
                self.assert_shown(answers, display)
                self.assert_upstream_saw_everything()

    def assert_shown(self, answers: list[Json], display: bool) -> None:
        shown = [visible(said) if display else said.content or "" for said in self.said]
        self.assertEqual([answer.get("content") or "" for answer in answers], shown)
        for answer, said in zip(answers, self.said, strict=True):
            # A stream that shows the thinking does not tell it again beside the text.
            self.assertIn(answer.get("reasoning_content") or "", (said.reasoning, "") if display else (said.reasoning,))

    def assert_upstream_saw_everything(self) -> None:
        self.assertEqual([seen.refusal for seen in self.fake.seen], [None] * 4)
        for number, payload in enumerate(self.fake.accepted):
            turns = [message for message in payload["messages"] if message["role"] == "assistant"]
            before = self.said[:number]
            self.assertEqual([turn["reasoning_content"] for turn in turns], [said.reasoning for said in before])
            self.assertEqual([turn["content"] for turn in turns], [said.content or "" for said in before])

    def test_whole_answers_complete_the_loop(self) -> None:
        self.assert_loop(lambda url: AskPlain(self.client(url)))

    def test_streamed_answers_complete_the_loop(self) -> None:
        self.assert_loop(lambda url: AskStreamed(self.client(url)))

    def test_the_streaming_helper_adds_up_what_the_model_said(self) -> None:
        self.assert_loop(lambda url: AskByHelper(self.client(url)))

    def test_azure_paths_and_keys_complete_the_loop(self) -> None:
        self.assert_loop(lambda url: AskPlain(self.azure_client(url)))

    def test_a_loop_may_change_between_stream_and_plain(self) -> None:
        def mixed(url: str) -> Ask:
            client = self.client(url)
            asks = iter([AskStreamed(client), AskPlain(client), AskByHelper(client), AskPlain(client)])
            return lambda messages: next(asks)(messages)

        self.assert_loop(mixed)


class AnswerTest(SdkCase):
    def test_usage_counts_the_cached_tokens_where_the_sdk_looks_for_them(self) -> None:
        client = self.client(self.proxy())
        question = [{"role": "user", "content": "What is the weather here?"}]
        client.chat.completions.create(model=MODEL, messages=question)
        again = client.chat.completions.create(model=MODEL, messages=question)
        self.assertEqual(again.usage.prompt_tokens_details.cached_tokens, again.usage.prompt_tokens)
        chunks = client.chat.completions.create(
            model=MODEL, messages=question, stream=True, stream_options={"include_usage": True}
        )
        usage = [chunk.usage for chunk in chunks if chunk.usage]
        self.assertEqual(usage[-1].prompt_tokens_details.cached_tokens, again.usage.prompt_tokens)

    def test_without_display_the_content_is_the_models_own(self) -> None:
        client = self.client(self.proxy(display_reasoning=False))
        question = [{"role": "user", "content": "What is the weather here?"}]
        message = client.chat.completions.create(model=MODEL, messages=question).choices[0].message
        self.assertEqual(message.content, self.said[-1].content)
        self.assertEqual(message.reasoning_content, self.said[-1].reasoning)

    def test_models_are_listed(self) -> None:
        found = [model.id for model in self.client(self.proxy()).models.list()]
        self.assertEqual(found, ["deepseek-v4-pro", "deepseek-flash"])


class RefusalTest(SdkCase):
    question = ({"role": "user", "content": "Hello?"},)

    def test_no_key_is_an_authentication_error(self) -> None:
        client = self.client(self.proxy()).with_options(default_headers={"Authorization": "Basic abc"})
        with self.assertRaises(openai.AuthenticationError) as caught:
            client.chat.completions.create(model=MODEL, messages=self.question)
        self.assertEqual(caught.exception.code, "invalid_api_key")
        self.assertEqual(self.fake.seen, [])

    def test_a_stream_that_breaks_off_raises(self) -> None:
        self.fake.answer(Answer("Thinking.", "A long answer that never ends.", cut_after=4))
        chunks = self.client(self.proxy()).chat.completions.create(model=MODEL, messages=self.question, stream=True)
        with self.assertRaises(openai.APIError):
            list(chunks)
