"""The verdict of a soak, and that a short soak runs."""

import contextlib
import io
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

from tests import soak
from tests.soak import Figures, Finding, Scale, Tally
from tests.soak.clients import ClientRun, ClientRunFailed
from tests.support.processes import BenchmarkFailed
from tests.support.width import width

CALM = Figures(2, 8, 40.0)
UNKNOWN = Figures(None, None, None)
CLEAN = "10:00:00 a request\n"


def samples(*megabytes: float, interval: float = 10.0) -> list[tuple[float, Figures]]:
    return [(interval * number, Figures(9, 20, value)) for number, value in enumerate(megabytes)]


def verdict(
    end: Figures = CALM, seen: list[tuple[float, Figures]] | None = None, failures: tuple[str, ...] = (), log: str = ""
) -> dict[str, bool | None]:
    found = soak._verdict(CALM, end, seen or samples(*[40.0] * 40), Tally(7, list(failures)), log or CLEAN)
    return {each.what: each.is_met for each in found}


class TestVerdict(unittest.TestCase):
    def assert_only_lost(self, lost: str, found: dict[str, bool | None]) -> None:
        self.assertEqual({**dict.fromkeys(found, True), lost: False}, found)

    def test_a_proxy_that_ends_as_it_began_meets_every_finding(self) -> None:
        self.assertEqual({True}, set(verdict().values()))
        self.assertEqual({True}, set(verdict(end=Figures(1, 7, 60.0)).values()))

    def test_threads_and_descriptors_left_over_fail_the_soak(self) -> None:
        self.assert_only_lost("threads", verdict(end=Figures(3, 8, 40.0)))
        self.assert_only_lost("descriptors", verdict(end=Figures(2, 9, 40.0)))
        self.assert_only_lost("failures", verdict(failures=("tool_loop: no",)))
        self.assert_only_lost("log", verdict(log="Traceback (most recent call last):\n"))
        self.assert_only_lost("log", verdict(log="unexpected KeyError while answering a request\n"))

    def test_memory_that_grows_with_time_fails_the_soak(self) -> None:
        self.assert_only_lost("memory", verdict(seen=samples(*(40 + number for number in range(40)))))

    def test_memory_may_fill_at_first_and_vary_later(self) -> None:
        filling = [10.0 + 3 * number for number in range(10)]
        self.assertTrue(verdict(seen=samples(*filling, *[40.0, 42.0, 39.0] * 10))["memory"])

    def test_slow_growth_of_memory_is_judged_by_the_hour(self) -> None:
        for per_hour, is_met in ((4.0, True), (7.0, False)):
            slow = samples(*(40 + per_hour * number / 60 for number in range(300)), interval=60)
            self.assertIs(is_met, verdict(seen=slow)["memory"])

    def test_unknown_figures_are_not_judged(self) -> None:
        found = soak._verdict(UNKNOWN, UNKNOWN, [(1.0, UNKNOWN)], Tally(), CLEAN)
        self.assertEqual([None, None, None, True, True], [each.is_met for each in found])
        self.assertIn("unknown", str(found[0]))

    def test_the_first_failures_are_printed_in_words(self) -> None:
        found = soak._verdict(CALM, CALM, [], Tally(9, [f"reason {number}" for number in range(9)]), CLEAN)
        self.assertRegex(str(found[3]), r"(?s)9 in 9 requests\n +reason 0\n.*reason 4: NOT HELD$")


class TestRun(unittest.TestCase):
    def run_with(self, *findings: Finding) -> tuple[int, str]:
        out = io.StringIO()
        with mock.patch.object(soak, "soak", return_value=list(findings)):
            return soak.run(1, out=out), out.getvalue()

    def test_the_exit_code_is_1_when_a_finding_is_not_met(self) -> None:
        is_met, unknown, lost = (Finding("memory", "so so", is_met) for is_met in (True, None, False))
        self.assertEqual((0, "\nmemory      so so: held\nmemory      so so: unknown\n"), self.run_with(is_met, unknown))
        self.assertEqual((1, "\nmemory      so so: NOT HELD\n"), self.run_with(lost))

    def test_a_soak_that_cannot_begin_is_one_line_and_exit_code_1(self) -> None:
        failing = mock.patch.object(soak, "soak", side_effect=BenchmarkFailed("the proxy did not start"))
        with failing, contextlib.redirect_stderr(io.StringIO()) as errors:
            self.assertEqual(1, soak.run(1, out=io.StringIO()))
        self.assertEqual("soak: the proxy did not start\n", errors.getvalue())

    def test_a_failure_of_a_client_is_counted_and_the_soak_continues(self) -> None:
        def broken(run: ClientRun) -> None:
            raise ClientRunFailed("no answer")

        tally = Tally()
        soak._run_client(broken, mock.Mock(), tally)
        self.assertEqual(["broken: ClientRunFailed: no answer"], tally.failures)

    def test_a_short_soak_meets_every_finding_and_leaves_nothing_open(self) -> None:
        threads, lines = {*threading.enumerate()}, list[str]()
        with tempfile.TemporaryDirectory() as place:
            findings = soak.soak(width(0.3, 1.0), Scale(clients=4, interval=width(0.1, 0.5)), Path(place), lines.append)
        self.assertEqual([], [str(each) for each in findings if each.is_met is False])
        self.assertEqual(["minutes", "requests", "failures", "threads", "descriptors", "memory"], lines[0].split())
        self.assertGreaterEqual(len(lines), 3)
        self.assertLessEqual({*threading.enumerate()}, threads)
