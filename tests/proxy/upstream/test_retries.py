"""A call that fails for a moment is retried, and the client sees nothing of it."""

import itertools
import json
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.exchange import failover
from tests.fake_deepseek import Answer, Failure, Raw, Step
from tests.support.harness import SocketTestCase

CUT = Raw(b"")
CUT_HEAD = Raw(b"HTTP/1.1 2")
CUT_BODY = Raw(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"id"')
EMPTY_STREAM = Raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")


class RetryTestCase(SocketTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.enterContext(mock.patch.object(failover, "_FIRST_PAUSE_SECONDS", 0.01))

    def ask(self, *steps: Step, stream: bool = True, **settings: Any) -> Any:
        self.fake.forget()
        self.fake.answer(*steps)
        return self.client(self.proxy(**{"retry_budget": 5, **settings}), stream=stream).ask("hi").final


class TestRetries(RetryTestCase):
    def test_the_client_sees_nothing_of_failures_that_were_retried(self) -> None:
        for steps, stream in itertools.product(
            (
                [Failure(429)],
                [Failure(500), Failure(502, body=b"<html>"), Failure(503), Failure(504, body=b"")],
                [CUT],
                [CUT_HEAD, CUT],
            ),
            (True, False),
        ):
            with self.subTest(steps=steps, stream=stream):
                answer = self.ask(*steps, Answer(reasoning="R.", content="Good."), stream=stream)
                self.assertEqual(200, answer.status)
                self.assertTrue(answer.content.endswith("Good."))
                self.assertEqual(len(steps) + 1, len(self.fake.seen))
                self.assertEqual(1, len({json.dumps(seen.payload) for seen in self.fake.seen}))

    def test_an_answer_cut_before_the_client_got_a_byte_is_retried(self) -> None:
        for step, stream in ((CUT_BODY, False), (EMPTY_STREAM, True)):
            answer = self.ask(step, Answer(content="Good."), stream=stream)
            self.assertEqual((200, True), (answer.status, answer.is_whole))
            self.assertEqual(2, len(self.fake.seen))

    def test_the_client_gets_the_last_error_when_the_retry_budget_is_spent(self) -> None:
        for step, status in ((Failure(503, "busy"), 503), (CUT, 502)):
            pauses: list[float] = []
            with (
                # Of the budget nothing is spent but by pauses, however slow this machine is.
                mock.patch.dict(failover.Retries.__init__.__kwdefaults__, now=lambda pauses=pauses: sum(pauses)),
                mock.patch.object(failover, "pause", lambda seconds, _, pauses=pauses: pauses.append(seconds)),
            ):
                answer = self.ask(*[step] * 50, retry_budget=0.1)
            self.assertEqual(status, answer.status)
            self.assertEqual(len(pauses) + 1, len(self.fake.seen))
            self.assertTrue(len(pauses) > 2 and 0.05 < sum(pauses) <= 0.1, pauses)
