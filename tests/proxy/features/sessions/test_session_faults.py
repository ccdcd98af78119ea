"""A sessions file that is locked, gone or of another program: answers go on, and so do sessions once it can be used."""

import contextlib
import sqlite3
import tempfile
from pathlib import Path

from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.proxy.features.sessions.test_sessions import QUESTION, SessionsTestCase
from tests.support.harness import RunningProxy
from tests.support.polling import wait_until
from tests.support.systems import needs_removable_open_files


class TestSessionFaults(SessionsTestCase):
    def setUp(self) -> None:
        super().setUp()
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.path = Path(place.name) / "sessions.sqlite3"
        self.running = RunningProxy(self.fake.url, ReasoningStore(self.path.with_name("store.sqlite3")))
        self.addCleanup(self.running.close)
        # So that DeepSeek has accepted the key, and sessions are written when they are created.
        self.json("POST", "/v1/chat/completions", {"model": "deepseek-v4-pro", "messages": [QUESTION]})

    def test_turns_wait_for_a_locked_file_and_other_calls_are_refused_until_then(self) -> None:
        session = self.create()["uuid"]
        with (
            self.assertLogs("deepseek_cursor_proxy.storage", "WARNING") as logged,
            contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as other,
        ):
            other.execute("BEGIN IMMEDIATE")
            for _ in range(3):
                self.ask(session, QUESTION)
            reply = self.reply("POST", "/sessions/create", {})
            self.assertEqual(503, reply.status)
            self.assertIn(b"another process holds it locked", reply.body)
            self.assertEqual([], self.nodes(session))
            other.execute("COMMIT")
            wait_until(lambda: self.reply("POST", "/sessions/create", {}).status == 200)
            wait_until(lambda: sum(each["num_requests"] for each in self.listed()) == 3)
        self.assertEqual(2, len(logged.output), logged.output)

    @needs_removable_open_files
    def test_a_deleted_file_is_begun_anew(self) -> None:
        session = self.create()["uuid"]
        for each in self.path.parent.glob("sessions*"):
            each.unlink()
        with self.assertLogs("deepseek_cursor_proxy", "WARNING"):
            self.ask(session, QUESTION)
            wait_until(lambda: self.reply("POST", "/sessions/create", {}).status == 200)
            session = self.listed()[0]["uuid"]
            self.ask(session, QUESTION)
            self.assertEqual(1, len(self.nodes(session)))
