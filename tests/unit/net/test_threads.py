import random
import threading
import time
import unittest
from collections.abc import Callable
from unittest import mock

from deepseek_cursor_proxy.net import threads
from deepseek_cursor_proxy.net.threads import BackgroundThread, ReusedThreads
from tests.support.polling import wait_until
from tests.support.threads import leave_no_thread
from tests.support.width import width

PATIENCE = 10.0


class TestReusedThreads(unittest.TestCase):
    def setUp(self) -> None:
        leave_no_thread(self)
        self.before = {*threading.enumerate()}
        self.done: list[int] = []
        self.may_go_on = threading.Event()
        self.threads = ReusedThreads("test-client")
        self.addCleanup(self.threads.close, PATIENCE)
        self.addCleanup(self.may_go_on.set)

    def wait(self) -> None:
        self.may_go_on.wait(PATIENCE)

    @property
    def count(self) -> int:
        return len({*threading.enumerate()} - self.before)

    def test_every_task_that_runs_has_a_thread(self) -> None:
        for _ in range(30):
            self.threads.start(self.wait)
        self.assertEqual((30, 30), (self.threads.busy, self.count))

    def test_a_task_gets_the_thread_that_ran_last(self) -> None:
        with mock.patch.object(threads, "_IDLE_SECONDS", PATIENCE):
            self.threads.start(self.wait)
            self.threads.start(lambda: None)
            wait_until(lambda: self.threads.busy == 1)
            self.may_go_on.set()
            wait_until(lambda: self.threads.busy == 0)
            last = self.threads._idle[-1]
            self.threads.start(self.may_go_on.clear)
            wait_until(lambda: self.threads.busy == 0)
        self.assertIs(last, self.threads._idle[-1])

    def test_idle_threads_end_and_others_are_started(self) -> None:
        with mock.patch.object(threads, "_IDLE_SECONDS", 0.01):
            for number in range(3):
                self.threads.start(lambda number=number: self.done.append(number))  # type: ignore[misc]
                wait_until(lambda number=number: number in self.done and self.count == 0)  # type: ignore[misc]

    def test_no_task_is_lost_when_threads_end_while_tasks_come(self) -> None:
        count, luck = width(2000, 20_000), random.Random(1)
        with mock.patch.object(threads, "_IDLE_SECONDS", 0.0005):
            for number in range(count):
                self.threads.start(lambda number=number: self.done.append(number))  # type: ignore[misc]
                if luck.random() < 0.1:
                    time.sleep(0.001 * luck.random())
            wait_until(lambda: len(self.done) == count)
        self.assertEqual(set(range(count)), set(self.done))

    def test_without_threads_a_task_is_refused_unless_a_thread_is_idle(self) -> None:
        with mock.patch.object(threads, "_IDLE_SECONDS", PATIENCE):
            with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
                self.assertFalse(self.threads.start(self.wait))
            self.threads.start(lambda: None)
            wait_until(lambda: len(self.threads._idle) == 1)
            with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
                self.assertTrue(self.threads.start(self.wait))
                self.assertFalse(self.threads.start(self.wait))

    def test_a_task_that_fails_ends_its_thread_alone(self) -> None:
        with mock.patch("threading.excepthook"):
            self.threads.start(mock.Mock(side_effect=LookupError("a bug")))
            wait_until(lambda: self.threads.busy == 0)
        self.threads.start(lambda: self.done.append(1))
        wait_until(lambda: self.done == [1])


class TestBackgroundThread(unittest.TestCase):
    def setUp(self) -> None:
        self.done: list[str] = []
        self.before = threading.active_count()
        self.thread = BackgroundThread("test-background")
        self.addCleanup(self.thread.close)

    def task(self, name: str, *again: float) -> Callable[[], float | None]:
        """A function that notes that it ran, and has to run again after these seconds."""
        left = list(again)

        def run() -> float | None:
            self.done.append(name)
            return left.pop(0) if left else None

        return run

    def test_functions_run_on_one_thread_when_each_is_due(self) -> None:
        self.assertEqual(self.before, threading.active_count())
        self.thread.run(self.task("never"), 3600)
        self.thread.run(self.task("second"), 0.05)
        self.thread.run(self.task("first", 0.1, 0.0), 0.01)
        wait_until(lambda: len(self.done) == 4)
        self.assertEqual(["first", "second", "first", "first"], self.done)
        self.assertEqual(1, threading.active_count() - self.before)

    def test_the_sooner_of_two_times_counts_and_the_function_runs_once(self) -> None:
        task = self.task("once")
        for seconds in (3600.0, 0.02, 60.0):
            self.thread.run(task, seconds)
        self.assertTrue(self.thread.wait(PATIENCE))
        self.assertEqual(["once"], self.done)

    def test_a_function_that_is_asked_for_while_it_runs_runs_once_more(self) -> None:
        go_on = threading.Event()

        def run() -> None:
            self.done.append("run")
            go_on.wait(PATIENCE)

        self.thread.run(run)
        wait_until(lambda: self.done)
        self.thread.run(run)
        self.thread.run(run)
        go_on.set()
        self.assertTrue(self.thread.wait(PATIENCE))
        self.assertEqual(2, len(self.done))

    def test_a_function_that_fails_stops_no_other(self) -> None:
        with mock.patch("threading.excepthook") as hook:
            self.thread.run(self.task("later"), 0.01)
            self.thread.run(mock.Mock(side_effect=LookupError("a bug")))
            wait_until(lambda: self.done == ["later"])
            self.thread.run(mock.Mock(side_effect=LookupError("a bug")))
            started = time.monotonic()
            self.assertTrue(self.thread.wait(PATIENCE))
            self.assertLess(time.monotonic() - started, PATIENCE)
            self.thread.close()
        self.assertEqual(2, hook.call_count)

    def test_without_threads_functions_run_when_one_can_be_started(self) -> None:
        with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
            self.thread.run(self.task("kept"))
        self.assertFalse(self.thread.wait(0))
        self.thread.run(self.task("other"))
        self.assertTrue(self.thread.wait(PATIENCE))
        self.assertEqual(["kept", "other"], self.done)

    def test_close_ends_pauses_waits_for_the_function_and_runs_no_other(self) -> None:
        def pause() -> float:
            self.done.append("begun")
            self.thread.pause(PATIENCE)
            self.done.append("ended")
            return 0.0

        self.thread.run(pause)
        wait_until(lambda: self.done)
        self.thread.run(self.task("never"))
        self.thread.close()
        self.thread.run(self.task("never"))
        self.assertEqual(["begun", "ended"], self.done)
        self.assertEqual(self.before, threading.active_count())
