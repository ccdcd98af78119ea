"""Many clients at once and slow clients: each is served or dropped, and memory is bounded.

Small versions of the load on a laptop behind a public tunnel. The benchmark measures how fast it is.
"""

import contextlib
import gc
import json
import socket
import threading
import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.exchange.exchange import Exchange
from deepseek_cursor_proxy.server import connections, resource_limits
from deepseek_cursor_proxy.server.resource_limits import raise_descriptors
from tests.fake_deepseek import Answer, Raw
from tests.support import processes
from tests.support.harness import PATIENCE, RunningProxy, SocketTestCase, read_reply, request_bytes
from tests.support.polling import wait_until
from tests.support.resources import ResourceBaseline
from tests.support.width import width

BODY: dict[str, Any] = {"model": "deepseek-v4-pro", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**BODY, "stream": True}
JSON, EVENTS = b"application/json", b"text/event-stream"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
# A busy machine with two cores takes its time for hundreds of clients.
MUCH_PATIENCE = 60.0


def setUpModule() -> None:
    """Both ends of every connection are ours, and some systems begin with 256 descriptors."""
    raise_descriptors(4096)


class LoadTestCase(SocketTestCase):
    def crowd(self, proxy: RunningProxy, count: int) -> list[socket.socket]:
        socks = [socket.socket() for _ in range(count)]
        for sock in socks:
            self.addCleanup(sock.close)
            sock.setblocking(False)
            sock.connect_ex(proxy.address)
        for sock in socks:
            sock.settimeout(MUCH_PATIENCE)
        return socks


class TestSlowClients(LoadTestCase):
    def setUp(self) -> None:
        super().setUp()
        # A lingering farewell is for those who still send a lot; here it only takes time.
        self.enterContext(mock.patch.object(connections, "_DRAIN_SECONDS", 0.05))

    def test_slow_heads_are_ended_while_others_are_served(self) -> None:
        proxy = self.proxy(header_timeout=0.25)
        start = ResourceBaseline(proxy.address)
        slow = self.crowd(proxy, 50)
        with self.dripping(slow, b"GET /healthz HTTP/1.1\r\nX: "):
            probe = self.connect(proxy, HEALTH)
            self.assertEqual(200, read_reply(probe)[0])
            self.assertEqual([408] * 50, [read_reply(sock)[0] for sock in slow])
        for sock in (*slow, probe):
            sock.close()
        start.assert_restored(self)

    @contextlib.contextmanager
    def dripping(self, socks: list[socket.socket], beginning: bytes) -> Iterator[None]:
        """All of them send this at once, and then a byte now and then."""
        is_over = threading.Event()

        def drip() -> None:
            while not is_over.wait(0.02):
                for sock in socks:
                    with contextlib.suppress(OSError):
                        sock.send(b"x")

        for sock in socks:
            sock.sendall(beginning)
        thread = threading.Thread(target=drip)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def test_clients_that_stop_reading_are_dropped_and_their_calls_closed(self) -> None:
        count, proxy = width(2, 6), self.proxy(write_timeout=0.15)
        # More than the buffers between DeepSeek and a client hold.
        self.fake.answer(*[Answer(content="x" * 24_000_000, piece=400_000)] * count)
        start = ResourceBaseline(proxy.address)
        socks = []
        for _ in range(count):
            sock = self.enterContext(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(PATIENCE)
            sock.connect(proxy.address)
            sock.sendall(request_bytes(STREAM))
            socks.append(sock)
        for _ in range(count):
            self.fake.hang_ups.get(timeout=MUCH_PATIENCE)
        for sock in socks:
            # What lay between us and him; as much was held for him in the proxy, and paid for.
            self.assertLess(sum(map(len, iter(partial(sock.recv, 65536), b""))), 1_000_000)
            sock.close()
        start.assert_restored(self)


class TestMemory(SocketTestCase):
    """The proxy as a process of its own, whose highest mark the system keeps."""

    # Well above what is held at most (48 MiB of a request, 32 MiB of an answer), far below what the bombs hold.
    MOST_MEGABYTES = 160

    def setUp(self) -> None:
        super().setUp()
        upstream = processes.Server(self.fake.url, 0)
        self.server = self.enterContext(processes.running_proxy(upstream, self.folder))
        if self.server.peak_megabytes() is None:
            self.skipTest("this system does not tell how much memory a process had")
        self.ask(request_bytes(BODY))
        self.ask(request_bytes(STREAM))

    def ask(self, request: bytes) -> tuple[int, bytes]:
        port = int(self.server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=MUCH_PATIENCE) as sock:
            sock.sendall(request)
            status, _, body = read_reply(sock)
            return status, body

    def test_bombs_and_endless_answers_take_no_more_memory_than_large_ones(self) -> None:
        packed, endless = b"Content-Encoding: gzip\r\n", b"x" * 70_000_000
        call = {"index": 400_000, "id": "a", "function": {"name": "f", "arguments": "{}"}}
        far_out = json.dumps({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}).encode()
        before = self.server.peak_megabytes() or 0.0
        for name, request, step, status in (
            ("a call far out", STREAM, answer(EVENTS, b"data: %b\n\n" % far_out), 200),
            ("an endless head", BODY, Raw(b"HTTP/1.1 200 OK\r\nX: " + endless), 502),
            ("an endless line", STREAM, answer(EVENTS, b"data: " + endless), 200),
            ("an endless body", BODY, answer(JSON, endless), 502),
            ("a packed stream", STREAM, answer(EVENTS, bomb(), packed), 200),
            ("a packed body", BODY, answer(JSON, bomb(), packed), 502),
            ("a packed request", bomb(), None, 413),
        ):
            with self.subTest(name):
                self.fake.answer(*[step] if step is not None else [])
                got, body = self.ask(request_bytes(request, headers=[] if step else ["Content-Encoding: gzip"]))
                self.assertEqual(status, got, body[:300])
                self.assertIn(b'"error"', body)
                self.assertLess((self.server.peak_megabytes() or 0.0) - before, self.MOST_MEGABYTES)


def bomb(megabytes: int = 1024) -> bytes:
    """gzip that unpacks to that much, made in no time: one packed megabyte, over and over."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + block * megabytes


def answer(kind: bytes, body: bytes, header: bytes = b"") -> Raw:
    return Raw(b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n%b\r\n%b" % (kind, header, body))


class TestLargeRequests(LoadTestCase):
    def test_memory_is_given_back_when_nothing_of_a_large_request_is_left(self) -> None:
        left: list[int] = []

        def give_back() -> None:
            left.append(sum(isinstance(each, Exchange) for each in gc.get_objects()))

        self.enterContext(mock.patch.multiple(resource_limits, BYTES_KEPT=1000, give_back_memory=give_back))
        large = {**BODY, "messages": [{"role": "user", "content": "hi" * 500}]}
        for body in (BODY, STREAM, large, {**large, "stream": True}):
            self.round_trip(self.running, body)
            # Else the one before may not be over yet.
            wait_until(lambda: len(self.running.server.connections) == 0)
        self.assertEqual([0, 0], left)
