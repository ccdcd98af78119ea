import contextlib
import errno
import os
import random
import tempfile
import unittest
from io import FileIO
from pathlib import Path
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import Message, ToolCall
from deepseek_cursor_proxy.sessions import journal
from deepseek_cursor_proxy.sessions.journal import Journal, find_left
from deepseek_cursor_proxy.sessions.service import SessionService
from deepseek_cursor_proxy.sessions.session_store import SessionStore
from deepseek_cursor_proxy.sessions.trajectory import RecordedTurn, SessionOptions, TurnOfSession, UnnamedSession
from deepseek_cursor_proxy.storage import private_files
from deepseek_cursor_proxy.storage.faults import Locked
from tests.support.systems import needs_removable_open_files, needs_symlinks

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


def private(path: Path) -> FileIO:
    private_files.create(path)
    return FileIO(path, "r+")


class JournalTestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.path = Path(self.enterContext(tempfile.TemporaryDirectory())) / "sessions.sqlite3"

    def make_journal(self) -> Journal:
        made = Journal(self.path)
        self.addCleanup(made.close)
        return made

    def leave(self, made: Journal) -> None:
        """As a process that is killed."""
        if made._file is not None:
            made._file.close()

    def left(self) -> list[TurnOfSession]:
        return [turn for found in find_left(self.path) for turn in found.turns()]

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
            expected.append(TurnOfSession(ME, session, recorded, number))
            self.assertEqual(number, made.add(expected[-1], is_store_idle=True))
            chats.append((session, [*messages, answer]))
            if rng.random() < 0.2:
                made.clear(number - rng.choice((0, 1)))
                expected = expected if made._size else []
        self.leave(made)
        self.assertEqual(expected, self.left())
        for path in self.path.parent.glob("*-turns-*"):
            path.unlink()

    def test_a_turn_that_continues_another_has_only_its_new_messages(self) -> None:
        made = self.make_journal()
        chat = [Message("user", "x" * 1000), Message("assistant", "y" * 1000)]
        made.add(turn(*chat), is_store_idle=True)
        before = max(self.sizes())
        made.add(turn(*chat, Message("user", "r"), Message("assistant", "b")), is_store_idle=True)
        self.assertLess(max(self.sizes()) - before, 500)

    def test_a_long_history_is_left_out_if_the_store_is_idle_and_has_most_of_it(self) -> None:
        made = self.make_journal()
        question, answer = Message("user", "x" * 40_000), Message("assistant", "a")
        for count, is_store_idle, is_noted in ((1, True, True), (3, True, False), (3, True, True), (5, False, True)):
            with self.subTest(count=count, is_store_idle=is_store_idle):
                made.clear(made._number)
                long = turn(*[question] * count, answer)
                self.assertEqual(is_noted, made.add(long, is_store_idle=is_store_idle) > 0)
        huge = turn(Message("user", "x" * 2_000_000), answer)
        self.assertFalse(made.add(huge, is_store_idle=False))
        logprobs = turn(Message("user", "q"), Message("assistant", "a"), logprobs=[[{"token": "a"}]])
        self.assertFalse(made.add(logprobs, is_store_idle=False))

    def test_the_file_of_a_living_process_is_left_alone(self) -> None:
        made = self.make_journal()
        made.add(turn(Message("user", "q"), Message("assistant", "a")), is_store_idle=True)
        self.assertEqual([], self.left())
        self.assertEqual(1, len(self.sizes()))

    @unittest.skipIf(os.name == "nt", "Windows has no such modes")
    def test_only_the_owner_can_read_the_files(self) -> None:
        made = self.make_journal()
        made.add(turn(Message("user", "q"), Message("assistant", "a")), is_store_idle=True)
        self.assertEqual({0o600}, {path.stat().st_mode & 0o777 for path in self.path.parent.iterdir()})

    def test_a_line_that_is_cut_costs_itself_alone(self) -> None:
        made = self.make_journal()
        for text in "abc":
            made.add(turn(Message("user", text), Message("assistant", "a"), session=text), is_store_idle=True)
        self.leave(made)
        path = max(self.path.parent.iterdir(), key=lambda each: each.stat().st_size)
        good, cut = path.read_bytes().splitlines()[1], path.read_bytes()[:-5]
        odd = [b"[1]", b"{}", b"\xff", b"[" * 100_000, good.replace(b'"b"', b"[]", 1)]
        odd += [good.replace(b"[2", b"[" + number, 1) for number in (b'"3"', b"[3]", b"null", b"3.5", b"true")]
        path.write_bytes(b"\n".join([cut, *odd]))
        with self.assertLogs(journal.__name__, "WARNING") as logged:
            self.assertEqual([1, 2], [found.number for found in self.left()])
        self.assertIn(f"cannot be read: {1 + len(odd)}", logged.output[0])

    def test_a_full_disk_is_no_error_and_spoils_no_line(self) -> None:
        made = self.make_journal()
        a, b = (turn(Message("user", text), Message("assistant", "a"), session=text) for text in "ab")
        made.add(a, is_store_idle=True)
        file = made._file
        assert file is not None
        with mock.patch.object(made, "_file", wraps=file) as half:
            half.write.side_effect = lambda line: file.write(line[:20])
            self.assertFalse(made.add(b, is_store_idle=True))
        self.assertTrue(made.add(b, is_store_idle=True))
        self.leave(made)
        self.assertEqual([a, b], [found._replace(number=0) for found in self.left()])

    def test_what_cannot_be_written_as_json_is_left_out(self) -> None:
        self.assertFalse(self.make_journal().add([turn(Message("user", ({"odd": {1}},)))], is_store_idle=True))

    def test_the_files_grow_to_a_limit(self) -> None:
        made = self.make_journal()
        with mock.patch.object(journal, "_MOST_BYTES_OF_FILE", 1000):
            added = [made.add(turn(Message("user", "q"), ANSWERS[0]), is_store_idle=True) for _ in range(50)]
        self.assertIn(0, added)
        self.assertLessEqual(max(self.sizes()), 1000)

    @needs_removable_open_files
    def test_files_that_somebody_deletes_are_begun_anew(self) -> None:
        made = self.make_journal()
        a, b = (turn(Message("user", text), ANSWERS[0], session=text) for text in "ab")
        made.add(a, is_store_idle=True)
        for path in self.path.parent.iterdir():
            path.unlink()
        made.clear(1)
        self.assertTrue(made.add(b, is_store_idle=True))
        self.leave(made)
        self.assertEqual([b], [found._replace(number=0) for found in self.left()])

    def test_without_locks_nothing_is_noted_and_no_file_is_left(self) -> None:
        made = self.make_journal()
        with mock.patch.object(private_files, "try_lock", return_value=False):
            self.assertFalse(made.add(turn(Message("user", "q"), ANSWERS[0]), is_store_idle=True))
        made.close()
        self.assertEqual([], self.sizes())

    @needs_removable_open_files
    def test_a_file_that_another_process_is_about_to_remove_is_not_begun_anew_under_its_name(self) -> None:
        made = self.make_journal()
        with private(made._path) as other:
            self.assertTrue(private_files.try_lock(other))
            self.assertFalse(made.add(turn(Message("user", "q"), ANSWERS[0]), is_store_idle=True))
            self.assertEqual(os.fstat(other.fileno()).st_ino, made._path.stat().st_ino)
            made._path.unlink()
        self.assertTrue(made.add(turn(Message("user", "q"), ANSWERS[0]), is_store_idle=True))

    def test_a_file_is_removed_before_another_process_can_lock_it(self) -> None:
        self.leave_one()
        unlink, locked = Path.unlink, []

        def lock_and_unlink(path: Path) -> None:
            with FileIO(path, "r+") as file:
                locked.append(private_files.try_lock(file))
            unlink(path)

        with mock.patch.object(Path, "unlink", lock_and_unlink):
            for found in find_left(self.path):
                found.clear()
        self.assertEqual([os.name == "nt"], locked)

    def leave_one(self) -> None:
        made = self.make_journal()
        made.add(turn(Message("user", "q"), ANSWERS[0]), is_store_idle=True)
        self.leave(made)

    def test_the_folder_is_made(self) -> None:
        self.path = self.path.parent / "new" / self.path.name
        self.leave_one()
        self.assertEqual(1, len(self.left()))

    def test_a_journal_is_found_whatever_the_path_of_the_store_is(self) -> None:
        star = "" if os.name == "nt" else "*"
        self.path = self.path.with_name("[a]") / f"my[1]{star}.sqlite3"
        self.path.parent.mkdir()
        self.leave_one()
        self.assertEqual(1, len(self.left()))

    @needs_symlinks
    def test_a_journal_is_beside_the_file_behind_links(self) -> None:
        real, self.path = self.path, self.path.with_name("link.sqlite3")
        self.path.symlink_to(real)
        self.leave_one()
        self.path = real
        self.assertEqual(1, len(self.left()))

    @needs_symlinks
    def test_what_is_no_file_of_ours_is_left_alone(self) -> None:
        other = self.path.with_name("precious")
        other.write_bytes(b"words\n")
        names = [f"{self.path.name}-turns-{name}-0" for name in ("1" * 16, "2" * 16, "3" * 16, "backup")]
        link, directory, pipe, foreign = map(self.path.with_name, names)
        link.symlink_to(other)
        directory.mkdir()
        if hasattr(os, "mkfifo"):
            os.mkfifo(pipe)
        else:
            pipe.mkdir()
        foreign.write_bytes(b"words\n")
        with contextlib.closing(SessionStore(self.path)) as store:
            store.open()
            self.assertEqual(0, store.recover())
        self.assertEqual([b"words\n"] * 2, [other.read_bytes(), foreign.read_bytes()])
        self.assertEqual([True] * 2, [directory.exists(), pipe.exists()])


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
            made.add(turns[-1], is_store_idle=True)
        # Killed after the store has the first two, and before the file was emptied.
        store.record([each._replace(number=number) for number, each in enumerate(turns[:2], 1)], made.name)
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

    def test_the_two_files_of_an_earlier_version_are_taken_over(self) -> None:
        """The second turn continues the first; each file has the turns of a moment."""
        name = f"{self.path.name}-turns-0123456789abcdef"
        first = (
            '[1,"006d65",["ff63","a chat","m"],0,[["system","Be brief.",null,[],null,null,false,null,null],["user","q",'
            'null,[],null,null,false,null,null]],[{"type":"function"}],["assistant","a","t",[["call_1","read","{}"]],'
            'null,null,false,null,null],{"n":1},"m",5,0.5]\n'
        )
        second = (
            '[2,"006d65",["ff63","a chat","m"],1,[["tool","r",null,[],"call_1",null,false,null,null]],[],["assistant",'
            '"b",null,[],null,null,false,null,null],{"n":2},"m",6,null]\n'
        )
        third = second.replace("[2,", "[3,").replace("],1,[[", "],0,[[")
        for part, text in ((1, first + second), (0, third)):
            self.path.with_name(f"{name}-{part}").write_text(text)
        store = self.open()
        self.assertEqual(3, store.recover())
        (session,) = store.list(None)
        self.assertEqual((3, 17, 0.5), (session.requests, session.tokens, session.cost))
        node, _ = store.nodes(session.uuid)
        self.assertEqual(["Be brief.", "q", "a", "r", "b"], [message["content"] for message in node.messages])
        self.assertEqual(({"type": "function"},), node.tools)
        self.assertEqual([], self.sizes())

    def test_turns_of_a_session_that_is_gone_are_left_out_and_those_of_chats_are_not(self) -> None:
        made = self.make_journal()
        for session in SESSIONS:
            made.add(turn(Message("user", "q"), Message("assistant", "a"), session=session), is_store_idle=True)
        self.leave(made)
        store = self.open()
        self.assertEqual(3, store.recover())
        self.assertEqual(["a chat"], [each.options.name for each in store.list(None)])

    def test_a_turn_that_cannot_be_recorded_costs_itself_alone(self) -> None:
        made, store = self.make_journal(), self.open()
        bad = turn(Message("user", "q"), Message("assistant", "a"), session=SESSIONS[2], tokens=10**30)
        good = turn(Message("user", "r"), Message("assistant", "b"), session=SESSIONS[2])
        for added in (bad, good):
            made.add(added, is_store_idle=True)
        self.leave(made)
        with self.assertLogs("deepseek_cursor_proxy.sessions.session_store", "WARNING"):
            store.recover()
        (session,) = store.list(None)
        self.assertEqual(1, session.requests)
        self.assertEqual([], self.sizes())

    def test_a_journal_is_free_again_after_a_fault_of_the_store(self) -> None:
        """PyPy ends a generator that was left when its garbage is collected, and its locks with it."""
        made, store = self.make_journal(), self.open()
        made.add(turn(Message("user", "q"), ANSWERS[0], session=SESSIONS[2]), is_store_idle=True)
        self.leave(made)
        begun = []

        def find(path: Path) -> Any:
            begun.append(find_left(path))
            return begun[-1]

        with (
            mock.patch("deepseek_cursor_proxy.sessions.session_store.find_left", find),
            mock.patch.object(store, "record", side_effect=Locked()),
            self.assertRaises(Locked),
        ):
            store.recover()
        self.assertEqual(1, len(begun))
        self.assertEqual(1, store.recover())

    def test_many_turns_are_recovered_in_few_transactions(self) -> None:
        made, store = self.make_journal(), self.open()
        for number in range(250):
            made.add(turn(Message("user", str(number)), ANSWERS[0], session=SESSIONS[2]), is_store_idle=True)
        self.leave(made)
        with mock.patch.object(store, "record", wraps=store.record) as record:
            self.assertEqual(250, store.recover())
        self.assertEqual(3, record.call_count)

    def test_a_journal_that_cannot_be_read_or_emptied_fails_nothing_and_nothing_is_recorded_twice(self) -> None:
        made, store = self.make_journal(), self.open()
        made.add(turn(Message("user", "q"), ANSWERS[0], session=SESSIONS[2]), is_store_idle=True)
        self.leave(made)
        for method, recovered in (("turns", 0), ("clear", 1), ("clear", 0)):
            with (
                self.subTest(method),
                mock.patch.object(journal.LeftJournal, method, side_effect=OSError(errno.EIO, "input/output error")),
                self.assertLogs("deepseek_cursor_proxy.sessions.session_store", "WARNING"),
            ):
                self.assertEqual(recovered, store.recover())
        self.assertEqual(0, store.recover())
        self.assertEqual([1], [each.requests for each in store.list(None)])
        self.assertEqual([], self.sizes())

    def test_deleting_a_session_leaves_none_of_its_turns_in_the_journal_of_a_process_that_was_killed(self) -> None:
        service = SessionService(ProxyConfig(sessions_path=self.path), self.path)
        self.addCleanup(service.close)
        session = service.store().create(ME, SessionOptions(), "m").uuid
        made = self.make_journal()
        made.add(turn(Message("user", "secret"), ANSWERS[0], session=session), is_store_idle=True)
        self.leave(made)
        self.assertTrue(service.delete(ME, session))
        self.assertEqual([], [path for path in self.path.parent.iterdir() if b"secret" in path.read_bytes()])
        self.assertEqual([], self.sizes())
