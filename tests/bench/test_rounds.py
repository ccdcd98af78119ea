"""Every round asks each target once; other proxies may fail, the direct way and this proxy may not."""

import os
import sys
import unittest

from tests.bench.rounds import Contest, Target, added_times, intervals, means, medians
from tests.bench.table import DIRECT, OURS
from tests.support.processes import BenchmarkFailed, Server

ME = Server("", os.getpid())
# Beyond the largest process number there is.
NOBODY = Server("", 2**27)


def contest(*others: str, patience: float = 60.0) -> Contest:
    return Contest(Target(DIRECT, ""), Target(OURS, "", (ME,)), tuple(Target(name, "") for name in others), patience)


class TestRounds(unittest.TestCase):
    def test_every_round_asks_each_target_and_the_first_does_not_count(self) -> None:
        order: list[str] = []
        rounds = contest("other").run_rounds("it", 2, lambda target: order.append(target.name) or len(order))
        self.assertEqual(order, [DIRECT, OURS, "other"] * 3)
        self.assertEqual(rounds.results, {DIRECT: [4, 7], OURS: [5, 8], "other": [6, 9]})

    def test_a_timed_measure_has_no_warm_up_and_no_patience(self) -> None:
        rounds = contest(patience=-1).run_rounds("it", 2, lambda target: 1, timed=True)
        self.assertEqual(rounds.results, {DIRECT: [1, 1], OURS: [1, 1]})

    def test_rounds_end_when_patience_does(self) -> None:
        rounds = contest(patience=-1).run_rounds("it", 100, lambda target: 1)
        self.assertEqual(rounds.results, {DIRECT: [1], OURS: [1]})

    @unittest.skipUnless(sys.platform == "linux", "only Linux tells")
    def test_cpu_seconds_are_known_of_targets_with_processes(self) -> None:
        rounds = contest("other").run_rounds("it", 3, lambda target: 1)
        self.assertEqual({name: len(some) for name, some in rounds.cpu.items()}, {DIRECT: 0, OURS: 3, "other": 0})

    def test_another_proxy_that_fails_is_left_out_and_noted(self) -> None:
        def ask(target: Target) -> int:
            if target.name == "other":
                raise ConnectionRefusedError("nobody there")
            return 1

        some = contest("other", "third")
        self.assertEqual(set(some.run_rounds("it", 1, ask).results), {DIRECT, OURS, "third"})
        self.assertEqual(some.notes, ["other: it: nobody there"])

    def test_the_direct_way_and_this_proxy_have_to_work(self) -> None:
        for failing in (DIRECT, OURS):

            def ask(target: Target, failing: str = failing) -> int:
                if target.name == failing:
                    raise BenchmarkFailed("broken")
                return 1

            with self.assertRaisesRegex(BenchmarkFailed, f"it: {failing}: broken"):
                contest("other").run_rounds("it", 1, ask)


class TestSamples(unittest.TestCase):
    def test_added_times_compare_with_the_direct_way_in_the_same_round(self) -> None:
        self.assertEqual(added_times({DIRECT: [1, 5], OURS: [2, 9], "other": [1, 4]}), {OURS: [1, 4], "other": [0, -1]})

    def test_intervals_lie_between_two_readings_of_a_clock(self) -> None:
        self.assertEqual(intervals([1.0, 3.0, 6.0]), [2.0, 3.0])
        self.assertEqual(intervals([1.0, None, 6.0]), [])

    def test_figures_are_scaled(self) -> None:
        median, mean = medians({OURS: [1, 2, 6]}, 10)[OURS], means({OURS: [1, 2, 6], DIRECT: [1]}, 10)
        assert median is not None
        assert mean[OURS] is not None
        self.assertEqual((median.value, mean[OURS].value, set(mean)), (20, 30, {OURS}))


class TestTargets(unittest.TestCase):
    def test_a_target_without_processes_has_no_figures(self) -> None:
        for target in (Target("other", ""), Target("other", "", (NOBODY,)), Target("other", "", (ME, NOBODY))):
            self.assertEqual((target.cpu_seconds(), target.resident_megabytes(), target.threads()), (None,) * 3)
            target.settle()

    @unittest.skipUnless(sys.platform == "linux", "only Linux tells")
    def test_the_figures_of_all_processes_are_added_up(self) -> None:
        one, two = Target("other", "", (ME,)), Target("other", "", (ME, ME))
        self.assertEqual(two.threads(), 2 * (one.threads() or 0))
