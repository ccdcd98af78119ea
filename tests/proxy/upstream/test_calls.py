"""What an upstream may do to a call, and how the call ends."""

import gzip
import json
import socket
import threading
from contextlib import closing
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import UpstreamDropped, UpstreamFailed, UpstreamRefused
from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.upstream.client import Call, UpstreamClient
from deepseek_cursor_proxy.upstream.connections import Destination
from deepseek_cursor_proxy.upstream.response import UpstreamResponse
from tests.fake_deepseek import Raw
from tests.support.harness import PATIENCE, SocketTestCase
from tests.support.polling import wait_until
from tests.support.raw_upstream import KEEP, RawUpstream, ScriptedReply
from tests.support.threads import in_background
from tests.support.traced_memory import traced_memory

BODY = json.dumps({"model": "deepseek-v4-pro", "messages": [{"role": "user", "content": "hi"}]}).encode()
STREAMED = json.dumps({**json.loads(BODY), "stream": True}).encode()


def raw(body: bytes, *headers: str, status: str = "200 OK") -> Raw:
    lines = [f"HTTP/1.1 {status}", *headers, "", ""]
    return Raw("\r\n".join(lines).encode() + body)


class UpstreamTestCase(SocketTestCase):
    def upstream(self, url: str | None = None, **settings: Any) -> UpstreamClient:
        self.destination = Destination((url or self.fake.url) + "/chat/completions")
        return self.enterContext(closing(UpstreamClient(ProxyConfig(**settings))))

    def send(self, upstream: UpstreamClient | None = None, body: bytes = BODY) -> UpstreamResponse:
        answer = (upstream or self.upstream()).send(Call(self.destination, "sk-test", body))
        self.addCleanup(answer.close)
        return answer


class TestKeepAlive(UpstreamTestCase):
    def test_a_finished_call_leaves_its_connection_for_the_next(self) -> None:
        upstream = self.upstream()
        for _ in range(3):
            answer = self.send(upstream)
            answer.read()
            answer.close()
        self.assertEqual(1, self.fake.connections)

    def test_before_waits_for_a_connection_and_for_an_answer_there_is_something_to_do(self) -> None:
        upstream, waits = self.upstream(), []
        for expected, arrived in ((["connection", "answer"], 0), (["answer"], 2)):

            def before_wait(arrived: int = arrived) -> None:
                waits.append(1)
                # If the second request were not sent yet, it would never arrive.
                wait_until(lambda: len(self.fake.seen) >= arrived)

            waits.clear()
            with closing(upstream.send(Call(self.destination, "sk-test", BODY, None, before_wait))) as answer:
                answer.read()
            self.assertEqual(len(expected), len(waits))

    def test_a_body_that_was_sent_is_not_held_twice_while_deepseek_thinks(self) -> None:
        listener, body = self.enterContext(socket.create_server(("127.0.0.1", 0))), bytes(8_000_000)
        buffer = bytearray(2**16)

        def read() -> None:
            with listener.accept()[0] as sock:
                while sock.recv_into(buffer):
                    pass

        def wait() -> None:
            held.append(memory.held())
            raise ConnectionResetError

        in_background(self, read)
        upstream, held = self.upstream(f"http://127.0.0.1:{listener.getsockname()[1]}"), list[int]()
        with traced_memory() as memory, mock.patch.object(UpstreamResponse, "read_head", side_effect=wait):
            with self.assertRaises(UpstreamDropped):
                self.send(upstream, body)
        self.assertLess(held[0], len(body) / 8)

    def test_a_stream_whose_last_event_was_seen_leaves_its_connection_for_the_next_call(self) -> None:
        upstream = self.upstream()
        for _ in range(3):
            answer = self.send(upstream, STREAMED)
            for piece in answer.stream():
                if piece.endswith(sse.DONE):
                    break
            answer.close(was_complete=True)
        self.assertEqual(1, self.fake.connections)

    def test_a_call_closed_midway_closes_its_connection(self) -> None:
        upstream = self.upstream()
        for _ in range(2):
            self.send(upstream, STREAMED).close()
        self.assertEqual(2, self.fake.connections)

    def test_connections_that_died_in_the_pool_cost_one_silent_retry(self) -> None:
        upstream = self.upstream()
        for answer in [self.send(upstream) for _ in range(3)]:
            answer.read()
            answer.close()
        for kept in upstream._pool._idle:
            kept._sock.shutdown(socket.SHUT_RDWR)
        self.assertEqual(3, len(upstream._pool._idle))
        with mock.patch.object(type(kept), "is_stale", False):
            self.assertEqual(200, self.send(upstream).status)

    def test_without_a_budget_for_retries_nothing_is_sent_twice(self) -> None:
        """A kept connection on which a request gets no answer says nothing about what became of that request."""
        completion = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
        for budget, requests in ((0.0, 2), (1.0, 3)):
            plays = iter(
                [
                    ScriptedReply.of(completion, KEEP),
                    ScriptedReply.of(b""),
                    ScriptedReply.of(b""),
                    ScriptedReply.of(b""),
                ]
            )
            with self.subTest(budget), RawUpstream(lambda _, plays=plays: next(plays)) as server:  # type: ignore[misc]
                upstream = self.upstream(server.url, retry_budget=budget)
                with closing(self.send(upstream)) as answer:
                    answer.read()
                with self.assertRaises(UpstreamDropped):
                    self.send(upstream)
                self.assertEqual(requests, len(server.requests))

    def test_a_connection_with_bytes_behind_its_response_is_not_kept(self) -> None:
        upstream = self.upstream()
        self.fake.answer(Raw(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n", then_close=False))
        with self.assertRaises(UpstreamRefused):
            self.send(upstream)
        self.assertEqual(200, self.send(upstream).status)

    def test_a_response_that_comes_before_the_request_is_sent_is_read(self) -> None:
        listener = self.enterContext(socket.create_server(("127.0.0.1", 0)))
        hung_up = threading.Event()

        def refuse_early() -> None:
            accepted, _ = listener.accept()
            with accepted:
                accepted.recv(1000)
                accepted.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\n{}")
                hung_up.wait(PATIENCE)

        in_background(self, refuse_early)
        self.addCleanup(hung_up.set)
        upstream = self.upstream(f"http://127.0.0.1:{listener.getsockname()[1]}")
        with self.assertRaises(UpstreamRefused) as caught:
            upstream.send(Call(self.destination, "sk-test", b"x" * 30_000_000))
        self.assertEqual(413, caught.exception.status)

    def test_a_new_connection_without_a_response_is_not_retried_silently(self) -> None:
        self.fake.answer(Raw(b""))
        with self.assertRaises(UpstreamFailed):
            self.send()
        self.assertEqual(1, len(self.fake.seen))


class TestFailures(UpstreamTestCase):
    def test_plain_http_where_tls_was_meant_is_named_as_the_failure(self) -> None:
        with self.assertRaises(UpstreamFailed) as caught:
            self.send(self.upstream(self.fake.url.replace("http:", "https:")))
        self.assertIn("secure", caught.exception.message)

    def test_a_response_compressed_unasked_is_decoded(self) -> None:
        packed = gzip.compress(b'{"a":1}')
        self.fake.answer(raw(packed, "Content-Encoding: gzip", f"Content-Length: {len(packed)}"))
        self.assertEqual(b'{"a":1}', self.send().read())

    def test_a_response_that_decodes_to_too_much_is_a_failure(self) -> None:
        packed = gzip.compress(b" " * (80 * 1024 * 1024), 1)
        self.fake.answer(raw(packed, "Content-Encoding: gzip", f"Content-Length: {len(packed)}"))
        with self.assertRaises(UpstreamFailed):
            self.send().read()
