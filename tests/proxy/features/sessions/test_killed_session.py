"""A proxy killed in the middle of a turn has recorded the turns before it."""

import json
import os
import signal
import socket
import unittest
from typing import Any

from tests.fake_deepseek import Answer, FakeDeepSeek
from tests.support.harness import read_reply, request_bytes
from tests.support.program import PATIENCE, Process, ServeTest, address

STALLED = Answer(reasoning="A thought.", content="Half of it.", piece=10, stall_after=3)


@unittest.skipIf(os.name == "nt", "signals are a POSIX thing")
class TestKilledSession(ServeTest):
    may_fork = True

    def setUp(self) -> None:
        super().setUp()
        self.fake = self.enterContext(FakeDeepSeek())

    def start(self) -> Process:
        process, welcome = self.serve("--base-url", self.fake.url)
        self.address = address(welcome)
        return process

    def connect(self, method: str, path: str, body: Any = b"") -> socket.socket:
        sock = socket.create_connection(self.address, timeout=PATIENCE)
        self.addCleanup(sock.close)
        sock.sendall(request_bytes(body, method=method, path=path))
        return sock

    def send(self, method: str, path: str, body: Any = b"") -> Any:
        return json.loads(read_reply(self.connect(method, path, body)).body)

    def test_finished_turns_survive_sigkill_and_an_unfinished_one_is_lost(self) -> None:
        for is_within_a_turn in (False, True):
            with self.subTest(is_within_a_turn=is_within_a_turn):
                self._check(is_within_a_turn)

    def _check(self, is_within_a_turn: bool) -> None:
        process = self.start()
        session = self.send("POST", "/sessions/create", {})["uuid"]
        path, messages = f"/s/{session}/v1/chat/completions", []
        for number in range(5):
            self.fake.answer(Answer(reasoning=f"Thought {number}.", content=f"Answer {number}."))
            messages += [{"role": "user", "content": f"Question {number}"}]
            body = {"model": "deepseek-v4-pro", "messages": messages}
            messages += [self.send("POST", path, body)["choices"][0]["message"]]
        if is_within_a_turn:
            self.fake.answer(STALLED)
            messages += [{"role": "user", "content": "The last question"}]
            self.connect("POST", path, {"model": "deepseek-v4-pro", "messages": messages, "stream": True})
            self.fake.stalls.get(timeout=PATIENCE)
        process.send(signal.SIGKILL)
        self.assertEqual(-signal.SIGKILL, process.wait())
        process = self.start()
        (node,) = self.send("GET", f"/s/{session}/nodes")["nodes"]
        thoughts = [each["reasoning_content"] for each in node["messages"] if each["role"] == "assistant"]
        self.assertEqual([f"Thought {number}." for number in range(5)], thoughts)
        self.assertEqual(5, self.send("GET", f"/s/{session}")["num_requests"])
        process.send(signal.SIGTERM)
        self.assertEqual(0, process.wait())
