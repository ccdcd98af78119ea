"""Limits of named keys as the official `openai` and `anthropic` packages tell them, and whether they try again."""

import os
from collections.abc import Callable
from typing import Any
from unittest import mock

import anthropic
import openai

from deepseek_cursor_proxy.features.request_log.feature import RequestLog
from tests.support.harness import RunningProxy, SocketTestCase

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
            base_url=proxy.url, api_key=KEY, max_retries=retries, http_client=openai.DefaultHttpxClient(trust_env=False)
        )
        other = anthropic.Anthropic(
            base_url=proxy.url.removesuffix("/v1"), auth_token=KEY, max_retries=retries,
            http_client=anthropic.DefaultHttpxClient(trust_env=False),
        )  # fmt: skip
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
