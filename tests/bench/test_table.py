"""The benchmark's arithmetic, and how its rows are written."""

import json
import unittest

from tests.bench.table import DIRECT, OURS, Figure, Row, Table, exponent, format_value, quantile


class TestStatistics(unittest.TestCase):
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

    def test_an_exponent_is_the_power_with_which_something_grows(self) -> None:
        for power in (0.0, 0.5, 1.0, 2.09):
            points = {float(turns): 3 * turns**power for turns in (10, 50, 200, 800)}
            self.assertAlmostEqual(exponent(points) or 0.0, power)

    def test_one_point_has_no_exponent(self) -> None:
        self.assertIsNone(exponent({}))
        self.assertIsNone(exponent({10.0: 3.0}))

    def test_without_samples_there_is_no_figure(self) -> None:
        self.assertEqual((Figure.of([]), Figure.mean([]), Figure.single(None)), (None, None, None))

    def test_a_mean_includes_rare_samples(self) -> None:
        figure = Figure.mean([1.0, 1.0, 7.0])
        assert figure is not None
        self.assertEqual(figure.value, 3.0)


class TestRows(unittest.TestCase):
    row = Row("speed", "ms", {DIRECT: Figure.of([1.0, 2.0, 3.0]), OURS: Figure.of([4.0]), "other": Figure.of([8.0])})

    def cells(self, line: str) -> list[str]:
        return [cell.strip() for cell in line.split("  ") if cell.strip()]

    def test_a_line_has_medians_and_spread(self) -> None:
        self.assertEqual(self.cells(Table().line(self.row)), ["speed, ms", "2.00 (1.10 - 2.90)", "4.00"])

    def test_a_line_beside_other_proxies_has_the_ratio(self) -> None:
        table = Table(["other", "gone"])
        self.assertEqual(
            self.cells(table.heading())[1:], ["direct", "this proxy", "other", "gone", "ours / other", "ours / gone"]
        )
        line = self.cells(table.line(self.row))
        self.assertEqual(line[2:], ["4.00", "8.00", "-", "0.500", "-"])

    def test_a_quantile_far_out_has_no_spread(self) -> None:
        self.assertEqual(str(Figure.of([1.0, 2.0, 3.0], 1.0)), "3.00")

    def test_columns_stay_in_line(self) -> None:
        table = Table(["other"])
        rows = [self.row, Row("a longer name than usual", "requests/s", {"other": Figure.of([1234567.0, 1e6])})]
        lines = [table.heading(), *(table.line(row) + "?" * (row is not self.row) for row in rows)]
        self.assertEqual(len({len(line.rstrip("?")) for line in lines}), 1)

    def test_wide_figures_and_long_names_do_not_run_into_each_other(self) -> None:
        name = "a proxy with a name that is longer than a column"
        table = Table([name])
        wide = Figure.of([123456.0, 654321.0])
        row = Row("m" * 70, "requests/s", {DIRECT: wide, OURS: wide, name: wide})
        self.assertEqual(self.cells(table.heading())[1:], ["direct", "this proxy", name, f"ours / {name}"])
        measure, *figures, ratio = self.cells(table.line(row))
        self.assertEqual((f"{'m' * 70}, requests/s", "1.00"), (measure, ratio))
        self.assertEqual([str(wide)] * 3, figures)

    def test_a_missing_figure_has_no_ratio(self) -> None:
        self.assertEqual(self.row.ratio("other"), 0.5)
        self.assertIsNone(self.row.ratio("gone"))
        self.assertIsNone(Row("failed", "", {OURS: Figure.of([1.0]), "other": Figure.of([0.0])}).ratio("other"))
        self.assertIsNone(Row("failed", "", {"other": Figure.of([1.0])}).ratio("other"))

    def test_json_has_the_quantiles_behind_every_figure(self) -> None:
        told = json.loads(json.dumps(self.row.as_json(["other", "gone"])))
        self.assertEqual((told["measure"], told["unit"]), ("speed", "ms"))
        self.assertEqual(told["ratios"], {"other": 0.5, "gone": None})
        direct = told["figures"]["direct"]
        self.assertEqual((direct["value"], direct["samples"], direct["p50"]), (2.0, 3, 2.0))
        self.assertLess(direct["p5"], direct["p95"])
        self.assertNotIn("ratios", self.row.as_json([]))
        self.assertEqual(Row("  memory", "MB", {OURS: None}).as_json([])["figures"], {OURS: None})

    def test_figures_have_their_significant_digits(self) -> None:
        values = (2158687.0, 1234.5, 123.4, 12.34, 1.234, 0.1234, -0.5, 0.0123, 0.00001, 0)
        self.assertEqual(
            [format_value(value) for value in values],
            ["2.16M", "1,234", "123", "12.3", "1.23", "0.123", "-0.500", "0.012", "1.0e-05", "0"],
        )
