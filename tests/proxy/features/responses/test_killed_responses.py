"""A proxy killed or stopped in the middle of a response leaves a row with its true status."""

import os
import signal
import unittest
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from tests.fake_deepseek import Answer
from tests.support.polling import eventually
from tests.support.program import PATIENCE, UpstreamServeTest
from tests.support.responses_client import PATH, check_stream, events

SHORT = Answer(reasoning="Hm.", content="Hello.")
STALLED = Answer(reasoning="A thought.", content="Half of it.", piece=10, stall_after=3)


@unittest.skipIf(os.name == "nt", "signals are a POSIX thing")
class TestKilledResponses(UpstreamServeTest):
    def found(self, response: Any) -> Any:
        return self.send("GET", f"{PATH}/{response['id']}").value

    def queued(self) -> Any:
        return self.send("POST", PATH, {"input": "q", "background": True}).value

    def started(self) -> list[Any]:
        """One response that is finished, four in the middle of their answers, and one that waits."""
        workers = ProxyConfig().background_workers
        self.fake.answer(SHORT, *[STALLED] * workers)
        finished = self.queued()
        self.assertTrue(eventually(lambda: self.found(finished)["status"] == "completed"))
        running = [self.queued() for _ in range(workers)]
        for _ in running:
            self.fake.stalls.get(timeout=PATIENCE)
        return [self.found(finished), *running, self.queued()]

    def test_after_sigkill_an_interrupted_response_is_failed_and_a_finished_one_is_not(self) -> None:
        process = self.start()
        finished, *interrupted = self.started()
        self.kill(process)
        process = self.start()
        self.assertEqual(finished, self.found(finished))
        for each in interrupted:
            found = self.found(each)
            self.assertEqual(("failed", "server_restarted"), (found["status"], found["error"]["code"]))
            self.assertEqual(found, self.send("POST", f"{PATH}/{each['id']}/cancel").value)
            # Whoever followed it comes back for the rest, and whoever did not for all of it.
            rest = events(self.send("GET", f"{PATH}/{each['id']}?stream=true&starting_after=7").body)
            self.assertEqual((["response.failed"], found), ([event["type"] for event in rest], check_stream(rest, 8)))
            self.assertEqual(found, check_stream(events(self.send("GET", f"{PATH}/{each['id']}?stream=true").body)))
        process.send(signal.SIGTERM)
        self.assertEqual(0, process.wait())
        self.assertRegex(process.errors, r"\b5\b.*response")

    def test_a_proxy_that_is_stopped_lets_a_response_finish_within_its_grace(self) -> None:
        process = self.start("--shutdown-grace", "3600")
        _, running, *_ = self.started()
        process.send(signal.SIGTERM)
        process.read_until("Stopping")
        self.fake.release.set()
        self.assertEqual(0, process.wait())
        self.start()
        self.assertEqual(("completed", "Half of it."), tuple(map(self.found(running).get, ("status", "output_text"))))
        check_stream(events(self.send("GET", f"{PATH}/{running['id']}?stream=true").body))

    def test_a_response_that_does_not_finish_within_the_grace_is_failed(self) -> None:
        process = self.start("--shutdown-grace", "0")
        finished, *interrupted = self.started()
        process.send(signal.SIGTERM)
        self.assertEqual(0, process.wait())
        self.start()
        self.assertEqual(finished, self.found(finished))
        for each in interrupted:
            found = self.found(each)
            self.assertEqual(("failed", "server_error"), (found["status"], found["error"]["code"]))
            self.assertEqual(found, check_stream(events(self.send("GET", f"{PATH}/{each['id']}?stream=true").body)))
