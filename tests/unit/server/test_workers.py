"""Workers are started when tasks wait, no more than help, and end when they are idle."""

import random
import threading
import time
import unittest
from unittest import mock

from deepseek_cursor_proxy.server import workers
from deepseek_cursor_proxy.server.workers import Workers
from tests.support.polling import wait_until
from tests.support.width import width

PATIENCE = 10.0


class TestWorkers(unittest.TestCase):
    def setUp(self) -> None:
        self.before = threading.active_count()
        self.done: list[int] = []
        self.refused: list[int] = []
        self.may_go_on = threading.Event()
        self.workers = Workers(self.work, self.refused.append, "test-worker")
        self.addCleanup(self.assert_ended)
        self.addCleanup(self.workers.close)
        self.addCleanup(self.may_go_on.set)

    def assert_ended(self) -> None:
        self.assertEqual(self.before, threading.active_count(), threading.enumerate())

    def work(self, task: int) -> None:
        if task < 0:
            self.may_go_on.wait(PATIENCE)
        self.done.append(task)

    @property
    def count(self) -> int:
        return threading.active_count() - self.before

    def test_one_after_another_needs_one_worker(self) -> None:
        for number in range(20):
            self.assertTrue(self.workers.submit(number))
            wait_until(lambda number=number: number in self.done and self.workers.are_few_busy)  # type: ignore[misc]
            wait_until(lambda: self.workers._pending == 0)
        self.assertEqual((list(range(20)), 1), (self.done, self.count))

    def test_blocked_workers_get_company_up_to_the_usual_number(self) -> None:
        for _ in range(3 * workers._USUAL):
            self.workers.submit(-1)
        self.assertEqual(workers._USUAL, self.count)
        self.assertTrue(self.workers.has_queue)
        self.assertFalse(self.workers.are_few_busy)

    def test_if_no_task_is_taken_for_a_while_the_workers_are_doubled_until_none_waits(self) -> None:
        tasks = 3 * workers._USUAL
        for _ in range(tasks):
            self.workers.submit(-1)
        for expected in (2 * workers._USUAL, tasks, tasks):
            wait_until(lambda: time.monotonic() >= self.workers.until or not self.workers.has_queue)
            self.workers.on_due()
            self.assertEqual(expected, self.count)
            wait_until(lambda expected=expected: len(self.workers._tasks) == tasks - expected)  # type: ignore[misc]
        self.assertEqual(float("inf"), self.workers.until)

    def test_idle_workers_end_and_others_are_started(self) -> None:
        with mock.patch.object(workers, "_IDLE_SECONDS", 0.01):
            for number in range(3):
                self.workers.submit(number)
                wait_until(lambda number=number: number in self.done and self.count == 0)  # type: ignore[misc]

    def test_no_task_is_lost_and_no_worker_stuck_when_many_end_while_tasks_come(self) -> None:
        count, luck = width(3000, 30_000), random.Random(1)
        with mock.patch.object(workers, "_IDLE_SECONDS", 0.0005):
            for number in range(count):
                self.workers.submit(number)
                if luck.random() < 0.1:
                    time.sleep(0.001 * luck.random())
            wait_until(lambda: len(self.done) == count)
        self.assertEqual(set(range(count)), set(self.done))

    def test_without_threads_tasks_are_refused_or_wait_for_the_workers_there_are(self) -> None:
        with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
            self.assertFalse(self.workers.submit(0))
        self.workers.submit(-1)
        wait_until(lambda: not self.workers.has_queue)
        with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
            self.assertTrue(self.workers.submit(1))
            self.workers.on_due()
            self.assertEqual([1], self.refused)
            self.assertTrue(self.workers.submit(2))
        self.may_go_on.set()
        wait_until(lambda: self.done == [-1, 2])
