"""WorkerProcesses: real processes that are started, replaced and stopped; their program is a stand-in."""

import logging
import os
import queue
import socket
import threading
import unittest
from unittest import mock

from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.server import worker_processes
from deepseek_cursor_proxy.server.worker_processes import WorkerProcesses
from tests.support import worker_program
from tests.support.polling import wait_until

PATIENCE = 10.0


@unittest.skipIf(os.name == "nt", "Windows has no worker processes")
class WorkerProcessesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.enterContext(mock.patch.object(worker_processes, "_FIRST_DELAY_SECONDS", 0.0))
        logging.getLogger("deepseek_cursor_proxy").setLevel(logging.CRITICAL)
        self.addCleanup(logging.getLogger("deepseek_cursor_proxy").setLevel, logging.NOTSET)

    def open(self, count: int) -> WorkerProcesses:
        listener = self.enterContext(socket.create_server(("127.0.0.1", 0)))
        workers = WorkerProcesses(worker_program.__name__, count, listener)
        workers.handlers, workers.setup = lambda slot: {}, lambda slot: ("",)
        workers.on_ready, workers.on_death = lambda channel: None, lambda slot: None
        self.addCleanup(workers.stop, 0.0)
        return workers

    def test_messages_reach_all_but_their_sender_and_a_process_that_died_is_replaced(self) -> None:
        workers, died = self.open(2), queue.Queue[int]()
        workers.on_death = died.put
        workers.start(lambda: False)
        self.assertEqual(["x", "x"], workers.ask("same", "x"))
        self.assertEqual(["x"], workers.ask("same", "x", but=1))
        [first], [second] = workers.ask("pid", but=2), workers.ask("pid", but=1)
        workers.post("end", but=2)
        self.assertEqual(1, died.get(timeout=PATIENCE))
        wait_until(lambda: workers.alive == 2)
        pids = workers.ask("pid")
        self.assertEqual((2, True, False), (len(pids), second in pids, first in pids))

    def test_a_process_that_cannot_start_ends_the_start(self) -> None:
        workers = self.open(2)
        workers.setup = lambda slot: ("fail" if slot == 2 else "",)
        with self.assertRaisesRegex(StartupError, "did not start"):
            workers.start(lambda: False)

    def test_a_stop_during_the_start_ends_it(self) -> None:
        workers = self.open(1)
        workers.start(lambda: True)
        workers.stop(0.0)
        self.assertEqual(0, workers.alive)

    def test_a_process_that_dies_again_and_again_is_replaced_after_growing_pauses(self) -> None:
        self.enterContext(mock.patch.object(worker_processes, "_FIRST_DELAY_SECONDS", 0.5))
        workers, pauses = self.open(1), queue.Queue[float]()
        workers.start(lambda: False)
        self.enterContext(mock.patch.object(workers._is_stopping, "wait", pauses.put))
        workers.setup = lambda slot: ("crash",)
        workers.post("end")
        # The first is replaced at once.
        self.assertEqual([0.5, 1.0], [pauses.get(timeout=PATIENCE) for _ in range(2)])

    def test_it_gives_up_when_no_process_can_be_started_any_more(self) -> None:
        workers, stopped = self.open(1), threading.Event()
        self.enterContext(mock.patch.object(worker_processes.os, "kill", side_effect=lambda *_: stopped.set()))
        self.enterContext(mock.patch.object(worker_processes, "_MOST_FAILURES", 2))
        workers.start(lambda: False)
        workers.setup = lambda slot: ("fail",)
        workers.post("end")
        self.assertTrue(stopped.wait(PATIENCE))
        self.assertTrue(workers.has_given_up)
