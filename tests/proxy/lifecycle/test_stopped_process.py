"""What has arrived while a process was stopped for longer than any deadline (SIGSTOP) is read when it goes on."""

import json
import os
import signal
import socket
import tempfile
import threading
import time
import unittest
import unittest.mock
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support import processes
from tests.support.harness import chat_body, read_reply, request_bytes
from tests.support.raw_replies import ANSWER, EVENTS, STREAM_HEAD, TEXT, chunk, delta, event, head
from tests.support.raw_upstream import RawUpstream, ScriptedReply

QUESTION = {"model": "deepseek-v4-pro", "messages": [{"role": "user", "content": "hi"}]}
PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
# Every deadline of the proxy, so long that a busy machine meets it until the stop; and how long it is stopped.
DEADLINE, STOPPED = 2.5, 3.0
PLAIN_HEAD = head("Content-Type: application/json", "Transfer-Encoding: chunked")
PATIENCE = 30.0


@unittest.skipUnless(hasattr(signal, "SIGSTOP"), "nothing stops a process here")
class TestStoppedProcess(unittest.TestCase):
    def setUp(self) -> None:
        self.is_stopped = threading.Event()
        self.calls = threading.Semaphore(0)
        self.upstream = self.enterContext(
            RawUpstream(lambda request: ScriptedReply(self.answer(json.loads(request.partition(b"\r\n\r\n")[2]))))
        )
        home = Path(self.enterContext(tempfile.TemporaryDirectory()))
        flags = ["--request-timeout", str(DEADLINE), "--no-display-reasoning"]
        self.server = self.enterContext(processes.running_proxy(processes.Server(self.upstream.url, 0), home, *flags))
        self.addCleanup(os.kill, self.server.pid, signal.SIGCONT)
        self.address = ("127.0.0.1", int(self.server.url.rpartition(":")[2]))
        # What the first requests import takes long on a slow machine.
        for path in PATHS:
            self.ask(path, "at once", stream=True)
            self.calls.acquire()

    def answer(self, payload: dict[str, Any]) -> Iterator[bytes]:
        """Half of an answer; the rest while the proxy is stopped."""
        is_stream, kind = payload.get("stream", False), payload["messages"][-1]["content"]
        if is_stream:
            yield STREAM_HEAD + EVENTS[0] + EVENTS[2]
        else:
            yield PLAIN_HEAD + chunk(ANSWER[:20])
        self.calls.release()
        if kind not in ("unread", "at once"):
            self.is_stopped.wait(PATIENCE)
        if kind == "unread":
            # More than the buffers between two processes hold: the rest comes after the end of the stop.
            yield event(delta(content="x" * 6_000_000)) if is_stream else chunk(b" " * 6_000_000)
        if is_stream:
            yield b"".join(EVENTS[3:])
        else:
            yield chunk(ANSWER[20:]) + b"0\r\n\r\n"

    def stop(self) -> None:
        os.kill(self.server.pid, signal.SIGSTOP)
        self.is_stopped.set()
        time.sleep(STOPPED)
        os.kill(self.server.pid, signal.SIGCONT)

    def ask(self, path: str, kind: str, stream: bool) -> bytes:
        asked = {"input": kind} if path == "/v1/responses" else chat_body(kind, max_tokens=2000)
        body = {"model": "deepseek-v4-pro", "stream": stream, **asked}
        with socket.create_connection(self.address, timeout=PATIENCE) as sock:
            sock.sendall(request_bytes(body, path=path, headers=["anthropic-version: 2023-06-01"]))
            return read_reply(sock)[2]

    def test_plain_and_streamed_answers_continue_after_a_stop_longer_than_their_deadline(self) -> None:
        cases = [(path, "", stream) for path in PATHS for stream in (True, False)]
        with ThreadPoolExecutor(len(cases)) as pool:
            replies = [pool.submit(self.ask, *case) for case in cases]
            for _ in cases:
                self.assertTrue(self.calls.acquire(timeout=PATIENCE))
            self.stop()
            for case, reply in zip(cases, replies, strict=True):
                with self.subTest(case):
                    body = reply.result(PATIENCE).decode()
                    self.assertNotIn('"error":{', body.replace('"error": {', '"error":{'), body[-500:])
                    self.assertIn(TEXT[-2:] if not case[2] else TEXT[-2], body)
                    if case[2]:
                        end = {"chat": "[DONE]", "resp": "response.completed", "mess": "message_stop"}[case[0][4:8]]
                        self.assertIn(end, body)

    def test_requests_and_reads_during_a_stop_are_served_after_it(self) -> None:
        """The rest of a head, the rest of a body larger than the buffers, a request on an idle connection, a reader."""
        body = json.dumps({**QUESTION, "padding": "x" * 20_000_000}).encode()
        health = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        unread = {**QUESTION, "stream": True, "messages": [{"role": "user", "content": "unread"}]}
        large, slow = request_bytes(body), request_bytes(unread)
        # The one that is called for comes first: the deadlines of the others run while they wait.
        requests = [(slow, b""), (large[:300], large[300:]), (health[:20], health[20:]), (b"", health)]
        socks = [socket.socket() for _ in requests]
        for sock, (first, _) in zip(socks, requests, strict=True):
            self.addCleanup(sock.close)
            sock.settimeout(PATIENCE)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(self.address)
            sock.sendall(first)
            if sock is socks[0]:
                self.assertTrue(self.calls.acquire(timeout=PATIENCE))
        # By now the proxy waits for all four, the first of which reads nothing until the proxy is stopped.
        time.sleep(0.3)
        with ThreadPoolExecutor(len(socks)) as pool:
            stopping = threading.Thread(target=self.stop)
            stopping.start()
            self.assertTrue(self.is_stopped.wait(PATIENCE))
            for sock, (_, rest) in zip(socks, requests, strict=True):
                pool.submit(sock.sendall, rest)
            replies = list(pool.map(read_reply, socks))
            stopping.join()
        self.assertEqual([200, 200, 200, 200], [status for status, _, _ in replies])
        self.assertTrue(replies[0][2].endswith(b"data: [DONE]\n\n"))
