"""Each measure yields its rows, and a run prints them and leaves nothing behind; never how fast anything is."""

import contextlib
import io
import os
import signal
import sys
import tempfile
import unittest
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

from tests import bench
from tests.bench import requests
from tests.bench.__main__ import main
from tests.bench.load_clients import Client, get
from tests.bench.load_upstream import LoadUpstream
from tests.bench.machine import CpuPinning
from tests.bench.others import OtherCommand
from tests.bench.rounds import Contest, Target, added_times, intervals, start_proxy
from tests.bench.scale import QUICK, Scale
from tests.bench.table import DIRECT, OURS, Figure, Row, Table, exponent, format_value, quantile
from tests.support.processes import BenchmarkFailed, Server
from tests.support.systems import ROOT

TINY = Scale(
    **dict.fromkeys(("paced_rounds", "crowd_rounds", "turns_measured", "starts"), 1),
    **dict.fromkeys(("streams", "stored_turns", "clients", "bursts"), 2),
    requests=4,
    paced_chunks=3,
    chunks=5,
    crowds=(1, 2),
    crowd_seconds=0.1,
    turns=(1, 2),
    burst_seconds=0.01,
)
CROWD = ("{} streams x 20 chunks/s: delivered", "failed streams", "lag p99", "CPU per chunk (mean)", "memory meanwhile")
MEASURES = (
    *("small request, keep-alive: answer p50", "added p50", "added p99", "CPU per request (mean)"),
    *("first stream event: added p50", "CPU per stream of 8 chunks (mean)"),
    *("paced 200 chunks/s: chunk delay p50", "added p50", "CPU per chunk (mean)"),
    *("unpaced stream of 5 chunks", "CPU per 10,000 chunks (mean)"),
    *(name.format(streams) for streams in TINY.crowds for name in CROWD),
    *("2 keep-alive clients: small requests", "CPU per request (mean)"),
    *("storing a tool-call turn: added p50", "CPU per turn (mean)"),
    *(f"chat of {turns} tool turns: CPU per request (mean)" for turns in TINY.turns),
    "growth exponent, 1 to 2 turns",
    *("warm start to first /v1/models answer", "CPU until then", "idle memory"),
)


class TestMeasures(unittest.TestCase):
    def setUp(self) -> None:
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        upstream = self.enterContext(LoadUpstream())
        self.upstream = Server(upstream.url, os.getpid())
        self.direct = Target(DIRECT, upstream.url, (self.upstream,))
        # It restores nothing, and nothing is known of its processes.
        self.other = Target("other", upstream.url)
        self.enterContext(patch.object(requests, "_IDLE_SECONDS", 0.0))

    def test_every_measure_yields_its_rows_beside_a_proxy_that_restores_nothing(self) -> None:
        with start_proxy(CpuPinning(), self.upstream, self.place / "proxy") as ours:
            contest = Contest(self.direct, ours, (self.other,))
            rows = list(bench.measure(contest, TINY, self.place))
        self.assertEqual(list(MEASURES), [row.measure.strip() for row in rows])
        for row in rows:
            if "CPU" not in row.measure and "memory" not in row.measure and "exponent" not in row.measure:
                self.assertTrue(row.figures.get(OURS), row)
                self.assertTrue("start" in row.measure or row.figures.get("other"), row)
            if row.measure.strip() == "failed streams":
                self.assertEqual({0}, {figure.value for figure in row.figures.values() if figure})
        lost = "cached tool turns: only 0 of 1 turns reached DeepSeek with their reasoning"
        self.assertEqual([f"other: {lost}"], contest.notes)
        with self.assertRaisesRegex(BenchmarkFailed, "only 0 of 1 turns"):
            list(bench.growing_chats(Contest(self.direct, Target(OURS, self.direct.url)), TINY))

    def test_another_proxy_that_does_not_answer_is_noted(self) -> None:
        silent = Target("other", "http://127.0.0.1:9")
        contest = Contest(self.direct, self.direct, (silent,))
        failed = next(row for row in bench.crowds(contest, TINY) if "failed" in row.measure)
        self.assertEqual(1, (failed.figures["other"] or Figure(0, ())).value)
        self.assertIn("other: 1 streams: 1 failed, 1 with: ", contest.notes[0])

    def test_another_proxy_is_started_by_its_command_and_ended(self) -> None:
        text = f"{sys.executable} -m deepseek_cursor_proxy --port {{port}} --base-url {{upstream}}"
        with OtherCommand("other", text, str(ROOT)).running(self.upstream, self.place, CpuPinning()) as other:
            with closing(Client(other.url)) as client:
                client.ask(get(other.url, "/models"))
        with self.assertRaises(OSError):
            Client(other.url).ask(b"")
        missing = OtherCommand("none", f"{sys.executable} -m no_such_module_here {{port}}{{upstream}}")
        with self.assertRaisesRegex(BenchmarkFailed, "none did not start: .*no_such_module_here"):
            with missing.running(self.upstream, self.place, CpuPinning()):
                self.fail("it did not start")


class TestRun(unittest.TestCase):
    """What a run prints and how it ends; the proxy and its DeepSeek are started for real."""

    def setUp(self) -> None:
        self.seen: list[tuple[Path, Contest]] = []

    def measure(self, contest: Contest, scale: Scale, place: Path) -> Iterator[Row]:
        self.seen.append((place, contest))
        self.assertEqual(QUICK.requests, scale.requests)
        yield Row("first", "s", {OURS: Figure.of([1])})
        contest.notes.append("a note")

    def assert_nothing_is_left(self) -> None:
        [(place, contest)] = self.seen
        self.assertFalse(place.exists())
        for target in contest.all:
            self.assertIsNone(target.cpu_seconds())
            with self.assertRaises(OSError):
                Client(target.url).ask(b"")

    def test_the_benchmark_prints_machine_columns_rows_and_notes(self) -> None:
        with patch.object(bench, "measure", self.measure), contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(0, main(["--quick"]))
        machine, blank, columns, row, second_blank, note = out.getvalue().splitlines()
        self.assertEqual(("", "", "a note"), (blank, second_blank, note))
        self.assertRegex(machine, r"Python \d.* · \d+ cores · (not )?pinned.* · \d{4}-\d\d-\d\d · quick$")
        self.assertEqual(["direct", "this", "proxy"], columns.split()[-3:])
        self.assertEqual("first", row[:5])
        self.assert_nothing_is_left()

    def test_a_benchmark_that_is_told_to_end_leaves_no_process_file_or_pinning(self) -> None:
        before = None if not hasattr(os, "sched_getaffinity") else os.sched_getaffinity(0)

        def measure(contest: Contest, scale: Scale, place: Path) -> Iterator[Row]:
            yield from self.measure(contest, scale, place)
            signal.raise_signal(signal.SIGTERM)

        with patch.object(bench, "measure", measure), self.assertRaises(SystemExit):
            bench.run(quick=True, out=io.StringIO())
        self.assert_nothing_is_left()
        self.assertEqual(before, before and os.sched_getaffinity(0))

    def test_a_failure_is_one_line_and_exit_code_1(self) -> None:
        failure = BenchmarkFailed("the proxy\ndid not answer")
        with patch.object(bench, "_contest", side_effect=failure), contextlib.redirect_stderr(io.StringIO()) as errors:
            self.assertEqual(1, bench.run(quick=True, out=io.StringIO()))
        self.assertEqual("bench: the proxy did not answer\n", errors.getvalue())

    def test_crowds_without_enough_descriptors_are_left_out_and_noted(self) -> None:
        """macOS allows 256 by default."""
        with patch.object(bench, "raise_descriptors", return_value=256):
            scale, [note] = bench._fit_to_limits(QUICK)
        self.assertEqual((100,), scale.crowds)
        self.assertIn("400 streams: not measured, a process may open 256 files here", note)

    def test_a_wrong_flag_is_refused_with_what_is_wrong(self) -> None:
        for flags, words in (
            (["--command", "other"], "is not NAME=COMMAND"),
            (["--command", "other=run --port 1"], "is not NAME=COMMAND"),
            (["--command", f"{OURS}=x {{port}}"], "the same name"),
        ):
            with self.subTest(flags), contextlib.redirect_stderr(io.StringIO()) as errors:
                with self.assertRaises(SystemExit):
                    main(flags)
                self.assertIn(words, errors.getvalue())


class TestRounds(unittest.TestCase):
    def contest(self, patience: float = 60.0) -> Contest:
        return Contest(Target(DIRECT, ""), Target(OURS, ""), (Target("other", ""),), patience)

    def test_every_round_asks_each_target_and_the_first_does_not_count(self) -> None:
        order: list[str] = []
        rounds = self.contest().run_rounds("it", 2, lambda target: order.append(target.name) or len(order))
        self.assertEqual([DIRECT, OURS, "other"] * 3, order)
        self.assertEqual({DIRECT: [4, 7], OURS: [5, 8], "other": [6, 9]}, rounds.results)
        self.assertEqual({OURS: [1, 1], "other": [2, 2]}, added_times(rounds.results))
        self.assertEqual([1, 1], self.contest(-1).run_rounds("it", 2, lambda _: 1, timed=True).results[OURS])
        self.assertEqual([1], self.contest(-1).run_rounds("it", 9, lambda _: 1).results[OURS])

    def test_another_proxy_may_fail_and_the_direct_way_and_this_proxy_may_not(self) -> None:
        def ask(target: Target) -> int:
            if target.name == failing:
                raise ConnectionRefusedError("nobody there")
            return 1

        for failing in (DIRECT, OURS):
            with self.assertRaisesRegex(BenchmarkFailed, f"it: {failing}: nobody there"):
                self.contest().run_rounds("it", 1, ask)
        failing, some = "other", self.contest()
        self.assertEqual({DIRECT, OURS}, set(some.run_rounds("it", 1, ask).results))
        self.assertEqual(["other: it: nobody there"], some.notes)

    def test_intervals_lie_between_two_readings_of_a_clock(self) -> None:
        self.assertEqual([2.0, 3.0], intervals([1.0, 3.0, 6.0]))
        self.assertEqual([], intervals([1.0, None, 6.0]))


class TestTable(unittest.TestCase):
    def test_the_arithmetic_of_samples(self) -> None:
        self.assertEqual([3, 2.5, 7], [quantile([5, 1, 3], 0.5), quantile([4, 1, 2, 3], 0.5), quantile([7], 0.95)])
        self.assertAlmostEqual(0.95, quantile([0.0, 1.0], 0.95))
        self.assertAlmostEqual(2.09, exponent({turns: 3 * turns**2.09 for turns in (10.0, 50.0, 200.0)}) or 0)
        self.assertEqual([None] * 4, [exponent({10.0: 3.0}), Figure.of([]), Figure.mean([]), Figure.single(None)])
        self.assertEqual(3.0, (Figure.mean([1.0, 1.0, 7.0]) or Figure(0, ())).value)

    def test_a_line_has_medians_with_their_spread_and_ratios(self) -> None:
        row = Row("speed", "ms", {DIRECT: Figure.of([1, 2, 3]), OURS: Figure.of([4]), "other": Figure.of([8])})
        table = Table(["other", "gone"])
        cells = [[cell.strip() for cell in line.split("  ") if cell] for line in (table.heading(), table.line(row))]
        self.assertEqual(["direct", "this proxy", "other", "gone", "ours / other", "ours / gone"], cells[0][1:])
        self.assertEqual(["speed, ms", "2.00 (1.10 - 2.90)", "4.00", "8.00", "-", "0.500", "-"], cells[1])
        self.assertIsNone(Row("failed", "", {OURS: Figure.of([1]), "other": Figure.of([0])}).ratio("other"))

    def test_figures_have_their_significant_digits(self) -> None:
        values = (2158687.0, 1234.5, 12.34, 1.234, 0.1234, 0.0123, 0.00001, 0)
        expected = ["2.16M", "1,234", "12.3", "1.23", "0.123", "0.012", "1.0e-05", "0"]
        self.assertEqual(expected, [format_value(value) for value in values])
