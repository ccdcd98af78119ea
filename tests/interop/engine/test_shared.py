"""What proxies share, on real servers: the laws of the stand-in once more, a cluster, and faults under way."""

import random
import time
from contextlib import ExitStack
from unittest import mock

from deepseek_cursor_proxy.storage.shared import state
from tests.interop.engine.redis_servers import RedisCluster, RedisServer
from tests.laws.test_protocols import CALLERS, Visible
from tests.proxy.shared import test_several_proxies, test_shared_limits
from tests.support.generated_conversations import APIS, Conversation
from tests.unit.storage.shared import test_limits, test_reasonings, test_responses

# A lookup is tried twice, a write once, each perhaps after a connect; a request has a few of them before the breaker
# opens, and the fake answers at once.
MOST_SECONDS = 3.0


class Server:
    """A redis-server with the controls of the stand-in."""

    def __init__(self, stack: ExitStack) -> None:
        self._server = RedisServer(stack)
        self.url = f"redis://{self._server.node}/"
        self.start, self.stop = self._server.start, self._server.kill
        self.pause, self.resume = self._server.suspend, self._server.resume
        self.run = self._server.run


class OnAServer:
    def start_engine(self) -> Server:
        return Server(self.enterContext(ExitStack()))  # type: ignore[attr-defined]


class OnACluster:
    cluster: RedisCluster

    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = RedisCluster(cls.enterClassContext(ExitStack()))  # type: ignore[attr-defined]

    def start_engine(self) -> RedisCluster:
        for server in self.cluster.masters:
            server.run("FLUSHALL")
        return self.cluster


def _only(case: type, *names: str) -> dict[str, None]:
    """No test of a case but these: the others use what only the stand-in has."""
    return {name: None for name in dir(case) if name.startswith("test_") and name not in names}


_REASONINGS = _only(
    test_reasonings.TestSharedReasonings,
    "test_engine_and_file_return_the_same_after_any_sequence_of_entries",
    "test_what_one_instance_records_another_finds_newest_first",
)
_RESPONSES = _only(
    test_responses.TestSharedResponses,
    "test_two_proxies_return_what_one_file_returns_after_any_sequence_of_changes",
    "test_what_was_deleted_through_another_proxy_stays_deleted",
)
_LIMITS = _only(
    test_limits.TestSharedLimits,
    "test_two_instances_return_what_one_file_returns_after_any_sequence_of_calls",
    "test_many_requests_at_once_spend_a_budget_once",
)
_PROXIES = _only(
    test_several_proxies.TestSeveralProxies,
    "test_every_reasoning_is_restored_although_each_request_goes_to_another_proxy",
    "test_a_chain_of_responses_goes_on_at_another_proxy",
)
_BUDGETS = _only(test_shared_limits.TestSharedLimits, "test_three_proxies_spend_a_budget_once")

TestReasoningsOnAServer = type(
    "TestReasoningsOnAServer", (OnAServer, test_reasonings.TestSharedReasonings), _REASONINGS
)
TestResponsesOnAServer = type("TestResponsesOnAServer", (OnAServer, test_responses.TestSharedResponses), _RESPONSES)
TestLimitsOnAServer = type("TestLimitsOnAServer", (OnAServer, test_limits.TestSharedLimits), _LIMITS)
TestBudgetsOnAServer = type("TestBudgetsOnAServer", (OnAServer, test_shared_limits.TestSharedLimits), _BUDGETS)
TestReasoningsOnACluster = type(
    "TestReasoningsOnACluster", (OnACluster, test_reasonings.TestSharedReasonings), _REASONINGS
)
TestLimitsOnACluster = type("TestLimitsOnACluster", (OnACluster, test_limits.TestSharedLimits), _LIMITS)
TestProxiesOnACluster = type("TestProxiesOnACluster", (OnACluster, test_several_proxies.TestSeveralProxies), _PROXIES)


class TestProxiesOnAServer(OnAServer, test_several_proxies.SharedTestCase):
    has_deadlines = True

    def chat(self, number: int) -> tuple[Conversation, Visible]:
        return Conversation(CALLERS[number % 2]), Visible(7, number)

    def test_a_chat_that_alternates_is_restored_and_a_stopped_engine_fails_no_answer(self) -> None:
        rng = random.Random(1)
        proxies = [self.shared_proxy("one"), self.shared_proxy("two")]
        each, slowest = self.connections(*proxies), 0.0
        for seed in range(4):
            chats = [self.chat(2 * seed), self.chat(2 * seed + 1)]
            for step in range(6):
                self.go_on(*chats[0], f"{seed} {step} ", rng.choice(APIS), each[step % 2], rng)
            self.engine.pause()
            # The deadlines that users have, under which a stopped engine is found out.
            deadlines = mock.patch.multiple(state, _READ_SECONDS=0.05, _WRITE_SECONDS=0.25)
            try:
                deadlines.start()
                # Another chat: the first one has keys, of turns that the other proxy made, that only the engine knows.
                for step in range(4):
                    started = time.monotonic()
                    self.go_on(*chats[1], f"{seed} {step} ", rng.choice(APIS), each[1], rng)
                    slowest = max(slowest, time.monotonic() - started)
            finally:
                deadlines.stop()
                self.engine.resume()
            self.wait_until_written(*proxies)
            for step in range(6, 12):
                for chat in chats:
                    self.go_on(*chat, f"{seed} {step} ", rng.choice(APIS), each[step % 2], rng)
        self.assertEqual([], self.fake.refused)
        self.assertLess(slowest, MOST_SECONDS)

    def test_an_engine_that_is_killed_and_starts_empty_gets_what_it_missed(self) -> None:
        rng = random.Random(2)
        proxies = [self.shared_proxy("one"), self.shared_proxy("two")]
        each = self.connections(*proxies)
        conversation, visible = self.chat(0)
        for step in range(4):
            self.go_on(conversation, visible, f"{step} ", rng.choice(APIS), each[0], rng)
        self.engine.stop()
        for step in range(4, 8):
            self.go_on(conversation, visible, f"{step} ", rng.choice(APIS), each[0], rng)
        self.engine.start()
        self.wait_until_written(*proxies)
        for step in range(8, 12):
            self.go_on(conversation, visible, f"{step} ", rng.choice(APIS), each[0], rng)
        self.assertEqual([], self.fake.refused)

    def test_without_memory_the_engine_costs_no_answer(self) -> None:
        rng = random.Random(3)
        proxies = [self.shared_proxy("one"), self.shared_proxy("two")]
        each = self.connections(*proxies)
        conversation, visible = self.chat(0)
        self.go_on(conversation, visible, "0 ", rng.choice(APIS), each[0], rng)
        self.engine.run("CONFIG", "SET", "maxmemory", "1")
        for step in range(1, 4):
            self.go_on(conversation, visible, f"{step} ", rng.choice(APIS), each[0], rng)
        self.engine.run("CONFIG", "SET", "maxmemory", "0")
        self.wait_until_written(*proxies)
        for step in range(4, 8):
            self.go_on(conversation, visible, f"{step} ", rng.choice(APIS), each[step % 2], rng)
        self.assertEqual([], self.fake.refused)
