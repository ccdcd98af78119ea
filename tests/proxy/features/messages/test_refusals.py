"""Wrong, odd or huge requests for messages: the right status, this API's error shape, no content lost."""

import time
from dataclasses import replace
from typing import Any

from tests.fake_deepseek import Answer, Call
from tests.support.messages_client import TOOLS, Json, MessagesTestCase, assistant, result, user
from tests.support.width import width

CALL = Call("call_00_a1B2c3D4e5F6g7H8i9J0", "read_file", '{"path": "a.py"}')
USE = {"type": "tool_use", "id": CALL.id, "name": "read_file", "input": {"path": "a.py"}}
MIB = 1024 * 1024


def picture(data: Any, kind: str = "base64") -> Json:
    return {"type": "image", "source": {"type": kind, "media_type": "image/png", "data": data}}


class TestOddities(MessagesTestCase):
    def test_unknown_roles_become_user_messages(self) -> None:
        self.complete(self.proxy(), {"role": "narrator", "content": "Once upon a time."}, {"role": "", "content": "q"})
        self.assertEqual(["user", "user"], [message["role"] for message in self.sent()])

    def test_orphan_and_repeated_tool_results_become_text(self) -> None:
        proxy = self.proxy()
        self.fake.answer(Answer(reasoning="Hm.", calls=(CALL,)))
        first = self.complete(proxy, tools=TOOLS)
        answers = {"one": CALL.id, "another": CALL.id, "of nobody": "toolu_x", "empty": ""}
        blocks = [result(call_id, words) for words, call_id in answers.items()]
        self.complete(proxy, user("q"), assistant(first), user(*blocks), tools=TOOLS)
        for words in answers:
            self.assertIn(words, str(self.sent()))
        self.assertEqual([], self.fake.refused)

    def test_calls_without_ids_or_names_are_accepted(self) -> None:
        for use in ({**USE, "id": ""}, {"type": "tool_use"}, {**USE, "input": "a string"}, {**USE, "input": [1]}):
            with self.subTest(use):
                answer = {"role": "assistant", "content": [use]}
                reply = self.create(self.proxy(), user("q"), answer, user(result("")), tools=TOOLS)
                self.assertIn(reply.status, (200, 400), reply.body)
                self.assertTrue(reply.status == 200 or reply.error)

    def test_malformed_images_are_an_error_only_of_models_that_see_them(self) -> None:
        for data in ("not base64 at all!", "", "AAAA" * 10 + "é", "data:image/png;base64,AAAA", None):
            with self.subTest(data):
                self.assertEqual(200, self.create(self.proxy(), user(picture(data)), model="deepseek-v4-pro").status)
                seen = self.create(self.proxy(), user(picture(data)), model="deepseek-flash")
                self.assertIn("Unsupported image format", seen.error["message"])
        self.assertEqual(200, self.create(self.proxy(), user(picture("x", kind="a kind of tomorrow"))).status)

    def test_messages_that_end_with_an_assistant_turn_are_sent(self) -> None:
        self.complete(self.proxy(), user("q"), {"role": "assistant", "content": "{"}, tools=TOOLS)
        self.assertEqual("{", self.sent()[-1]["content"])

    def test_searches_are_left_out_of_a_proxy_without_the_feature(self) -> None:
        proxy = self.proxy()
        proxy.server._services = replace(proxy.server.services(), search_apis={})
        search = {"type": "web_search_20250305", "name": "web_search"}
        self.complete(proxy, user("q"), tools=[search, *TOOLS])
        self.assertEqual((1, []), (len(self.fake.accepted[-1]["tools"]), self.fake.refused))


class TestSizes(MessagesTestCase):
    def quickly(self, began: float) -> None:
        # Measured at a fifth of that on a slow machine; what grows with the square of it would take minutes.
        self.assertLess(time.monotonic() - began, 30)

    def test_a_block_of_megabytes_costs_no_more_than_its_length(self) -> None:
        size = width(MIB // 4, 10 * MIB)
        proxy, text = self.proxy(), "words and \n" * (size // 10)
        for block in (
            {"type": "text", "text": text},
            result("a", text),
            result("a", [{"type": "text", "text": text}]),
            picture("A" * size),
            {"type": "thinking", "thinking": "x", "signature": "dcp1." + "A" * size},
            {"type": "thinking", "thinking": text, "signature": "x"},
            {"type": "a block of tomorrow", "x": text},
        ):
            began = time.monotonic()
            with self.subTest(block["type"]):
                self.complete(proxy, user(block), {"role": "assistant", "content": [block]}, user("q"), tools=TOOLS)
                self.quickly(began)
