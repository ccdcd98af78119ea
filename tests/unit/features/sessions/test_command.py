import contextlib
import io
import json
import os
import sqlite3
import time
import unittest
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.features.sessions.command import _with_progress
from deepseek_cursor_proxy.features.sessions.store import SessionStore
from deepseek_cursor_proxy.features.sessions.trajectory import RecordedTurn, SessionOptions, TurnOfSession, new_session
from tests.support.commands import CommandTestCase


class TestSessionsCommand(CommandTestCase):
    command = ("sessions",)

    def setUp(self) -> None:
        super().setUp()
        self.path = self.home / ".deepseek-cursor-proxy" / "sessions.sqlite3"

    def record(self, name: str, *answers: str, is_complete: bool = True, finished: float = 1000.0) -> str:
        store = SessionStore(self.path)
        with contextlib.closing(store):
            session = store.insert(name.encode(), new_session(SessionOptions(name), "m", time.time())).uuid
            history: tuple[Message, ...] = ()
            for text in answers:
                history = (*history, Message("user", f"before {text}"))
                answer = Message("assistant", text, f"thought of {text}")
                info = {"finished": finished, "metadata": {"is_complete": is_complete}}
                turn = RecordedTurn(history, (), answer, info)
                store.record([TurnOfSession(name.encode(), session, turn)])
                history = (*history, answer)
        return session

    def export(self, *words: str) -> list[dict[str, object]]:
        _, out, _ = self.run_command("export", *words)
        return [json.loads(line) for line in out.splitlines()]

    def test_sessions_of_all_keys_are_listed_and_shown_with_their_thinking(self) -> None:
        first, second = self.record("first", "a", "b"), self.record("second", "c")
        out = self.output_of("list")
        self.assertLess(out.index(second), out.index(first))
        out = self.output_of("show", first[:8])
        for text in ("thought of a", "before b", "node 1: 4 messages"):
            self.assertIn(text, out)

    def test_a_file_that_another_process_writes_to_is_read(self) -> None:
        session = self.record("first", "a")
        with contextlib.closing(sqlite3.connect(self.path)) as other:
            other.execute("BEGIN IMMEDIATE")
            self.assertIn("thought of a", self.output_of("show", session))

    def test_an_export_has_the_chosen_nodes(self) -> None:
        first = self.record("first", "a", "b", finished=1000.0)
        self.record("second", "c", is_complete=False, finished=10**9)
        for words, count in (
            ("", 2), (first, 1), ("--min-turns 2", 1), ("--only-complete", 1), ("--since 2000-01-01", 1),
        ):  # fmt: skip
            self.assertEqual(count, len(self.export(*words.split())), words)
        self.assertEqual({"messages", "tools", "metadata"}, set(self.export(first)[0]))

    def test_an_export_goes_to_a_private_file(self) -> None:
        self.record("first", "a")
        target = self.home / "out.jsonl"
        code, out, error = self.run_command("export", "-o", str(target))
        self.assertEqual((0, ""), (code, out))
        self.assertIn("trajectories written: 1", error)
        self.assertEqual(1, len(target.read_text(encoding="utf-8").splitlines()))
        if os.name == "posix":
            self.assertEqual(0o600, target.stat().st_mode & 0o777)

    def test_what_cannot_be_done_is_said_in_one_line(self) -> None:
        self.record("first", "a")
        for words, text in (
            (("show", "zzz"), "no session begins with zzz"),
            (("export", "--since", "yesterday"), "is no date"),
            (("export", "--since", "0001-01-01"), "is no date"),
            (("export", "-o", str(self.home / "none" / "x")), "cannot write"),
            (("export", "--format", "nodes", "--tokenizer", str(self.path)), "tokenizer"),
        ):
            self.assertIn(text, self.refusal(*words), words)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestProgress(unittest.TestCase):
    def written(self, stream: io.StringIO, total: int) -> str:
        nodes: Any = iter(range(total))
        with mock.patch("sys.stderr", stream):
            self.assertEqual(list(range(total)), list(_with_progress(nodes, total)))
        return stream.getvalue()

    def test_an_export_says_on_a_terminal_how_far_it_is(self) -> None:
        self.assertEqual("\r20 of 45 nodes\r40 of 45 nodes\r\x1b[K", self.written(Terminal(), 45))

    def test_short_exports_and_files_show_no_progress(self) -> None:
        self.assertEqual(("", ""), (self.written(Terminal(), 20), self.written(io.StringIO(), 45)))
