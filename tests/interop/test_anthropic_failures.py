"""What goes wrong in the Messages API, as the official `anthropic` package tells it: typed errors in words to read."""

from typing import Any

import anthropic

from tests.fake_deepseek import Answer, Failure
from tests.interop.command_line import MODEL
from tests.interop.typed import THOUGHT
from tests.interop.typed_messages import LIMIT, QUESTION, MessagesCase, calls


class FailureTest(MessagesCase):
    def setUp(self) -> None:
        super().setUp()
        self.sdk = self.client(self.start_proxy(max_request_body_bytes=100_000))

    def ask(self, *, stream: bool = False, **asked: Any) -> Any:
        body = {"model": MODEL, "max_tokens": LIMIT, "messages": QUESTION, **asked}
        found = self.sdk.messages.create(**body, stream=stream)
        return list(found) if stream else found

    def test_every_error_has_its_class_its_type_and_words_to_read(self) -> None:
        """Whole and streamed."""
        too_long = "This model's maximum context length is 1048576 tokens. However, you requested 1200000 tokens."
        billing = getattr(anthropic, "PaymentRequiredError", anthropic.APIStatusError)  # older versions have none
        huge, off = {"messages": [{"role": "user", "content": "rain " * 40_000}]}, "false"
        wrong, none, auth = anthropic.BadRequestError, dict[str, Any](), anthropic.AuthenticationError
        for kind, error, words, retry, step, asked in (
            ("authentication_error", auth, "Not your key", off, Failure(401, "Not your key."), none),
            ("invalid_request_error", wrong, "Not Exist", off, Failure(400, "Model Not Exist"), none),
            ("invalid_request_error", wrong, "too long: 1200000", off, Failure(400, too_long), none),
            ("invalid_request_error", wrong, "messages", off, None, {"messages": "Rain?"}),
            ("billing_error", billing, "platform.deepseek.com", off, Failure(402, "No balance"), none),
            ("request_too_large", anthropic.APIStatusError, "100000 bytes", off, None, huge),
            ("rate_limit_error", anthropic.RateLimitError, "Too many", None, Failure(429, "Too many."), none),
            ("overloaded_error", anthropic.OverloadedError, "try again", None, Failure(503), none),
            ("api_error", anthropic.InternalServerError, "out of order", None, Failure(500, "Oops"), none),
        ):
            for stream in (False, True):
                self.fake.answer(*[step] if step else [])
                with self.subTest(words, stream=stream), self.assertRaises(error) as caught:
                    self.ask(stream=stream, extra_body=asked)
                self.assertEqual(kind, caught.exception.type)
                self.assertIn(words, caught.exception.api_message)
                self.assertRegex(caught.exception.request_id, r"^req_\w+$")
                self.assertEqual(retry, caught.exception.response.headers.get("x-should-retry"))

    def test_no_key_is_an_authentication_error(self) -> None:
        with self.assertRaises(anthropic.AuthenticationError):
            self.ask(extra_headers={"X-Api-Key": "", "Authorization": "Basic abc"})
        self.assertEqual(self.fake.seen, [])

    def test_a_thread_is_refused_by_the_name_that_clients_know(self) -> None:
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.sdk.beta.messages.thread(model=MODEL, max_tokens=LIMIT).send("Rain?")
        self.assertEqual(caught.exception.error_code, "thread_unsupported_request")
        self.assertIn("Send all messages", caught.exception.api_message)

    def test_a_stream_that_breaks_off_raises(self) -> None:
        """After a beginning that arrived; the helper says so as well."""
        amid_a_call = Answer(None, "", calls(("get_weather", {"city": "b" * 80})), cut_after=4)
        given_up = Answer(THOUGHT, "It is", finish_reason="insufficient_system_resource")
        for answer, kind in ((amid_a_call, "api_error"), (given_up, "overloaded_error")):
            self.fake.answer(answer, answer)
            with self.subTest(kind), self.assertRaises(anthropic.APIStatusError) as caught:
                self.ask(stream=True)
            self.assertEqual(caught.exception.type, kind)
            with self.assertRaises(anthropic.APIStatusError):
                with self.sdk.messages.stream(model=MODEL, max_tokens=LIMIT, messages=QUESTION) as events:
                    events.get_final_message()
