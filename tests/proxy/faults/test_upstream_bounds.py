"""Bounds on what an upstream can cost: time, memory, slots, and the privacy of TLS."""

import contextlib
import io
import itertools
import json
import os
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.upstream import response
from tests.support.faults import PATIENCE, REPORTED, WHOLE, FaultTestCase, Reply
from tests.support.harness import (
    RunningProxy,
    chat_body,
    read_next_reply,
    read_reply,
    read_to_the_end,
    read_until,
    request_bytes,
)
from tests.support.polling import wait_until
from tests.support.raw_replies import ANSWER, EVENTS, GOOD, JSON, SSE, STREAM_HEAD, TEXT, chunk, delta, event, head
from tests.support.raw_upstream import CERTIFICATE, CLOSE, HANG, RESET, RawUpstream, ScriptedReply
from tests.support.skipped_time import SkippedTime
from tests.support.traced_memory import traced_memory
from tests.support.width import some, width


class TestTime(FaultTestCase):
    """Deadlines that hold whatever trickles in."""

    def trickling(self, start: bytes, drop: bytes, *, stream: bool = True, **settings: Any) -> Reply:
        """The reply to an upstream that says `start`, and then `drop` for ever."""
        return self.repeating(start, drop, 0.01, PATIENCE, stream=stream, **settings)

    def repeating(
        self, start: bytes, drop: bytes, pause: float, seconds: float, *, stream: bool = True, **settings: Any
    ) -> Reply:
        upstream = self.upstream_that_repeats(start, drop, pause, seconds)
        proxy = self.proxy(upstream_base_url=upstream.url, **{"request_timeout": 0.15, **settings})
        return self.ask(self.connect(proxy), stream=stream)

    def upstream_that_repeats(self, start: bytes, drop: bytes, pause: float, seconds: float) -> RawUpstream:
        over = threading.Event()
        self.addCleanup(over.set)

        def pieces() -> Iterator[bytes]:
            yield start
            until = time.monotonic() + seconds
            while time.monotonic() < until and not over.wait(pause):
                yield drop

        return self.upstream(lambda _: ScriptedReply(pieces()))

    def test_what_trickles_before_an_answer_has_one_deadline(self) -> None:
        for name, start, drop, settings in (
            ("a head", b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n", {}),
            ("a plain answer without a length", head(JSON), b"x", {"stream": False}),
            ("a plain answer with a length", head(JSON, "Content-Length: 10000000"), b"{", {"stream": False}),
            ("blank lines before a plain answer", head(JSON), b"\n", {"stream": False, "max_queue_seconds": 0}),
        ):
            with self.subTest(name):
                reply = self.trickling(start, drop, **settings)
                self.assertEqual((504, REPORTED), (reply.status, reply.verdict))
        # After too many of them it is no deadline that ends the call.
        self.assertEqual(REPORTED, self.trickling(b"", head(status="102 Processing")).verdict)

    def test_keep_alives_are_no_progress_beyond_the_queue_patience(self) -> None:
        blank = (b"\n", b"\n\n", b"data:\n\n", b"event: ping\n\n", b"x")
        drops = (b": keep-alive\n\n", *blank, b"data: null\n\n", b"data: 7\n\n", b"data: []\n\n", b'data: "x"\n\n')

        for drop in drops:
            with self.subTest(drop), SkippedTime() as time:
                upstream = self.upstream_that_repeats(STREAM_HEAD + EVENTS[2], drop, 0.01, PATIENCE)
                settings: Any = {"request_timeout": time.request_timeout, "max_queue_seconds": 0}
                proxy = self.proxy(upstream_base_url=upstream.url, heartbeat_interval=0.02, **settings)
                sock = self.connect(proxy, request_bytes(_body(0), headers=["Connection: close"]))
                # Our own sign of life goes on meanwhile, and does not count as one of upstream's.
                seen = read_until(sock, b'"delta":{"content":""}')
                time.skip(time.request_timeout)
                reply = Reply(*read_next_reply(io.BytesIO(seen + read_to_the_end(sock))))
                self.assertEqual(("upstream_timeout", REPORTED), (reply.error["code"], reply.verdict))

    def test_the_body_of_a_refusal_has_a_short_deadline(self) -> None:
        with mock.patch.object(response, "_ERROR_SECONDS", 0.05):
            reply = self.trickling(head(JSON, status="400 Bad"), b"x", request_timeout=PATIENCE)
        self.assertEqual((400, "upstream_error"), (reply.status, reply.error["type"]))

    def test_after_the_finish_nothing_keeps_a_stream_open(self) -> None:
        start = STREAM_HEAD + b"".join(EVENTS[:-2])
        for drop in (b": x\n\n", event({"choices": []}), event(delta(content=""))):
            with self.subTest(drop), mock.patch.object(response, "_USAGE_SECONDS", 0.05):
                reply = self.trickling(start, drop, request_timeout=PATIENCE)
                self.assertEqual(WHOLE, reply.verdict)

    def test_a_flood_ends_as_a_trickle_does(self) -> None:
        """There is always more to read."""
        # Shorter than what is flooded with: its own end would be told as another error, or as none.
        finished = STREAM_HEAD + b"".join(EVENTS[:-2])
        for name, start, drop in (
            ("in the queue", STREAM_HEAD + EVENTS[2], b": keep-alive\n\n"),
            ("after the finish", finished, b": x\n\n"),
            ("after the finish, with chunks", finished, event({"choices": []})),
        ):
            with self.subTest(name), mock.patch.object(response, "_USAGE_SECONDS", 0.05):
                started = time.monotonic()
                reply = self.repeating(start, drop * 500, 0, 60.0, request_timeout=0.1, max_queue_seconds=0.2)
                self.assertLess(time.monotonic() - started, 50)
                self.assertEqual(WHOLE if start is finished else REPORTED, reply.verdict)


class TestTls(FaultTestCase):
    def test_a_stream_inside_tls_is_whole(self) -> None:
        for good in GOOD:
            upstream = self.upstream(lambda _, good=good: ScriptedReply.of(good.data), tls=True)  # type: ignore[misc]
            with mock.patch.dict(os.environ, {"SSL_CERT_FILE": str(CERTIFICATE)}):
                proxy = self.proxy(upstream_base_url=upstream.url)
                with self.subTest(good.name):
                    self.assertEqual(WHOLE, self.ask(self.connect(proxy), stream=good.is_stream).verdict)

    def test_a_connection_cut_inside_tls_is_an_error(self) -> None:
        good = GOOD[3]
        for then in (CLOSE, RESET):
            play = ScriptedReply.of(good.data[: good.complete_at - 1], then)
            upstream = self.upstream(lambda _, play=play: play, tls=True)  # type: ignore[misc]
            with mock.patch.dict(os.environ, {"SSL_CERT_FILE": str(CERTIFICATE)}):
                reply = self.ask(self.connect(self.proxy(upstream_base_url=upstream.url)))
                self.assertEqual(REPORTED, reply.verdict)


class TestSlots(FaultTestCase):
    """However a call ends, its place comes back."""

    def test_every_ending_of_a_call_releases_its_slot(self) -> None:
        refused = head(JSON, "Content-Length: 0", status="503 Busy")
        odd = (b"garbage", head("Location: /", status="302 Found"), refused, head("Content-Type: text/html") + b"x")
        endings = [*map(ScriptedReply.of, (GOOD[3].data, GOOD[3].data[:200], *odd)), ScriptedReply.of(b"", RESET)]
        # One place only: a place that is not given back makes the next call fail.
        proxy, _ = self.scripted_proxy(endings, max_upstream_calls=1, queue_timeout=0, retry_budget=0.01)
        for _ in range(2):
            for number in range(len(endings)):
                with self.subTest(number):
                    reply = self.ask(self.connect(proxy), number)
                    self.assertNotEqual("rate_limit_exceeded", reply.error["code"] if reply.status != 200 else "")

    def test_a_call_that_waits_for_its_retry_holds_no_slot(self) -> None:
        endings = [*map(ScriptedReply.of, (STREAM_HEAD, b"", head("Content-Length: 0", status="503 Busy")))]
        proxy, _ = self.scripted_proxy(endings)
        held: list[int] = []

        def pause_after(*_: object) -> None:
            held.append(proxy.server.services().upstream_client.call_limits.of("deepseek-v4-pro").running_calls)

        with mock.patch("deepseek_cursor_proxy.exchange.failover.Retries.pause_after", pause_after):
            for number in range(len(endings)):
                self.ask(self.connect(proxy), number)
        self.assertEqual({0}, set(held))
        self.assertLessEqual(3, len(held))

    def test_a_client_that_disconnects_releases_its_slot(self) -> None:
        hanging = [ScriptedReply.of(data, HANG) for data in (b"", STREAM_HEAD + EVENTS[2])]
        proxy, upstream = self.scripted_proxy([*hanging, ScriptedReply.of(GOOD[3].data)], max_upstream_calls=1)
        for number in (0, 1):
            with self.subTest(number):
                upstream.hung_up.clear()
                leaver = self.connect(proxy, _body(number))
                wait_until(lambda number=number: len(upstream.requests) == 2 * number + 1)  # type: ignore[misc]
                leaver.close()
                self.assertTrue(upstream.hung_up.wait(PATIENCE))
                self.assertEqual(WHOLE, self.ask(self.connect(proxy), 2).verdict)

    def test_a_client_that_leaves_the_queue_makes_no_call(self) -> None:
        proxy, upstream = self.scripted_proxy(
            [ScriptedReply.of(b"", HANG), ScriptedReply.of(GOOD[3].data)], max_upstream_calls=1
        )
        first = self.connect(proxy, _body(0))
        wait_until(lambda: len(upstream.requests) == 1)
        second = self.connect(proxy, _body(0))
        limit = proxy.server.services().upstream_client.call_limits.of("deepseek-v4-pro")
        wait_until(lambda: len(limit._queue) == 1)
        second.close()
        wait_until(lambda: len(limit._queue) == 0)
        first.close()
        self.assertEqual(WHOLE, self.ask(self.connect(proxy), 1).verdict)
        self.assertEqual(2, len(upstream.requests))

    def test_a_full_call_limit_is_a_429_with_retry_after(self) -> None:
        proxy, upstream = self.scripted_proxy([ScriptedReply.of(b"", HANG)], max_upstream_calls=1, queue_timeout=0.05)
        self.connect(proxy, _body(0))
        wait_until(lambda: len(upstream.requests) == 1)
        for stream in (True, False):
            reply = self.ask(self.connect(proxy), stream=stream)
            self.assertEqual((429, "rate_limit_exceeded"), (reply.status, reply.error["code"]))
            self.assertEqual("2", reply.headers["retry-after"])


class TestMemory(FaultTestCase):
    """What an upstream can make us hold, in megabytes of ours (its own bytes are not counted)."""

    # Ten million lines, each allocation of which is counted, take eight seconds on a quick machine.
    patience = 8 * PATIENCE

    def assert_bounded(self, data: ScriptedReply, *, stream: bool) -> None:
        proxy, _ = self.scripted_proxy([data])
        sock = self.connect(proxy)
        with traced_memory() as memory:
            verdict = self.ask(sock, stream=stream).verdict
            peak = memory.peak()
        self.assertEqual(REPORTED, verdict)
        self.assertLess(peak, 64 * 1024 * 1024)

    def test_compressed_bombs_are_errors_in_bounded_memory(self) -> None:
        lines = width(64 * 1024, 10 * 1024 * 1024)
        bombs = (
            (b"", b"\n", b"", lines), (b"", b": " + b"x" * 90 + b"\n\n", b"", lines),
            (b"data: ", b"x", b"", 10 * 1024 * 1024), (b'{"x": "', b"x", b'"}', 10 * 1024 * 1024),
        )  # fmt: skip
        for (start, unit, end, size), stream in some(itertools.product(bombs, (True, False)), 3):
            packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
            bomb = packer.compress(start + unit * (size // len(unit)) + end) + packer.flush()
            with self.subTest(unit[:5], stream=stream):
                data = head(SSE if stream else JSON, "Content-Encoding: gzip") + bomb
                self.assert_bounded(ScriptedReply.of(data), stream=stream)

    def test_an_endless_answer_is_an_error_in_bounded_memory(self) -> None:
        call = {"index": 0, "id": "i" * 100, "function": {"name": "f", "arguments": "x" * 900}}
        for said in ({"content": "x" * 1000}, {"reasoning_content": "x" * 1000}, {"tool_calls": [call]}):
            with self.subTest(*said), mock.patch("deepseek_cursor_proxy.conversation.Reply.MAX_CHARACTERS", 10_000):
                # Whatever else goes wrong, it never stops by itself.
                reply = self.reply_to(STREAM_HEAD + event(delta(**said)) * 11, then=HANG, request_timeout=PATIENCE)
                self.assertEqual((200, REPORTED), (reply.status, reply.verdict))
                self.assertIn("longer than", reply.error["message"])
        with mock.patch("deepseek_cursor_proxy.conversation.Reply.MAX_CHARACTERS", 1):
            # What has come to its end was not endless.
            self.assertEqual(WHOLE, self.reply_to(GOOD[0].data, stream=False).verdict)

    def test_endless_lines_and_bodies_are_errors_in_bounded_memory(self) -> None:
        mebibyte = b"x" * 1024 * 1024
        for data, stream in (
            ((STREAM_HEAD, b"data: ", *[mebibyte] * 20), True),
            ((STREAM_HEAD, *[b"data: xx\n" * 100_000] * 2), True),
            ((head(JSON), *[mebibyte] * 40), False),
        ):
            with self.subTest(data[0]):
                self.assert_bounded(ScriptedReply(data), stream=stream)


def _body(number: int) -> dict[str, object]:
    return chat_body(str(number), model="m", stream=True)


QUESTION: dict[str, Any] = {"model": "deepseek-v4-pro", "messages": [{"role": "user", "content": "hi"}]}
# By path, what is asked there.
APIS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": QUESTION,
    "/v1/responses": {"model": "deepseek-v4-pro", "input": "hi"},
    "/v1/messages": {**QUESTION, "max_tokens": 2000},
}
# What a client hears of a silent stream, by path.
SIGNS = {"/v1/chat/completions": b'"content":""', "/v1/responses": b"response.in_progress", "/v1/messages": b"ping"}
BLANK = b"1\r\n \r\n"
PLAIN_HEAD = head("Content-Type: application/json", "Transfer-Encoding: chunked")


class Queue:
    """What an upstream does with calls that wait: keep-alives, and the answers once they `may_answer`.

    While it is `slow`, time is skipped between two keep-alives of each call: in all four times the request timeout.
    """

    def __init__(self, skipped_time: SkippedTime, calls: int, blank: bytes) -> None:
        self.may_answer, self.slow = threading.Event(), threading.Event()
        self.slow.set()
        self._time = skipped_time
        self._blank = blank
        self._is_over = False
        self._round = threading.Barrier(calls, self._pass_time)

    def _pass_time(self) -> None:
        most = 4 * self._time.request_timeout
        if self.slow.is_set() and self._time.skipped < most:
            self._time.skip(self._time.request_timeout / 4)
        self._is_over = self._time.skipped >= most and self.may_answer.is_set()

    def reply(self, request: bytes) -> Iterator[bytes]:
        is_stream = json.loads(request.partition(b"\r\n\r\n")[2]).get("stream", False)
        yield STREAM_HEAD if is_stream else PLAIN_HEAD
        # A proxy that waits for ever is found out as well.
        until = time.monotonic() + PATIENCE
        while not self._is_over and time.monotonic() < until:
            yield self._blank if is_stream else chunk(b"\n")
            self._round.wait(PATIENCE)
            # Sooner than heartbeats, later than nothing: all that is to be seen is heartbeats between keep-alives.
            threading.Event().wait(0.005)
        yield b"".join(EVENTS) if is_stream else chunk(ANSWER) + b"0\r\n\r\n"


class TestQueue(FaultTestCase):
    @contextlib.contextmanager
    def queueing(
        self, calls: int = 1, blank: bytes = b": keep-alive\n\n", **settings: Any
    ) -> Iterator[tuple[RunningProxy, Queue]]:
        with contextlib.ExitStack() as stack:
            time = stack.enter_context(SkippedTime())
            queue = Queue(time, calls, blank)
            upstream = stack.enter_context(RawUpstream(lambda request: ScriptedReply(queue.reply(request))))
            settings = {"request_timeout": time.request_timeout, "heartbeat_interval": 0.02, **settings}
            yield self.proxy(upstream_base_url=upstream.url, **settings), queue

    def ask_at(self, proxy: RunningProxy, path: str, **fields: Any) -> socket.socket:
        headers = ["x-api-key: sk-test", "anthropic-version: 2023-06-01"] if "messages" in path else []
        headers.append("Connection: close")
        return self.connect(proxy, request_bytes({**APIS[path], **fields}, path=path, headers=headers))

    def told(self, proxy: RunningProxy, path: str, **fields: Any) -> tuple[int, bytes]:
        reply = read_reply(self.ask_at(proxy, path, **fields))
        return reply.status, reply.body

    def test_a_call_queued_for_longer_than_the_request_timeout_gets_its_answer(self) -> None:
        for path, stream in itertools.product(APIS, (True, False)):
            with self.subTest(path, stream=stream), self.queueing() as (proxy, queue):
                sock = self.ask_at(proxy, path, stream=stream)
                seen = b""
                for _ in range(3):
                    seen += read_until(sock, SIGNS[path] if stream else BLANK)
                queue.may_answer.set()
                status, _, body = read_next_reply(io.BytesIO(seen + read_to_the_end(sock)))
                self.assertEqual(200, status, body)
                self.assertNotIn(b'"error":{', body)
                if stream:
                    self.assertIn(TEXT[-2], body.decode())
                else:
                    self.assertTrue(body.startswith(b"  "), body)
                    self.assertIn(TEXT, json.dumps(json.loads(body), ensure_ascii=False))

    def test_several_choices_of_a_queued_call_get_their_answers(self) -> None:
        for stream in (True, False):
            with self.subTest(stream=stream), self.queueing(calls=2) as (proxy, queue):
                queue.may_answer.set()
                status, body = self.told(proxy, "/v1/chat/completions", n=2, stream=stream)
                self.assertEqual((200, True), (status, b"[DONE]" in body if stream else len(json.loads(body)) > 0))
                self.assertNotIn(b'"error"', body)

    def test_blank_lines_count_as_keep_alives_of_a_queued_stream(self) -> None:
        with self.queueing(blank=b"\n") as (proxy, queue):
            queue.may_answer.set()
            status, body = self.told(proxy, "/v1/chat/completions", stream=True)
        self.assertEqual((200, True, False), (status, b"[DONE]" in body, b'"error"' in body))

    def test_a_queue_beyond_the_patience_is_an_error_that_names_the_setting(self) -> None:
        for path in APIS:
            with self.subTest(path), self.queueing(max_queue_seconds=3 * PATIENCE) as (proxy, _):
                _, body = self.told(proxy, path, stream=True)
                self.assertIn(b"in its queue", body)

    def test_a_queued_call_without_keep_alives_times_out(self) -> None:
        upstream = self.upstream(lambda _: ScriptedReply([STREAM_HEAD, b": keep-alive\n\n"], "hang"))
        proxy = self.proxy(upstream_base_url=upstream.url, request_timeout=0.5)
        _, body = self.told(proxy, "/v1/chat/completions", stream=True)
        self.assertIn(b"went silent", body)

    def test_a_queued_plain_answer_that_fails_never_looks_complete(self) -> None:
        """The status is sent by then: a response fails in its own words, the others break off."""
        seen = {}
        for path in ("/v1/responses", "/v1/chat/completions"):
            with self.queueing(max_queue_seconds=PATIENCE) as (proxy, queue):
                queue.slow.clear()
                sock = self.ask_at(proxy, path)
                seen[path] = read_until(sock, BLANK)
                queue.slow.set()
                seen[path] += read_to_the_end(sock)
        status, _, body = read_next_reply(io.BytesIO(seen.pop("/v1/responses")))
        self.assertEqual((200, "failed"), (status, json.loads(body)["status"]))
        [cut_off] = seen.values()
        self.assertTrue(cut_off.startswith(b"HTTP/1.1 200 OK"), cut_off)
        self.assertFalse(cut_off.endswith(b"0\r\n\r\n"), cut_off)
        self.assertNotIn(b"{", cut_off)
