"""Prometheus' text format, byte by byte."""

import unittest

from deepseek_cursor_proxy.features.dashboard.metrics import Histogram, Metric, render


class RenderTest(unittest.TestCase):
    def test_a_counter_has_a_line_for_every_combination_of_labels(self) -> None:
        counter = Metric("n_total", "counter", "Help.", "model", "kind")
        counter.add(1, "a", "x")
        counter.add(2.5, "a", "x")
        counter.add(0, "b", "x")
        expected = '# HELP n_total Help.\n# TYPE n_total counter\nn_total{model="a",kind="x"} 3.5\n'
        expected += 'n_total{model="b",kind="x"} 0\n'
        self.assertEqual(expected.encode(), render([counter]))

    def test_a_histogram_adds_up_and_counts_a_value_on_a_bound_below_it(self) -> None:
        histogram = Histogram("s", "Help.", (0.5, 1))
        for value in (0.5, 0.75, None, 1, 7):
            histogram.observe(value)
        lines = render([histogram]).decode().splitlines()[2:]
        self.assertEqual(
            ['s_bucket{le="0.5"} 1', 's_bucket{le="1"} 3', 's_bucket{le="+Inf"} 4', "s_sum 9.25", "s_count 4"], lines
        )

    def test_labels_are_escaped_and_cannot_forge_a_line(self) -> None:
        gauge = Metric("n", "gauge", "Help.", "model")
        gauge.add(1, 'a"} 1\nforged 2\\')
        text = render([gauge]).decode()
        self.assertEqual(r'n{model="a\"} 1\nforged 2\\"} 1', text.splitlines()[2])

    def test_a_family_without_samples_is_left_out(self) -> None:
        self.assertEqual(b"", render([Metric("n", "gauge", "Help.", "a")]))
