"""When a call is tried again and when it is not: the rule with an invented clock, then over real sockets."""

import itertools
import json
import unittest
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.errors import (
    ClientGone,
    ProxyError,
    UpstreamDropped,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamTimeout,
)
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.lab.fake_deepseek import Answer, Failure, Raw, Step
from deepseek_cursor_proxy.upstream import retry
from deepseek_cursor_proxy.upstream.retry import Retries
from tests.support.harness import PATIENCE, SocketTestCase, request_bytes

DROPPED = UpstreamDropped("gone")
CUT = Raw(b"")
CUT_HEAD = Raw(b"HTTP/1.1 2")
CUT_BODY = Raw(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"id"')
EMPTY_STREAM = Raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")


def refused(status: int, retry_after: int | None = None) -> UpstreamRefused:
    return UpstreamRefused(status, "busy", None, retry_after)


class Time:
    """A clock that only pauses move."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    def pause(self, seconds: float, peer: Peer | None) -> None:
        self.now += seconds
        self.pauses.append(round(seconds, 3))

    def retries(self, budget: float, jitter: float = 0.1) -> Retries:
        return Retries(budget, now=lambda: self.now, chance=lambda low, high: jitter, pause=self.pause)


class TestTheRule(unittest.TestCase):
    def test_pauses_double_up_to_a_bound_and_end_with_the_budget(self) -> None:
        time = Time()
        chances = time.retries(40)
        while chances.wait(refused(503), None):
            pass
        self.assertEqual([0.45, 0.9, 1.8, 3.6, 7.2, 7.2, 7.2, 7.2], time.pauses)
        self.assertEqual(8, chances.count)

    def test_the_jitter_is_a_tenth_to_three_tenths(self) -> None:
        for _ in range(100):
            time = Time()
            Retries(9, now=lambda time=time: time.now, pause=time.pause).wait(DROPPED, None)  # type: ignore[misc]
            self.assertTrue(0.35 <= time.pauses[0] <= 0.45, time.pauses)

    def test_only_what_may_pass_is_tried_again(self) -> None:
        table: dict[ProxyError, bool] = {
            **{refused(status): True for status in (429, 500, 502, 503, 504)},
            **{refused(status): False for status in (400, 401, 402, 403, 404, 422, 501)},
            DROPPED: True,
            UpstreamFailed("unintelligible"): False,
            UpstreamTimeout("silent"): False,
        }
        for error, expected in table.items():
            with self.subTest(repr(error), status=error.status):
                self.assertEqual(expected, Time().retries(20).wait(error, None))

    def test_no_budget_is_no_second_chance(self) -> None:
        for error in (DROPPED, refused(503), refused(429, 0)):
            time = Time()
            self.assertFalse(time.retries(0).wait(error, None))
            self.assertEqual([], time.pauses)

    def test_a_named_time_is_waited_for_if_it_fits_and_handed_on_at_once_if_not(self) -> None:
        for named, expected in ((0, [0.45]), (3, [3]), (20, [20]), (21, []), (10**6 - 1, [])):
            time = Time()
            self.assertEqual(bool(expected), time.retries(20).wait(refused(429, named), None))
            self.assertEqual(expected, time.pauses)

    def test_the_time_that_calls_take_counts_too(self) -> None:
        time = Time()
        chances = time.retries(20)
        time.now += 19.9
        self.assertFalse(chances.wait(DROPPED, None))

    def test_a_client_that_leaves_ends_the_waiting(self) -> None:
        def leave(seconds: float, peer: Peer | None) -> None:
            raise ClientGone

        with self.assertRaises(ClientGone):
            Retries(20, pause=leave).wait(DROPPED, None)


class RetryTestCase(SocketTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.enterContext(mock.patch.object(retry, "_FIRST_PAUSE_SECONDS", 0.01))

    def ask(self, *steps: Step, stream: bool = True, **settings: Any) -> Any:
        self.fake.forget()
        self.fake.answer(*steps)
        return self.client(self.proxy(**{"retry_budget": 5, **settings}), stream=stream).ask("hi").final


class TestOverSockets(RetryTestCase):
    def test_the_client_sees_nothing_of_what_passed(self) -> None:
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

    def test_an_answer_cut_before_a_byte_of_it_was_relayed_is_asked_for_again(self) -> None:
        for step, stream in ((CUT_BODY, False), (EMPTY_STREAM, True)):
            answer = self.ask(step, Answer(content="Good."), stream=stream)
            self.assertEqual((200, True), (answer.status, answer.is_whole))
            self.assertEqual(2, len(self.fake.seen))

    def test_an_answer_cut_after_a_byte_was_relayed_is_not(self) -> None:
        for cut in (Answer(content="Half of it.", cut_after=2), Answer(content="x", cut_after=0, comments=1)):
            answer = self.ask(cut, Answer(content="Good."))
            self.assertEqual("upstream_error", answer.error["type"])
            self.assertEqual(1, len(self.fake.seen))

    def test_the_last_error_is_told_when_the_budget_is_spent(self) -> None:
        for step, status in ((Failure(503, "busy"), 503), (CUT, 502)):
            answer = self.ask(*[step] * 50, retry_budget=0.1)
            self.assertEqual(status, answer.status)
            self.assertTrue(1 < len(self.fake.seen) < 20, len(self.fake.seen))

    def test_what_will_not_pass_is_told_at_once(self) -> None:
        for failure in (Failure(401, "no"), Failure(402, "no"), Failure(400, "no"), Failure(429, "no", headers=LATER)):
            answer = self.ask(failure)
            self.assertEqual(failure.status, answer.status)
            self.assertEqual(1, len(self.fake.seen))

    def test_silence_is_not_tried_again(self) -> None:
        answer = self.ask(Raw(b"", then_close=False), request_timeout=0.1)
        self.assertEqual((504, 1), (answer.status, len(self.fake.seen)))

    def test_a_refusal_after_a_failure_still_heals(self) -> None:
        words = "The `reasoning_content` in the thinking mode must be passed back to the API."
        answer = self.ask(Failure(503), Failure(400, words), CUT, Answer(content="Good."))
        self.assertEqual((200, 4), (answer.status, len(self.fake.seen)))

    def test_a_client_that_leaves_while_we_wait_ends_it_at_once(self) -> None:
        with (
            mock.patch.object(retry, "_FIRST_PAUSE_SECONDS", 60.0),
            self.assertLogs("deepseek_cursor_proxy", "INFO") as logged,
        ):
            with mock.patch.object(retry, "_LONGEST_PAUSE_SECONDS", 60.0):
                self.fake.answer(Failure(503))
                proxy = self.proxy(retry_budget=100)
                sock = self.connect(proxy)
                sock.sendall(request_bytes({"messages": [{"role": "user", "content": "x"}]}))
                while not self.fake.seen:
                    self.fake.release.wait(0.01)
                sock.close()
                proxy.server.connections.wait_until_empty(PATIENCE)
        self.assertEqual(1, len(self.fake.seen))
        self.assertIn("client left", logged.output[-1])

    def test_retries_are_told(self) -> None:
        with self.assertLogs("deepseek_cursor_proxy", "INFO") as logged:
            self.ask(Failure(503), Failure(503), Answer(content="Good."))
        self.assertEqual(1, sum(line.endswith(" · 2 retries") for line in logged.output))


LATER = (("Retry-After", "30"),)
