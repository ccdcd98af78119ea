import threading
import unittest
from unittest import mock

from deepseek_cursor_proxy.storage import pruner as pruner_module
from deepseek_cursor_proxy.storage.pruner import Pruner
from tests.support.polling import PATIENCE, wait_until


class TestPruner(unittest.TestCase):
    def test_pruning_runs_once_for_many_writes_on_another_thread(self) -> None:
        threads: list[threading.Thread] = []
        pruner = Pruner(lambda: threads.append(threading.current_thread()), every=3, name="prune")
        for expected in (0, 0, 1, 1, 1, 2):
            pruner.count_writes()
            for thread in threading.enumerate():
                if thread.name == "prune":
                    thread.join()
            self.assertEqual(expected, len(threads))
        self.assertNotIn(threading.current_thread(), threads)

    def test_close_waits_for_a_running_pruning_and_starts_no_more(self) -> None:
        release, runs = threading.Event(), []
        prune = mock.Mock(side_effect=lambda: runs.append(release.wait(PATIENCE)))
        pruner = Pruner(prune, every=1, name="prune")
        pruner.count_writes()
        wait_until(lambda: prune.called)
        release.set()
        pruner.close()
        pruner.count_writes()
        self.assertEqual([True], runs)
        self.assertTrue(pruner.is_closed)

    def test_writes_during_a_pruning_start_one_more(self) -> None:
        release, runs = threading.Event(), []

        def prune() -> None:
            runs.append(threading.current_thread())
            release.wait(PATIENCE)

        pruner = Pruner(prune, every=1, name="prune")
        pruner.count_writes()
        wait_until(lambda: runs)
        for _ in range(3):
            pruner.count_writes()
        release.set()
        wait_until(lambda: len(runs) == 2)
        pruner.close()
        self.assertEqual(runs[:1] * 2, runs)

    def test_close_ends_the_pause_between_two_pruning_steps(self) -> None:
        pruner = Pruner(lambda: None, every=1, name="prune")
        with mock.patch.object(pruner_module, "_SECONDS_BETWEEN_STEPS", 3600):
            pruner.close()
            pruner.pause_step()

    def test_a_write_succeeds_when_no_pruning_thread_can_start(self) -> None:
        runs: list[int] = []
        pruner = Pruner(lambda: runs.append(1), every=1, name="prune")
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            pruner.count_writes()
        self.assertEqual([], runs)
        pruner.count_writes()
        pruner.close()
        self.assertEqual([1], runs)
