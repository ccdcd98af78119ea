"""A small request never becomes a large one: what it names, repeats or refers to is bounded, on every API."""

import json
from typing import Any

from deepseek_cursor_proxy.conversation import Memo
from deepseek_cursor_proxy.features.responses.feature import Responses
from tests.fake_deepseek import Answer, Call
from tests.support.harness import RunningProxy, SocketTestCase, request_bytes
from tests.support.histories import TOOLS

LONG = "m" * 513
HI = [{"role": "user", "content": "hi"}]
THOUGHT = "thought " * 20_000
TOOL = TOOLS[0]["function"]["name"]
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
REQUESTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HI},
    RESPONSES: {"input": "hi", "store": False},
    MESSAGES: {"messages": HI, "max_tokens": 2000},
}
TOOLS_OF = {
    CHAT: lambda name: {"type": "function", "function": {"name": name, "description": "d", "parameters": {}}},
    RESPONSES: lambda name: {"type": "function", "name": name, "parameters": {}},
    MESSAGES: lambda name: {"name": name, "input_schema": {"type": "object"}},
}


class AmplificationTestCase(SocketTestCase):
    def ask(self, proxy: RunningProxy, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        status, _, answer = self.round_trip(proxy, request_bytes(body, path=path))
        return status, answer if body.get("stream") and status == 200 else json.loads(answer)

    def refused(self, proxy: RunningProxy, path: str, body: dict[str, Any], status: int = 400) -> str:
        seen = len(self.fake.seen)
        found, answer = self.ask(proxy, path, body)
        self.assertEqual((status, seen), (found, len(self.fake.seen)), answer)
        return str(answer["error"]["message"])


class TestNames(AmplificationTestCase):
    def test_a_long_model_name_is_refused(self) -> None:
        proxy = self.proxy(models={"x*": "deepseek-flash"})
        for path, body in REQUESTS.items():
            for stream in (True, False):
                for name in (LONG, "claude-" + LONG, "x" + LONG):
                    message = self.refused(proxy, path, {**body, "model": name, "stream": stream})
                    self.assertEqual("model is too long: at most 512 characters.", message)
            self.assertEqual(200, self.ask(proxy, path, {**body, "model": LONG[:-1]})[0])
        self.refused(proxy, f"/openai/deployments/{LONG}/chat/completions", REQUESTS[CHAT])

    def test_a_long_tool_name_is_refused(self) -> None:
        for path, body in REQUESTS.items():
            message = self.refused(self.running, path, {**body, "tools": [TOOLS_OF[path](LONG)]})
            self.assertRegex(message, r"^tools\[0\]\.(function\.)?name is too long: at most 512 characters\.$")
            self.assertEqual(200, self.ask(self.running, path, {**body, "tools": [TOOLS_OF[path]("f" * 64)]})[0])

    def test_long_values_echoed_by_a_response_are_refused(self) -> None:
        for name in ("user", "safety_identifier", "prompt_cache_key", "service_tier"):
            message = self.refused(self.running, RESPONSES, {"input": "hi", name: LONG})
            self.assertEqual(f"{name} is too long: at most 512 characters.", message)
        for metadata in ({"k": LONG}, {"k" * 65: "v"}, {f"k{number}": "v" for number in range(17)}):
            self.assertIn("metadata", self.refused(self.running, RESPONSES, {"input": "hi", "metadata": metadata}))
        most = {f"{number:064}": "v" * 512 for number in range(16)}
        self.assertEqual(200, self.ask(self.running, RESPONSES, {"input": "hi", "metadata": most})[0])

    def test_long_names_of_unknown_fields_are_logged_once_and_cut(self) -> None:
        proxy = self.proxy()
        with self.assertLogs("deepseek_cursor_proxy", "INFO") as logged:
            for _ in range(2):
                self.ask(proxy, CHAT, {**REQUESTS[CHAT], "f" * 100_000: 1, "reasoning_effort": "e" * 100_000})
        told = [line for line in logged.output if "not forwarded" in line]
        self.assertEqual(2, len(told))
        self.assertLess(max(map(len, told)), 200)


class TestChoices(AmplificationTestCase):
    def test_several_choices_of_a_long_request_are_bounded_together(self) -> None:
        """Eight of 30 MB took 800 MB."""
        proxy = self.proxy(max_request_body_bytes=1_000_000)
        body = {"messages": [{"role": "user", "content": "x" * 300_000}]}
        for stream in (True, False):
            self.assertEqual(200, self.ask(proxy, CHAT, {**body, "n": 3, "stream": stream})[0])
            said = self.refused(proxy, CHAT, {**body, "n": 4, "stream": stream}, 413)
            self.assertRegex(said, r"^4 choices of a request of 3\d{5} bytes: at most 1000000 .* Ask for fewer\.$")


class TestReasonings(AmplificationTestCase):
    """Each of these bodies has 60 kB and would become more than ten megabytes."""

    def test_repeated_encrypted_content_is_refused(self) -> None:
        proxy = self.proxy(max_request_body_bytes=1_000_000)
        self.fake.answer(Answer(reasoning=THOUGHT, content="ok"))
        _, answer = self.ask(proxy, RESPONSES, {**REQUESTS[RESPONSES], "include": ["reasoning.encrypted_content"]})
        envelope = {"type": "reasoning", "summary": [], "encrypted_content": answer["output"][0]["encrypted_content"]}
        once = [envelope, answer["output"][1]]
        for count, status in ((6, 200), (7, 413)):
            body = {"input": [*once * count, *HI], "store": False}
            self.assertEqual(status, self.ask(proxy, RESPONSES, body)[0])
        self.assertIn("sealed reasoning", self.refused(proxy, RESPONSES, body, 413))
        self.assertIn("sealed reasoning", self.refused(proxy, RESPONSES, {**body, "stream": True}, 413))
        background = {**body, "store": True, "background": True}
        self.assertIn("sealed reasoning", self.refused(proxy, RESPONSES, background, 413))

    def test_a_repeated_signature_is_refused(self) -> None:
        proxy = self.proxy(max_request_body_bytes=1_000_000)
        self.fake.answer(Answer(reasoning=THOUGHT, content="ok"))
        _, answer = self.ask(proxy, MESSAGES, {**REQUESTS[MESSAGES], "thinking": {"type": "adaptive"}})
        thinking = {**answer["content"][0], "thinking": ""}
        turn = {"role": "assistant", "content": [thinking, answer["content"][1]]}
        for count, status in ((6, 200), (7, 413)):
            body = {"messages": [*HI, *[turn, *HI] * count], "max_tokens": 2000}
            self.assertEqual(status, self.ask(proxy, MESSAGES, body)[0])
        self.assertIn("sealed reasoning", self.refused(proxy, MESSAGES, {**body, "stream": True}, 413))
        self.assertIn("sealed reasoning", self.refused(proxy, f"{MESSAGES}/count_tokens", body, 413))
        many = {"role": "assistant", "content": [thinking] * 7}
        self.assertIn("sealed", self.refused(proxy, MESSAGES, {"messages": [*HI, many, *HI], "max_tokens": 2000}, 413))

    def test_a_stored_reasoning_that_a_history_names_many_times_is_refused(self) -> None:
        call = Call("call_00_AbCdEfGhIjKlMnOpQrStUv", TOOL, "{}")
        self.fake.answer(Answer(reasoning="thought " * 500_000, calls=(call,), piece=100_000))
        body = {"model": "deepseek-v4-pro", "tools": TOOLS}
        _, answer = self.ask(self.running, CHAT, {**body, "messages": HI})
        message = answer["choices"][0]["message"]
        turn = [
            {"role": "assistant", "content": "", "tool_calls": message["tool_calls"]},
            {"role": "tool", "tool_call_id": call.id, "content": "42"},
        ]
        self.assertEqual(200, self.ask(self.running, CHAT, {**body, "messages": [*HI, *turn]})[0])
        for stream in (True, False):
            for times, choices in ((20, 1), (3, 8)):
                many = {**body, "messages": [*HI, *turn * times], "n": choices, "stream": stream}
                self.assertIn("Start a new chat", self.refused(self.running, CHAT, many, 413))

    def test_a_chain_of_responses_does_not_grow_without_end(self) -> None:
        for has_restarted in (False, True):
            proxy = self.proxy(max_request_body_bytes=400_000)
            previous: dict[str, Any] = {}
            for status in (200, 200, 200, 413):
                if has_restarted:
                    proxy.server.services().get(Responses).store._unpacked = Memo(0, lambda packed, each: 1)
                found, answer = self.ask(proxy, RESPONSES, {"input": THOUGHT, **previous})
                self.assertEqual(status, found)
                previous = {"previous_response_id": answer.get("id")}
            self.assertIn("this request continues", answer["error"]["message"])

    def test_items_that_are_referred_to_many_times_are_refused(self) -> None:
        proxy = self.proxy(max_request_body_bytes=1_000_000)
        self.fake.answer(Answer(reasoning="r", content=THOUGHT))
        _, answer = self.ask(proxy, RESPONSES, {"input": "hi"})
        reference = {"type": "item_reference", "id": answer["output"][-1]["id"]}
        for more in ({}, {"previous_response_id": answer["id"]}):
            body = {"input": [*[reference] * 5, *HI], "store": False, **more}
            self.assertEqual(200, self.ask(proxy, RESPONSES, body)[0])
            said = self.refused(proxy, RESPONSES, {**body, "input": [*[reference] * 7, *HI]}, 413)
            self.assertIn("refers to", said)
