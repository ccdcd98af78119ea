import unittest
from datetime import UTC, date, datetime, timedelta
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.deepseek.model_names import KNOWN_MODELS
from deepseek_cursor_proxy.deepseek.prices import STEPS, Cost, PriceList, add_costs, format_amount, is_peak
from deepseek_cursor_proxy.deepseek.usage import Tokens

# A Tuesday; 02:00 UTC is 10:00 in Beijing.
PEAK, OFF_PEAK = datetime(2026, 11, 17, 2, tzinfo=UTC), datetime(2026, 11, 17, 12, tzinfo=UTC)
MILLION = Tokens(1_000_000, 1_000_000, 1_000_000)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def price_list(currency: str = "USD", **prices: Any) -> PriceList:
    return PriceList(ProxyConfig(currency=currency, prices=prices))


def amount(prices: PriceList, model: str, moment: datetime = OFF_PEAK, tokens: Tokens = MILLION, **details: Any) -> Any:
    cost = prices.cost(model, tokens, moment.timestamp(), **details)
    return round(cost.amount, 9) if cost is not None else None


class TestPeakHours(unittest.TestCase):
    def test_the_borders_of_the_peak_are_those_of_beijings_clock(self) -> None:
        for text, expected in (
            ("2026-11-17T00:59:59.999999", False),
            ("2026-11-17T01:00:00", True),
            ("2026-11-17T03:59:59.999999", True),
            ("2026-11-17T04:00:00", False),
            ("2026-11-17T05:59:59.999999", False),
            ("2026-11-17T06:00:00", True),
            ("2026-11-17T09:59:59.999999", True),
            ("2026-11-17T10:00:00", False),
            # Friday, Saturday, Sunday, Monday.
            ("2026-11-20T09:30:00", True),
            ("2026-11-21T02:00:00", False),
            ("2026-11-22T07:00:00", False),
            ("2026-11-23T01:00:00", True),
            # Over the end of a year: Thursday, a holiday, and the Monday after it.
            ("2026-12-31T09:59:00", True),
            ("2027-01-01T01:30:00", False),
            ("2027-01-04T01:30:00", True),
            # A leap day, a Tuesday.
            ("2028-02-29T02:00:00", True),
        ):
            self.assertEqual(expected, is_peak(utc(text)), text)

    def test_holidays_are_off_peak_all_day_and_the_days_around_them_are_not(self) -> None:
        for text, expected in (
            ("2026-09-30T02:00:00", True),
            ("2026-10-01T02:00:00", False),
            ("2026-10-07T09:59:00", False),
            ("2026-10-08T01:00:00", True),
            # A Saturday on which China works for it stays off-peak.
            ("2026-10-10T02:00:00", False),
            ("2026-02-13T02:00:00", True),
            ("2026-02-16T02:00:00", False),
            ("2026-02-23T02:00:00", False),
            ("2026-02-24T02:00:00", True),
            ("2027-02-05T02:00:00", False),
            ("2027-02-08T02:00:00", False),
        ):
            self.assertEqual(expected, is_peak(utc(text)), text)
        self.assertFalse(is_peak(PEAK, {date(2026, 11, 17)}))
        self.assertTrue(is_peak(PEAK, {date(2026, 11, 18)}))

    def test_a_working_week_has_35_peak_hours_whatever_the_time_zone_of_the_moment(self) -> None:
        monday = utc("2026-11-16T00:00:00")
        hours = [monday + timedelta(hours=number) for number in range(7 * 24)]
        self.assertEqual(35, sum(map(is_peak, hours)))
        for moment in hours:
            elsewhere = moment.astimezone(tz=datetime.strptime("-0930", "%z").tzinfo)
            self.assertEqual(is_peak(moment), is_peak(elsewhere))


class TestBuiltIn(unittest.TestCase):
    def test_a_million_tokens_of_each_kind_cost_what_deepseek_says(self) -> None:
        kinds = (Tokens(1_000_000, 0, 0), Tokens(0, 1_000_000, 0), Tokens(0, 0, 1_000_000))
        for currency, model, moment, expected in (
            ("USD", "deepseek-flash", OFF_PEAK, (0.003, 0.15, 0.60)),
            ("USD", "deepseek-flash", PEAK, (0.006, 0.30, 1.20)), ("CNY", "deepseek-flash", OFF_PEAK, (0.02, 1, 4)),
            ("CNY", "deepseek-flash", PEAK, (0.04, 2, 8)), ("USD", "deepseek-v4-pro", OFF_PEAK, (0.022, 0.66, 1.98)),
            ("USD", "deepseek-v4-pro", PEAK, (0.044, 1.32, 3.96)),
            ("CNY", "deepseek-v4-pro", OFF_PEAK, (0.15, 4.5, 13.5)), ("CNY", "deepseek-v4-pro", PEAK, (0.30, 9, 27)),
        ):  # fmt: skip
            with self.subTest(model, currency=currency, moment=moment):
                prices = price_list(currency)
                self.assertEqual(expected, tuple(amount(prices, model, moment, tokens) for tokens in kinds))

    def test_every_model_of_deepseek_has_a_price_and_older_names_cost_what_flash_does(self) -> None:
        prices = price_list()
        for model in KNOWN_MODELS:
            self.assertIsNotNone(amount(prices, model), model)
        self.assertEqual(amount(prices, "deepseek-flash"), amount(prices, "deepseek-v4-flash"))

    def test_what_is_not_known_is_unknown_and_never_0(self) -> None:
        prices = price_list()
        for model in ("gpt-5", "deepseek/deepseek-v4-pro", "", "DeepSeek-Flash", "deepseek-flash "):
            self.assertIsNone(amount(prices, model), model)
        self.assertIsNone(amount(prices, "deepseek-flash", is_deepseek=False))
        # Before the table begins.
        self.assertIsNone(amount(prices, "deepseek-flash", utc("2026-09-10T03:59:59")))
        self.assertIsNotNone(amount(prices, "deepseek-flash", utc("2026-09-10T04:00:00")))

    def test_searches_are_billed_since_november_in_beijing(self) -> None:
        tokens = Tokens(0, 0, 0, searches=1000)
        for currency, expected in (("USD", 0.75), ("CNY", 5)):
            prices = price_list(currency)
            self.assertEqual(0, amount(prices, "deepseek-flash", utc("2026-10-31T15:59:59"), tokens))
            self.assertEqual(expected, amount(prices, "deepseek-flash", utc("2026-10-31T16:00:00"), tokens))

    def test_a_cost_has_its_version_what_the_cache_saved_and_what_divergence_cost(self) -> None:
        cost = price_list().cost(
            "deepseek-v4-pro", Tokens(900_000, 100_000, 0), OFF_PEAK.timestamp(), lost_tokens=50_000
        )
        assert cost is not None
        self.assertEqual(("USD", "2026-08-23"), (cost.currency, cost.version))
        self.assertAlmostEqual(0.9 * (0.66 - 0.022), cost.saved)
        self.assertAlmostEqual(0.05 * (0.66 - 0.022), cost.divergence)


class TestLaws(unittest.TestCase):
    def test_one_unknown_cost_makes_the_sum_unknown(self) -> None:
        known = Cost(1.0, 0.5, 0.0, "USD", "x")
        self.assertIsNone(add_costs([known, None]))
        self.assertIsNone(add_costs([]))
        self.assertEqual(known._replace(amount=2.0, saved=1.0), add_costs([known, known]))


class TestOwnPrices(unittest.TestCase):
    def test_a_model_of_another_host_has_the_price_that_the_settings_name(self) -> None:
        prices = price_list(**{"deepseek/deepseek-v4-pro": {"miss": 1.0, "output": 2.0, "hit": 0.1}})
        for moment in (PEAK, OFF_PEAK):
            self.assertEqual(3.1, amount(prices, "deepseek/deepseek-v4-pro", moment, is_deepseek=False))
        cost = prices.cost("deepseek/deepseek-v4-pro", MILLION, PEAK.timestamp())
        assert cost is not None
        self.assertEqual("settings", cost.version)

    def test_without_a_price_for_cached_input_all_input_costs_the_same(self) -> None:
        prices = price_list(m={"miss": 1.0, "output": 2.0})
        cost = prices.cost("m", MILLION, OFF_PEAK.timestamp())
        assert cost is not None
        self.assertEqual((4.0, 0.0), (cost.amount, cost.saved))
        self.assertIsNone(amount(price_list(m={"hit": 1.0, "output": 2.0}), "m"))

    def test_a_built_in_price_is_replaced_in_part(self) -> None:
        prices = price_list(**{"deepseek-flash": {"output": 5.0}})
        self.assertEqual(0.003 + 0.15 + 5, amount(prices, "deepseek-flash"))
        self.assertEqual(0.006 + 0.30 + 5, amount(prices, "deepseek-flash", PEAK))
        with_peak = price_list(**{"deepseek-flash": {"output": 5.0, "peak_output": 7.0}})
        self.assertEqual(0.006 + 0.30 + 7, amount(with_peak, "deepseek-flash", PEAK))
        # Another host under the same name: what is not named is not known.
        self.assertIsNone(amount(prices, "deepseek-flash", is_deepseek=False))

    def test_the_nearest_name_wins(self) -> None:
        flat = {"miss": 1.0, "output": 0.0}
        prices = price_list(
            **{"*": flat, "a/*": {**flat, "miss": 2.0}, "a/b*": {**flat, "miss": 3.0}, "a/b": {**flat, "miss": 4.0}}
        )
        found = [amount(prices, model, tokens=Tokens(0, 1_000_000, 0)) for model in ("x", "a/x", "a/bc", "a/b")]
        self.assertEqual([1.0, 2.0, 3.0, 4.0], found)


class TestAmounts(unittest.TestCase):
    def test_amounts_below_each_other_have_the_same_digits(self) -> None:
        for value, currency, total, request in (
            (0.0061, "USD", "$0.01", "$0.0061"), (0.00004, "USD", "<$0.01", "<$0.0001"),
            (12.345, "CNY", "¥12.35", "¥12.3450"), (1234.5, "USD", "$1,234.50", "$1,234.5000"),
            (0.0, "USD", "$0.00", "$0.0000"),
        ):  # fmt: skip
            self.assertEqual((total, request), (format_amount(value, currency), format_amount(value, currency, 4)))

    def test_the_steps_of_a_price_are_in_order(self) -> None:
        for key in {(step.models, step.currency) for step in STEPS}:
            moments = [step.since for step in STEPS if (step.models, step.currency) == key]
            self.assertEqual(sorted(moments), moments)
