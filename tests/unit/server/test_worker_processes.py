"""WorkerProcesses: real processes that are started, replaced and stopped; their program is a stand-in."""

import logging
import os
import queue
import signal
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
        listener = self.enterContext(socket.create_server(("127.0.0.1", 0)))
        self.workers = WorkerProcesses(worker_program.__name__, 2, listener)
        self.workers.handlers, self.workers.setup = lambda slot: {}, lambda slot: ("",)
        self.workers.on_ready, self.workers.on_death = lambda channel: None, lambda slot: None
        self.addCleanup(self.workers.stop, 0.0)
        logging.getLogger("deepseek_cursor_proxy").setLevel(logging.CRITICAL)
        self.addCleanup(logging.getLogger("deepseek_cursor_proxy").setLevel, logging.NOTSET)

    def start(self) -> list[int]:
        self.workers.start(lambda: False)
        return sorted(self.workers.ask("pid"))

    def test_each_slot_has_a_process_and_one_that_died_is_replaced(self) -> None:
        died: list[int] = []
        self.workers.on_death = died.append
        first, second = self.start()
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: died)
        wait_until(lambda: self.workers.alive == 2)
        pids = self.workers.ask("pid")
        self.assertEqual((2, True, False), (len(pids), second in pids, first in pids))

    def test_a_message_reaches_all_but_the_one_it_came_from(self) -> None:
        self.start()
        self.assertEqual(["x", "x"], self.workers.ask("same", "x"))
        self.assertEqual(["x"], self.workers.ask("same", "x", but=1))
        self.workers.post("end", but=2)
        wait_until(lambda: self.workers.alive == 1)

    def test_a_process_that_cannot_start_ends_the_start(self) -> None:
        self.workers.setup = lambda slot: ("fail" if slot == 2 else "",)
        with self.assertRaisesRegex(StartupError, "did not start"):
            self.start()

    def test_a_stop_during_the_start_ends_it(self) -> None:
        self.workers.start(lambda: True)
        self.workers.stop(0.0)
        self.assertEqual(0, self.workers.alive)

    def test_a_process_that_dies_again_and_again_is_replaced_after_growing_pauses(self) -> None:
        self.enterContext(mock.patch.object(worker_processes, "_FIRST_DELAY_SECONDS", 0.5))
        self.enterContext(mock.patch.object(worker_processes, "_MOST_FAILURES", 9))
        self.start()
        pauses: queue.Queue[float] = queue.Queue()
        self.enterContext(mock.patch.object(self.workers._is_stopping, "wait", pauses.put))
        self.workers.setup = lambda slot: ("crash",)
        self.workers.post("end", but=2)
        # The first is replaced at once.
        self.assertEqual([0.5, 1.0, 2.0], [pauses.get(timeout=PATIENCE) for _ in range(3)])

    def test_it_gives_up_when_no_process_can_be_started_any_more(self) -> None:
        stopped = threading.Event()
        self.enterContext(mock.patch.object(worker_processes.os, "kill", side_effect=lambda *_: stopped.set()))
        self.enterContext(mock.patch.object(worker_processes, "_MOST_FAILURES", 2))
        self.start()
        self.workers.setup = lambda slot: ("fail",)
        self.workers.post("end")
        self.assertTrue(stopped.wait(PATIENCE))
        self.assertTrue(self.workers.has_given_up)
