"""Requests that wait, many at once: for a connection, DeepSeek, a slot, a retry or their body."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tests.fake_deepseek import Answer, Failure, FakeDeepSeek, Step
from tests.proxy.load import test_hostile_clients as hostile
from tests.proxy.load.test_hostile_clients import MUCH_PATIENCE
from tests.support.harness import RawReply, RunningProxy, read_reply, request_bytes
from tests.support.polling import wait_until
from tests.support.width import width

setUpModule = hostile.setUpModule

STREAM: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
PLAIN = {**STREAM, "stream": False}


class TestWaitingRequests(hostile.HostileTestCase):
    count = width(10, 200)

    def upstream(self, respond: Callable[[], Step]) -> None:
        self.fake = self.enterContext(FakeDeepSeek(responder=lambda _: respond()))
        self.addCleanup(self.fake.release.set)

    @contextmanager
    def waiting(self, data: bytes, **settings: Any) -> Iterator[tuple[RunningProxy, list[socket.socket]]]:
        """A proxy and clients that have sent this, when all of them wait."""
        proxy = self.proxy(**{"upstream_base_url": self.fake.url, **settings})
        socks = self.open_crowd(proxy, self.count, data)
        wait_until(lambda: len(proxy.server.connections) == self.count, MUCH_PATIENCE)
        self.assert_serves(proxy)
        yield proxy, socks

    def assert_answered(self, socks: list[socket.socket]) -> None:
        self.assertEqual({(200, "x")}, {(reply.status, reply.text) for reply in map(read_reply, socks)})

    def hold_back(self) -> Step:
        self.fake.release.wait(MUCH_PATIENCE)
        return Answer(content="x")

    def test_answers_that_deepseek_has_not_begun_or_that_have_come_in_half(self) -> None:
        for body, respond in (
            (PLAIN, self.hold_back), (STREAM, self.hold_back), (PLAIN, lambda: Answer(content="x", stall_after=1)),
        ):  # fmt: skip
            self.upstream(respond)
            with self.waiting(request_bytes(body)) as (_, socks):
                self.fake.release.set()
                self.assert_answered(socks)

    def test_calls_in_the_queue_for_slots(self) -> None:
        self.upstream(self.hold_back)
        with self.waiting(request_bytes(STREAM), max_upstream_calls=1, queue_timeout=MUCH_PATIENCE) as (proxy, socks):
            limit = proxy.server.services().upstream_client.call_limits.of("deepseek-v4-pro")
            wait_until(lambda: (limit.running_calls, limit.queued_calls) == (1, self.count - 1))
            self.fake.release.set()
            self.assert_answered(socks)
            wait_until(lambda: (limit.running_calls, limit.queued_calls) == (0, 0))

    def test_calls_that_pause_before_a_retry(self) -> None:
        busy = Failure(503, headers=(("Retry-After", "1"),))
        self.upstream(lambda: Answer(content="x") if self.fake.release.is_set() else busy)
        with self.waiting(request_bytes(STREAM), retry_budget=MUCH_PATIENCE) as (_, socks):
            self.fake.release.set()
            self.assert_answered(socks)

    def test_bodies_that_arrive_slowly(self) -> None:
        self.upstream(lambda: Answer(content="x"))
        data = request_bytes(STREAM)
        with self.waiting(data[:-20]) as (_, socks):
            for start in (-20, -10):
                for sock in socks:
                    sock.sendall(data[start:][:10])
            self.assert_answered(socks)

    def unopened(self) -> str:
        listener = self.enterContext(socket.create_server(("127.0.0.1", 0), backlog=self.count))
        return f"https://127.0.0.1:{listener.getsockname()[1]}"

    def test_connections_to_deepseek_that_are_being_opened(self) -> None:
        with self.waiting(request_bytes(STREAM), upstream_base_url=self.unopened()) as (proxy, socks):
            for sock in socks:
                sock.close()
            wait_until(lambda: len(proxy.server.connections) == 0)

    def test_a_stop_ends_every_kind_of_wait_in_words(self) -> None:
        self.count = width(3, 8)
        self.upstream(self.hold_back)
        kinds: list[tuple[bytes, dict[str, Any]]] = [
            (request_bytes(PLAIN), {}),
            (request_bytes(STREAM), {"max_upstream_calls": 1, "queue_timeout": MUCH_PATIENCE}),
            (request_bytes(STREAM)[:-20], {}),
            (request_bytes(STREAM), {"upstream_base_url": self.unopened()}),
        ]
        for data, settings in kinds:
            with self.waiting(data, **settings) as (proxy, socks):
                started = time.monotonic()
                proxy.server.drain(0.0)
                self.assertLess(time.monotonic() - started, 20)
                for reply in map(read_reply, socks):
                    self.assertEqual((503, "proxy_stopping"), (reply.status, reply.value["error"]["code"]))

    def test_a_crowd_beyond_all_limits_is_refused_in_words(self) -> None:
        """Every stream ends whole or with a reply that says why, and no client waits for ever."""
        self.upstream(lambda: Answer(content="x", stall_after=2))
        count, calls, most = width((40, 8, 30), (1000, 400, 900))
        # One caller leaves a ninth of the slots free.
        slots = calls + calls // 8
        proxy = self.proxy(
            upstream_base_url=self.fake.url, max_upstream_calls=slots, max_connections=most, queue_timeout=0.3
        )
        socks = self.open_crowd(proxy, count, request_bytes(STREAM))
        for _ in range(calls):
            self.fake.stalls.get(timeout=MUCH_PATIENCE)
        with ThreadPoolExecutor(count) as pool:
            reading = [pool.submit(read_reply, sock) for sock in socks]
            # The queue alone is empty before they come as well.
            wait_until(lambda: sum(each.done() for each in reading) == count - calls, MUCH_PATIENCE)
            self.fake.release.set()
        replies: list[RawReply] = [each.result() for each in reading]
        self.assertEqual(calls, len([reply for reply in replies if reply.status == 200 and reply.text == "x"]))
        refused = [reply for reply in replies if reply.status != 200]
        self.assertEqual(count - calls, len(refused))
        # Connections beyond the limit get a 503, unless some before them had left the queue by then.
        self.assertLessEqual({reply.status for reply in refused}, {429, 503})
        self.assertTrue(all(reply.value["error"]["message"] for reply in refused))
