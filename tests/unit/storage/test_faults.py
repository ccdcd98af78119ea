import logging
import sqlite3
import unittest

from deepseek_cursor_proxy.storage.faults import FaultGuard, Unusable

LOG = logging.getLogger("tests.faults")


class TestFaultGuard(unittest.TestCase):
    def break_down(self, faults: FaultGuard, error: Exception) -> None:
        with faults.guard("record"):
            raise error

    def test_the_file_s_faults_are_swallowed_and_told_once_in_a_while(self) -> None:
        faults = FaultGuard(LOG, "some store")
        with self.assertLogs(LOG, logging.WARNING) as logged:
            for error in (sqlite3.OperationalError("locked"), OSError("gone"), ValueError("damaged")):
                self.break_down(faults, error)
        told = [record.getMessage() for record in logged.records]
        self.assertEqual(["some store: could not record (locked); answers go on without it"], told)

    def test_a_mistake_of_ours_is_not_hidden(self) -> None:
        with self.assertRaises(KeyError):
            self.break_down(FaultGuard(LOG, "some store"), KeyError("x"))

    def test_a_file_that_cannot_be_used_is_told_by_whoever_mends_it(self) -> None:
        with self.assertNoLogs(LOG):
            self.break_down(FaultGuard(LOG, "some store"), Unusable("it is locked"))
