import unittest
from unittest import mock

from deepseek_cursor_proxy.errors import (
    BadRequest,
    ClientGone,
    ProxyError,
    ProxyStopping,
    QueueFull,
    TooLarge,
    UpstreamDropped,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamTimeout,
)
from deepseek_cursor_proxy.exchange.failover import Cause, Retries, cause_of, final_refusal, pause_wanted

UNKNOWN_MODELS = (
    "Model Not Exist",
    "The model `deepseek-v4-pro` does not exist.",
    "deepseek/x is not a valid model ID",
    "Model does not exist. Please check it carefully.",
    "No endpoints found for deepseek/deepseek-v4-pro.",
    "Unknown model: deepseek-v4-pro",
    "The model 'x' was not found",
    "model deepseek-v4-pro is not supported",
    "The supported API model names are deepseek-flash or deepseek-v4-pro, but you passed deepseek-v4-pro.",
    'api.siliconflow.cn answered 400: {"code":20012,"message":"Model does not exist.","data":null}',
    "Model Not Exist (request_id: 0a1b-2c3d)",
)
NO_REASONING = "The `reasoning_content` in the thinking mode must be passed back to the API."
OTHER_REFUSALS = (
    "This model's maximum context length is 131072 tokens. However, you requested 200000 tokens.",
    "messages[3].role: unknown variant `developer`",
    "invalid temperature",
    "tool_choice: function not found",
    # Words of the client.
    "messages[0].content: 'the model x does not exist' is too long",
    "Invalid text: Model Not Exist",
    "Unknown model: x. Unknown model: y",
    "The model `of a ship` was not found",
)


def refused(status: int, message: str = "no", **fields: str) -> UpstreamRefused:
    return UpstreamRefused(status, message, {"error": {"message": message, **fields}} if fields else None, None)


MODELS = ("deepseek-v4-pro", "deepseek/x", "deepseek/deepseek-v4-pro", "x")
DROPPED = UpstreamDropped("reset")


class TestCauses(unittest.TestCase):
    def assert_causes(self, expected: Cause | None, *errors: ProxyError, is_leased_key: bool = False) -> None:
        for error in errors:
            with self.subTest(error=error.message, status=error.status):
                found = {cause_of(error, model, is_leased_key=is_leased_key) for model in MODELS}
                # A sentence names one of the models.
                self.assertEqual(expected, (found - {None}).pop() if found != {None} else None)

    def test_failures_of_the_upstream(self) -> None:
        self.assert_causes(Cause.UNANSWERED, UpstreamTimeout("late"), UpstreamFailed("no name"))
        self.assert_causes(Cause.BROKEN, UpstreamDropped("cut"), *map(refused, (500, 502, 503, 504, 524, 529)))
        self.assert_causes(Cause.BUSY, refused(429))
        self.assert_causes(Cause.UNPAID, refused(402))
        self.assert_causes(
            Cause.OTHER, QueueFull("full"), final_refusal(refused(400, NO_REASONING)), refused(400, NO_REASONING)
        )

    def test_refusals_of_a_key_are_for_its_owner(self) -> None:
        self.assert_causes(None, refused(401), refused(403))
        self.assert_causes(Cause.KEY_REFUSED, refused(401), is_leased_key=True)
        self.assert_causes(Cause.OTHER, refused(403), is_leased_key=True)

    def test_a_model_that_is_not_known(self) -> None:
        by_field = [
            refused(400, code="model_not_found"), refused(404, param="model"), refused(422, code="invalid_model"),
        ]  # fmt: skip
        self.assert_causes(Cause.OTHER, *by_field, *(refused(400, text) for text in UNKNOWN_MODELS))
        self.assert_causes(Cause.OTHER, refused(404), refused(404, "There is no file x"))

    def test_any_other_refusal_is_the_answer(self) -> None:
        self.assert_causes(None, *(refused(400, text) for text in OTHER_REFUSALS), refused(413), refused(422))
        self.assert_causes(None, ProxyStopping(), BadRequest("x"), TooLarge("x"))


def busy(status: int, retry_after: int | None = None) -> UpstreamRefused:
    return UpstreamRefused(status, "busy", None, retry_after)


def wait(retries: Retries, error: ProxyError) -> bool:
    """Whether the call is retried after this error; the pause before it is over then."""
    pause = retries.pause_after(pause_wanted(error))
    if pause is not None:
        retries.wait(pause)
    return pause is not None


class Time:
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
        while wait(chances, busy(503)):
            pass
        self.assertEqual([0.45, 0.9, 1.8, 3.6, 7.2, 7.2, 7.2, 7.2], time.pauses)
        self.assertEqual(8, len(chances.reasons))

    def test_only_temporary_failures_are_retried(self) -> None:
        table: dict[ProxyError, bool] = {
            **{busy(status): True for status in (429, 500, 502, 503, 504)},
            **{busy(status): False for status in (400, 401, 402, 403, 404, 422, 501)}, DROPPED: True,
            UpstreamFailed("unintelligible"): False, UpstreamTimeout("silent"): False,
        }  # fmt: skip
        for error, expected in table.items():
            self.assertEqual(expected, wait(Time().retries(20), error), (repr(error), error.status))

    def test_retry_after_is_waited_for_within_the_budget_and_ends_the_retries_beyond_it(self) -> None:
        for named, expected in ((0, [0.45]), (3, [3]), (20, [20]), (21, []), (10**6 - 1, [])):
            time = Time()
            self.assertEqual(bool(expected), wait(time.retries(20), busy(429, named)))
            self.assertEqual(expected, time.pauses)

    def test_the_time_that_calls_take_counts_against_the_budget_of_retries(self) -> None:
        time = Time()
        chances = time.retries(20)
        time.now += 19.9
        self.assertFalse(wait(chances, DROPPED))

    def test_a_client_that_leaves_ends_the_wait_for_a_retry(self) -> None:
        with self.assertRaises(ClientGone):
            wait(Retries(20, pause=mock.Mock(side_effect=ClientGone)), DROPPED)
