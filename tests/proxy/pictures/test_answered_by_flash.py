"""Turns with pictures: Flash answers them in place of a model that sees none, which answers all others."""

from typing import Any
from unittest import mock

from deepseek_cursor_proxy.deepseek import images
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer, Call
from tests.support.harness import RunningProxy, request_bytes
from tests.support.histories import TOOLS
from tests.support.pictures import (
    CALL_ID,
    FLASH,
    PATHS,
    PRO,
    QUESTIONS,
    RESULTS,
    Json,
    PictureTestCase,
    call,
    part,
    result,
    user,
)

CONSOLE = "deepseek_cursor_proxy.observers.console"
ANSWER: Json = {"role": "assistant", "content": "Hello."}


class TestAnsweredByFlash(PictureTestCase):
    def with_flash(self, store: ReasoningStore | None = None, **settings: Any) -> RunningProxy:
        return self.proxy(store, pictures="flash", **settings)

    def models(self) -> list[str]:
        return [payload["model"] for payload in self.fake.accepted]

    def test_a_turn_with_a_new_picture_is_answered_by_flash_on_every_api(self) -> None:
        proxy = self.with_flash()
        for bodies in (QUESTIONS, RESULTS):
            for api, body in bodies.items():
                for stream in (False, True):
                    with self.subTest(api, stream=stream):
                        reply = self.post(proxy, api, {**body("a"), "stream": stream})
                        self.assertEqual(FLASH, self.models()[-1])
                        self.assertIn("image_url", str(self.sent_to(FLASH)[-1]))
                        # As for any other model that stands for the one that was asked for.
                        self.assertIn(f'"model":"{PRO}"'.encode(), reply.body)
        self.assertEqual([], self.fake.refused)

    def test_the_console_names_both_models(self) -> None:
        with self.assertLogs(CONSOLE, "INFO") as logged:
            self.chat(self.with_flash(), user("Look.", part("a")))
        self.assertIn(f"{PRO} → {FLASH}", logged.records[0].getMessage())

    def test_the_whole_tool_loop_of_the_turn_is_answered_by_flash_and_the_next_turn_is_not(self) -> None:
        proxy = self.with_flash()
        answers = [Answer(reasoning=f"Thought {n}.", calls=(Call(f"{CALL_ID}{n}", "read_file", "{}"),)) for n in (1, 2)]
        self.fake.answer(*answers, Answer(reasoning="Thought 3.", content="Hello."))
        history = [user("Before."), ANSWER, user("Look.", part("a"))]
        steps: list[list[Json]] = [[call(f"{CALL_ID}{n}"), result("Done.", call_id=f"{CALL_ID}{n}")] for n in (1, 2)]
        # Some clients put a reminder behind the results.
        steps[1].append(user("A reminder."))
        for step in ([], *steps):
            history += [{name: value for name, value in each.items() if name != "reasoning_content"} for each in step]
            self.chat(proxy, *history, tools=TOOLS)
        self.assertEqual([FLASH] * 3, self.models())
        self.chat(proxy, *history, ANSWER, user("And now?"), tools=TOOLS)
        self.assertEqual([FLASH] * 3 + [PRO], self.models())
        # What Flash thought goes to the other model as its own thoughts do.
        self.assert_upstream_saw(" ", "Thought 1.", "Thought 2.", "Thought 3.")
        self.assert_named(self.sent_to()[-1][2]["content"])
        self.assertEqual([], self.fake.refused)

    def test_the_prefix_of_each_model_stays(self) -> None:
        proxy = self.with_flash()
        history: list[Json] = []
        before: dict[str, list[Json]] = {PRO: [], FLASH: []}
        for turn in range(6):
            history.append(user(f"Question {turn}.", *([part(f"{turn}")] if turn % 3 == 1 else [])))
            self.chat(proxy, *history, tools=TOOLS)
            model = FLASH if turn % 3 == 1 else PRO
            sent = self.sent_to(model)[-1]
            self.assertEqual(before[model], sent[: len(before[model])])
            before[model] = sent
            history.append({"role": "assistant", "content": "Hello."})
        self.assertEqual([PRO, FLASH, PRO] * 2, self.models())

    def test_a_picture_that_came_before_is_not_new(self) -> None:
        self.chat(self.with_flash(), user("Look.", part("a")), ANSWER, user("Again.", part("a")))
        self.assertEqual([PRO], self.models())

    def test_pictures_beyond_the_limits_of_flash_are_named(self) -> None:
        self.enterContext(mock.patch.object(images, "MAX_BYTES_INLINE", 4))
        self.chat(self.with_flash(), user("Look.", part("a")))
        self.assertEqual([PRO], self.models())
        self.assert_named(self.sent_to()[-1][-1]["content"])

    def test_by_default_pictures_are_named(self) -> None:
        self.chat(self.running, user("Look.", part("a")))
        self.assertEqual([PRO], self.models())
        self.assert_named(self.sent_to()[-1][-1]["content"])

    def test_a_model_that_sees_gets_the_picture(self) -> None:
        for pictures in ("name", "flash"):
            self.chat(self.proxy(pictures=pictures), user("Look.", part("a")), model=FLASH)
            self.assertEqual(part("a"), self.sent_to(FLASH)[-1][-1]["content"][-1])

    def test_at_a_host_with_its_own_model_names_pictures_are_named_and_the_console_says_so_once(self) -> None:
        proxy = self.with_flash(upstream_host="vllm")
        with self.assertLogs("deepseek_cursor_proxy.exchange.services", "WARNING") as logged:
            for _ in range(2):
                self.chat(proxy, user("Look.", part("a")))
        self.assertEqual(1, len(logged.records))
        self.assertEqual([PRO] * 2, self.models())
        self.assert_named(self.sent_to()[-1][-1]["content"])

    def test_counting_tokens_makes_no_call(self) -> None:
        body = {"model": PRO, **QUESTIONS["messages"]("a")}
        reply = self.round_trip(self.with_flash(), request_bytes(body, path=f"{PATHS['messages']}/count_tokens"))
        self.assertEqual((200, []), (reply.status, self.fake.seen))
