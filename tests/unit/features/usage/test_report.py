import random
from datetime import date
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.deepseek.prices import Cost, PriceList
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.features.usage.report import GROUPS, Percentiles, Period, UsageReport, make_report
from deepseek_cursor_proxy.observers.events import Result
from tests.unit.features.usage.test_ledger import NOON, LedgerTestCase, record

DAY = 24 * 3600
TODAY = date(2026, 11, 17)


def cost(amount: float, currency: str = "USD") -> Cost:
    return Cost(amount, 2 * amount, 0.0, currency, "x")


class ReportTestCase(LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.opened = self.ledger(max_age_seconds=1000.0 * DAY, max_rows=10_000)

    def add(self, days_ago: int = 0, **fields: Any) -> None:
        self.now = NOON - days_ago * DAY
        self.opened.add(record(started_at=self.now, **fields))

    def report(self, by: str = "day", days: int = 30, currency: str = "USD") -> UsageReport:
        self.opened.flush()
        with self.database.reader() as connection:
            prices = PriceList(ProxyConfig(currency=currency))
            return make_report(connection, Period.last_days(days, TODAY), by, prices)

    def names(self, by: str, **options: Any) -> list[tuple[str, int]]:
        return [(group.name, group.sums.requests) for group in self.report(by, **options).groups]


class TestReport(ReportTestCase):
    def test_groups_are_days_in_order_or_the_most_expensive_first(self) -> None:
        self.add(2, cost=cost(1.0), conversation="aaa", model="m1")
        self.add(0, cost=cost(5.0), conversation="bbb", model="m2", api="messages")
        self.add(0, cost=cost(0.5), conversation="aaa", model="m1", key="k" * 12)
        self.assertEqual([("2026-11-15", 1), ("2026-11-17", 2)], self.names("day"))
        self.assertEqual([("m2", 1), ("m1", 2)], self.names("model"))
        self.assertEqual([("0123456789ab", 2), ("k" * 12, 1)], self.names("key"))
        self.assertEqual([("messages", 1), ("chat", 2)], self.names("api"))
        self.assertEqual([("bbb", 1), ("aaa", 2)], self.names("session"))
        self.assertEqual([("2026-11-17", 2)], self.names("day", days=1))

    def test_a_key_that_got_its_name_later_is_one_line(self) -> None:
        self.add(2, key="0123456789ab", cost=cost(1.0))
        self.add(0, key="ann", cost=cost(1.0))
        self.add(0, key="ben", cost=cost(0.5))
        namespace = "0123456789ab" + "0" * 52
        with self.database.transaction() as connection:
            for name in ("keys.ann", "groups.lab"):
                connection.execute(f"INSERT INTO key_names VALUES (?, 'https://a', x'{namespace}')", (name,))
        self.assertEqual([("ann", 2), ("ben", 1)], self.names("key"))
        ann = self.report("key").groups[0]
        self.assertIsNotNone(ann.seconds)

    def test_what_another_model_answered_is_priced_at_the_model_that_was_asked_for(self) -> None:
        prices, tokens = PriceList(ProxyConfig()), Tokens(90_000, 10_000, 5_000)
        flash, pro = (prices.cost(name, tokens, NOON) for name in ("deepseek-flash", "deepseek-v4-pro"))
        assert flash is not None
        assert pro is not None
        for asked in ("deepseek-v4-pro", "DeepSeek-V4-Pro-max", "deepseek-flash-max", "claude-haiku-4-5", "", "gpt"):
            self.add(1, requested_model=asked, model="deepseek-flash", tokens=tokens, cost=flash)
        self.add(1, requested_model="deepseek-v4-pro", model="deepseek-flash", tokens=tokens, cost=None)
        self.add(1, requested_model="deepseek-v4-pro", model="deepseek-flash", tokens=tokens, cost=cost(1.0, "CNY"))
        found = self.report().switched
        self.assertEqual(2, found.requests)
        self.assertAlmostEqual(2 * flash.amount, found.cost)
        # A Monday and a Tuesday: the same hour has the same price.
        self.assertAlmostEqual(2 * pro.amount, found.asked_cost)
        self.assertAlmostEqual(2 * (pro.amount - flash.amount), self.report().as_json()["switched"]["saved"])

    def test_every_way_to_group_has_the_same_total(self) -> None:
        chance = random.Random(3)
        for number in range(200):
            self.add(
                chance.randrange(40), model=chance.choice("abc"), key=chance.choice("de") * 12,
                api=chance.choice(("chat", "responses")), conversation=chance.choice("fgh"),
                cost=chance.choice((None, cost(number / 7))), result=chance.choice((Result.COMPLETED, Result.FAILED)),
            )  # fmt: skip
        totals = [self.report(by).total for by in GROUPS]
        for total in totals:
            for one, other in zip(total.sums, totals[0].sums, strict=True):
                self.assertAlmostEqual(one, other)
            self.assertEqual((totals[0].seconds, totals[0].first_token_seconds), total[2:])
        self.assertLess(totals[0].sums.requests, 200)
        self.assertGreater(totals[0].sums.requests, 100)

    def test_sums_are_there_when_their_rows_are_gone(self) -> None:
        self.add(20, conversation="aaa")
        self.add(0, conversation="bbb")
        self.report()
        with self.database.transaction() as connection:
            connection.execute("DELETE FROM usage WHERE session = 'aaa'")
        report = self.report()
        self.assertEqual((2, 0.5), (report.total.sums.requests, report.total.cost))
        self.assertIsNone(report.groups[0].seconds)
        self.assertEqual([("bbb", 1)], self.names("session"))

    def test_an_unknown_cost_is_never_0_and_never_in_the_sum(self) -> None:
        self.add(model="known", cost=cost(1.0))
        self.add(model="mixed", cost=cost(2.0))
        self.add(model="mixed", cost=None)
        self.add(model="unknown", cost=None)
        found = {group.name: (group.cost, group.sums.unknown_costs) for group in self.report("model").groups}
        self.assertEqual({"known": (1.0, 0), "mixed": (2.0, 1), "unknown": (None, 1)}, found)

    def test_amounts_of_another_currency_are_unknown(self) -> None:
        self.add(conversation="aaa", cost=cost(1.0, "USD"))
        self.add(conversation="aaa", cost=cost(7.0, "CNY"))
        for by in ("day", "session"):
            self.assertEqual((1.0, 1), (self.report(by).total.cost, self.report(by).total.sums.unknown_costs))
            self.assertEqual(7.0, self.report(by, currency="CNY").total.cost)

    def test_the_time_of_completed_requests_has_percentiles(self) -> None:
        self.assertIsNone(Percentiles.of([]))
        self.assertEqual(Percentiles(3.0, 3.0), Percentiles.of([3.0]))
        self.assertEqual(Percentiles(50, 95), Percentiles.of(range(101)))
        self.add(result=Result.FAILED)
        self.assertIsNone(self.report().total.seconds)
        self.add()
        self.assertEqual((Percentiles(2.5, 2.5), Percentiles(0.5, 0.5)), self.report().total[2:])

    def test_the_json_has_every_field_of_the_admin_api(self) -> None:
        self.add(model="m", cost=cost(0.25))
        found = self.report("model").as_json()
        fields = {
            "requests": 1, "failed": 0, "hit_tokens": 90, "miss_tokens": 10, "output_tokens": 5, "thinking_tokens": 3,
            "searches": 1, "cost": 0.25, "unknown_cost_requests": 0, "saved": 0.5, "divergence_cost": 0.0,
        }  # fmt: skip
        times = {"seconds": {"p50": 2.5, "p95": 2.5}, "first_token_seconds": {"p50": 0.5, "p95": 0.5}}
        self.assertEqual(
            {
                "since": "2026-10-19", "until": "2026-11-17", "by": "model", "currency": "USD", "estimate": True,
                "groups": [{"name": "m", **fields, **times}], "total": {**fields, **times},
                "days": [{"day": "2026-11-17", "models": {"m": fields}}],
                "switched": {"requests": 0, "cost": 0.0, "asked_cost": 0.0, "saved": 0.0},
            },
            found,
        )  # fmt: skip
