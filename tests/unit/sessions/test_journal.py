import os
import random
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.conversation import Message, ToolCall
from deepseek_cursor_proxy.sessions import journal
from deepseek_cursor_proxy.sessions.journal import Journal, find_left
from deepseek_cursor_proxy.sessions.store import SessionStore
from deepseek_cursor_proxy.sessions.trajectory import RecordedTurn, SessionOptions, TurnOfSession, UnnamedSession

ME = b"\x00me"
TOOLS: tuple[dict[str, Any], ...] = ({"type": "function", "function": {"name": "read"}},)
ANSWERS = (
    Message("assistant", "plain"),
    Message("assistant", "ü \ud800 \n\r\x0b", "thought\n"),
    Message("assistant", "", "read it", (ToolCall("call_1", "read", '{"path": "a"}'),)),
    Message(
        "assistant", "found", "searched", details="[]", server_items='{"responses": [{"type": "web_search_call"}]}'
    ),
)
QUESTIONS = (
    Message("user", "q"),
    Message("user", ({"type": "text", "text": "q"}, {"type": "image_url", "image_url": {"url": "data:"}})),
    Message("tool", "result", tool_call_id="call_1"),
    Message("user", "named", name="me", prefix=True),
)
SESSIONS: tuple[str | UnnamedSession, ...] = ("one", "two", UnnamedSession(b"\xffchat", "a chat", "m"))


def turn(*messages: Message, session: str | UnnamedSession = "one", **details: Any) -> TurnOfSession:
    *history, last = messages
    return TurnOfSession(ME, session, RecordedTurn(tuple(history), (), last, {"n": len(messages)}, **details))


class JournalTestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.path = Path(self.enterContext(tempfile.TemporaryDirectory())) / "sessions.sqlite3"

    def make_journal(self) -> Journal:
        made = Journal(self.path)
        self.addCleanup(made.close)
        return made

    def leave(self, made: Journal) -> None:
        """As a process that is killed."""
        for file in made._files:
            file.close()

    def left(self) -> list[tuple[int, TurnOfSession]]:
        return [each for found in find_left(self.path) for each in found.turns()]

    def sizes(self) -> list[int]:
        return [path.stat().st_size for path in sorted(self.path.parent.glob("*-turns-*"))]


class TestJournal(JournalTestCase):
    def test_every_turn_is_read_as_it_was_until_it_is_written(self) -> None:
        for seed in range(50):
            with self.subTest(seed=seed):
                self._compare(random.Random(seed))

    def _compare(self, rng: random.Random) -> None:
        made, expected = self.make_journal(), []
        chats: list[tuple[str | UnnamedSession, list[Message]]] = [(session, []) for session in SESSIONS]
        for number in range(1, rng.randint(2, 40)):
            session, history = rng.choice(chats)
            messages = [*history[: rng.choice((len(history), len(history), 1))], rng.choice(QUESTIONS)]
            answer, tools = rng.choice(ANSWERS), rng.choice((TOOLS, TOOLS, ()))
            recorded = RecordedTurn(tuple(messages), tools, answer, {"n": number}, "m", number, rng.choice((None, 0.5)))
            expected.append((number, TurnOfSession(ME, session, recorded)))
            self.assertTrue(made.add([expected[-1][1]], only_short=True))
            chats.append((session, [*messages, answer]))
            if rng.random() < 0.2:
                made.switch()
            if rng.random() < 0.2:
                made.clear(number)
                expected.clear()
        # What was written may still be there, after what was not.
        self.leave(made)
        found = self.left()
        self.assertEqual(expected, found[len(found) - len(expected) :])
        for path in self.path.parent.glob("*-turns-*"):
            path.unlink()

    def test_a_turn_that_continues_another_has_only_its_new_messages(self) -> None:
        made = self.make_journal()
        chat = [Message("user", "x" * 1000), Message("assistant", "y" * 1000)]
        made.add([turn(*chat)], only_short=True)
        before = max(self.sizes())
        made.add([turn(*chat, Message("user", "r"), Message("assistant", "b"))], only_short=True)
        self.assertLess(max(self.sizes()) - before, 500)

    def test_a_long_history_is_left_out_unless_the_proxy_is_busy(self) -> None:
        made = self.make_journal()
        long = turn(Message("user", "x" * 100_000), Message("assistant", "a"))
        self.assertEqual([False, True], [made.add([long], only_short=each) for each in (True, False)])
        huge = turn(Message("user", "x" * 5_000_000), Message("assistant", "a"))
        self.assertFalse(made.add([huge], only_short=False))
        logprobs = turn(Message("user", "q"), Message("assistant", "a"), logprobs=[[{"token": "a"}]])
        self.assertFalse(made.add([logprobs], only_short=False))

    def test_the_file_of_a_living_process_is_left_alone(self) -> None:
        made = self.make_journal()
        made.add([turn(Message("user", "q"), Message("assistant", "a"))], only_short=True)
        self.assertEqual([], self.left())
        self.assertEqual(2, len(self.sizes()))

    @unittest.skipIf(os.name == "nt", "Windows has no such modes")
    def test_only_the_owner_can_read_the_files(self) -> None:
        made = self.make_journal()
        made.add([turn(Message("user", "q"), Message("assistant", "a"))], only_short=True)
        self.assertEqual({0o600}, {path.stat().st_mode & 0o777 for path in self.path.parent.iterdir()})

    def test_a_line_that_is_cut_costs_itself_alone(self) -> None:
        made = self.make_journal()
        for text in "abc":
            made.add([turn(Message("user", text), Message("assistant", "a"), session=text)], only_short=True)
        self.leave(made)
        path = max(self.path.parent.iterdir(), key=lambda each: each.stat().st_size)
        path.write_bytes(path.read_bytes()[:-5] + b"\n[1]\n{}\n\xff\n")
        with self.assertLogs(journal.__name__, "WARNING"):
            self.assertEqual([1, 2], [number for number, _ in self.left()])

    def test_a_full_disk_is_no_error_and_spoils_no_line(self) -> None:
        made = self.make_journal()
        a, b = (turn(Message("user", text), Message("assistant", "a"), session=text) for text in "ab")
        made.add([a], only_short=True)
        file = made._files[0]._file
        with mock.patch.object(made._files[0], "_file", wraps=file) as half:
            half.write.side_effect = lambda line: file.write(line[:20])
            self.assertFalse(made.add([b], only_short=True))
        self.assertTrue(made.add([b], only_short=True))
        self.leave(made)
        self.assertEqual([a, b], [found for _, found in self.left()])


class TestRecover(JournalTestCase):
    def open(self) -> SessionStore:
        store = SessionStore(self.path)
        self.addCleanup(store.close)
        store.open()
        return store

    def test_turns_that_a_process_left_are_recorded_once(self) -> None:
        store = self.open()
        session = store.create(ME, SessionOptions(), "m").uuid
        made, chat = self.make_journal(), []
        turns = []
        for number in range(4):
            chat += [Message("user", f"q{number}"), Message("assistant", f"a{number}", f"t{number}")]
            turns.append(turn(*chat, session=session, tokens=1))
            made.add(turns[-1:], only_short=True)
        # Killed after the store has the first two, and before the file was emptied.
        store.record(turns[:2], (made.name, 2))
        self.leave(made)
        self.assertEqual([2, 0], [store.recover(), store.recover()])
        (node,) = store.nodes(session)
        self.assertEqual([message.content for message in chat], [each["content"] for each in node.messages])
        found = store.get(ME, session)
        assert found is not None
        self.assertEqual((4, 4), (found.requests, found.tokens))
        self.assertEqual([], self.sizes())
        with store.database.reader() as connection:
            self.assertEqual([], connection.execute("SELECT * FROM journals").fetchall())

    def test_turns_of_a_session_that_is_gone_are_left_out_and_those_of_chats_are_not(self) -> None:
        made = self.make_journal()
        for session in SESSIONS:
            made.add([turn(Message("user", "q"), Message("assistant", "a"), session=session)], only_short=True)
        self.leave(made)
        store = self.open()
        self.assertEqual(3, store.recover())
        self.assertEqual(["a chat"], [each.options.name for each in store.list(None)])

    def test_a_turn_that_cannot_be_recorded_costs_itself_alone(self) -> None:
        made, store = self.make_journal(), self.open()
        bad = turn(Message("user", "q"), Message("assistant", "a"), session=SESSIONS[2], tokens=10**30)
        good = turn(Message("user", "r"), Message("assistant", "b"), session=SESSIONS[2])
        made.add([bad, good], only_short=True)
        self.leave(made)
        with self.assertLogs("deepseek_cursor_proxy.sessions.store", "WARNING"):
            store.recover()
        (session,) = store.list(None)
        self.assertEqual(1, session.requests)
        self.assertEqual([], self.sizes())
