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
from deepseek_cursor_proxy.exchange.failover import (
    Cause,
    Facts,
    Next,
    Output,
    Retries,
    cause_of,
    final_refusal,
    next_step,
    temporary_failure,
)

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


BUSY, SILENT, DROPPED = refused(429), UpstreamTimeout("silent"), UpstreamDropped("reset")
ONE = Facts()
SEVERAL = Facts(has_tables=True, cause=Cause.BROKEN)


class TestTable(unittest.TestCase):
    def assert_rows(self, error: ProxyError, rows: dict[Facts, Next]) -> None:
        for facts, expected in rows.items():
            self.assertIs(expected, next_step(error, facts), (repr(error), facts))

    def test_a_history_without_reasoning_is_sent_as_a_transcript_once_and_before_any_content(self) -> None:
        for error in (refused(400, NO_REASONING), UpstreamFailed(NO_REASONING)):
            rows = {
                ONE: Next.TRANSCRIPT,
                SEVERAL: Next.TRANSCRIPT,
                ONE._replace(output=Output.DELTAS): Next.TRANSCRIPT,
                ONE._replace(output=Output.CONTENT): Next.GIVE_UP,
                ONE._replace(was_refused_for_reasoning=True): Next.GIVE_UP,
                SEVERAL._replace(
                    was_refused_for_reasoning=True, cause=Cause.OTHER, has_untried=True
                ): Next.OTHER_UPSTREAM,
            }
            self.assert_rows(error, rows)

    def test_an_answer_that_has_begun_is_not_begun_again(self) -> None:
        one = ONE._replace(can_pause=True, refuses_tools=True)
        several = one._replace(has_tables=True, cause=Cause.BROKEN, has_untried=True)
        rows = {
            one._replace(output=Output.HEARTBEATS): Next.GIVE_UP,
            one._replace(output=Output.DELTAS): Next.GIVE_UP,
            several._replace(output=Output.HEARTBEATS): Next.WITHOUT_TOOLS,
            several._replace(output=Output.DELTAS): Next.GIVE_UP,
            several._replace(output=Output.CONTENT): Next.GIVE_UP,
        }
        self.assert_rows(DROPPED, rows)

    def test_a_failure_that_passes_is_retried_at_the_only_upstream(self) -> None:
        rows = {
            ONE._replace(can_pause=True): Next.RETRY,
            ONE: Next.GIVE_UP,
            SEVERAL._replace(can_pause=True, has_untried=True): Next.OTHER_UPSTREAM,
        }
        self.assert_rows(BUSY, rows)

    def test_a_request_is_sent_without_refused_tools_when_no_retry_helps(self) -> None:
        rows = {
            ONE._replace(refuses_tools=True): Next.WITHOUT_TOOLS,
            ONE._replace(refuses_tools=True, can_pause=True): Next.RETRY,
            SEVERAL._replace(refuses_tools=True, has_untried=True): Next.WITHOUT_TOOLS,
        }
        self.assert_rows(refused(500), rows)

    def test_a_refused_key_leads_to_another_key_before_another_upstream(self) -> None:
        for cause in Cause:
            is_of_key = cause in (Cause.BUSY, Cause.UNPAID, Cause.KEY_REFUSED)
            facts = SEVERAL._replace(cause=cause, has_other_key=True, has_untried=True)
            rows = {facts: Next.OTHER_KEY if is_of_key else Next.OTHER_UPSTREAM}
            self.assert_rows(refused(402), rows)

    def test_when_all_were_asked_those_that_may_recover_are_asked_again_within_the_budget(self) -> None:
        rows = {
            SEVERAL._replace(can_pause=True): Next.NEW_ROUND,
            SEVERAL._replace(can_pause=True, has_untried=True): Next.OTHER_UPSTREAM,
            SEVERAL: Next.GIVE_UP,
        }
        self.assert_rows(SILENT, rows)

    def test_a_refusal_that_others_would_repeat_is_the_answer(self) -> None:
        everything = SEVERAL._replace(has_other_key=True, has_untried=True, can_pause=True)
        self.assert_rows(refused(422), {everything._replace(cause=None): Next.GIVE_UP})


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
    failure = temporary_failure(error)
    pause = retries.pause_after(failure)
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
            **{busy(status): False for status in (400, 401, 402, 403, 404, 422, 501)},
            DROPPED: True,
            UpstreamFailed("unintelligible"): False,
            UpstreamTimeout("silent"): False,
        }
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
