"""Idle, slow, leaving and pipelining clients, many of each at once: whole answers, and nothing is left."""

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.net import wait
from deepseek_cursor_proxy.server.resource_limits import raise_descriptors
from tests.fake_deepseek import FakeDeepSeek
from tests.soak import clients
from tests.soak.clients import ClientRun
from tests.support.harness import RunningProxy, SocketTestCase, chat_body, read_reply
from tests.support.polling import wait_until
from tests.support.width import width
from tests.unit.net.test_wait import systems

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
# What the proxy may have besides a thread per client: the acceptor, the log, the ledger.
MOST_THREADS = 10
MUCH_PATIENCE = 60.0


def setUpModule() -> None:
    raise_descriptors(4096)


class HostileTestCase(SocketTestCase):
    # What the system has to wait with; see test_wait.
    system: dict[str, Any] | None = None

    def setUp(self) -> None:
        if self.system is not None:
            self.enterContext(mock.patch.multiple(wait, **self.system))
        super().setUp()

    def open_crowd(self, proxy: RunningProxy, count: int, data: bytes = b"") -> list[socket.socket]:
        socks = [self.enterContext(socket.create_connection(proxy.address, MUCH_PATIENCE)) for _ in range(count)]
        for sock in socks:
            sock.sendall(data)
        return socks

    def assert_serves(self, proxy: RunningProxy) -> None:
        self.assertEqual(200, self.round_trip(proxy, HEALTH).status)


class TestCrowds(HostileTestCase):
    def test_idle_clients_have_a_thread_each_and_are_all_answered(self) -> None:
        count = width(150, 1000)
        proxy = self.proxy()
        before = threading.active_count()
        socks = self.open_crowd(proxy, count)
        wait_until(lambda: len(proxy.server.connections) == count)
        self.assert_serves(proxy)
        self.assertLessEqual(threading.active_count() - before, count + MOST_THREADS)
        for sock in socks:
            sock.sendall(HEALTH)
        self.assertEqual({200}, {read_reply(sock).status for sock in socks})
        for sock in socks:
            sock.close()
        wait_until(lambda: len(proxy.server.connections) == 0)
        wait_until(lambda: threading.active_count() - before <= MOST_THREADS)


class TestChaos(HostileTestCase):
    """Every client of the soak at once, several times; those that behave get whole answers."""

    def setUp(self) -> None:
        super().setUp()
        self.upstream = self.enterContext(FakeDeepSeek(responder=clients.answer_to))
        self.upstream.idle_seconds = clients.IDLE_SECONDS

    def run_client(self, proxy: RunningProxy, client: Callable[[ClientRun], None], seed: str) -> None:
        client(ClientRun(proxy.url.removesuffix("/v1"), random.Random(seed), lambda count: None))

    def test_well_behaved_clients_are_served_among_all_others(self) -> None:
        proxy, seed = self.proxy(upstream_base_url=self.upstream.url), random.randrange(10**9)
        with ThreadPoolExecutor(40) as pool:
            runs = [
                pool.submit(self.run_client, proxy, client, f"{seed} {number} {client.__name__}")
                for number in range(width(1, 30, 300))
                for client in dict.fromkeys(clients.CLIENTS)
            ]
        self.assertEqual([], [str(run.exception()) for run in runs if run.exception()], f"seed {seed}")
        self.assert_serves(proxy)
        wait_until(lambda: len(proxy.server.connections) == 0)
        wait_until(lambda: not [each for each in threading.enumerate() if each.name == "client"])

    def test_a_stop_in_the_middle_of_it_all_ends_everything(self) -> None:
        for seconds in width((0.1,), (0.0, 0.3)):
            proxy, is_over = self.proxy(upstream_base_url=self.upstream.url), threading.Event()

            def keep_busy(
                client: Callable[[ClientRun], None], proxy: RunningProxy = proxy, is_over: threading.Event = is_over
            ) -> None:
                # Refused clients pause: all threads here share one interpreter with the stop.
                while not is_over.wait(0.05):
                    with contextlib.suppress(Exception):
                        self.run_client(proxy, client, client.__name__)

            for question in ("hang", "silent", "endless"):
                # Clients that do not leave by themselves.
                self.connect(proxy, chat_body(question, stream=True))
            with ThreadPoolExecutor(28) as pool:
                for client in [*dict.fromkeys(clients.CLIENTS)] * width(1, 3):
                    pool.submit(keep_busy, client)
                wait_until(lambda proxy=proxy: len(proxy.server.connections) > 3)  # type: ignore[misc]
                time.sleep(0.1)
                started = time.monotonic()
                # Which stops to accept as well.
                proxy.server.drain(seconds)
                proxy.server.server_close()
                took, left = time.monotonic() - started, len(proxy.server.connections)
                is_over.set()
            self.assertLess(took, seconds + 4)
            self.assertEqual(0, left)


class TestChaosWithoutHangUps(TestChaos):
    """As on macOS."""

    system = systems().get("macOS")


class TestChaosWithSelect(TestChaos):
    """As on Windows, but for its sockets."""

    system = systems()["Windows"]
