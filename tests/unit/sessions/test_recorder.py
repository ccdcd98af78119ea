import tempfile
import threading
import unittest
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import ChatRequest, Message
from deepseek_cursor_proxy.observers.events import COMPLETED, Finished, RequestFacts, Timing
from deepseek_cursor_proxy.reasoning import identity
from deepseek_cursor_proxy.reasoning.restore import PreparedRequest
from deepseek_cursor_proxy.sessions import recorder
from deepseek_cursor_proxy.sessions.journal import Journal
from deepseek_cursor_proxy.sessions.recorder import SessionRecorder
from deepseek_cursor_proxy.sessions.service import SessionService
from deepseek_cursor_proxy.sessions.trajectory import TurnOfSession
from deepseek_cursor_proxy.storage.faults import Unusable
from tests.support.polling import PATIENCE, wait_until


def finished(answer: str) -> Finished:
    request = ChatRequest("deepseek-v4-pro", "deepseek-v4-pro", (Message("user", "q"),), (), stream=True)
    facts = RequestFacts(7, 1000.0, "chat", "abc")
    return Finished(
        facts,
        COMPLETED,
        Timing(1.0, 0.5),
        Message("assistant", answer),
        "stop",
        None,
        prepared=PreparedRequest(request, identity.identify(b"", ()), ()),
        recorded_in="session",
    )


class Store:
    """Keeps the answers that are recorded together; refuses all while there is a fault."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.prunings = self.recoveries = self.tries = self.forgotten = 0
        self.fault: Unusable | None = None
        self.may_write = threading.Event()
        self.may_write.set()

    def record(self, turns: Iterable[TurnOfSession], journal: str = "") -> None:
        answers = [str(each.turn.answer.content) for each in turns]
        self.may_write.wait(10)
        self.tries += 1
        if self.fault is not None:
            raise self.fault.copy()
        self.batches.append(answers)

    @property
    def answers(self) -> list[str]:
        return [answer for batch in self.batches for answer in batch]

    def contains(self, caller: bytes, session: str) -> bool:
        return session == "session"

    def prune(self) -> None:
        self.prunings += 1

    def recover(self) -> None:
        self.recoveries += 1

    def forget_journal(self, name: str) -> None:
        self.forgotten += 1


class TestSessionRecorder(unittest.TestCase):
    def setUp(self) -> None:
        # Only a flush ends the pause after a write.
        self.enterContext(mock.patch.object(recorder, "_SECONDS_BEFORE_WRITING", 3600.0))
        self.enterContext(mock.patch.object(recorder, "_SECONDS_AFTER_A_FAULT", 3600.0))
        self.store = Store()
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.recorder = self.make_recorder(Journal(self.folder / "sessions.sqlite3"))

    def make_recorder(self, journal: Journal | None) -> SessionRecorder:
        made = SessionRecorder(lambda: self.store, "sessions.sqlite3", journal)  # type: ignore[arg-type,return-value]
        self.addCleanup(made.close)
        return made

    def record(self, *answers: str) -> None:
        for answer in answers:
            self.recorder.record(finished(answer))

    def test_turns_of_a_moment_are_written_together_and_are_in_the_journal_until_then(self) -> None:
        self.record("a", "b")
        (left,) = [path.read_bytes() for path in self.folder.iterdir() if path.stat().st_size]
        self.assertEqual(2, len(left.splitlines()))
        self.recorder.flush()
        self.record("c", "d", "e")
        self.recorder.flush()
        self.assertEqual([["a", "b"], ["c", "d", "e"]], self.store.batches)
        self.assertEqual([0], [path.stat().st_size for path in self.folder.iterdir()])
        self.recorder.close()
        self.assertEqual([], list(self.folder.iterdir()))
        self.assertEqual(1, self.store.forgotten)

    def test_the_store_forgets_a_journal_before_its_file_is_gone(self) -> None:
        self.record("a")
        with mock.patch.object(
            self.store, "forget_journal", side_effect=lambda name: self.assertEqual(1, len(list(self.folder.iterdir())))
        ) as forget:
            self.recorder.close()
        forget.assert_called_once()

    def test_a_deleted_session_is_not_in_the_journal_also_if_later_turns_come(self) -> None:
        service = SessionService(ProxyConfig(), self.folder / "sessions.sqlite3")
        service._recorder, service._store = self.recorder, self.store  # type: ignore[assignment]
        write, is_deleted, found = self.store.record, threading.Event(), []

        def write_and_queue(turns: Iterable[TurnOfSession], journal: str = "") -> None:
            write(turns, journal)
            if self.store.answers[-1] == "b":
                self.record("later")
            elif self.store.answers[-1] == "later":
                is_deleted.wait(0.05)

        def delete(caller: bytes, session: str) -> bool:
            found.extend(path for path in self.folder.iterdir() if b"secret" in path.read_bytes())
            is_deleted.set()
            return True

        self.store.may_write.clear()
        with (
            mock.patch.object(recorder, "_MOST_TOGETHER", 1),
            mock.patch.object(self.store, "record", write_and_queue),
            mock.patch.object(self.store, "delete", delete, create=True),
        ):
            self.record("a", "b")
            wait_until(lambda: len(self.recorder._waiting) == 1)
            self.record("secret")
            self.store.may_write.set()
            self.assertTrue(service.delete(b"", "session"))
        self.assertEqual([], found)

    def test_an_unknown_session_is_deleted_without_a_flush(self) -> None:
        service = SessionService(ProxyConfig(), self.folder / "sessions.sqlite3")
        service._recorder, service._store = self.recorder, self.store  # type: ignore[assignment]
        self.record("a")
        self.assertFalse(service.delete(b"", "another"))
        self.assertEqual([], self.store.answers)

    def test_a_long_turn_is_in_the_journal_unless_it_is_written_at_once(self) -> None:
        def long(count: int) -> Finished:
            event = finished("a")
            assert event.prepared is not None
            messages = (Message("user", "x" * 40_000),) * count
            request = event.prepared.request._replace(messages=messages)
            return event._replace(prepared=event.prepared._replace(request=request))

        def is_noted() -> bool:
            return any(path.stat().st_size for path in self.folder.iterdir())

        self.recorder.record(long(1))
        self.assertTrue(is_noted(), "the first of its session")
        self.recorder.flush()
        self.recorder._written_at = float("-inf")
        self.store.may_write.clear()
        self.recorder.record(long(2))
        self.assertFalse(is_noted(), "the store has the one before")
        self.recorder.record(long(3))
        self.assertTrue(is_noted(), "the store is busy")
        self.store.may_write.set()

    def test_a_turn_that_is_not_in_the_journal_is_written_at_once(self) -> None:
        self.recorder = self.make_recorder(None)
        self.record("a")
        wait_until(lambda: self.store.batches)

    def test_a_turn_waits_a_moment_at_most(self) -> None:
        with mock.patch.object(recorder, "_SECONDS_BEFORE_WRITING", 0.01):
            self.record("a")
            self.recorder.flush()
            self.record("b")
            wait_until(lambda: len(self.store.batches) == 2)
        self.assertEqual([["a"], ["b"]], self.store.batches)

    def test_turns_wait_for_a_file_that_cannot_be_written(self) -> None:
        self.store.fault = Unusable("the disk is full", "free some space")
        with self.assertLogs(recorder.__name__, "WARNING") as logged:
            for answer in "abc":
                self.record(answer)
                # Returns at once: nobody waits for the file.
                self.recorder.flush(PATIENCE)
            self.assertEqual([], self.store.batches)
            self.store.fault = None
            self.record("d")
            self.recorder.flush(PATIENCE)
        self.assertEqual([["a", "b", "c", "d"]], self.store.batches)
        self.assertEqual(2, len(logged.output), logged.output)
        self.assertIn("until sessions.sqlite3 is usable again: the disk is full; free some space", logged.output[0])
        self.assertIn("turns written: 4", logged.output[1])

    def test_turns_that_wait_are_tried_again_without_a_flush(self) -> None:
        self.store.fault = Unusable("the disk is full", "free some space")
        with (
            mock.patch.object(recorder, "_SECONDS_AFTER_A_FAULT", 0.01),
            self.assertLogs(recorder.__name__, "WARNING"),
        ):
            self.record("a")
            self.recorder.flush()
            wait_until(lambda: self.store.tries > 2)
            self.store.fault = None
            wait_until(lambda: self.store.batches)

    def test_turns_that_cannot_be_written_at_the_end_are_left_in_the_journal_or_given_up(self) -> None:
        for journal, words in (
            (Journal(self.folder / "sessions.sqlite3"), "are written when the proxy starts again"),
            (None, "were not recorded"),
        ):
            self.store.fault = Unusable("the disk is full", "free some space")
            self.recorder = self.make_recorder(journal)
            with (
                self.subTest(words),
                mock.patch.object(recorder, "_SECONDS_AFTER_A_FAULT", 0.001),
                mock.patch.object(recorder, "_MOST_TOGETHER", 2),
                self.assertLogs(recorder.__name__, "WARNING") as logged,
            ):
                self.record(*"abc")
                self.recorder.close()
                self.record("d")
                self.assertEqual([], self.store.batches)
                self.assertIn(f"3 turns of sessions {words}: the disk is full", logged.output[-1])

    def test_a_fault_that_passes_at_the_end_costs_no_turn(self) -> None:
        self.store.fault = Unusable("another process holds it locked")
        write = self.store.record

        def write_at_the_third_try(turns: Iterable[TurnOfSession], journal: str = "") -> None:
            if self.store.tries == 2:
                self.store.fault = None
            write(turns, journal)

        with (
            mock.patch.object(recorder, "_SECONDS_AFTER_A_FAULT", 0.001),
            mock.patch.object(self.store, "record", write_at_the_third_try),
            self.assertLogs(recorder.__name__, "WARNING"),
        ):
            self.record(*"abc")
            self.recorder.close()
        self.assertEqual(["a", "b", "c"], self.store.answers)

    def test_many_turns_are_written_in_several_transactions(self) -> None:
        self.store.may_write.clear()
        with mock.patch.object(recorder, "_MOST_TOGETHER", 2):
            self.record(*"abcde")
            self.store.may_write.set()
            self.recorder.flush(PATIENCE)
        self.assertEqual(list("abcde"), self.store.answers)
        self.assertLessEqual(max(map(len, self.store.batches)), 2)

    def test_turns_beyond_the_limit_are_dropped_with_a_warning(self) -> None:
        self.store.may_write.clear()
        with (
            mock.patch.object(recorder, "_MOST_WAITING", 2),
            self.assertLogs(recorder.__name__, "WARNING") as logged,
        ):
            self.record(*"abcdefgh")
        self.store.may_write.set()
        self.recorder.flush()
        self.assertEqual(1, len(logged.output))
        self.assertEqual(2, len(self.store.answers))

    def test_sessions_are_pruned_now_and_then(self) -> None:
        with mock.patch.object(recorder, "_TURNS_BETWEEN_PRUNINGS", 2):
            for answer in "abcde":
                self.record(answer)
                self.recorder.flush()
        self.assertEqual((2, 2), (self.store.prunings, self.store.recoveries))

    def test_a_pruning_that_fails_ends_nothing(self) -> None:
        with (
            mock.patch.object(recorder, "_TURNS_BETWEEN_PRUNINGS", 1),
            mock.patch.object(self.store, "prune", side_effect=[KeyError("bug"), None]),
            self.assertLogs(recorder.__name__, "WARNING"),
        ):
            for answer in "ab":
                self.record(answer)
                self.recorder.flush()
        self.assertEqual(["a", "b"], self.store.answers)

    def test_what_waits_is_written_when_the_recorder_is_closed(self) -> None:
        self.record("a", "b", "c")
        self.recorder.close()
        self.recorder.close()
        self.assertEqual(["a", "b", "c"], self.store.answers)
