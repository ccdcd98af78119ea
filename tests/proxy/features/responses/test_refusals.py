"""Wrong, odd or huge requests for responses: the right status and OpenAI's error shape."""

import json
import time
from typing import Any

from deepseek_cursor_proxy.features.responses.feature import Responses
from tests.support.responses_client import HOSTED, OPAQUE, PATH, Json, ResponsesTestCase, output, question
from tests.support.width import width

MARK = "0123456789abcdef" * 2
UNKNOWN = f"resp_{MARK}"


def schema(value: Any) -> Json:
    return {"tools": [{"type": "function", "name": "f", "parameters": {"type": "object", "enum": value}}]}


class TestRefusals(ResponsesTestCase):
    def assert_refused(self, reply: Any, status: int, param: str | None = None) -> None:
        self.assertEqual(status, reply.status, reply.body[:300])
        self.assertLessEqual({"message", "type", "param", "code"}, reply.error.keys())
        self.assertEqual((param, "invalid_request_error"), (reply.error["param"], reply.error["type"]))
        self.assertTrue(reply.error["message"])
        self.assertEqual([], self.fake.seen)

    def assert_alive(self) -> None:
        self.complete(self.running, "Are you there?")
        self.assertEqual(1, self.running.server.services().get(Responses).store.stats().responses)

    def test_wrong_fields_of_a_responses_request_are_named(self) -> None:
        call: Json = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
        for body, param in (
            ({"input": 7}, "input"),
            ({"input": {"type": "message"}}, "input"),
            ({"input": True}, "input"),
            ({"input": ["q"]}, "input[0]"),
            ({"input": [None]}, "input[0]"),
            ({"input": [{"type": 7}]}, "input[0].type"),
            ({"input": [{"type": ["message"]}]}, "input[0].type"),
            ({"input": [{"type": {}}], "store": False}, "input[0].type"),
            ({"input": [{"type": "message"}]}, "input[0].role"),
            ({"input": [{"type": "message", "role": "user", "content": 7}]}, "input[0].content"),
            ({"input": [question("q"), {**call, "call_id": 7}]}, "input[1].call_id"),
            ({"input": [question("q"), {**call, "name": 7}]}, "input[1].name"),
            ({"input": [{"type": "reasoning", "content": "x"}]}, "input[0].content"),
            ({"input": [{**output("a"), "output": 7}]}, "input[0].output"),
            ({"input": [{"type": "item_reference", "id": 7}]}, "input[0].id"),
            ({"input": [{"type": "item_reference", "id": [7]}]}, "input[0].id"),
            ({"input": [{**question("q"), "id": {"a": 7}}]}, "input[0].id"),
            ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
            ({"input": [{"type": "item_reference", "id": f"msg_{MARK}_0"}]}, "input"),
            ({"input": "q", "conversation": "conv_1"}, "conversation"),
            ({"input": "q", "prompt": {"id": "p"}}, "prompt"),
            ({"input": "q", "messages": [{"role": "user", "content": "q"}]}, "messages"),
            ({"input": "q", "instructions": 7}, "instructions"),
            ({"input": "q", "tools": {}}, "tools"),
            ({"input": "q", "tools": [7]}, "tools[0]"),
            ({"input": "q", "temperature": "hot"}, "temperature"),
            ({"input": "q", "max_output_tokens": 0}, "max_output_tokens"),
            ({"input": "q", "metadata": {"a": 1}}, "metadata.a"),
            ({"input": "q", "text": {"format": []}}, "text.format"),
            ({"input": "q", "text": {"format": {"type": "grammar"}}}, "text.format.type"),
            ({"input": "q", "background": True, "store": False}, "background"),
            ({"input": []}, "input"),
        ):
            with self.subTest(body):
                for stream in (True, False):
                    reply = self.send(self.running, "POST", PATH, {**body, "stream": stream})
                    self.assert_refused(reply, 400, param)
        self.assert_alive()

    def test_unknown_response_ids_are_404(self) -> None:
        for given in (UNKNOWN, "resp_", "x", "%00", "%ff", "..", "resp_%E2%82%AC", "'%20OR%201=1", "x" * 5000):
            for method, rest in (
                ("GET", ""),
                ("GET", "?stream=true"),
                ("GET", "/input_items"),
                ("DELETE", ""),
                ("POST", "/cancel"),
            ):
                with self.subTest(given[:20], method=method, rest=rest):
                    self.assert_refused(self.send(self.running, method, f"{PATH}/{given}{rest}"), 404)
        for given in (UNKNOWN, "x", "é", "\ud800", "x" * 5000):
            reply = self.send(self.running, "POST", PATH, {"input": "q", "previous_response_id": given})
            self.assert_refused(reply, 404, "previous_response_id")
            self.assertLess(len(reply.body), 1000)
        self.assert_alive()

    def test_bad_query_parameters_of_a_response_are_named(self) -> None:
        found = self.complete(self.running, "q")
        self.fake.forget()
        for rest, param in (
            ("/input_items?limit=0", "limit"),
            ("/input_items?limit=x", "limit"),
            ("/input_items?limit=1000", "limit"),
            ("/input_items?order=sideways", "order"),
            ("/input_items?after=msg_1", "after"),
            ("?stream=true&starting_after=x", "starting_after"),
            ("?stream=true&starting_after=-7", "starting_after"),
            ("?stream=true", "stream"),
        ):
            with self.subTest(rest):
                self.assert_refused(self.get(self.running, found, rest), 400, param)
        self.assertEqual(found, self.get(self.running, found).value)

    def test_a_wrong_method_on_responses_names_the_allowed_ones(self) -> None:
        for method, path in (("PUT", PATH), ("DELETE", PATH), ("POST", f"{PATH}/x"), ("GET", f"{PATH}/x/cancel")):
            reply = self.send(self.running, method, path)
            self.assertEqual(405, reply.status)
            self.assertIn("OPTIONS", reply.headers["allow"])


def users(messages: list[Json]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "user"]


class TestOddities(ResponsesTestCase):
    def test_items_of_hosted_tools_never_become_user_messages(self) -> None:
        proxy, chat = self.proxy(), [question("q")]
        before: list[Json] = []
        for item in HOSTED:
            chat += [item, {"role": "assistant", "content": "a"}, question(f"after {item['type']}")]
            self.complete(proxy, chat)
            sent = self.fake.accepted[-1]["messages"]
            self.assertEqual(before, sent[: len(before)], "a prefix that was sent stays")
            before = sent
        self.assertNotIn(OPAQUE, json.dumps(self.fake.accepted[-1]))
        self.assertEqual(["q"] + [f"after {item['type']}" for item in HOSTED], users(before))
        first = self.complete(proxy, chat)
        self.complete(proxy, "go on", previous_response_id=first["id"])
        self.assertEqual(before, self.fake.accepted[-1]["messages"][: len(before)])

    def test_thousands_of_references_read_the_store_once(self) -> None:
        first = self.complete(self.running, "q")
        references = [{"type": "item_reference", "id": first["output"][1]["id"]}, question("again")] * width(1000, 5000)
        began = time.monotonic()
        self.assertEqual(200, self.create(self.running, references).status)
        self.assertLess(time.monotonic() - began, 30)
