"""A person with `curl`: the weather loop by hand, streamed and not, as the README begins it."""

import json
import shutil
import subprocess
import unittest
from typing import Any

from tests.fake_deepseek import Answer, FakeDeepSeek, weather_responder
from tests.support.cursor import WEATHER_TOOLS, run_weather_tool
from tests.support.harness import running_proxy

CURL = shutil.which("curl")
Json = dict[str, Any]


def curl(url: str, *options: str, body: Json | None = None) -> str:
    """What curl prints; it fails the test when the transfer did not end properly."""
    # -q: no .curlrc of whoever runs this; no proxy of theirs either.
    command = [CURL or "curl", "-q", "--noproxy", "*", "-sS", "--max-time", "20", *options]
    if body is not None:
        command += ["-H", "Content-Type: application/json", "--data-binary", "@-"]
    done = subprocess.run([*command, url], input=json.dumps(body or {}).encode(), capture_output=True, check=False)
    if done.returncode:
        raise AssertionError(f"curl ended with {done.returncode}: {done.stderr.decode()}")
    return done.stdout.decode()


def streamed_message(text: str) -> Json:
    """The assistant message that a stream adds up to; its last event must be [DONE]."""
    *events, done = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    if done != "[DONE]":
        raise AssertionError(f"the stream ends with {done}")
    content, calls = "", []
    for event in events:
        delta = json.loads(event)["choices"][0]["delta"]
        content += delta.get("content") or ""
        for piece in delta.get("tool_calls", ()):
            if piece["index"] == len(calls):
                calls.append({**piece, "function": {**piece["function"]}})
            else:
                calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    return echoed(content, calls)


def whole_message(text: str) -> Json:
    message = json.loads(text)["choices"][0]["message"]
    return echoed(message["content"], message.get("tool_calls"))


def echoed(content: str | None, calls: list[Json] | None) -> Json:
    """An answer as it goes back into the history: without its reasoning."""
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}


def result(call: Json) -> Json:
    content = run_weather_tool(call["function"]["name"], call["function"]["arguments"])
    return {"role": "tool", "tool_call_id": call["id"], "content": content}


@unittest.skipUnless(CURL, "curl is not installed")
class CurlTest(unittest.TestCase):
    def setUp(self) -> None:
        self.said: list[Answer] = []
        self.fake = self.enterContext(FakeDeepSeek(responder=self.respond))
        self.url = self.enterContext(running_proxy(self.fake.url, display_reasoning=False))

    def respond(self, payload: Json) -> Answer:
        self.said.append(weather_responder(payload))
        return self.said[-1]

    def ask(self, messages: list[Json], *, stream: bool) -> Json:
        body = {"model": "deepseek-v4-pro", "messages": messages, "tools": WEATHER_TOOLS, "stream": stream}
        key = ("-H", "Authorization: Bearer sk-test")
        text = curl(f"{self.url}/v1/chat/completions", "-N", "--fail", *key, body=body)
        return streamed_message(text) if stream else whole_message(text)

    def assert_loop(self, *, stream: bool) -> None:
        messages: list[Json] = []
        for question in ("What is the weather here?", "Should I take an umbrella?"):
            messages.append({"role": "user", "content": question})
            # A loop that goes wrong may never end; eight answers are twice what it takes.
            while messages[-1]["role"] != "assistant" and len(self.said) < 8:
                messages.append(self.ask(messages, stream=stream))
                messages += [result(call) for call in messages[-1].get("tool_calls", ())]
        self.assertEqual(self.fake.refused, [])
        self.assertEqual(len(self.fake.accepted), 4)
        for number, payload in enumerate(self.fake.accepted):
            thought = [turn["reasoning_content"] for turn in payload["messages"] if turn["role"] == "assistant"]
            self.assertEqual(thought, [said.reasoning for said in self.said[:number]])

    def test_the_loop_streamed(self) -> None:
        self.assert_loop(stream=True)

    def test_the_loop_plain(self) -> None:
        self.assert_loop(stream=False)

    def test_the_azure_path_takes_the_key_from_its_own_header(self) -> None:
        path = "/openai/deployments/deepseek-flash/chat/completions?api-version=2024-12-01-preview"
        body = {"messages": [{"role": "user", "content": "Hello?"}]}
        answer = json.loads(curl(self.url + path, "--fail", "-H", "api-key: sk-test", body=body))
        self.assertEqual(answer["model"], "deepseek-flash")
        self.assertEqual(self.fake.seen[-1].headers["authorization"], "Bearer sk-test")
        self.assertEqual(self.fake.accepted[-1]["model"], "deepseek-flash")

    def test_without_a_key_curl_reads_what_to_do(self) -> None:
        text = curl(f"{self.url}/v1/chat/completions", "-w", "\n%{http_code}", body={"messages": []})
        answer, _, status = text.rpartition("\n")
        self.assertEqual(status, "401")
        self.assertIn("DeepSeek key", json.loads(answer)["error"]["message"])

    def test_health_and_models_answer_without_a_key(self) -> None:
        self.assertEqual(json.loads(curl(f"{self.url}/healthz")), {"ok": True})
        self.assertIn("deepseek-v4-pro", curl(f"{self.url}/v1/models"))
