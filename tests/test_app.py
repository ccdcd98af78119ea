"""The app as the plain function it is: a request in, a reply out, no socket on the client's side."""

import json
from typing import Any

from deepseek_cursor_proxy.app import App
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.generation import Generation
from deepseek_cursor_proxy.lab.fake_deepseek import Answer, Failure
from deepseek_cursor_proxy.reasoning_store import ReasoningStore
from deepseek_cursor_proxy.services import Services
from deepseek_cursor_proxy.wire import HttpReply, HttpRequest
from tests.harness import PATIENCE, SocketTestCase

BODY = {"messages": [{"role": "user", "content": "hi"}]}


class TestApp(SocketTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.store = ReasoningStore(":memory:")
        self.addCleanup(self.store.close)
        services = Services.build(ProxyConfig(upstream_base_url=self.fake.url, retry_budget=0), self.store)
        self.addCleanup(services.close)
        self.app = App(services.config, lambda: Generation(services))

    def chat(self, **body: Any) -> HttpReply:
        data = json.dumps({**BODY, **body}).encode()
        headers = {"authorization": "Bearer sk-test"}
        return self.app(HttpRequest("POST", "/v1/chat/completions", headers=headers, read_body=lambda: data))

    def test_a_reply_is_a_value(self) -> None:
        reply = self.chat()
        assert isinstance(reply.body, bytes)
        self.assertEqual(200, reply.status)
        self.assertIn("Hello.", json.loads(reply.body)["choices"][0]["message"]["content"])

    def test_a_stream_is_an_iterable_that_can_be_closed(self) -> None:
        reply = self.chat(stream=True)
        assert not isinstance(reply.body, bytes)
        pieces = list(reply.body)
        reply.body.close()
        self.assertTrue(pieces[-1].endswith(b"data: [DONE]\n\n"))

    def test_a_stream_closed_before_its_first_byte_ends_the_call(self) -> None:
        self.fake.answer(Answer(content="x", stall_after=0))
        reply = self.chat(stream=True)
        assert not isinstance(reply.body, bytes)
        reply.body.close()
        self.assertTrue(self.fake.wait_for_hangup(PATIENCE))

    def test_a_stream_closed_midway_keeps_its_partial_reasoning(self) -> None:
        self.fake.answer(Answer(reasoning="Half a thought is a thought.", content="x", stall_after=2))
        reply = self.chat(stream=True)
        assert not isinstance(reply.body, bytes)
        pieces = iter(reply.body)
        seen = b""
        while b"Half" not in seen:
            seen += next(pieces)
        reply.body.close()
        self.assertTrue(self.fake.wait_for_hangup(PATIENCE))
        self.assertEqual(1, self.store.stats().reasonings)

    def test_a_busy_upstream_keeps_its_retry_after(self) -> None:
        self.fake.answer(Failure(429, "slow down", headers=(("Retry-After", "3"), ("Set-Cookie", "a=b"))))
        reply = self.chat()
        self.assertEqual(429, reply.status)
        self.assertEqual({"Content-Type": "application/json", "Retry-After": "3"}, dict(reply.headers))

    def test_a_request_nested_deeper_than_python_can_go_is_refused(self) -> None:
        deep: Any = 1
        for _ in range(500):
            deep = [deep]
        reply = self.chat(tools=[{"type": "function", "function": {"name": "f", "parameters": deep}}])
        self.assertIn(reply.status, (200, 400))
