"""The clients of a soak: they pass with a proxy that works, and fail without one."""

import random
from collections.abc import Callable
from typing import Any

from tests.fake_deepseek import Answer, Failure, FakeDeepSeek, Raw, Step, weather_responder
from tests.soak import clients
from tests.soak.clients import CLIENTS, ClientRun, ClientRunFailed
from tests.support.cursor import WEATHER_TOOLS
from tests.support.harness import SocketTestCase

QUESTION = {"role": "user", "content": "loop: do I need an umbrella?"}


class SoakClientTestCase(SocketTestCase):
    def deepseek(self, respond: Callable[[dict[str, Any]], Step] = clients.answer_to) -> FakeDeepSeek:
        fake = FakeDeepSeek(responder=respond)
        fake.idle_seconds = clients.IDLE_SECONDS
        self.addCleanup(fake.close)
        return fake.start()

    def client_run(self, url: str, seed: int = 0) -> ClientRun:
        self.requests = 0
        return ClientRun(url, random.Random(seed), self.count)

    def count(self, requests: int) -> None:
        self.requests += requests


class TestSoakClients(SoakClientTestCase):
    def test_every_client_passes_with_a_proxy_and_leaves_nothing_open(self) -> None:
        proxy = self.proxy(upstream_base_url=self.deepseek().url)
        for client in dict.fromkeys(CLIENTS):
            with self.subTest(client.__name__):
                client(self.client_run(proxy.url.removesuffix("/v1")))
                self.assertGreater(self.requests, 0)

    def test_a_loop_whose_reasoning_is_lost_is_a_failure(self) -> None:
        """Without a proxy nothing restores it."""
        with self.assertRaisesRegex(ClientRunFailed, "a tool loop.*reasoning_content"):
            clients.tool_loop(self.client_run(self.deepseek().url))

    def test_a_client_without_the_response_it_expects_fails(self) -> None:
        def fails(payload: dict[str, Any]) -> Step:
            return Failure(400, "No.")

        url = self.deepseek(fails).url
        for client in (clients.three_answers, clients.idle_client, clients.failing_upstream):
            with self.subTest(client.__name__), self.assertRaises(ClientRunFailed):
                client(self.client_run(url))

    def test_an_answer_that_breaks_off_is_a_failure(self) -> None:
        def breaks_off(payload: dict[str, Any]) -> Step:
            return Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")

        with self.assertRaisesRegex(ClientRunFailed, "the connection's end"):
            clients.idle_client(self.client_run(self.deepseek(breaks_off).url))


class TestFakeDeepSeek(SoakClientTestCase):
    def answer(self, *messages: dict[str, Any]) -> Step:
        return clients.answer_to({"tools": WEATHER_TOOLS, "messages": list(messages)})

    def test_the_question_decides_the_step_that_is_played(self) -> None:
        self.assertEqual(Failure(429, "Too fast."), self.answer({"role": "user", "content": "429"}))
        self.assertIsInstance(self.answer(QUESTION), Answer)

    def test_a_turn_needs_exactly_the_reasoning_it_had(self) -> None:
        thought = weather_responder({"tools": WEATHER_TOOLS, "messages": [QUESTION]}).reasoning
        turn = {"role": "assistant", "content": "x"}
        self.assertIsInstance(self.answer(QUESTION, {**turn, "reasoning_content": thought}, QUESTION), Answer)
        for other in (None, "", " ", f"{thought} "):
            refused = self.answer(QUESTION, {**turn, "reasoning_content": other}, QUESTION)
            self.assertIsInstance(refused, Failure)
