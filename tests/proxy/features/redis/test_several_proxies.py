"""Proxies that share an engine: a chat whose every request goes to another one is restored byte for byte."""

import contextlib
import http.client
import os
import random
from types import SimpleNamespace
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

from deepseek_cursor_proxy.config.declaration import SECRET_VARIABLE
from deepseek_cursor_proxy.features.redis import client
from deepseek_cursor_proxy.features.redis.feature import Shared
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.laws.test_protocols import CALLERS, ConversationTestCase, Visible
from tests.support.admin_client import ADMIN_KEY, AdminCase, fetch
from tests.support.apis import APIS
from tests.support.generated_conversations import Conversation
from tests.support.harness import PATIENCE, RunningProxy
from tests.support.polling import wait_until
from tests.support.responses_client import ResponsesTestCase, question
from tests.support.shared_engine import SECRET, EngineTestCase
from tests.support.slow_relay import SlowRelay
from tests.support.width import width


class SharedTestCase(EngineTestCase, ConversationTestCase, ResponsesTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.enterContext(mock.patch.dict(os.environ, {SECRET_VARIABLE: SECRET.hex()}))

    def shared_proxy(self, name: str, **settings: Any) -> RunningProxy:
        store = ReasoningStore(self.place / f"{name}.sqlite3")
        return self.proxy(store, store=self.engine.url, **settings)

    def connections(self, *proxies: RunningProxy) -> list[http.client.HTTPConnection]:
        each = [http.client.HTTPConnection(*proxy.address, timeout=PATIENCE) for proxy in proxies]
        return [self.enterContext(contextlib.closing(connection)) for connection in each]

    def wait_until_written(self, *proxies: RunningProxy) -> None:
        for proxy in proxies:
            shared = proxy.server.services().get(Shared).state
            assert shared is not None
            wait_until(lambda shared=shared: not shared.fault and not shared.backlog)


class TestSeveralProxies(SharedTestCase):
    def test_every_reasoning_is_restored_although_each_request_goes_to_another_proxy(self) -> None:
        for seed in range(width(2, 20)):
            with self.subTest(seed):
                rng = random.Random(f"shared {seed}")
                each = self.connections(*(self.shared_proxy(f"{seed} {number}") for number in range(2 + seed % 2)))
                conversations = [(Conversation(key), Visible(0, seed)) for key in CALLERS]
                for step in range(8):
                    for conversation, visible in conversations:
                        thought, connection = f"{conversation.key} thinks {step}: ", each[step % len(each)]
                        self.go_on(conversation, visible, thought, rng.choice(APIS), connection, rng)
                self.assertEqual([], self.fake.refused)

    def test_nothing_is_lost_if_the_engine_goes_away_for_a_while(self) -> None:
        rng = random.Random(5)
        one, two = proxies = [self.shared_proxy("one"), self.shared_proxy("two")]
        first, second = self.connections(one, two)
        conversation, visible = Conversation(CALLERS[0]), Visible(5, 0)
        for number, connection in enumerate((first, second, first)):
            self.go_on(conversation, visible, f"thought {number} ", APIS[number % 3], connection, rng)
        self.engine.stop()
        # A chat that stays where it is goes on, as it would without an engine.
        for number in range(3, 6):
            self.go_on(conversation, visible, f"thought {number} ", APIS[number % 3], first, rng)
        self.engine.start()
        self.wait_until_written(*proxies)
        for number, connection in enumerate((second, first, second), 6):
            self.go_on(conversation, visible, f"thought {number} ", APIS[number % 3], connection, rng)
        self.assertEqual([], self.fake.refused)

    def test_a_chain_of_responses_continues_at_another_proxy(self) -> None:
        proxies = [self.shared_proxy("one"), self.shared_proxy("two")]
        previous: dict[str, Any] = {}
        for number in range(4):
            proxy = proxies[number % 2]
            response = self.complete(proxy, [question(f"question {number}")], **previous)
            previous = {"previous_response_id": response["id"]}
            self.assertEqual(response, self.get(proxies[1 - number % 2], response).value)
        asked = [each["content"] for each in self.fake.accepted[-1]["messages"] if each["role"] == "user"]
        self.assertEqual([f"question {number}" for number in range(4)], asked)

    def test_a_background_response_is_followed_by_its_own_proxy_and_read_by_all(self) -> None:
        one, two = self.shared_proxy("one"), self.shared_proxy("two")
        self.complete(one, [question("known")])
        response = self.create(one, [question("slow")], background=True).response
        wait_until(lambda: self.get(two, response).value["status"] == "completed")
        streamed = self.get(two, response, "?stream=true")
        self.assertEqual("response.completed", streamed.events[-1]["type"])


class TestDistantEngine(SharedTestCase):
    has_deadlines = True

    def state(self, proxy: RunningProxy) -> tuple[str, bool]:
        """What /readyz and the metric say of the engine."""
        key = {"Authorization": f"Bearer {ADMIN_KEY}"}
        url = AdminCase.admin(self, proxy).url  # type: ignore[arg-type]
        ready, metrics = (fetch(url, path, key) for path in ("/readyz", "/metrics"))
        return ready.value["engine"], b"\ndcp_engine_up 1\n" in metrics.body

    def test_a_distant_engine_is_shared_and_one_that_is_too_distant_is_down_for_all_who_ask(self) -> None:
        # Distance and deadlines in proportion: a busy machine may be late by the difference.
        times = width(1.5, 3.0)
        self.enterContext(mock.patch.object(client, "CALL_SECONDS", times * client.CALL_SECONDS))
        relay = self.enterContext(SlowRelay(urlsplit(self.engine.url).port or 0, times * 0.04))
        self.enterContext(mock.patch.object(self, "engine", SimpleNamespace(url=relay.url)))
        admin: Any = {"admin_port": 0, "admin_key": ADMIN_KEY}
        proxies = [self.shared_proxy(name, **admin) for name in ("one", "two")]
        each, rng = self.connections(*proxies), random.Random(7)
        self.wait_until_written(*proxies)
        conversation, visible = Conversation(CALLERS[0]), Visible(7, 0)
        for step in range(2):
            self.go_on(conversation, visible, f"thought {step} ", APIS[step % 3], each[step % 2], rng)
        self.assertEqual([], self.fake.refused)
        # On a busy machine one write may be late.
        self.assertLessEqual(len(self.log), 1, self.log)
        self.assertNotIn("is not available", "".join(self.log))
        self.assertEqual([("shared", True)] * 2, [self.state(proxy) for proxy in proxies])
        self.log.clear()
        relay.seconds = times * 0.4
        conversation, visible = Conversation(CALLERS[1]), Visible(7, 1)
        for step in range(2):
            self.go_on(conversation, visible, f"alone {step} ", APIS[step % 3], each[1], rng)
        shared = proxies[1].server.services().get(Shared).state
        assert shared is not None
        wait_until(lambda: shared.fault and self.log)
        self.assertEqual(("it does not answer", False), self.state(proxies[1]))
        self.assertIn("is not available", self.log[0])
