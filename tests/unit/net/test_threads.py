import random
import threading
import time
import unittest
from unittest import mock

from deepseek_cursor_proxy.net import threads
from deepseek_cursor_proxy.net.threads import ReusedThreads
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
