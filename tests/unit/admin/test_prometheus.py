"""Prometheus' text format, byte by byte."""

import unittest

from deepseek_cursor_proxy.admin.prometheus import Histogram, Metric, render, wants_openmetrics


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
        histogram.observe((0.5, 0.75, 1, 7))
        lines = render([histogram]).decode().splitlines()[2:]
        self.assertEqual(
            ['s_bucket{le="0.5"} 1', 's_bucket{le="1"} 3', 's_bucket{le="+Inf"} 4', "s_sum 9.25", "s_count 4"], lines
        )

    def test_labels_are_escaped_and_cannot_forge_a_line(self) -> None:
        gauge = Metric("n", "gauge", "Help.", "model")
        gauge.add(1, 'a"} 1\nforged 2\\')
        text = render([gauge]).decode()
        self.assertEqual(r'n{model="a\"} 1\nforged 2\\"} 1', text.splitlines()[2])

    def test_openmetrics_has_the_suffix_of_a_counter_in_samples_alone_and_bounds_with_a_point(self) -> None:
        histogram = Histogram("s", "Help.", (0.5, 1))
        counter, gauge = Metric("n_total", "counter", "Help.", "a"), Metric("g_total", "gauge", "Help.")
        counter.add(3, "x")
        gauge.add(1.5)
        self.assertEqual(
            '# HELP n Help.\n# TYPE n counter\nn_total{a="x"} 3\n# HELP s Help.\n# TYPE s histogram\n'
            's_bucket{le="0.5"} 0\ns_bucket{le="1.0"} 0\ns_bucket{le="+Inf"} 0\ns_sum 0\ns_count 0\n'
            "# HELP g_total Help.\n# TYPE g_total gauge\ng_total 1.5\n",
            render([counter, histogram, gauge], openmetrics=True).decode(),
        )

    def test_openmetrics_is_written_for_those_who_prefer_it(self) -> None:
        prometheus = (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.4"
        )
        for accept, expected in (
            (prometheus + ",*/*;q=0.2", True),
            ("application/openmetrics-text", True),
            ("Application/OpenMetrics-Text ; Version=1.0.0", True),
            ("text/plain, application/openmetrics-text", True),
            ("text/plain, application/openmetrics-text;q=0.9", False),
            ("application/openmetrics-text;q=0", False),
            ("application/openmetrics-text;version=2.0.0", False),
            ("application/openmetrics-text;q=x", False),
            ("text/html,*/*", False),
            ("", False),
            (",;,=;q", False),
        ):
            with self.subTest(accept):
                self.assertEqual(expected, wants_openmetrics(accept))

    def test_a_family_without_samples_is_left_out(self) -> None:
        self.assertEqual(b"", render([Metric("n", "gauge", "Help.", "a")]))
