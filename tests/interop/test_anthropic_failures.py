"""What goes wrong in the Messages API, as the official `anthropic` package tells it: typed errors in words to read."""

import unittest
from typing import Any

from tests.fake_deepseek import Answer, Failure

try:
    import anthropic
except ImportError:
    raise unittest.SkipTest("the anthropic package is not installed: pip install '.[interop]'") from None

from tests.interop.messages_case import LIMIT, QUESTION, TOOLS, WEATHER, MessagesCase, calls
from tests.interop.recorded_case import MODEL, THOUGHT
from tests.interop.typed import Json


class FailureTest(MessagesCase):
    def setUp(self) -> None:
        super().setUp()
        self.sdk = self.client(self.proxy(max_request_body_bytes=100_000))

    def ask(self, *, stream: bool = False, **asked: Any) -> Any:
        body = {"model": MODEL, "max_tokens": LIMIT, "messages": QUESTION, **asked}
        found = self.sdk.messages.create(**body, stream=stream)
        return list(found) if stream else found

    def assert_error(self, error: type[anthropic.APIStatusError], kind: str, words: str, *steps: Any) -> Any:
        """Whole and streamed: the package's own error, of Anthropic's type, with words a person can read."""
        for stream in (False, True):
            self.fake.answer(*steps)
            with self.subTest(stream=stream), self.assertRaises(error) as caught:
                self.ask(stream=stream)
            self.assertIs(type(caught.exception), error)
            self.assertEqual(caught.exception.type, kind)
            self.assertIn(words, caught.exception.api_message)
            self.assertRegex(caught.exception.request_id, r"^req_\w+$")
        return caught.exception

    def test_a_wrong_key_is_an_authentication_error_in_deepseeks_words(self) -> None:
        assert self.running is not None
        self.sdk = self.client(self.running, key="sk-wrong")
        reply = self.assert_error(anthropic.AuthenticationError, "authentication_error", "Authentication Fails")
        self.assertEqual(reply.response.headers["x-should-retry"], "false")

    def test_no_key_is_an_authentication_error(self) -> None:
        with self.assertRaises(anthropic.AuthenticationError) as caught:
            self.ask(extra_headers={"X-Api-Key": "", "Authorization": "Basic abc"})
        self.assertEqual(caught.exception.type, "authentication_error")
        self.assertEqual(self.fake.seen, [])

    def test_what_cannot_be_answered_is_a_bad_request_that_names_its_field(self) -> None:
        wrong: dict[str, Json] = {
            "max_tokens": {"max_tokens": None},
            "messages": {"messages": "Rain?"},
            "thinking.type": {"thinking": {"type": "deep"}},
            "tools": {"tools": "all"},
        }
        for name, asked in wrong.items():
            with self.subTest(name), self.assertRaises(anthropic.BadRequestError) as caught:
                self.ask(extra_body=asked)
            self.assertEqual(caught.exception.type, "invalid_request_error")
            self.assertIn(name, caught.exception.api_message)
        self.assertEqual(self.fake.seen, [])

    def test_a_thread_is_refused_by_the_name_that_clients_know(self) -> None:
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.sdk.beta.messages.thread(model=MODEL, max_tokens=LIMIT).send("Rain?")
        self.assertEqual(caught.exception.error_code, "thread_unsupported_request")
        self.assertIn("Send all messages", caught.exception.api_message)

    def test_what_deepseek_refuses_is_a_bad_request_in_its_words(self) -> None:
        refusal = Failure(400, "Model Not Exist", "invalid_request_error", "invalid_request_error")
        self.assert_error(anthropic.BadRequestError, "invalid_request_error", "Model Not Exist", refusal)

    def test_a_chat_that_is_too_long_is_told_in_the_words_clients_know(self) -> None:
        words = "This model's maximum context length is 1048576 tokens. However, you requested 1200000 tokens."
        self.assert_error(
            anthropic.BadRequestError,
            "invalid_request_error",
            "prompt is too long: 1200000 tokens > 1048576 maximum",
            Failure(400, words, "invalid_request_error", "invalid_request_error"),
        )

    def test_no_balance_is_a_billing_error(self) -> None:
        # Older versions have no class for a 402.
        error = getattr(anthropic, "PaymentRequiredError", anthropic.APIStatusError)
        self.assert_error(error, "billing_error", "platform.deepseek.com", Failure(402, "No balance"))

    def test_a_body_beyond_the_limit_is_too_large(self) -> None:
        with self.assertRaises(anthropic.APIStatusError) as caught:
            self.ask(messages=[{"role": "user", "content": "rain " * 40_000}])
        self.assertEqual((caught.exception.status_code, caught.exception.type), (413, "request_too_large"))

    def test_too_many_requests_are_a_rate_limit_with_a_time_to_wait(self) -> None:
        reply = self.assert_error(anthropic.RateLimitError, "rate_limit_error", "Too many", Failure(429, "Too many."))
        self.assertRegex(reply.response.headers["retry-after"], r"^[0-9]+$")

    def test_a_busy_deepseek_is_overloaded(self) -> None:
        reply = self.assert_error(
            anthropic.OverloadedError, "overloaded_error", "Try again", Failure(503, headers=(("Retry-After", "0"),))
        )
        self.assertNotIn("x-should-retry", reply.response.headers)

    def test_a_deepseek_out_of_order_is_a_server_error(self) -> None:
        self.assert_error(anthropic.InternalServerError, "api_error", "out of order", Failure(500, "Oops"))

    def test_an_unreachable_deepseek_is_a_server_error(self) -> None:
        self.fake.close()
        self.assert_error(anthropic.InternalServerError, "api_error", "--base-url")

    def assert_breaks(self, answer: Answer, kind: str, words: str) -> None:
        """Streamed, after a beginning that arrived; the helper tells it as well."""
        self.fake.answer(answer, answer)
        for stream in (self.sdk.messages.create, self.sdk.messages.stream):
            with self.subTest(stream.__name__), self.assertRaises(anthropic.APIStatusError) as caught:
                body = {"model": MODEL, "max_tokens": LIMIT, "messages": QUESTION}
                if stream is self.sdk.messages.create:
                    list(stream(**body, stream=True))
                else:
                    with stream(**body) as events:
                        events.get_final_message()
            self.assertEqual(caught.exception.type, kind)
            self.assertIn(words, caught.exception.api_message)

    def test_a_stream_that_breaks_off_raises(self) -> None:
        self.assert_breaks(Answer(THOUGHT, "A long answer that never ends.", cut_after=5), "api_error", "cut off")

    def test_a_stream_that_breaks_off_amid_a_call_raises(self) -> None:
        broken = Answer(None, "", calls(("get_weather", {"city": "b" * 80})), cut_after=4)
        self.assert_breaks(broken, "api_error", "cut off")

    def test_an_answer_that_deepseek_gives_up_is_overloaded(self) -> None:
        given_up = Answer(THOUGHT, "It is", finish_reason="insufficient_system_resource")
        self.assert_breaks(given_up, "overloaded_error", "capacity")

    def test_a_whole_answer_that_breaks_off_is_a_server_error(self) -> None:
        self.fake.answer(Answer(THOUGHT, "A long answer that never ends.", cut_after=5))
        with self.assertRaises(anthropic.InternalServerError):
            self.ask()

    def test_lost_reasoning_is_a_conflict_when_the_strategy_is_reject(self) -> None:
        self.sdk = self.client(self.proxy(missing_reasoning_strategy="reject"))
        use = {"type": "tool_use", "id": "call_1", "name": WEATHER["name"], "input": {"city": "Rom"}}
        result = {"type": "tool_result", "tool_use_id": "call_1", "content": "rain"}
        messages = [*QUESTION, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        with self.assertRaises(anthropic.ConflictError) as caught:
            self.ask(messages=messages, tools=TOOLS)
        self.assertIn("reasoning", caught.exception.api_message)
        self.assertEqual(self.fake.seen, [])
