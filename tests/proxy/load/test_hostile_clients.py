"""Idle, slow, leaving and pipelining clients, many of each at once: whole answers, and nothing is left."""

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.net import wait
from deepseek_cursor_proxy.server.resource_limits import raise_descriptors
from tests.fake_deepseek import Answer, FakeDeepSeek
from tests.support.harness import RunningProxy, SocketTestCase, read_reply, request_bytes
from tests.support.polling import wait_until
from tests.support.width import width
from tests.unit.net.test_wait import systems

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
STREAM: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
# What the proxy may have besides a thread per client: the acceptor, the log, the ledger.
MOST_THREADS = 10
MUCH_PATIENCE = 60.0


def setUpModule() -> None:
    raise_descriptors(4096)


def reset(sock: socket.socket) -> None:
    """End a connection as a crashed client does."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


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
    """Every kind of client at once, several times; those that behave get whole answers."""

    CONTENT = "A whole answer, " * 20

    def setUp(self) -> None:
        super().setUp()
        answer = Answer(content=self.CONTENT, piece=16, pause=0.002)
        self.upstream = self.enterContext(FakeDeepSeek(responder=lambda _: answer))
        self.running_proxy = self.proxy(
            upstream_base_url=self.upstream.url, header_timeout=0.5, body_timeout=0.5, write_timeout=0.5
        )
        self.problems: list[str] = []

    def connect_to_proxy(self) -> socket.socket:
        return socket.create_connection(self.running_proxy.address, MUCH_PATIENCE)

    def check(self, kind: str, is_right: bool, what: object) -> None:
        if not is_right:
            self.problems.append(f"{kind}: {what!r}"[:300])

    # Those that behave …

    def stream(self, luck: random.Random) -> None:
        with self.connect_to_proxy() as sock:
            for _ in range(luck.randint(1, 3)):
                sock.sendall(request_bytes(STREAM))
                reply = read_reply(sock)
                self.check("stream", reply.text == self.CONTENT and b"[DONE]" in reply.body, reply)
                time.sleep(luck.choice([0, 0, 0.02]))

    def ask(self, luck: random.Random) -> None:
        with self.connect_to_proxy() as sock:
            for _ in range(luck.randint(1, 3)):
                sock.sendall(request_bytes({**STREAM, "stream": False}))
                reply = read_reply(sock)
                self.check("plain", reply.text == self.CONTENT, reply)

    def pipeline(self, luck: random.Random) -> None:
        kinds = [luck.choice(["health", "stream"]) for _ in range(luck.randint(2, 6))]
        data = b"".join(HEALTH if kind == "health" else request_bytes(STREAM) for kind in kinds)
        with self.connect_to_proxy() as sock, sock.makefile("rb") as file:
            # In pieces that fit no request.
            while data:
                size = luck.randint(1, 400)
                sock.sendall(data[:size])
                data = data[size:]
                time.sleep(luck.choice([0, 0, 0.001]))
            for kind in kinds:
                status, body = _read_reply_from(file)
                is_right = status == 200 and (kind == "health" or body.endswith(b"data: [DONE]\n\n"))
                self.check(f"pipelined {kind}", is_right, (status, body[-100:]))

    def read_slowly(self, luck: random.Random) -> None:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(MUCH_PATIENCE)
        with contextlib.closing(sock):
            sock.connect(self.running_proxy.address)
            sock.sendall(request_bytes(STREAM, headers=["Connection: close"]))
            data = b""
            while piece := sock.recv(luck.choice([1, 10, 500])):
                data += piece
        self.check("slow reader", data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), data[-200:])

    def expect_continue(self, luck: random.Random) -> None:
        head, _, body = request_bytes(STREAM, headers=["Expect: 100-continue"]).partition(b"\r\n\r\n")
        with self.connect_to_proxy() as sock:
            sock.sendall(head + b"\r\n\r\n")
            reply = read_reply(sock)
            self.check("expect", reply.status == 100, reply)
            sock.sendall(body)
            reply = read_reply(sock)
            self.check("expect", reply.text == self.CONTENT, reply)

    # … and those that do not

    def leave(self, luck: random.Random) -> None:
        with self.connect_to_proxy() as sock:
            request = request_bytes({**STREAM, "stream": luck.random() < 0.7})
            sock.sendall(request[: luck.choice([0, 1, 20, len(request) - 1, len(request), len(request), len(request)])])
            if luck.random() < 0.5:
                sock.settimeout(luck.random() / 20)
                with contextlib.suppress(OSError):
                    sock.recv(luck.randint(1, 5000))
            match luck.randint(0, 2):
                case 0:
                    reset(sock)
                case 1:
                    with contextlib.suppress(OSError):
                        sock.shutdown(socket.SHUT_WR)
                    time.sleep(luck.random() / 20)

    def drip(self, luck: random.Random) -> None:
        data = luck.choice([HEALTH, request_bytes(STREAM)])
        with self.connect_to_proxy() as sock, contextlib.suppress(OSError):
            for byte in data[: luck.randint(5, 40)]:
                sock.send(bytes([byte]))
                time.sleep(0.01)

    def talk_nonsense(self, luck: random.Random) -> None:
        with self.connect_to_proxy() as sock:
            sock.sendall(luck.randbytes(luck.randint(1, 300)) + b"\r\n\r\n")
            with contextlib.suppress(OSError):
                answer = sock.recv(65536)
                self.check("nonsense", not answer or answer.startswith(b"HTTP/1.1 4"), answer)

    def flood(self, luck: random.Random) -> None:
        """Sends more than is kept of it while the answer to its first request is being streamed, and leaves."""
        with self.connect_to_proxy() as sock, contextlib.suppress(OSError):
            sock.sendall(request_bytes(STREAM))
            sock.settimeout(0.1)
            for _ in range(20):
                sock.send(HEALTH * 200)
            time.sleep(luck.random() / 20)

    def test_well_behaved_clients_are_served_among_all_others(self) -> None:
        kinds = [
            self.stream, self.ask, self.pipeline, self.read_slowly, self.expect_continue,
            self.leave, self.leave, self.leave, self.drip, self.talk_nonsense, self.flood,
        ]  # fmt: skip
        seed = random.randrange(10**9)
        with ThreadPoolExecutor(40) as pool:
            clients = [
                pool.submit(kind, random.Random(f"{seed} {number} {kind.__name__}"))
                for number in range(width(1, 30, 300))
                for kind in kinds
            ]
            for client in clients:
                client.result(MUCH_PATIENCE)
        self.assertEqual([], self.problems, f"seed {seed}")
        self.assert_serves(self.running_proxy)
        wait_until(lambda: len(self.running_proxy.server.connections) == 0)
        wait_until(lambda: not [each for each in threading.enumerate() if each.name == "client"])

    def test_a_stop_in_the_middle_of_it_all_ends_everything(self) -> None:
        for seconds in width((0.1,), (0.0, 0.3)):
            proxy = self.running_proxy = self.proxy(upstream_base_url=self.upstream.url)
            is_over = threading.Event()

            def keep_busy(kind: Callable[[random.Random], None], is_over: threading.Event = is_over) -> None:
                while not is_over.is_set():
                    with contextlib.suppress(Exception):
                        kind(random.Random())

            kinds = [self.stream, self.ask, self.pipeline, self.read_slowly, self.leave, self.drip, self.flood]
            with ThreadPoolExecutor(28) as pool:
                for kind in kinds * width(1, 4):
                    pool.submit(keep_busy, kind)
                wait_until(lambda proxy=proxy: len(proxy.server.connections) > 3)  # type: ignore[misc]
                time.sleep(0.1)
                started = time.monotonic()
                # Which stops to accept as well.
                proxy.server.drain(seconds)
                proxy.server.server_close()
                took = time.monotonic() - started
                is_over.set()
            self.assertLess(took, seconds + 4)
            self.assertEqual(0, len(proxy.server.connections))


def _read_reply_from(file: Any) -> tuple[int, bytes]:
    """One of several replies on a connection."""
    status = int(file.readline().split()[1])
    headers = {}
    while line := file.readline().strip():
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    if headers.get("transfer-encoding") != "chunked":
        return status, file.read(int(headers["content-length"]))
    body = b""
    while size := int(file.readline(), 16):
        body += file.read(size)
        file.readline()
    file.readline()
    return status, body


class TestChaosWithoutHangUps(TestChaos):
    """As on macOS."""

    system = systems().get("macOS")


class TestChaosWithSelect(TestChaos):
    """As on Windows, but for its sockets."""

    system = systems()["Windows"]
