"""A call that DeepSeek queues: its keep-alives are no silence, and the client gets heartbeats meanwhile."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.faults import FaultTestCase
from tests.support.harness import RunningProxy, read_reply, read_to_the_end, request_bytes
from tests.support.raw_replies import ANSWER, EVENTS, STREAM_HEAD, TEXT, chunk, head
from tests.support.raw_upstream import ScriptedReply

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
