"""A proxy killed in the middle of a turn has recorded the turns before it."""

import os
import signal
import unittest

from tests.fake_deepseek import Answer
from tests.support.program import PATIENCE, UpstreamServeTest

STALLED = Answer(reasoning="A thought.", content="Half of it.", piece=10, stall_after=3)


@unittest.skipIf(os.name == "nt", "signals are a POSIX thing")
class TestKilledSession(UpstreamServeTest):
    def test_finished_turns_survive_sigkill_and_an_unfinished_one_is_lost(self) -> None:
        for is_within_a_turn in (False, True):
            with self.subTest(is_within_a_turn=is_within_a_turn):
                self._check(is_within_a_turn)

    def _check(self, is_within_a_turn: bool) -> None:
        process = self.start()
        session = self.send("POST", "/sessions/create", {}).value["uuid"]
        path, messages = f"/s/{session}/v1/chat/completions", []
        for number in range(5):
            self.fake.answer(Answer(reasoning=f"Thought {number}.", content=f"Answer {number}."))
            messages += [{"role": "user", "content": f"Question {number}"}]
            body = {"model": "deepseek-v4-pro", "messages": messages}
            messages += [self.send("POST", path, body).value["choices"][0]["message"]]
        if is_within_a_turn:
            self.fake.answer(STALLED)
            messages += [{"role": "user", "content": "The last question"}]
            self.connect("POST", path, {"model": "deepseek-v4-pro", "messages": messages, "stream": True})
            self.fake.stalls.get(timeout=PATIENCE)
        self.kill(process)
        process = self.start()
        (node,) = self.send("GET", f"/s/{session}/nodes").value["nodes"]
        thoughts = [each["reasoning_content"] for each in node["messages"] if each["role"] == "assistant"]
        self.assertEqual([f"Thought {number}." for number in range(5)], thoughts)
        self.assertEqual(5, self.send("GET", f"/s/{session}").value["num_requests"])
        process.send(signal.SIGTERM)
        self.assertEqual(0, process.wait())
