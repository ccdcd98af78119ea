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
    "The supported API model names are deepseek-flash or deepseek-v4-pro, but you passed deepseek-v4-pro.",
    'api.siliconflow.cn answered 400: {"code":20012,"message":"Model does not exist.","data":null}',
    "Model Not Exist (request_id: 0a1b-2c3d)",
)
OTHER_REFUSALS = (
    "This model's maximum context length is 131072 tokens. However, you requested 200000 tokens.",
    "messages[3].role: unknown variant `developer`",
    "The `reasoning_content` in the thinking mode must be passed back to the API.",
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


class TestCauses(unittest.TestCase):
    def assert_causes(self, expected: Cause | None, *errors: ProxyError, is_owner_key: bool = False) -> None:
        for error in errors:
            with self.subTest(error=error.message, status=error.status):
                found = {cause_of(error, model, is_owner_key=is_owner_key) for model in MODELS}
                # A sentence names one of the models.
                self.assertEqual(expected, (found - {None}).pop() if found != {None} else None)

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
        by_field = [
            refused(400, code="model_not_found"),
            refused(404, param="model"),
            refused(422, code="invalid_model"),
        ]
        self.assert_causes(Cause.MODEL_REFUSED, *by_field, *(refused(400, text) for text in UNKNOWN_MODELS))
        self.assert_causes(Cause.NOT_FOUND, refused(404), refused(404, "There is no file x"))

    def test_any_other_refusal_is_the_answer(self) -> None:
        self.assert_causes(None, *(refused(400, text) for text in OTHER_REFUSALS), refused(413), refused(422))
        self.assert_causes(None, ProxyStopping(), BadRequest("x"), TooLarge("x"))
