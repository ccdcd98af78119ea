"""Chat completions by the official `openai` package and by `curl`, through the proxy, against the strict fake.

The history is rebuilt from role, content and tool_calls alone, as Cursor does it, so every reasoning DeepSeek sees
after the first request was put there by the proxy.
"""

import itertools
import json
import subprocess
from collections.abc import Callable
from typing import Any

import openai

from tests.fake_deepseek import Answer, weather_responder
from tests.interop.command_line import KEY, MODEL, ClientCase, Json
from tests.support.cursor import WEATHER_TOOLS, ClientAnswer, add_up, echo, run_weather_tool

HELLO: Any = [{"role": "user", "content": "Hello?"}]
# One request with these messages: the events of a stream, or one whole completion.
Ask = Callable[[list[Json]], list[Json]]


def curl(url: str, *options: str, body: Json | None = None) -> str:
    """What curl prints; it fails the test when the transfer did not end properly."""
    # -q: no .curlrc of whoever runs this; no proxy of theirs either.
    command = ["curl", "-q", "--noproxy", "*", "-sS", "--max-time", "20", *options]
    if body is not None:
        command += ["-H", "Content-Type: application/json", "--data-binary", "@-"]
    done = subprocess.run([*command, url], input=json.dumps(body or {}).encode(), capture_output=True, check=False)
    if done.returncode:
        raise AssertionError(f"curl ended with {done.returncode}: {done.stderr.decode()}")
    return done.stdout.decode()


class SdkCase(ClientCase):
    def script(self, payload: Json) -> Answer:
        return weather_responder(payload)

    def client(self, url: str, kind: type[Any] = openai.OpenAI, **options: Any) -> Any:
        # No retries: a test wants to see the first answer. No environment: a proxy set there is not for loopback.
        http = self.enterContext(openai.DefaultHttpxClient(trust_env=False))
        place = options or {"base_url": f"{url}/v1"}
        return kind(api_key=KEY, max_retries=0, http_client=http, **place)

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
    """What a client shows of an answer when the thinking folds."""
    return f"<details>\n<summary>Thinking</summary>\n\n{answer.reasoning}\n</details>\n\n{answer.content or ''}"


class WeatherLoopTest(SdkCase):
    """Each way to ask, with the thinking shown and not: hidden, nothing but the store can bring it back."""

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


class AnswerTest(SdkCase):
    def test_usage_counts_the_cached_tokens_where_the_sdk_looks_for_them(self) -> None:
        create = self.client(self.start_proxy()).chat.completions.create
        create(model=MODEL, messages=HELLO)
        again = create(model=MODEL, messages=HELLO)
        self.assertEqual(again.usage.prompt_tokens_details.cached_tokens, again.usage.prompt_tokens)
        chunks = create(model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True})
        usage = [chunk.usage for chunk in chunks if chunk.usage]
        self.assertEqual(usage[-1].prompt_tokens_details.cached_tokens, again.usage.prompt_tokens)

    def test_models_are_listed(self) -> None:
        found = [model.id for model in self.client(self.start_proxy()).models.list()]
        self.assertEqual(found, ["deepseek-v4-pro", "deepseek-flash"])

    def test_no_key_is_an_authentication_error(self) -> None:
        client = self.client(self.start_proxy()).with_options(default_headers={"Authorization": "Basic abc"})
        with self.assertRaises(openai.AuthenticationError) as caught:
            client.chat.completions.create(model=MODEL, messages=HELLO)
        self.assertEqual(caught.exception.code, "invalid_api_key")
        self.assertEqual(self.fake.seen, [])

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

    def test_health_and_models_answer_without_a_key(self) -> None:
        url = self.start_proxy()
        self.assertEqual(json.loads(curl(f"{url}/healthz")), {"ok": True})
        self.assertIn("deepseek-v4-pro", curl(f"{url}/v1/models"))
