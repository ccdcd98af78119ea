import contextlib
import io
import json
import os
import sqlite3
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

from deepseek_cursor_proxy.cli import main
from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.sessions.store import SessionStore
from deepseek_cursor_proxy.sessions.trajectory import RecordedTurn, SessionOptions, TurnOfSession, new_session
from tests.unit.tokens.test_bpe import WIRE


class TestSessionsCommand(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.dict(os.environ, {"HOME": str(self.folder)}))
        self.path = self.folder / "sessions.sqlite3"

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

    def run_command(self, *words: str) -> tuple[int, str, str]:
        out, error = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            code = main(["sessions", *words, "--reasoning-content-path", str(self.folder / "store.sqlite3")])
            out.flush()
        return code, out.buffer.getvalue().decode(), error.getvalue()  # type: ignore[attr-defined]

    def export(self, *words: str) -> list[dict[str, object]]:
        code, out, error = self.run_command("export", *words)
        self.assertEqual(0, code, error)
        return [json.loads(line) for line in out.splitlines()]

    def test_sessions_of_all_keys_are_listed_and_shown_with_their_thinking(self) -> None:
        first, second = self.record("first", "a", "b"), self.record("second", "c")
        code, out, _ = self.run_command("list")
        self.assertEqual(0, code)
        self.assertLess(out.index(second), out.index(first))
        code, out, _ = self.run_command("show", first[:8])
        self.assertEqual(0, code)
        for text in ("thought of a", "before b", "node 1: 4 messages"):
            self.assertIn(text, out)

    def test_a_file_that_another_process_writes_to_is_read(self) -> None:
        session = self.record("first", "a")
        with contextlib.closing(sqlite3.connect(self.path)) as other:
            other.execute("BEGIN IMMEDIATE")
            code, out, _ = self.run_command("show", session)
        self.assertEqual((0, True), (code, "thought of a" in out))

    def test_an_export_has_the_chosen_nodes(self) -> None:
        first = self.record("first", "a", "b", finished=1000.0)
        self.record("second", "c", is_complete=False, finished=10**9)
        self.assertEqual(2, len(self.export()))
        self.assertEqual(1, len(self.export(first)))
        self.assertEqual(1, len(self.export("--min-turns", "2")))
        self.assertEqual(1, len(self.export("--only-complete")))
        self.assertEqual(1, len(self.export("--since", "2000-01-01")))
        self.assertEqual({"messages", "tools", "metadata"}, set(self.export(first)[0]))

    def test_an_export_with_a_tokenizer_has_masks(self) -> None:
        self.record("first", "a")
        (node,) = self.export("--format", "nodes", "--tokenizer", str(WIRE / "tokenizer.json"))
        lists = [node[name] for name in ("tokens", "masked_tokens", "logprobs")]
        self.assertEqual(1, len({len(each) for each in lists if isinstance(each, list)}))

    def test_an_export_goes_to_a_private_file(self) -> None:
        self.record("first", "a")
        target = self.folder / "out.jsonl"
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
            (("export", "-o", str(self.folder / "none" / "x")), "cannot write"),
            (("export", "--format", "nodes", "--tokenizer", str(self.path)), "tokenizer"),
        ):
            with self.subTest(words):
                code, _, error = self.run_command(*words)
                self.assertEqual(2, code)
                self.assertIn(text, error)
                self.assertEqual(1, len(error.splitlines()))
