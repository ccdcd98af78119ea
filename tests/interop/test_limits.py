"""Limits of named keys as the official `openai` and `anthropic` packages tell them, and whether they try again."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import anthropic
import openai

from deepseek_cursor_proxy.features.request_log.feature import RequestLog
from tests.fake_deepseek import Answer
from tests.support.harness import PATIENCE, RunningProxy, SocketTestCase
from tests.support.polling import wait_until
from tests.support.threads import in_background

KEY, MODEL = "sk-the-key-of-ann", "deepseek-v4-pro"
QUESTION: Any = [{"role": "user", "content": "hi"}]
RATE_ERRORS = (openai.RateLimitError, anthropic.RateLimitError)
Ask = Callable[[], Any]


class LimitsTest(SocketTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.enterContext(mock.patch.dict(os.environ, {"DEEPSEEK_API_KEY": "sk-held-by-the-proxy"}))

    def ann(self, **fields: Any) -> RunningProxy:
        return self.proxy(keys={"ann": {"key": KEY, **fields}})

    def ways(self, proxy: RunningProxy, retries: int) -> dict[str, Ask]:
        """A question on each API; without an environment, whose proxies are not for loopback."""
        one = openai.OpenAI(
            base_url=proxy.url,
            api_key=KEY,
            max_retries=retries,
            http_client=openai.DefaultHttpxClient(trust_env=False),
        )
        other = anthropic.Anthropic(
            base_url=proxy.url.removesuffix("/v1"),
            auth_token=KEY,
            max_retries=retries,
            http_client=anthropic.DefaultHttpxClient(trust_env=False),
        )
        self.addCleanup(one.close)
        self.addCleanup(other.close)
        return {
            "chat": lambda: one.chat.completions.create(model=MODEL, messages=QUESTION),
            "responses": lambda: one.responses.create(model=MODEL, input="hi"),
            "messages": lambda: other.messages.create(model=MODEL, max_tokens=2000, messages=QUESTION),
        }

    def refusals(self, proxy: RunningProxy) -> int:
        return sum(record.status == 429 for record in proxy.server.services().get(RequestLog).ended())

    def test_a_rate_is_a_rate_limit_error_that_says_when_to_try_again(self) -> None:
        for api in ("chat", "responses", "messages"):
            with self.subTest(api):
                proxy = self.ann(tokens_per_minute=1)
                ask = self.ways(proxy, retries=0)[api]
                ask()
                with self.assertRaises(RATE_ERRORS) as caught:
                    # Twice, if a minute has just begun.
                    ask()
                    ask()
                error = caught.exception
                self.assertIn("The limit tokens_per_minute of the key ann is reached", error.message)
                self.assertIn(int(error.response.headers["retry-after"]), range(1, 61))

    def test_a_budget_is_a_rate_limit_error_after_which_no_client_tries_again(self) -> None:
        for api in ("chat", "responses", "messages"):
            with self.subTest(api):
                proxy = self.ann(usd_per_month=0.000001)
                ask = self.ways(proxy, retries=2)[api]
                ask()
                with self.assertRaises(RATE_ERRORS) as caught:
                    ask()
                error = caught.exception
                self.assertIn("It resets at", error.message)
                self.assertEqual(1, self.refusals(proxy))
                if isinstance(error, openai.RateLimitError):
                    self.assertEqual(("insufficient_quota", "insufficient_quota"), (error.code, error.type))

    def test_a_client_waits_as_long_as_it_is_told_and_gets_its_answer(self) -> None:
        for api in ("chat", "responses", "messages"):
            with self.subTest(api):
                proxy = self.ann(concurrent=1)
                with self.running_request(proxy) as end:
                    # The first try is refused, which ends the running request, so that the second one has room.
                    with mock.patch.object(self.fake, "_responder", return_value=Answer(content="hello")):
                        thread = in_background(self, self.end_when_refused, proxy, end)
                        self.ways(proxy, retries=2)[api]()
                        thread.join()
                self.assertEqual(1, self.refusals(proxy))

    def end_when_refused(self, proxy: RunningProxy, end: Callable[[], object]) -> None:
        wait_until(lambda: self.refusals(proxy))
        end()

    @contextmanager
    def running_request(self, proxy: RunningProxy) -> Iterator[Callable[[], None]]:
        go_on, has_begun = threading.Event(), threading.Event()

        def respond(_: Any) -> Answer:
            has_begun.set()
            go_on.wait(PATIENCE)
            return Answer(content="done")

        with mock.patch.object(self.fake, "_responder", respond):
            thread = threading.Thread(target=self.ways(proxy, retries=0)["chat"])
            thread.start()
            has_begun.wait(PATIENCE)
            yield go_on.set
            thread.join()
