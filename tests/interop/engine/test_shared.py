"""What proxies share, on real servers: the laws of the stand-in once more, a cluster, and faults under way."""

import random
import time
import unittest
from contextlib import ExitStack
from unittest import mock

from deepseek_cursor_proxy.features.redis import client
from tests.interop.engine.redis_servers import RedisCluster, RedisServer
from tests.laws.test_protocols import CALLERS, Visible
from tests.proxy.features.keys import test_redis_store as test_limits
from tests.proxy.features.redis import test_reasonings, test_several_proxies, test_shared_limits, test_state
from tests.proxy.features.responses import test_redis_store as test_responses
from tests.support.apis import APIS
from tests.support.generated_conversations import Conversation

# A lookup is tried twice, a write once, each for half a second and perhaps after a connect, before the engine is known
# to be down; the fake answers at once.
MOST_SECONDS = 8.0


class Server:
    """A redis-server with the controls of the stand-in; it keeps its data when it is killed."""

    def __init__(self, stack: ExitStack) -> None:
        self._server = RedisServer(stack, {"appendonly": "yes"})
        self.url = f"redis://{self._server.node}/"
        self.start, self.stop = self._server.start, self._server.kill
        self.pause, self.resume = self._server.suspend, self._server.resume
        self.run = self._server.run

    def advance(self, seconds: int) -> None:
        """Have all keys and leases end so much earlier."""
        for key in self.run("SCAN", "0", "COUNT", "1000")[1]:  # type: ignore[index]
            left = self.run("PTTL", key)
            if isinstance(left, int) and left > 0:
                self.run("PEXPIRE", key, str(left - 1000 * seconds))
            if self.run("TYPE", key) == "hash" and self.run("HEXISTS", key, "u"):
                self.run("HINCRBY", key, "u", str(-seconds))


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


# What only the stand-in has: the commands that it got, errors of every kind, and passwords that a test changes.
_ON_THE_STAND_IN = (
    "test_a_long_chat_is_looked_up_in_parts_that_the_engine_answers_in_time",
    "test_no_text_is_on_the_engine_in_clear", "test_an_engine_without_memory_gets_what_waits_when_it_has_some",
    "test_a_write_that_the_engine_never_takes_is_in_the_file_alone", "test_no_write_overtakes_one_that_waits",
    "test_a_wrong_password_is_an_outage_and_is_never_shown",
    "test_an_instance_with_another_secret_says_so_and_shares_nothing", "test_the_engine_never_has_the_secret",
)  # fmt: skip
# A cluster stays for all tests of a class, and is neither stopped nor changed by its keys.
_ON_A_CLUSTER = (
    "test_engine_and_file_return_the_same_after_any_sequence_of_entries",
    "test_what_one_instance_records_another_finds_oldest_first",
    "test_two_instances_return_what_one_file_returns_after_any_sequence_of_calls",
    "test_every_reasoning_is_restored_although_each_request_goes_to_another_proxy",
    "test_a_chain_of_responses_continues_at_another_proxy",
)


def _tests(case: type) -> set[str]:
    return {name for name in dir(case) if name.startswith("test_")}


def _name(case: type) -> str:
    # Two modules have a case of the same name.
    return f"{case.__module__.rpartition('.')[2]}_{case.__name__}"


def _on_a_server(case: type) -> type:
    left_out = dict.fromkeys(_tests(case) & {*_ON_THE_STAND_IN})
    return type(f"{_name(case)}OnAServer", (OnAServer, case), left_out)


def _on_a_cluster(case: type) -> type:
    left_out = dict.fromkeys(_tests(case) - {*_ON_A_CLUSTER})
    return type(f"{_name(case)}OnACluster", (OnACluster, case), left_out)


_STORES = (
    *(test_reasonings.TestSharedReasonings, test_responses.TestSharedResponses, test_limits.TestSharedLimits),
    *(test_state.TestOutages, test_state.TestSecret, test_state.TestBacklog),
)
_PROXIES = (test_several_proxies.TestSeveralProxies, test_shared_limits.TestSharedLimits)
_CLUSTERED = (_STORES[0], _STORES[2], _PROXIES[0])

globals().update((each.__name__, each) for each in map(_on_a_server, (*_STORES, *_PROXIES)))
globals().update((each.__name__, each) for each in map(_on_a_cluster, _CLUSTERED))


class TestNames(unittest.TestCase):
    def test_every_test_that_is_named_here_exists(self) -> None:
        known = set().union(*map(_tests, (*_STORES, *_PROXIES)))
        self.assertLessEqual({*_ON_THE_STAND_IN, *_ON_A_CLUSTER}, known)


class TestProxiesOnAServer(OnAServer, test_several_proxies.SharedTestCase):
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
            deadlines = mock.patch.object(client, "CALL_SECONDS", 0.5)
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
