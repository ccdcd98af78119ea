import logging
import threading
import time
import unittest
from collections.abc import Callable
from unittest import mock

from deepseek_cursor_proxy.storage import database as store_module
from deepseek_cursor_proxy.storage.database import OutageLog, Reopener
from deepseek_cursor_proxy.storage.faults import Unusable
from tests.support.polling import PATIENCE, wait_until

LOG = logging.getLogger("tests.reopener")


class TestReopener(unittest.TestCase):
    def setUp(self) -> None:
        self.enterContext(mock.patch.object(store_module, "_FIRST_DELAY_SECONDS", 0.001))

    def reopener(self, reopen: Callable[[], bool]) -> Reopener:
        reopener_thread = Reopener(reopen, name="reopen")
        self.addCleanup(reopener_thread.close)
        return reopener_thread

    def test_the_reopener_retries_until_it_succeeds_and_ends_its_thread(self) -> None:
        results = [True, False, False]
        reopener_thread = self.reopener(results.pop)
        reopener_thread.wake()
        self.assertTrue(reopener_thread.wait(PATIENCE))
        self.assertEqual([], results)
        self.assertNotIn("reopen", [thread.name for thread in threading.enumerate()])

    def test_a_wake_during_a_try_causes_one_more_try(self) -> None:
        go_on = threading.Event()
        reopen = mock.Mock(side_effect=lambda: go_on.wait(PATIENCE))
        reopener_thread = self.reopener(reopen)
        reopener_thread.wake()
        wait_until(lambda: reopen.called)
        reopener_thread.wake()
        reopener_thread.wake()
        go_on.set()
        self.assertTrue(reopener_thread.wait(PATIENCE))
        self.assertEqual(2, reopen.call_count)

    def test_the_delays_between_tries_grow_up_to_a_limit(self) -> None:
        reopener_thread = self.reopener(([True] + [False] * 12).pop)
        with (
            mock.patch.object(store_module, "_FIRST_DELAY_SECONDS", 0.25),
            mock.patch.object(reopener_thread._closing, "wait") as wait,
        ):
            reopener_thread.wake()
            self.assertTrue(reopener_thread.wait(PATIENCE))
        delays = [call.args[0] for call in wait.call_args_list]
        self.assertEqual([0.25, 0.5, 1.0, 2.0, 4.0, *[5.0] * 7], delays)

    def test_close_ends_the_reopener_during_a_delay(self) -> None:
        reopen = mock.Mock(return_value=False)
        reopener_thread = self.reopener(reopen)
        with mock.patch.object(store_module, "_FIRST_DELAY_SECONDS", 3600):
            reopener_thread.wake()
            wait_until(lambda: reopen.called)
            reopener_thread.close()
        reopener_thread.wake()
        self.assertTrue(reopener_thread.wait(0))


class TestOutageLog(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 1000.0
        self.enterContext(mock.patch.object(time, "monotonic", side_effect=lambda: self.now))
        self.outage = OutageLog(LOG, "store.sqlite3", "reasoning")

    def warnings(self, *, tries: int = 1, written: int = 0) -> list[str]:
        """What an outage of so many tries says."""
        with self.assertLogs(LOG, logging.INFO) as logged:
            for _ in range(tries):
                self.outage.report_fault(Unusable("it is locked", "wait"))
            self.outage.count(written)
            self.outage.report_end()
            LOG.info("end")
        return [record.getMessage() for record in logged.records[:-1]]

    def test_an_outage_is_one_warning_at_its_start_and_one_at_its_end(self) -> None:
        begin = "reasoning is kept in memory until store.sqlite3 is usable again: it is locked; wait"
        end = "store.sqlite3 is usable again; entries written: 7"
        self.assertEqual([begin, end], self.warnings(tries=100, written=7))

    def test_an_outage_that_comes_and_goes_is_warned_about_now_and_then(self) -> None:
        self.assertEqual(2, len(self.warnings()))
        for _ in range(20):
            self.now += 1
            self.assertEqual([], self.warnings())
        self.now += 30
        self.assertEqual(2, len(self.warnings()))

    def test_an_outage_soon_after_another_is_warned_about_if_it_lasts(self) -> None:
        self.warnings()
        with self.assertNoLogs(LOG):
            self.outage.report_fault(Unusable("it is locked", "wait"))
        self.now += 31
        self.assertEqual(2, len(self.warnings()))
