"""Deadlines: the time left until they are over."""

import unittest

from deepseek_cursor_proxy.net.wait import Deadline


class TestDeadline(unittest.TestCase):
    def test_a_deadline_is_over_when_no_time_is_left(self) -> None:
        for seconds, is_over in ((20, False), (0, True), (-1, True)):
            later = Deadline.after(seconds)
            self.assertEqual((is_over, is_over), (later.is_over, later.left <= 0))
        self.assertAlmostEqual(20, Deadline.after(20).left, delta=1)

    def test_the_earliest_of_several_is_a_deadline(self) -> None:
        self.assertTrue(min(Deadline.after(20), Deadline.after(-1)).is_over)
