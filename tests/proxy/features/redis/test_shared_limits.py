"""The limits of named keys behind several proxies, which count on one engine."""

import os
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.config.declaration import SECRET_VARIABLE
from deepseek_cursor_proxy.features.keys import limits
from deepseek_cursor_proxy.features.keys.feature import Keys
from deepseek_cursor_proxy.features.redis.feature import Shared
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer
from tests.proxy.features.keys.test_limits import ANN, NOW, LimitsTestCase
from tests.support.harness import RunningProxy
from tests.support.polling import wait_until
from tests.support.shared_engine import SECRET, EngineTestCase

BUDGET: Any = {"ann": {"key": ANN, "usd_per_day": 0.01, "requests_per_minute": 1000}}


class TestSharedLimits(EngineTestCase, LimitsTestCase):
    def proxies(self, count: int) -> list[RunningProxy]:
        self.enterContext(mock.patch.dict(os.environ, {SECRET_VARIABLE: SECRET.hex()}))
        settings: Any = {"keys": BUDGET, "store": self.engine.url}
        paths = [self.place / f"{number}.sqlite3" for number in range(count)]
        return [self.limited(ReasoningStore(path), **settings) for path in paths]

    def test_three_proxies_spend_a_budget_once(self) -> None:
        self.assert_fifty_spend_a_budget_for_ten_once(self.proxies(3))

    def test_an_engine_that_lost_its_data_resets_no_budget(self) -> None:
        one, two = self.proxies(2)
        self.fake._responder = lambda _: Answer(content="x" * 8000)
        while (reply := self.go(one, max_tokens=1000)).status == 200:
            pass
        self.assertEqual(429, reply.status)
        self.engine.run(b"FLUSHALL")
        self.assertEqual(429, self.go(one, max_tokens=1000).status)
        self.assertEqual(429, self.go(two, max_tokens=1000).status)
        self.assertIn("had less than was spent", " ".join(self.log))

    def test_without_the_engine_a_key_with_a_budget_is_served_for_a_while_and_then_asked_to_wait(self) -> None:
        self.enterContext(mock.patch.object(limits, "_SECONDS_BETWEEN_RENEWALS", 0.02))
        one, two = self.proxies(2)
        self.fake._responder = lambda _: Answer(content="x" * 8000)
        self.assertEqual(200, self.go(one, max_tokens=2000).status)
        spent = self.used(two, "usd_per_day").spent
        self.assertGreater(spent, 0)
        self.engine.stop()
        self.assertEqual(200, self.go(one, max_tokens=1000).status)
        limiter = one.server.services().get(Keys).limiter
        assert limiter is not None
        limiter._now = lambda: NOW + limits.GRACE_SECONDS + 1
        reply = self.go(one, max_tokens=1000)
        self.assertEqual((503, True), (reply.status, "retry-after" in reply.headers))
        self.assertIn("The key is fine", reply.value["error"]["message"])
        self.engine.start()
        shared = one.server.services().get(Shared).state
        assert shared is not None
        wait_until(lambda: not shared.fault and not shared.backlog)
        wait_until(lambda: limiter._outage_since is None)
        self.assertGreater(self.used(two, "usd_per_day").spent, spent)
        self.assertEqual(200, self.go(one, max_tokens=1000).status)
