import unittest
from typing import Any

from deepseek_cursor_proxy.deepseek.error_messages import explain
from deepseek_cursor_proxy.errors import UpstreamRefused

UUID = "(request_id: 12345678-9999-4444-8888-123456789012)"


def refusal(status: int, message: str, retry_after: int | None = None, **error: Any) -> UpstreamRefused:
    shape = {"message": message, "type": "some_type", "param": None, "code": "some_code", **error}
    return UpstreamRefused(status, message, {"error": shape}, retry_after)


# Messages of DeepSeek and others: the limit, and the size of the request.
MAX = "This model's maximum context length is"
REDUCE = "Please reduce the length of the messages or completion."
OVERFLOWS: dict[str, tuple[int, int | None]] = {
    f"{MAX} 1048576 tokens. However, you requested 1200000 tokens (1190000 in the messages, 10000 in the completion). "
    f"{REDUCE} {UUID}": (1048576, 1190000),
    f"{MAX} 131072 tokens. However, you requested 140000 tokens (100000 in the messages, 40000 in the completion). "
    f"{REDUCE}": (131072, 140000),
    f"{MAX} 65536 tokens. However, your messages resulted in 70,001 tokens.": (65536, 70001),
    "Requested token count exceeds the model's maximum context length of 131,072 tokens. You requested a total of "
    "150,000 tokens": (131072, 150000),
    "prompt is too long: 1200001 tokens > 1048576 maximum": (1048576, 1200001),
    "Input length 1200000 exceeds the maximum length 1048576": (1048576, 1200000),
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).": (1048576, 1200000),
    "The input (1200000 tokens) is longer than the model's context length (1048576 tokens).": (1048576, 1200000),
    "Your input exceeds the context window of this model. Please adjust your input and try again.": (1048576, None),
    f"The prompt is too long. {UUID}": (1048576, None),
    "input is too long for requested model": (1048576, None),
    "Please reduce the length of the messages.": (1048576, None),
    "context length exceeded": (1048576, None),
}
OTHERS = (
    "Invalid max_tokens value, the valid range of max_tokens is [1, 393216]",
    "Invalid 'user_id': string too long",
    "The function name is too long",
    "Model Not Exist",
    "Failed to deserialize the JSON body into the target type: messages[0].content: invalid type",
    "",
)


class TestOverflow(unittest.TestCase):
    def test_a_chat_that_is_too_long_gets_openais_message_and_code(self) -> None:
        for message, (limit, requested) in OVERFLOWS.items():
            with self.subTest(message):
                error = explain(refusal(400, message))
                however = f"resulted in {requested} tokens" if requested else "are longer than that"
                words = (
                    f"This model's maximum context length is {limit} tokens. However, your messages {however}. "
                    "Please reduce the length of the messages."
                )
                shape = {"type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}
                self.assertEqual({"error": {"message": words, **shape}}, error.payload())
                self.assertEqual((400, words), (error.status, error.message))

    def test_the_code_of_an_overflow_error_is_enough(self) -> None:
        error = explain(refusal(400, "No.", code="context_length_exceeded"))
        self.assertEqual("context_length_exceeded", error.payload()["error"]["code"])
        self.assertIn("1048576", error.message)

    def test_no_other_error_is_taken_for_an_overflow(self) -> None:
        for message in OTHERS:
            self.assertEqual(refusal(400, message).payload(), explain(refusal(400, message)).payload(), message)

    def test_a_long_error_message_is_searched_in_linear_time(self) -> None:
        for word in ("max ", "input ", "context length ", "9,"):
            explain(refusal(400, word * 100_000))


class TestExplain(unittest.TestCase):
    def test_the_remedy_follows_deepseeks_message_and_the_rest_stays(self) -> None:
        for status, retry_after, remedy, expected in (
            (401, None, "Check the DeepSeek key that your client sends.", None),
            (402, None, "https://platform.deepseek.com", None), (403, None, "https://platform.deepseek.com", None),
            (429, 30, "Wait 30 seconds", 30), (429, None, "Wait 5 seconds", 5),
            (500, None, "Try again in a moment", None), (502, None, "Try again in a moment", None),
            (503, None, "Wait 5 seconds", 5), (529, None, "overloaded", None),
        ):  # fmt: skip
            with self.subTest(status=status):
                error = explain(refusal(status, "Because", retry_after))
                body = error.payload()["error"]
                self.assertTrue(body["message"].startswith("Because. "), body)
                self.assertIn(remedy, body["message"])
                self.assertEqual((status, expected, body["message"]), (error.status, error.retry_after, error.message))
                self.assertEqual(("some_type", "some_code"), (body["type"], body["code"]))

    def test_errors_of_odd_shapes_get_a_remedy(self) -> None:
        page = UpstreamRefused(502, "DeepSeek answered 502: Bad gateway", None, None)
        self.assertIn("Bad gateway. DeepSeek is over", explain(page).payload()["error"]["message"])
        text = UpstreamRefused(402, "No money", {"error": "No money"}, None)
        self.assertTrue(explain(text).payload()["error"]["message"].startswith("No money. Top up"))
        empty = UpstreamRefused(402, "", {"error": {}}, None)
        self.assertTrue(explain(empty).payload()["error"]["message"].startswith("Top up"))
