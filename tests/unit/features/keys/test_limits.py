from collections.abc import Sequence
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.config.named_keys import KeyGroup, NamedKey, key_group, named_key
from deepseek_cursor_proxy.conversation import Message, ToolCall
from deepseek_cursor_proxy.deepseek.prices import Cost
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.errors import OverBudget, OverLimit, Overloaded, PriceUnknown, ProxyError
from deepseek_cursor_proxy.features.keys import limits
from deepseek_cursor_proxy.features.keys.limits import BILLION, Admission, Estimate, Limiter, counters
from deepseek_cursor_proxy.features.keys.store import Hold, LimitTables, Refusal, Spent, Used
from deepseek_cursor_proxy.observers.events import (
    CLIENT_LEFT,
    COMPLETED,
    End,
    Finished,
    PassedThrough,
    Refused,
    RequestFacts,
    Result,
    Terminal,
    Timing,
)
from deepseek_cursor_proxy.storage.faults import Unusable
from tests.support.databases import DatabaseTestCase
from tests.support.polling import wait_until

# 2026-11-18 06:40:20 UTC
NOW = 1_794_984_020.0
FACTS = RequestFacts(1, NOW, "chat")
DOLLAR = BILLION


# The limit of a key, what requests have spent and what one that runs has reserved of it, in tokens, and how another of
# 1,000 is refused.
DAY, MONTH = (
    f"It resets at {day} 00:00 UTC. The owner of the proxy can raise it." for day in ("2026-11-19", "2026-12-01")
)
MINUTE, LATER = "It resets at 2026-11-18 06:41 UTC.", "Try again when one has ended."
RUNNING = "reserved by requests that run"
USED, FULL = "of the key ann is reached", "of the key ann has no room at the moment"
REFUSALS: tuple[tuple[dict[str, Any], int, int, type[ProxyError], int | None, str], ...] = (
    ({"usd_per_day": 0.005}, 4500, 0, OverBudget, None, f"usd_per_day {USED}: $0.0045 of $0.0050 used, "
     f"and this request may use $0.0010. {DAY}"),
    ({"usd_per_day": 0.005}, 4100, 500, OverBudget, None, f"usd_per_day {USED}: $0.0041 of $0.0050 used, "
     f"$0.0005 {RUNNING}, and this request may use $0.0010. {DAY}"),
    ({"usd_per_day": 0.005}, 4000, 500, OverLimit, 5, f"usd_per_day {FULL}: $0.0040 of $0.0050 used, "
     f"$0.0005 {RUNNING}, and this request may use $0.0010. {LATER}"),
    ({"usd_per_day": 0.0005}, 0, 9000, OverLimit, 5, f"usd_per_day {FULL}: $0.0000 of $0.0005 used, "
     f"$0.0090 {RUNNING}. {LATER}"),
    ({"usd_per_month": 0.0045}, 4500, 0, OverBudget, None, f"usd_per_month {USED}: $0.0045 of $0.0045 used. "
     f"{MONTH}"),
    ({"requests_per_minute": 1}, 0, 1, OverLimit, 40, f"requests_per_minute {USED}: 1 of 1 used. {MINUTE}"),
    ({"tokens_per_minute": 5000}, 4500, 0, OverLimit, 40, f"tokens_per_minute {USED}: 4,500 of 5,000 used, "
     f"and this request may use 1,000. {MINUTE}"),
    ({"tokens_per_minute": 5000}, 0, 4500, OverLimit, 5, f"tokens_per_minute {FULL}: 0 of 5,000 used, "
     f"4,500 {RUNNING}, and this request may use 1,000. {LATER}"),
    ({"concurrent": 1}, 0, 1, OverLimit, 1, f"concurrent {USED}: 1 of 1 used by requests that run. {LATER}"),
)  # fmt: skip


def key(**fields: Any) -> NamedKey:
    return named_key("keys.ann", {"key": "sk-ann", **fields}, "")


def group(**fields: Any) -> KeyGroup:
    return key_group("groups.lab", fields, "")


def estimate(prompt: int = 100, output: int = 900) -> Estimate:
    """A million tokens are a dollar."""
    return Estimate(prompt, output, lambda tokens: (tokens.prompt + tokens.output) * 1000)


def finished(**fields: Any) -> Finished:
    timing = Timing(1.0, connect=0.0)
    more = {"message": None, "finish_reason": None, "usage": None, **fields}
    return Finished(**{"facts": FACTS, "end": COMPLETED, "timing": timing, **more})


class BrokenStore(LimitTables):
    """An engine that can be switched off."""

    fault: Unusable | None = None

    def _check(self) -> None:
        if self.fault is not None:
            raise self.fault

    def reserve(self, request_id: str, holds: Sequence[Hold], now: float) -> Refusal | None:
        self._check()
        return super().reserve(request_id, holds, now)

    def settle(self, request_id: str, spent: Sequence[Spent], now: float) -> Sequence[int] | None:
        self._check()
        return super().settle(request_id, spent, now)

    def renew(self, request_ids: Sequence[str], now: float) -> None:
        self._check()
        super().renew(request_ids, now)


class LimiterTest(DatabaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.now = NOW
        self.log = self.enterContext(mock.patch.object(limits, "_log"))
        self.enterContext(mock.patch.object(limits, "_SECONDS_BETWEEN_RENEWALS", 0.0))
        # Run by the test itself.
        self.enterContext(mock.patch.object(limits.BackgroundThread, "run"))
        self.store = BrokenStore(self.database)
        self.limiter = Limiter(self.store, lambda: self.now)
        self.addCleanup(self.limiter.close)

    def admit(
        self, holder: NamedKey, lab: KeyGroup | None = None, found: Estimate | None = None, **options: Any
    ) -> Admission:
        admission = self.limiter.admit(holder, lab, lambda: found or estimate(), **options)
        assert admission is not None
        return admission

    def refused(self, holder: NamedKey, lab: KeyGroup | None = None, found: Estimate | None = None) -> ProxyError:
        with self.assertRaises(ProxyError) as caught:
            self.admit(holder, lab, found)
        return caught.exception

    def used(self, holder: NamedKey | KeyGroup) -> dict[str, Used]:
        found = [counter for counter, _ in counters(holder, self.now)]
        return {counter.limit: used for counter, used in zip(found, self.limiter.usage(found), strict=True)}


class TestLimits(LimiterTest):
    def test_a_key_without_limits_reserves_nothing(self) -> None:
        self.assertIsNone(self.limiter.admit(key(), None, self.fail))
        self.assertIsNone(self.limiter.admit(key(), group(), self.fail))

    def test_a_request_reserves_what_it_may_use_and_counts_what_it_did(self) -> None:
        ann = key(usd_per_day=1, usd_per_month=9, tokens_per_minute=5000, requests_per_minute=5, concurrent=1)
        admission = self.admit(ann)
        reserved = {"usd_per_month": 1000 * 1000, "usd_per_day": 1000 * 1000, "tokens_per_minute": 1000}
        reserved |= {"requests_per_minute": 1, "concurrent": 1}
        self.assertEqual({limit: Used(0, amount) for limit, amount in reserved.items()}, self.used(ann))
        cost = Cost(0.5, 0.0, 0.0, "USD", "")
        admission.end(finished(tokens=Tokens(10, 20, 30), cost=cost))
        spent = {"usd_per_month": DOLLAR // 2, "usd_per_day": DOLLAR // 2, "tokens_per_minute": 60}
        spent |= {"requests_per_minute": 1, "concurrent": 0}
        self.assertEqual({limit: Used(amount) for limit, amount in spent.items()}, self.used(ann))

    def test_a_budget_that_is_used_up_refuses_free_models_as_well(self) -> None:
        ann = key(usd_per_day=0.001)
        self.admit(ann).settle(Tokens(0, 0, 1000))
        self.assertIsInstance(self.refused(ann, found=estimate(0, 0)), OverBudget)

    def test_both_the_limits_of_the_key_and_of_its_group_hold(self) -> None:
        for ann, lab in ((key(concurrent=1), group(concurrent=2)), (key(concurrent=2), group(concurrent=1))):
            with self.subTest(ann.limits.concurrent):
                admission = self.admit(ann, lab)
                self.assertIsInstance(self.refused(ann, lab), OverLimit)
                admission.settle(Tokens(0, 0, 0))
                self.admit(ann, lab).settle(Tokens(0, 0, 0))

    def test_a_refusal_names_the_limit_what_is_used_and_reserved_and_when_it_resets(self) -> None:
        for fields, spent, reserved, kind, wait, words in REFUSALS:
            with self.subTest(words):
                ann = key(**fields)
                if spent:
                    self.admit(ann).settle(Tokens(0, 0, spent))
                if reserved:
                    self.admit(ann, found=estimate(0, reserved))
                error = self.refused(ann)
                self.assertEqual((f"The limit {words}", kind, wait), (error.message, type(error), error.retry_after))
                self.execute("DELETE FROM limit_counters", "DELETE FROM limit_holds")

    def test_periods_end_with_the_minute_the_day_and_the_month_of_utc(self) -> None:
        ann = key(usd_per_day=0.001, requests_per_minute=1, usd_per_month=0.0015)
        self.admit(ann).settle(Tokens(0, 0, 1000))
        self.now += 60
        self.assertIn("usd_per_month", self.refused(ann).message)
        self.now += 86400
        self.assertIn("usd_per_month", self.refused(ann).message)
        self.now += 14 * 86400
        self.admit(ann)

    def test_a_month_ends_with_the_year(self) -> None:
        found = {counter.limit: counter.resets for counter, _ in counters(key(usd_per_month=1), 1_798_761_599.0)}
        self.assertEqual({"usd_per_month": 1_798_761_600}, found)

    def test_a_model_without_a_price_is_refused_to_a_key_with_a_budget_alone(self) -> None:
        unknown = Estimate(1, 1, lambda tokens: None)
        self.assertIsInstance(self.refused(key(usd_per_day=1), found=unknown), PriceUnknown)
        self.admit(key(requests_per_minute=1), found=unknown)

    def test_a_budget_is_warned_of_once_in_a_period(self) -> None:
        ann, lab = key(usd_per_day=0.01, warn_at=0.5), group(usd_per_month=1)
        for _ in range(8):
            self.admit(ann, lab).settle(Tokens(0, 0, 1000))
        [call] = self.log.warning.call_args_list
        self.assertEqual(
            "keys.ann: $0.0050 of $0.0100 used of usd_per_day, which resets at 2026-11-19 00:00 UTC",
            call.args[0] % call.args[1:],
        )
        self.now += 86400
        for _ in range(8):
            self.admit(ann, lab).settle(Tokens(0, 0, 1000))
        self.assertEqual(2, self.log.warning.call_count)

    def test_what_each_end_of_a_request_counts_as(self) -> None:
        failed = End(Result.FAILED, 502, "broken")
        text = Message("assistant", "x" * 80, reasoning="y" * 20)
        call = Message("assistant", None, tool_calls=(ToolCall("1", "n" * 10, "a" * 90),))
        everything, nothing = 1000, 0
        for name, event, tokens in (
            ("with usage", finished(tokens=Tokens(1, 2, 3)), 6),
            ("priced in yuan", finished(tokens=Tokens(1, 2, 3), cost=Cost(9.0, 0.0, 0.0, "CNY", "")), 6),
            ("cached", finished(is_cached=True, tokens=Tokens(1, 2, 3), cost=Cost(0.0, 0.0, 0.0, "USD", "")), nothing),
            ("client left early", finished(end=CLIENT_LEFT), everything),
            ("client left later", finished(end=CLIENT_LEFT, message=text), 100 + 30),
            ("without usage", finished(message=text), 130),
            ("without usage, a call", finished(message=call), 130),
            ("broken", finished(end=failed, message=text), 130),
            ("broken early", finished(end=failed), nothing),
            ("not accepted", finished(end=failed, timing=Timing(1.0)), nothing),
            ("refused", Refused(FACTS, "chat", End(Result.REFUSED, 400, ""), 1.0), nothing),
            ("client left before it was sent", finished(end=CLIENT_LEFT, timing=Timing(1.0)), nothing),
            ("passed through", PassedThrough(FACTS, "x", CLIENT_LEFT, 1.0, may_cost=True), everything),
            ("passed through, refused", PassedThrough(FACTS, "x", End(Result.PASSED_THROUGH, 400, ""), 1.0), nothing),
        ):
            with self.subTest(name):
                self.assert_counts(event, tokens)

    def assert_counts(self, event: Terminal, tokens: int) -> None:
        ann = key(usd_per_day=1, tokens_per_minute=5000, requests_per_minute=9)
        self.admit(ann).end(event)
        self.assertEqual(
            [Used(tokens), Used(1000 * tokens), Used(1)],
            [self.used(ann)[each] for each in ("tokens_per_minute", "usd_per_day", "requests_per_minute")],
        )
        self.execute("DELETE FROM limit_counters")

    def test_running_requests_are_renewed_until_they_end(self) -> None:
        ann = key(concurrent=1)
        admission = self.admit(ann)
        for _ in range(9):
            self.now += 7
            self.assertIsNotNone(self.limiter._renew())
        self.assertIsInstance(self.refused(ann), OverLimit)
        admission.settle(Tokens(0, 0, 0))
        self.assertIsNone(self.limiter._renew())
        self.admit(ann)


class TestThread(DatabaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.enterContext(mock.patch.object(limits, "_SECONDS_BETWEEN_RENEWALS", 0.005))
        self.enterContext(mock.patch.object(limits, "_log"))
        self.store = BrokenStore(self.database)
        self.now = NOW
        self.limiter = Limiter(self.store, lambda: self.now)
        self.addCleanup(self.limiter.close)

    def test_an_outage_ends_by_itself_when_no_request_runs(self) -> None:
        ann = key(usd_per_day=1)
        admission = self.limiter.admit(ann, None, estimate)
        assert admission is not None
        self.store.fault = Unusable("the disk is full")
        admission.settle(Tokens(0, 0, 700))
        self.store.fault = None
        counter = counters(ann, self.now)[0][0]
        wait_until(lambda: list(self.limiter.usage([counter])) == [Used(700_000)])


class TestOutages(LimiterTest):
    def test_limits_hold_by_what_this_process_knows_and_budgets_for_half_a_minute(self) -> None:
        ann, ben = key(usd_per_day=0.005), key(concurrent=1)
        self.admit(ann).settle(Tokens(0, 0, 2000))
        self.store.fault = Unusable("the disk is full")
        for _ in range(3):
            self.admit(ann).settle(Tokens(0, 0, 1000))
        self.assertIsInstance(self.refused(ann), OverBudget)
        self.now += limits.GRACE_SECONDS + 1
        error = self.refused(ann)
        self.assertEqual((503, 5), (error.status, error.retry_after))
        self.assertIsInstance(error, Overloaded)
        running = self.admit(ben)
        self.assertIsInstance(self.refused(ben), OverLimit)
        self.limiter._renew()
        self.store.fault = None
        spare = self.limiter._spare
        assert spare is not None
        self.limiter._renew()
        with self.assertRaises(Unusable):
            spare.select("SELECT 1")
        self.assertEqual(Used(5_000_000), self.used(ann)["usd_per_day"])
        running.settle(Tokens(0, 0, 0))
        self.admit(ben)
        begin, end = (call.args[0] % call.args[1:] for call in self.log.warning.call_args_list)
        self.assertIn("the limits of keys are kept by this process alone, by what it knows: the disk is full", begin)
        self.assertEqual("the limits of keys are counted as before; requests that ended meanwhile: 3", end)
