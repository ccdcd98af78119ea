"""Proxies that share an engine, all of them real processes, and what breaks: a proxy, the engine, its login.

Chats go on all the time. One kind goes to another proxy with every request, one stays where it is. What holds:

    0 failed answers       every request gets its whole answer, whatever the engine does; a broken stream is repeated
    0 slow answers         no answer takes longer than the deadlines of the engine
    0 lost turns           in the end every proxy restores every turn that a client saw complete, byte for byte
"""

import itertools
import os
import signal
import threading
import time
import unittest
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from deepseek_cursor_proxy.config.declaration import SECRET_VARIABLE
from tests.fake_deepseek import FakeDeepSeek
from tests.interop.engine.redis_servers import RedisCluster, RedisServer
from tests.proxy.faults.test_killed_process import Chat, numbered_answer
from tests.support.polling import eventually, wait_until
from tests.support.program import COMMAND, Process, address
from tests.support.systems import ROOT
from tests.support.width import width

# How long an outage lasts.
OUTAGE_SECONDS = width(2.0, 5.0)
# A request may connect, look up twice and write, each for half a second, before the engine is known to be down. The
# rest is for a busy machine. Answers that wait for the end of an outage fail `wait_for_turns`.
MOST_SECONDS = 8.0
# What the proxies print.
BACK, GONE, WRITTEN, COMPLETED = "is available again", "is not available", "has what waited for it", " completed "


class Proxy:
    def __init__(self, stack: ExitStack, upstream: str, *flags: str) -> None:
        self._stack = stack
        self._home = Path(stack.enter_context(TemporaryDirectory(prefix="proxy-")))
        self._flags = ("--base-url", upstream, "--port", "0", "--admin-port", "0", "--no-display-reasoning", *flags)
        self.url = ""
        self.start()

    def start(self) -> None:
        environment = {
            name: value for name, value in os.environ.items() if "DEEPSEEK" not in name or name == SECRET_VARIABLE
        }
        environment |= {"HOME": str(self._home), "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
        self.process = Process(self._flags, environment, self._home / "errors", command=COMMAND)
        self._stack.callback(self.process.close)
        host, port = address(self.process.read_until("Stop with Ctrl-C.\n"))
        self.url = f"http://{host}:{port}/v1"

    def kill(self) -> None:
        self.process.send(signal.SIGKILL)
        self.process.wait()

    @property
    def log(self) -> str:
        return self.process.errors


class FaultCase(unittest.TestCase):
    proxies: list[Proxy]

    def setUp(self) -> None:
        super().setUp()
        self.stack = self.enterContext(ExitStack())
        self.numbers = itertools.count()
        self.fake = self.enterContext(FakeDeepSeek(responder=partial(numbered_answer, self.numbers)))
        self.enterContext(mock.patch.dict(os.environ, {SECRET_VARIABLE: bytes(range(32)).hex()}))
        self.chats: list[Chat] = []
        self.problems: list[str] = []
        self.slowest = 0.0

    def start_proxies(self, url: str, count: int = 2, *flags: str) -> None:
        flags = ("--store", url, *flags)
        self.proxies = [Proxy(self.stack, self.fake.url, *flags) for _ in range(count)]
        for proxy in self.proxies:
            self.warm_up(proxy)

    def warm_up(self, proxy: Proxy) -> None:
        """The first request loads what all need; it is not what is measured."""
        self.assertTrue(Chat(next(self.numbers)).go_on(proxy.url))

    @contextmanager
    def load(self, chats: int = 4) -> Iterator[None]:
        """Chats that go on while the body runs: half of them move with every request, half stay at their proxy."""
        stop = threading.Event()
        threads = [threading.Thread(target=self._chat, args=(number, stop)) for number in range(chats)]
        for thread in threads:
            thread.start()
        try:
            self.wait_for_turns(5)
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def wait_for_turns(self, count: int = 20) -> None:
        """Wait until every proxy has answered so many turns more, or something is wrong."""
        goals = [(proxy, proxy.log.count(COMPLETED) + count) for proxy in self.proxies]
        wait_until(lambda: all(proxy.log.count(COMPLETED) >= goal for proxy, goal in goals) or self.problems)

    def _chat(self, number: int, stop: threading.Event) -> None:
        chat = self._new_chat()
        for turn in itertools.count():
            if stop.is_set():
                return
            proxy = self.proxies[(number // 2 + (turn if number % 2 else 0)) % len(self.proxies)]
            started = time.monotonic()
            try:
                is_answered = chat.go_on(proxy.url)
            except Exception as error:
                self.problems.append(f"{type(error).__name__}: {error}")
                return
            if is_answered:
                self.slowest = max(self.slowest, time.monotonic() - started)
            else:
                stop.wait(0.01)
            if chat.is_over:
                chat = self._new_chat()

    def _new_chat(self) -> Chat:
        chat = Chat(next(self.numbers))
        self.chats.append(chat)
        return chat

    def check(self) -> None:
        """No answer failed or was late, and every proxy restores every turn."""
        self.assertEqual([], self.problems)
        self.assertLess(self.slowest, MOST_SECONDS)
        for proxy in self.proxies:
            for chat in self.chats:
                self.check_chat(chat, proxy)
        self.assertEqual([], self.fake.refused)
        for proxy in self.proxies:
            self.assertNotIn("Traceback", proxy.log)

    def check_chat(self, chat: Chat, proxy: Proxy) -> None:
        """One more turn brings every thought along: at once, or once what waits for the engine has been written."""
        self.assertTrue(eventually(lambda: self.is_restored(chat, proxy)), f"turns are lost: {proxy.log}")

    def is_restored(self, chat: Chat, proxy: Proxy) -> bool:
        before = len(chat.thought)
        self.assertTrue(chat.go_on(proxy.url))
        [*_, sent] = (each for each in self.fake.accepted if each["messages"][0] == chat.messages[0])
        restored = [each.get("reasoning_content") for each in sent["messages"] if each["role"] == "assistant"]
        return chat.thought[:before] == restored

    def wait_for_log(self, text: str) -> None:
        for proxy in self.proxies:
            self.assertTrue(eventually(lambda proxy=proxy: text in proxy.log), f"{text}: {proxy.log}")


class TestOneServer(FaultCase):
    def setUp(self) -> None:
        super().setUp()
        self.server = RedisServer(self.stack, {"appendonly": "yes"})
        self.url = f"redis://{self.server.node}/"

    def run_outage(self, begin: Callable[[], object], end: Callable[[], object], *, is_down: bool = True) -> None:
        self.start_proxies(self.url)
        with self.load():
            begin()
            if is_down:
                self.wait_for_log(GONE)
            threading.Event().wait(OUTAGE_SECONDS)
            self.wait_for_turns()
            end()
            self.wait_for_log(WRITTEN)
            self.wait_for_turns()
        self.check()

    def test_a_suspended_engine(self) -> None:
        self.run_outage(self.server.suspend, self.server.resume)
        for proxy in self.proxies:
            self.assertEqual((1, 1), (proxy.log.count(GONE), proxy.log.count(BACK)), proxy.log)

    def test_a_killed_engine_that_comes_back_with_its_data(self) -> None:
        self.run_outage(self.server.kill, self.server.start)

    def test_an_engine_that_lost_all_its_data(self) -> None:
        self.start_proxies(self.url)
        with self.load():
            self.server.run("FLUSHALL")
            self.wait_for_turns()
        self.assertEqual([], self.problems)
        self.assertLess(self.slowest, MOST_SECONDS)

    def test_an_engine_without_memory(self) -> None:
        self.run_outage(
            lambda: self.server.run("CONFIG", "SET", "maxmemory", "1"),
            lambda: self.server.run("CONFIG", "SET", "maxmemory", "0"),
            is_down=False,
        )

    def test_a_password_that_changes(self) -> None:
        def set_password(new: str, old: str) -> None:
            login = (b"default", old.encode()) if old else ()
            self.server.run("CONFIG", "SET", "requirepass", new, login=login)
            login = (b"default", new.encode()) if new else ()
            self.server.run("CLIENT", "KILL", "TYPE", "normal", login=login)

        self.run_outage(lambda: set_password("other", ""), lambda: set_password("", "other"))

    def test_an_engine_that_is_absent_at_the_start(self) -> None:
        self.server.kill()
        self.start_proxies(self.url)
        with self.load():
            self.wait_for_log(GONE)
            self.wait_for_turns()
            self.server.start()
            self.wait_for_log(WRITTEN)
            self.wait_for_turns()
        self.check()

    def test_a_proxy_that_is_killed_in_the_middle_of_answers(self) -> None:
        # Nothing is lost without the file of the killed proxy: what it acknowledged is on the engine.
        self.start_proxies(self.url, 3, "--missing-reasoning-strategy", "reject")
        for _ in range(width(1, 4)):
            with self.load():
                self.wait_for_turns()
                victim = self.proxies[0]
                victim.kill()
                self.proxies = self.proxies[1:]
                self.wait_for_turns()
                victim.start()
                self.warm_up(victim)
                self.proxies = [*self.proxies, victim]
                self.wait_for_turns()
        self.check()


class TestFailover(FaultCase):
    def run_failover(self, url: str, kill: Callable[[], object]) -> None:
        self.start_proxies(url, 2)
        with self.load():
            kill()
            self.wait_for_log(GONE)
            self.wait_for_log(WRITTEN)
            self.wait_for_turns()
        self.check()

    def test_a_cluster_replaces_a_master(self) -> None:
        cluster = RedisCluster(self.stack)

        def kill() -> None:
            # The one caller of this test is in one slot.
            max(cluster.masters, key=lambda master: int(str(master.run("DBSIZE")))).kill()

        self.run_failover(cluster.url, kill)
