"""The trace file of a request."""

import json
import os
import stat
from pathlib import Path
from typing import Any
from unittest import skipUnless

from tests.fake_deepseek import Answer, Call, Failure
from tests.support.harness import SocketTestCase
from tests.support.histories import CALLED


class TestTrace(SocketTestCase):
    @property
    def directory(self) -> Path:
        return self.folder / "traces"

    def traces(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(self.directory.iterdir())]

    def chat(self) -> None:
        proxy = self.proxy(trace_dir=self.directory)
        call = Call("call_1", "read_file", "{}")
        self.fake.answer(Answer(reasoning="First.", calls=(call,)), Answer(reasoning="Second.", content="Done."))
        self.client(proxy, key="sk-very-secret").ask("hi")
        proxy.server.server_close()

    def test_a_trace_file_per_request_holds_requests_restoration_and_reply_but_no_credential(self) -> None:
        self.chat()
        first, second = self.traces()
        self.assertEqual("hi", second["client_request"]["messages"][1]["content"])
        (turn,) = second["restored"][0]["turns"]
        expected = {"message": 2, "need": "hard", "source": "store", "proof": "exact", "says": "", "is_empty": False}
        self.assertEqual({**expected, "calls": ["read_file"]}, turn)
        restored = second["restored"][0]
        self.assertEqual(({}, None), (restored["repairs"], restored["divergence"]))
        self.assertEqual("First.", second["upstream_request"]["messages"][2]["reasoning_content"])
        self.assertEqual({"reasoning": "Second.", "content": "Done.", "tool_calls": []}, second["reply"])
        end = tuple(second[key] for key in ("outcome", "status", "finish_reason"))
        self.assertEqual(("completed", 200, "stop"), end)
        self.assertEqual("call_1", first["reply"]["tool_calls"][0]["id"])
        self.assertNotIn("very-secret", json.dumps([first, second]))
        self.assertEqual(first["caller"], second["caller"])
        self.assertLessEqual({"accepted_seconds", "first_delta_seconds", "total_seconds"}, set(second["timing"]))

    def test_a_trace_has_repairs_and_divergence(self) -> None:
        client = self.client(self.proxy(trace_dir=self.directory))
        client.ask("hi")
        client.ask("more")
        client.messages[3:] = [{"role": "user", "content": "something else"}, CALLED]
        client.ask("go on")
        restored = self.traces()[-1]["restored"][0]
        self.assertEqual({"cancelled": 1}, restored["repairs"])
        self.assertEqual("message 3 changed (user content)", restored["divergence"])
        self.assertEqual(("Hello.", "exact"), tuple(restored["turns"][0][key] for key in ("says", "proof")))
        self.assertEqual(("missing", "unknown"), tuple(restored["turns"][1][key] for key in ("source", "proof")))

    @skipUnless(os.name == "posix", "modes are a POSIX thing")
    def test_trace_files_are_private(self) -> None:
        before = os.umask(0)
        self.addCleanup(os.umask, before)
        self.chat()
        self.assertEqual(0o700, stat.S_IMODE(self.directory.stat().st_mode))
        self.assertEqual({0o600}, {stat.S_IMODE(path.stat().st_mode) for path in self.directory.iterdir()})

    def test_a_failed_request_has_a_trace(self) -> None:
        proxy = self.proxy(trace_dir=self.directory)
        self.client(proxy).ask("first")
        self.fake.answer(Failure(500, "sorry"))
        self.client(proxy).ask("hi")
        trace = self.traces()[-1]
        self.assertEqual((500, None, 0), (trace["status"], trace["reply"], trace["retries"]))
        self.assertTrue(trace["outcome"].startswith("sorry"))
        self.assertEqual("hi", trace["upstream_request"]["messages"][1]["content"])
