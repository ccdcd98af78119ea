"""The benchmark's arithmetic and its table, and that each measurement yields its rows; never how fast anything is."""

import contextlib
import io
import os
import tempfile
import threading
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from deepseek_cursor_proxy.lab import benchmark
from deepseek_cursor_proxy.lab.benchmark import Row, Scale, quantile
from deepseek_cursor_proxy.lab.fake_deepseek import FakeDeepSeek
from deepseek_cursor_proxy.lab.processes import BenchmarkFailed, Server
from deepseek_cursor_proxy.reasoning_store import ReasoningStore

TINY = Scale(turns=(1, 2), prepared=2, rows=3, stored=2, asked=2, chunks=5, streams=2, bursts=2, burst=1, starts=1)


class Statistics(unittest.TestCase):
    def test_the_median_is_the_middle_or_between_the_two_in_the_middle(self) -> None:
        self.assertEqual(quantile([5, 1, 3], 0.5), 3)
        self.assertEqual(quantile([4, 1, 2, 3], 0.5), 2.5)

    def test_quantiles_lie_between_their_neighbours(self) -> None:
        samples = list(range(101))
        self.assertAlmostEqual(quantile(samples, 0.05), 5)
        self.assertAlmostEqual(quantile(samples, 0.95), 95)
        self.assertAlmostEqual(quantile([0.0, 1.0], 0.95), 0.95)
        self.assertEqual((quantile([0.0, 9.0], 0), quantile([0.0, 9.0], 1)), (0, 9))

    def test_one_sample_is_every_quantile(self) -> None:
        self.assertEqual([quantile([7.5], share) for share in (0, 0.05, 0.5, 0.95, 1)], [7.5] * 5)

    def test_all_take_turns_and_the_first_round_does_not_count(self) -> None:
        order: list[str] = []
        results = benchmark._in_turns(2, *(lambda name=name: order.append(name) or len(order) for name in "ab"))
        self.assertEqual(order, ["a", "b"] * 3)
        self.assertEqual(results, [[3, 5], [4, 6]])


class Table(unittest.TestCase):
    def test_a_row_gives_median_spread_and_note(self) -> None:
        row = str(Row("speed", "ms", [1.0, 2.0, 3.0], "so so"))
        self.assertEqual(" ".join(row.split()), "speed 2.00 ms 1.10 - 2.90 so so")

    def test_a_target_is_compared_with_the_median(self) -> None:
        self.assertTrue(str(Row("a", "ms", [1, 2, 90], at_most=2)).endswith("  target 2 ms: reached"))
        self.assertTrue(str(Row("a", "ms", [1, 3, 90], "big", at_most=2)).endswith("  big, target 2 ms: MISSED"))

    def test_what_a_machine_cannot_tell_is_a_dash(self) -> None:
        self.assertEqual(str(Row("memory", "MB", [], at_most=3)).split(), ["memory", "-", "-"])

    def test_columns_stay_in_line(self) -> None:
        rows = [Row("a", "ms", [0.001], "x"), Row("a longer name", "times", [123456.0], "x"), Row("c", "s", [], "x")]
        self.assertEqual(len({str(row).index("  x") for row in rows}), 1)

    def test_figures_have_as_many_digits_as_they_can_vouch_for(self) -> None:
        figures = [benchmark._figure(value) for value in (1234.5, 123.4, 12.34, 1.234, 0.1234, -0.5)]
        self.assertEqual(figures, ["1,234", "123", "12.3", "1.23", "0.123", "-0.500"])


class Running(unittest.TestCase):
    def run_with(self, measure: Any, out: io.StringIO) -> int:
        with patch.object(benchmark, "measure", measure):
            return benchmark.run(quick=True, out=out)

    def test_it_prints_the_machine_the_columns_and_the_rows(self) -> None:
        out = io.StringIO()
        self.assertEqual(self.run_with(lambda scale, place: (Row(f"row {n}", "s", [n]) for n in (1, 2)), out), 0)
        machine, blank, columns, *rows = out.getvalue().splitlines()
        self.assertRegex(machine, r"Python \d.* · \d+ cores · \d{4}-\d\d-\d\d · quick$")
        self.assertEqual((blank, columns.split()), ("", ["measure", "median", "p5", "-", "p95", "note"]))
        self.assertEqual([row[:5] for row in rows], ["row 1", "row 2"])

    def test_what_cannot_be_measured_is_one_line_and_exit_code_1(self) -> None:
        def measure(scale: Scale, place: Path) -> Iterator[Row]:
            yield Row("first", "s", [1])
            raise BenchmarkFailed("the proxy did not start")

        with contextlib.redirect_stderr(io.StringIO()) as errors:
            self.assertEqual(self.run_with(measure, io.StringIO()), 1)
        self.assertEqual(errors.getvalue(), "bench: the proxy did not start\n")

    def test_ctrl_c_ends_what_was_started_and_leaves_no_file(self) -> None:
        left: list[Path] = []

        def measure(scale: Scale, place: Path) -> Iterator[Row]:
            (place / "store").touch()
            try:
                yield Row("first", "s", [1])
                raise KeyboardInterrupt
            finally:
                left.append(place)

        with self.assertRaises(KeyboardInterrupt):
            self.run_with(measure, io.StringIO())
        self.assertEqual([place.exists() for place in left], [False])


class Measurements(unittest.TestCase):
    def setUp(self) -> None:
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def assert_rows(self, rows: Iterator[Row], *measures: str) -> None:
        found = list(rows)
        self.assertEqual([row.measure.strip() for row in found], list(measures))
        self.assertTrue(all(row.samples for row in found), found)

    def test_preparing_is_measured_for_every_length(self) -> None:
        names = [f"prepare {turns} cached tool turns, CPU" for turns in TINY.turns]
        self.assert_rows(benchmark.preparing(TINY, self.place), *names, "growth for twice the turns")

    def test_preparing_is_not_measured_when_the_memory_does_not_work(self) -> None:
        with patch.object(ReasoningStore, "find", return_value={}), self.assertRaises(BenchmarkFailed):
            list(benchmark.preparing(TINY, self.place))

    def test_storing_is_measured_empty_and_full(self) -> None:
        names = [f"store a turn, {rows} rows present" for rows in (0, TINY.rows)]
        self.assert_rows(benchmark.storing(TINY, self.place), *names)

    def test_the_chat_is_as_large_as_it_says(self) -> None:
        chat = benchmark._Chat(2)
        self.assertEqual({len(body) // 1000 for body in map(benchmark.encode_json, chat._tools)}, {1})
        self.assertTrue(chat.body(2).startswith(chat.body(1).partition(b'],"tools"')[0]))


class MeasurementsFromOutside(unittest.TestCase):
    """Against a fake in this process, which stands in for the direct server and for the proxy."""

    def setUp(self) -> None:
        threads = threading.active_count()
        self.addCleanup(lambda: self.assertEqual(threading.active_count(), threads))
        fake = self.enterContext(FakeDeepSeek())
        self.server = Server(fake.url, os.getpid())

    def test_every_row_has_samples(self) -> None:
        for measurement, count in ((benchmark.first_bytes, 4), (benchmark.throughput, 2)):
            rows = list(measurement(TINY, self.server, self.server))
            self.assertEqual([len(row.samples) for row in rows], [2] * count)

    def test_the_cpu_of_streams_is_measured_where_the_system_tells(self) -> None:
        *walls, cpu = benchmark.long_streams(TINY, self.server, self.server)
        self.assertEqual([len(row.samples) for row in walls], [2, 2])
        self.assertIn(len(cpu.samples), (0, 3))


if __name__ == "__main__":
    unittest.main()
