"""Wrong, odd or huge requests for responses: the right status and OpenAI's error shape."""

import json
import time
from typing import Any

from deepseek_cursor_proxy.features.responses.feature import Responses
from tests.support.responses_client import HOSTED, OPAQUE, PATH, Json, ResponsesTestCase, question
from tests.support.width import width

MARK = "0123456789abcdef" * 2
UNKNOWN = f"resp_{MARK}"


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
