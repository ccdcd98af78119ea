"""What tests with an official package share: a DeepSeek, a proxy over a directory of its own, and clients whose every
answer is checked against the package's types when a test ends (see typed).
"""

import unittest
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import FakeDeepSeek
from tests.interop.typed import Answered, Recording
from tests.support.harness import RunningProxy

MODEL = "deepseek-v4-pro"
KEY = "sk-right"
# An end that waits for DeepSeek to close its connection takes five seconds, and no answer here as many.
SECONDS = 4.0

# Outer whitespace, escapes, letters beyond ASCII and beyond 16 bits: what gets lost on the way.
THOUGHT = '\n Rain?\t"für" 雨 🌧 \\n </think> \n'


class RecordedCase(unittest.TestCase):
    """A DeepSeek, proxies over one directory, and clients; a subclass says what an answer has to be in `check`."""

    def setUp(self) -> None:
        self.stack = self.enterContext(ExitStack())
        self.place = Path(self.enterContext(TemporaryDirectory(prefix="recorded-")))
        self.fake = self.stack.enter_context(FakeDeepSeek(keys={KEY, "sk-other"}))
        self.running: RunningProxy | None = None
        self.recorders: list[Recording] = []

    def tearDown(self) -> None:
        self.stop()
        for recorder in self.recorders:
            for answer in recorder.answers:
                with self.subTest(method=answer.method, path=answer.path, status=answer.status):
                    self.check(answer)

    def check(self, answer: Answered) -> None:
        raise AssertionError(f"{type(self).__name__} checks nothing")

    def proxy(self, **settings: Any) -> RunningProxy:
        self.stop()
        store = ReasoningStore(self.place / "reasoning.sqlite3")
        self.running = RunningProxy(self.fake.url, store, **settings)
        return self.running

    def stop(self) -> None:
        running, self.running = self.running, None
        if running is not None:
            running.close()

    def proxy_without_a_memory(self) -> RunningProxy:
        """Another one in the same place, where nothing is left but its secret."""
        self.stop()
        for path in self.place.glob("reasoning.sqlite3*"):
            path.unlink()
        self.assertEqual([path.name for path in self.place.iterdir()], ["secret.key"])
        return self.proxy()

    def assert_upstream_saw(self, *reasonings: str) -> None:
        """The last request was accepted, with these reasonings in its assistant turns."""
        self.assertEqual([seen.refusal for seen in self.fake.refused], [])
        messages = self.fake.accepted[-1]["messages"]
        found = [message["reasoning_content"] for message in messages if message["role"] == "assistant"]
        self.assertEqual(found, list(reasonings))
