"""After which failures another upstream is asked."""

import unittest

from deepseek_cursor_proxy.errors import (
    BadRequest,
    ProxyError,
    ProxyStopping,
    QueueFull,
    TooLarge,
    UpstreamDropped,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamTimeout,
)
from deepseek_cursor_proxy.exchange.upstreams.failover import Cause, cause_of

UNKNOWN_MODELS = (
    "Model Not Exist",
    "The model `deepseek-v4-pro` does not exist.",
    "deepseek/x is not a valid model ID",
    "Model does not exist. Please check it carefully.",
    "No endpoints found for deepseek/deepseek-v4-pro.",
    "Unknown model: deepseek-v4-pro",
    "The model 'x' was not found",
    "model deepseek-v4-pro is not supported",
)
OTHER_REFUSALS = (
    "This model's maximum context length is 131072 tokens. However, you requested 200000 tokens.",
    "messages[3].role: unknown variant `developer`",
    "The `reasoning_content` in the thinking mode must be passed back to the API.",
    "invalid temperature",
    "tool_choice: function not found",
)


def refused(status: int, message: str = "no") -> UpstreamRefused:
    return UpstreamRefused(status, message, None, None)


class TestCauses(unittest.TestCase):
    def assert_causes(self, expected: Cause | None, *errors: ProxyError, is_owner_key: bool = False) -> None:
        for error in errors:
            with self.subTest(error=error.message, status=error.status):
                self.assertIs(expected, cause_of(error, is_owner_key=is_owner_key))

    def test_failures_of_the_upstream(self) -> None:
        self.assert_causes(Cause.UNREACHABLE, UpstreamTimeout("late"), UpstreamFailed("no name"))
        self.assert_causes(Cause.BROKEN, UpstreamDropped("cut"), *map(refused, (500, 502, 503, 504, 524, 529)))
        self.assert_causes(Cause.BUSY, refused(429))
        self.assert_causes(Cause.UNPAID, refused(402))
        self.assert_causes(Cause.OTHER, QueueFull("full"), UpstreamFailed("again", code="reasoning_refused"))

    def test_refusals_of_a_key_are_for_its_owner(self) -> None:
        self.assert_causes(None, refused(401), refused(403))
        self.assert_causes(Cause.KEY_REFUSED, refused(401), is_owner_key=True)
        self.assert_causes(Cause.OTHER, refused(403), is_owner_key=True)

    def test_a_model_that_is_not_known(self) -> None:
        self.assert_causes(Cause.MODEL_REFUSED, refused(404), *(refused(400, text) for text in UNKNOWN_MODELS))

    def test_any_other_refusal_is_the_answer(self) -> None:
        self.assert_causes(None, *(refused(400, text) for text in OTHER_REFUSALS), refused(413), refused(422))
        self.assert_causes(None, ProxyStopping(), BadRequest("x"), TooLarge("x"))
