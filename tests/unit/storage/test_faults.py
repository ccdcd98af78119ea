import logging
import unittest

from deepseek_cursor_proxy.storage.faults import FaultGuard, Refused, Unusable

LOG = logging.getLogger("tests.faults")


class TestFaultGuard(unittest.TestCase):
    def fail_in_guard(self, faults: FaultGuard, error: Exception) -> None:
        with faults.guard("record"):
            raise error

    def test_the_guard_swallows_faults_of_the_file_and_warns_once_in_a_while(self) -> None:
        faults = FaultGuard(LOG, "some store")
        with self.assertLogs(LOG, logging.WARNING) as logged:
            for error in (Refused("no such value"), OSError("gone"), ValueError("damaged")):
                self.fail_in_guard(faults, error)
        warnings = [record.getMessage() for record in logged.records]
        self.assertEqual(["some store: could not record (no such value); answers are not affected"], warnings)

    def test_the_guard_passes_on_an_exception_that_is_no_fault_of_the_file(self) -> None:
        with self.assertRaises(KeyError):
            self.fail_in_guard(FaultGuard(LOG, "some store"), KeyError("x"))

    def test_the_guard_leaves_the_warning_about_an_unusable_file_to_the_outage_log(self) -> None:
        with self.assertNoLogs(LOG):
            self.fail_in_guard(FaultGuard(LOG, "some store"), Unusable("it is locked"))
