import unittest
from typing import Any

from deepseek_cursor_proxy.deepseek.prices import Cost
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.features.dashboard.metrics import Histogram, Metric, Statistics, render
from deepseek_cursor_proxy.features.request_log.feature import RequestRecord, TurnCounts
from deepseek_cursor_proxy.features.usage.ledger import sum_by_day
from deepseek_cursor_proxy.observers.events import RequestFacts, Result, Timing


def record(model: str = "m", result: Result = Result.COMPLETED, **more: Any) -> RequestRecord:
    facts = RequestFacts(1, 0.0, "chat", more.pop("key", "0123456789ab"), more.pop("requested_model", ""), model, True)
    return RequestRecord(facts, result, 200, None, more.pop("timing", Timing(1.0, 0.5, 0.0, 0.0)), **more)


class StatisticsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 6000.0
        self.statistics = Statistics(lambda: self.now)

    def add(self, each: RequestRecord) -> None:
        self.statistics.add(each)

    def counted(self, metric: Metric) -> list[str]:
        return [line for line in self.lines(metric) if not line.endswith(" 0")]

    def lines(self, metric: Metric) -> list[str]:
        return [line.replace(metric.name, "x") for line in render([metric]).decode().splitlines()[2:]]

    def test_what_has_known_labels_begins_at_0_so_that_the_first_event_is_an_increase(self) -> None:
        for name, label, values in (
            ("turns", "source", ("store", "client", "empty", "missing")),
            ("divergences", "where", ("model", "effort", "thinking", "tools", "system", "message")),
            ("repairs", "kind", ("calls", "empty")),
            ("retries", "reason", ("dropped", "http_429", "http_500", "http_502", "http_503", "http_504")),
        ):
            lines = self.lines(getattr(self.statistics, name))
            self.assertEqual([f'x{{{label}="{value}"}} 0' for value in values], lines)
        self.assertEqual(["x 0"], self.lines(self.statistics.recoveries))
        self.assertIn("x_count 0", self.lines(self.statistics.queue_seconds))
        self.add(record())
        outcomes = {"completed": 1, "failed": 0, "client_left": 0, "refused": 0, "passed_through": 0}
        expected = [f'x{{api="chat",model="m",outcome="{outcome}"}} {count}' for outcome, count in outcomes.items()]
        self.assertEqual(expected, self.lines(self.statistics.requests))

    def test_a_minute_counts_as_failed_what_the_ledger_does(self) -> None:
        for result in Result:
            self.add(record(result=result))
        sums = sum_by_day([record(result=result) for result in Result]).values()
        [minute] = [each for each in self.statistics.minutes() if each.requests]
        self.assertEqual([(len(Result), 2)], [(each.requests, each.failed) for each in sums])
        self.assertEqual((len(Result), 2), (minute.requests, minute.failed))

    def test_a_minute_counts_its_clients_and_callers_cannot_name_many(self) -> None:
        for name in ["Codex", "Codex", "", *(f"made-up-{number}" for number in range(40)), "Codex"]:
            each = record()
            self.add(each._replace(facts=each.facts._replace(client=name)))
        clients = self.statistics.minutes()[-1].clients
        self.assertEqual(3, clients["Codex"])
        self.assertEqual((44, 12), (sum(clients.values()), len(clients)))

    def test_a_caller_that_no_upstream_has_accepted_makes_no_label(self) -> None:
        for number in range(100):
            self.add(record(f"made-up-{number}", Result.FAILED, key=""))
        self.add(record("the-owners"))
        self.assertEqual(
            [
                'x{api="chat",model="none",outcome="failed"} 100',
                'x{api="chat",model="the-owners",outcome="completed"} 1',
            ],
            self.counted(self.statistics.requests),
        )

    def test_a_request_that_was_not_understood_makes_no_label(self) -> None:
        self.add(record("", Result.REFUSED, requested_model="any text"))
        self.add(record("", Result.PASSED_THROUGH, requested_model="gpt-5", upstream="api.example"))
        self.assertEqual(
            [
                'x{api="chat",model="none",outcome="refused"} 1',
                'x{api="chat",model="gpt-5",outcome="passed_through"} 1',
            ],
            self.counted(self.statistics.requests),
        )

    def test_the_kinds_of_tokens_do_not_overlap(self) -> None:
        self.add(record(tokens=Tokens(10, 20, 30, 12)))
        kinds = {"hit": 10, "miss": 20, "output": 18, "thinking": 12}
        self.assertEqual(
            [f'x{{model="m",kind="{kind}"}} {number}' for kind, number in kinds.items()],
            self.lines(self.statistics.tokens),
        )

    def test_the_fifty_first_model_and_all_after_it_are_one(self) -> None:
        for number in range(200):
            self.add(record(f"model-{number}"))
        lines = self.lines(self.statistics.requests)
        self.assertEqual(51 * len(Result), len(lines))
        self.assertEqual('x{api="chat",model="other",outcome="completed"} 150', lines[-len(Result)])

    def test_what_happened_to_the_history_counts(self) -> None:
        self.add(record(turns=TurnCounts(3, 2, 1, 3, 5), divergence="tools changed (added grep), message 12 …"))
        self.add(record(turns=TurnCounts(missing=1)))
        self.add(record(divergence="system prompt changed, message 3 changed (user content)"))
        self.add(record(divergence="message 3 changed (user content)"))
        sources = {"store": 3, "client": 2, "empty": 1, "missing": 4}
        self.assertEqual(
            [f'x{{source="{each}"}} {sources[each]}' for each in sources], self.lines(self.statistics.turns)
        )
        self.assertEqual(["x 1"], self.lines(self.statistics.recoveries))
        counts = {"model": 0, "effort": 0, "thinking": 0, "tools": 1, "system": 1, "message": 1}
        expected = [f'x{{where="{cause}"}} {count}' for cause, count in counts.items()]
        self.assertEqual(expected, self.lines(self.statistics.divergences))

    def test_costs_add_up_by_currency_and_model_and_unknown_ones_do_not_count_as_0(self) -> None:
        for amount, currency in ((0.5, "USD"), (0.25, "USD"), (3.0, "CNY")):
            self.add(record(cost=Cost(amount, 0.0, 0.0, currency, "2026-01-01")))
        self.add(record("unknown"))
        self.assertEqual(['x{model="m"} 0.75'], self.lines(self.statistics.costs["USD"]))
        self.assertEqual(['x{model="m"} 3'], self.lines(self.statistics.costs["CNY"]))
        self.assertEqual(3.75, self.statistics.minutes()[-1].cost)
        self.now += 60
        self.add(record("unknown"))
        self.assertIsNone(self.statistics.minutes()[-1].cost)

    def test_retries_count_by_what_had_failed(self) -> None:
        self.add(record(retry_reasons=("http_429", "dropped", "http_429")))
        counts = {"dropped": 1, "http_429": 2, "http_500": 0, "http_502": 0, "http_503": 0, "http_504": 0}
        expected = [f'x{{reason="{reason}"}} {count}' for reason, count in counts.items()]
        self.assertEqual(expected, self.lines(self.statistics.retries))

    def test_the_last_hour_has_sixty_minutes_with_gaps_and_forgets_older_ones(self) -> None:
        self.add(record(tokens=Tokens(1, 2, 3)))
        self.now += 2 * 60
        self.add(record(result=Result.FAILED))
        minutes = self.statistics.minutes()
        self.assertEqual([6120 - 60 * back for back in range(59, -1, -1)], [each.minute for each in minutes])
        self.assertEqual([1, 0, 1], [each.requests for each in minutes[-3:]])
        self.assertEqual([0, 0, 1], [each.failed for each in minutes[-3:]])
        self.assertEqual(3, minutes[-3].output_tokens)
        self.now += 58 * 60
        self.assertEqual(1, sum(each.requests for each in self.statistics.minutes()))

    def test_a_minute_is_as_busy_as_requests_ran_in_it_also_those_in_flight(self) -> None:
        self.now = 6030
        self.add(record(timing=Timing(150.0)))
        for ages, wanted in (((), [0, 60, 60, 30]), ((90.0, 10.0), [0, 60, 120, 70]), ((7200.0,), [60, 120, 120, 60])):
            self.assertEqual(wanted, [each.busy_seconds for each in self.statistics.minutes(ages)[-4:]])


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
