import logging
import threading
import time
import unittest
from unittest import mock

from deepseek_cursor_proxy.storage import reopener
from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.storage.reopener import OutageLog, Reopener

LOG = logging.getLogger("tests.mending")
PATIENCE = 10.0


class TestMender(unittest.TestCase):
    def setUp(self) -> None:
        self.enterContext(mock.patch.object(reopener, "_FIRST_DELAY_SECONDS", 0.001))

    def test_it_tries_until_it_succeeds_and_then_its_thread_is_gone(self) -> None:
        results = [True, False, False]
        mender = Reopener(results.pop, name="mend")
        mender.wake()
        self.assertTrue(mender.wait(PATIENCE))
        self.assertEqual([], results)
        self.assertNotIn("mend", [thread.name for thread in threading.enumerate()])
        mender.close()

    def test_who_calls_while_it_runs_is_served_too(self) -> None:
        running, go_on = threading.Event(), threading.Event()
        runs: list[int] = []

        def mend() -> bool:
            runs.append(1)
            running.set()
            return go_on.wait(PATIENCE)

        mender = Reopener(mend, name="mend")
        mender.wake()
        self.assertTrue(running.wait(PATIENCE))
        mender.wake()
        mender.wake()
        go_on.set()
        self.assertTrue(mender.wait(PATIENCE))
        self.assertEqual([1, 1], runs)
        mender.close()

    def test_the_tries_become_rarer_up_to_a_bound(self) -> None:
        tries = 12
        results = [True] + [False] * tries
        mender = Reopener(results.pop, name="mend")
        with (
            mock.patch.object(reopener, "_FIRST_DELAY_SECONDS", 0.25),
            mock.patch.object(mender._closing, "wait") as wait,
        ):
            mender.wake()
            self.assertTrue(mender.wait(PATIENCE))
        delays = [call.args[0] for call in wait.call_args_list]
        self.assertEqual([0.25, 0.5, 1.0, 2.0, 4.0, *[5.0] * (tries - 5)], delays)

    def test_closing_ends_it_in_the_middle_of_a_wait(self) -> None:
        tried = threading.Event()

        def mend() -> bool:
            tried.set()
            return False

        mender = Reopener(mend, name="mend")
        with mock.patch.object(reopener, "_FIRST_DELAY_SECONDS", 3600):
            mender.wake()
            self.assertTrue(tried.wait(PATIENCE))
            mender.close()
        mender.wake()
        self.assertTrue(mender.wait(0))

    def test_a_system_without_room_for_a_thread_fails_nobody(self) -> None:
        mender = Reopener(lambda: True, name="mend")
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            mender.wake()
        mender.wake()
        self.assertTrue(mender.wait(PATIENCE))
        mender.close()


class TestOutage(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 1000.0
        self.enterContext(mock.patch.object(time, "monotonic", side_effect=lambda: self.now))
        self.outage = OutageLog(LOG, "store.sqlite3")

    def told(self, *, tries: int = 1, written: int = 0) -> list[str]:
        """What an outage of so many tries says."""
        with self.assertLogs(LOG, logging.INFO) as logged:
            for _ in range(tries):
                self.outage.report_fault(Unusable("it is locked", "wait"))
            self.outage.count(written)
            self.outage.report_end()
            LOG.info("end")
        return [record.getMessage() for record in logged.records[:-1]]

    def test_it_is_told_once_when_it_begins_and_once_when_it_is_over(self) -> None:
        begin = "reasoning is kept in memory only until store.sqlite3 can be used: it is locked; wait"
        end = "store.sqlite3 is usable again; reasonings written: 7"
        self.assertEqual([begin, end], self.told(tries=100, written=7))

    def test_one_that_comes_and_goes_is_told_now_and_then(self) -> None:
        self.assertEqual(2, len(self.told()))
        for _ in range(20):
            self.now += 1
            self.assertEqual([], self.told())
        self.now += 30
        self.assertEqual(2, len(self.told()))

    def test_one_that_was_not_worth_a_word_is_told_when_it_lasts(self) -> None:
        self.told()
        with self.assertNoLogs(LOG):
            self.outage.report_fault(Unusable("it is locked", "wait"))
        self.now += 31
        self.assertEqual(2, len(self.told()))

    def test_no_outage_is_no_news(self) -> None:
        self.assertEqual([], self.told(tries=0))
