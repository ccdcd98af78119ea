"""Deadlines: the time left, and the time granted after a stop."""

import time
import unittest

from deepseek_cursor_proxy.net import deadline
from deepseek_cursor_proxy.net.deadline import Deadline


class TestDeadline(unittest.TestCase):
    def test_a_deadline_is_over_when_no_time_is_left(self) -> None:
        for seconds, is_over in ((20, False), (0, True), (-1, True)):
            later = Deadline.after(seconds)
            self.assertEqual((is_over, is_over), (later.is_over, later.left <= 0))
        self.assertAlmostEqual(20, Deadline.after(20).left, delta=1)

    def test_the_earliest_of_several_is_a_deadline(self) -> None:
        self.assertTrue(min(Deadline.after(20), Deadline.after(-1)).is_over)

    def test_a_deadline_that_passed_while_the_process_was_stopped_is_given_some_time(self) -> None:
        now = time.monotonic()
        for on_time in (Deadline(now - 0.01), Deadline(now + 20)):
            self.assertEqual(on_time, on_time.allow_for_stop(300.0))
        for seconds, grace in ((300.0, deadline._GRACE_SECONDS), (0.2, 0.2)):
            self.assertAlmostEqual(now + grace, Deadline(now - 60).allow_for_stop(seconds), delta=0.5)
