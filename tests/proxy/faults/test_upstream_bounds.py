"""Bounds on what an upstream can cost: time, memory, slots, and the privacy of TLS."""

import itertools
import json
import os
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.upstream import response
from tests.support.faults import PATIENCE, REPORTED, WHOLE, FaultTestCase, Reply
from tests.support.harness import RunningProxy, chat_body, read_reply, read_to_the_end, request_bytes
from tests.support.polling import wait_until
from tests.support.raw_replies import ANSWER, EVENTS, GOOD, JSON, SSE, STREAM_HEAD, TEXT, chunk, delta, event, head
from tests.support.raw_upstream import CERTIFICATE, CLOSE, HANG, RESET, ScriptedReply
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
        over = threading.Event()
        self.addCleanup(over.set)

        def pieces() -> Iterator[bytes]:
            yield start
            until = time.monotonic() + seconds
            while time.monotonic() < until and not over.wait(pause):
                yield drop

        upstream = self.upstream(lambda _: ScriptedReply(pieces()))
        proxy = self.proxy(upstream_base_url=upstream.url, **{"request_timeout": 0.15, **settings})
        return self.ask(self.connect(proxy), stream=stream)

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

        def reply(drop: bytes) -> Reply:
            settings = {"heartbeat_interval": 0.05, "request_timeout": 0.4, "max_queue_seconds": 0}
            return self.trickling(STREAM_HEAD + EVENTS[2], drop, **settings)

        with ThreadPoolExecutor(len(drops)) as pool:
            replies = dict(zip(drops, pool.map(reply, drops), strict=True))
        for drop, each in replies.items():
            with self.subTest(drop):
                self.assertEqual(("upstream_timeout", REPORTED), (each.error["code"], each.verdict))
                # Our own sign of life went on meanwhile, and did not count as one of upstream's.
                self.assertIn({"content": ""}, [event["choices"][0]["delta"] for event in each.chunks[1:-1]])

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
# How long no byte may come, which a busy machine must meet; and a queue that is longer, twice over.
SILENCE, QUEUED = 0.5, 1.1
PLAIN_HEAD = head("Content-Type: application/json", "Transfer-Encoding: chunked")


def queued(request: bytes, seconds: float = QUEUED, blank: bytes = b": keep-alive\n\n") -> Iterator[bytes]:
    """Keep-alives for so long, then the answer."""
    is_stream = json.loads(request.partition(b"\r\n\r\n")[2]).get("stream", False)
    yield STREAM_HEAD if is_stream else PLAIN_HEAD
    until, pause = time.monotonic() + seconds, threading.Event()
    while time.monotonic() < until:
        yield blank if is_stream else chunk(b"\n")
        pause.wait(0.02)
    yield b"".join(EVENTS) if is_stream else chunk(ANSWER) + b"0\r\n\r\n"


class TestQueue(FaultTestCase):
    def queueing(self, seconds: float = QUEUED, blank: bytes = b": keep-alive\n\n", **settings: Any) -> RunningProxy:
        upstream = self.upstream(lambda request: ScriptedReply(queued(request, seconds, blank)))
        settings = {"request_timeout": SILENCE, "heartbeat_interval": 0.1, **settings}
        return self.proxy(upstream_base_url=upstream.url, **settings)

    def told(self, proxy: RunningProxy, path: str, **fields: Any) -> tuple[int, bytes]:
        headers = ["x-api-key: sk-test", "anthropic-version: 2023-06-01"] if "messages" in path else []
        sock = self.connect(proxy, request_bytes({**APIS[path], **fields}, path=path, headers=headers))
        sock.settimeout(30)
        reply = read_reply(sock)
        return reply.status, reply.body

    def test_a_call_queued_for_longer_than_the_request_timeout_gets_its_answer(self) -> None:
        proxy = self.queueing()
        cases = [(path, stream) for path in APIS for stream in (True, False)]
        with ThreadPoolExecutor(len(cases)) as pool:
            replies = list(pool.map(lambda case: self.told(proxy, case[0], stream=case[1]), cases))
        for (path, stream), (status, body) in zip(cases, replies, strict=True):
            with self.subTest(path, stream=stream):
                self.assertEqual(200, status, body)
                self.assertNotIn(b'"error":{', body)
                if stream:
                    self.assertIn(TEXT[-2], body.decode())
                    self.assertGreaterEqual(body.count(SIGNS[path]), 3, body)
                else:
                    self.assertTrue(body.startswith(b"  "), body)
                    self.assertIn(TEXT, json.dumps(json.loads(body), ensure_ascii=False))

    def test_several_choices_of_a_queued_call_get_their_answers(self) -> None:
        proxy, path = self.queueing(), "/v1/chat/completions"
        with ThreadPoolExecutor(2) as pool:
            replies = list(pool.map(lambda stream: self.told(proxy, path, n=2, stream=stream), (True, False)))
        for stream, (status, body) in zip((True, False), replies, strict=True):
            with self.subTest(stream=stream):
                self.assertEqual((200, True), (status, b"[DONE]" in body if stream else len(json.loads(body)) > 0))
                self.assertNotIn(b'"error"', body)

    def test_blank_lines_count_as_keep_alives_of_a_queued_stream(self) -> None:
        status, body = self.told(self.queueing(blank=b"\n"), "/v1/chat/completions", stream=True)
        self.assertEqual((200, True, False), (status, b"[DONE]" in body, b'"error"' in body))

    def test_a_queue_beyond_the_patience_is_an_error_that_names_the_setting(self) -> None:
        proxy, started = self.queueing(seconds=30.0, max_queue_seconds=0.3), time.monotonic()
        with ThreadPoolExecutor(len(APIS)) as pool:
            replies = list(pool.map(lambda path: self.told(proxy, path, stream=True), APIS))
        for _, body in replies:
            self.assertIn(b"in its queue", body)
        self.assertLess(time.monotonic() - started, 20)

    def test_a_queued_call_without_keep_alives_times_out(self) -> None:
        upstream = self.upstream(lambda _: ScriptedReply([STREAM_HEAD, b": keep-alive\n\n"], "hang"))
        proxy = self.proxy(upstream_base_url=upstream.url, request_timeout=SILENCE)
        _, body = self.told(proxy, "/v1/chat/completions", stream=True)
        self.assertIn(b"went silent", body)

    def test_a_queued_plain_answer_that_fails_never_looks_complete(self) -> None:
        """The status is sent by then: a response fails in its own words, the others break off."""
        proxy = self.queueing(seconds=30.0, max_queue_seconds=0.3)
        status, body = self.told(proxy, "/v1/responses", stream=False)
        self.assertEqual((200, "failed"), (status, json.loads(body)["status"]))
        seen = read_to_the_end(self.connect(proxy, QUESTION))
        self.assertTrue(seen.startswith(b"HTTP/1.1 200 OK"), seen)
        self.assertFalse(seen.endswith(b"0\r\n\r\n"), seen)
        self.assertNotIn(b"{", seen)
