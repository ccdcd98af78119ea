"""When a call is tried again and when it is not, with an invented clock."""

import unittest
from unittest import mock

from deepseek_cursor_proxy import errors
from deepseek_cursor_proxy.errors import ClientGone, UpstreamDropped, UpstreamFailed, UpstreamRefused, UpstreamTimeout
from deepseek_cursor_proxy.exchange.failover import Retries, temporary_failure

DROPPED = UpstreamDropped("gone")


def refused(status: int, retry_after: int | None = None) -> UpstreamRefused:
    return UpstreamRefused(status, "busy", None, retry_after)


def wait(retries: Retries, error: errors.ProxyError) -> bool:
    """Whether the call is retried after this error; the pause before it is over then."""
    failure = temporary_failure(error)
    seconds = retries.pause_after(failure)
    if seconds is not None:
        retries.wait(seconds, failure)
    return seconds is not None


class Time:
    """A clock that only pauses move."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(round(seconds, 3))

    def retries(self, budget: float, jitter: float = 0.1) -> Retries:
        return Retries(budget, self.pause, now=lambda: self.now, uniform=lambda low, high: jitter)


class TestTheRule(unittest.TestCase):
    def test_pauses_between_retries_double_up_to_a_bound_and_end_with_the_budget(self) -> None:
        time = Time()
        chances = time.retries(40)
        while wait(chances, refused(503)):
            pass
        self.assertEqual([0.45, 0.9, 1.8, 3.6, 7.2, 7.2, 7.2, 7.2], time.pauses)
        self.assertEqual(8, len(chances.reasons))

    def test_only_temporary_failures_are_retried(self) -> None:
        table: dict[errors.ProxyError, bool] = {
            **{refused(status): True for status in (429, 500, 502, 503, 504)},
            **{refused(status): False for status in (400, 401, 402, 403, 404, 422, 501)},
            DROPPED: True,
            UpstreamFailed("unintelligible"): False,
            UpstreamTimeout("silent"): False,
        }
        for error, expected in table.items():
            with self.subTest(repr(error), status=error.status):
                self.assertEqual(expected, wait(Time().retries(20), error))

    def test_retry_after_is_waited_for_within_the_budget_and_ends_the_retries_beyond_it(self) -> None:
        for named, expected in ((0, [0.45]), (3, [3]), (20, [20]), (21, []), (10**6 - 1, [])):
            time = Time()
            self.assertEqual(bool(expected), wait(time.retries(20), refused(429, named)))
            self.assertEqual(expected, time.pauses)

    def test_the_time_that_calls_take_counts_against_the_budget_of_retries(self) -> None:
        time = Time()
        chances = time.retries(20)
        time.now += 19.9
        self.assertFalse(wait(chances, DROPPED))

    def test_a_client_that_leaves_ends_the_wait_for_a_retry(self) -> None:
        with self.assertRaises(ClientGone):
            wait(Retries(20, pause=mock.Mock(side_effect=ClientGone)), DROPPED)
