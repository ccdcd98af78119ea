import random

from deepseek_cursor_proxy.storage.limits import BudgetUnknown, Counter, Hold, Spent
from deepseek_cursor_proxy.storage.shared.limits import SharedLimits
from deepseek_cursor_proxy.storage.sqlite.limit_rows import SqliteLimits
from tests.support.shared_engine import EngineTestCase
from tests.support.threads import run_at_once
from tests.support.width import width

DAY = Counter("keys.ann", "usd_per_day", 1_000_086_400)
MINUTE = Counter("keys.ann", "requests_per_minute", 1_000_000_060)
GROUP = Counter("groups.lab", "usd_per_day", 1_000_086_400)
SLOT = Counter("keys.ann", "concurrent")
COUNTERS = (DAY, MINUTE, GROUP, SLOT)


class TestSharedLimits(EngineTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.now = 1_000_000_000.0
        self.monotonic = 0.0

    def limits(self, name: str = "one", grace: float = 30.0) -> SharedLimits:
        instance = self.instance(name)
        own = SqliteLimits(instance.reasonings.database)
        return SharedLimits(instance.state, own, grace, lambda: self.monotonic)

    def test_two_instances_return_what_one_file_returns_after_any_sequence_of_calls(self) -> None:
        alone = SqliteLimits(self.instance("alone").reasonings.database)
        both = [self.limits("one"), self.limits("two")]
        for seed in range(width(200, 3000)):
            rng = random.Random(seed)
            limits, id = rng.choice(both), f"request {rng.randrange(40)}"
            some = rng.sample(COUNTERS, rng.randint(0, 3))
            self.now += rng.choice((0.0, 1.5, 9.0))
            with self.subTest(seed):
                match rng.choice(("reserve", "reserve", "settle", "renew")):
                    case "reserve":
                        holds = [Hold(each, rng.randrange(60), 100) for each in some]
                        expected = alone.reserve(id, holds, self.now)
                        self.assertEqual(expected, limits.reserve(id, holds, self.now))
                    case "settle":
                        spent = [Spent(each, rng.randrange(4) if each.resets else 0) for each in some]
                        self.assertEqual(alone.settle(id, spent, self.now), limits.settle(id, spent, self.now))
                    case "renew":
                        alone.renew([id], self.now)
                        limits.renew([id], self.now)
                for each in both:
                    self.assertEqual(alone.usage(COUNTERS, self.now), each.usage(COUNTERS, self.now))

    def test_many_requests_at_once_spend_a_budget_once(self) -> None:
        instances = [self.limits(name) for name in ("one", "two", "three")]
        admitted: list[int] = []

        def ask(number: int) -> None:
            if instances[number % 3].reserve(str(number), [Hold(DAY, 10, 100)], self.now) is None:
                admitted.append(number)

        run_at_once(ask, range(50))
        self.assertEqual(10, len(admitted))

    def test_without_the_engine_an_instance_goes_on_with_what_it_knows_for_a_while(self) -> None:
        one, two = self.limits("one"), self.limits("two")
        one.settle("1", [Spent(DAY, 60)], self.now)
        two.settle("2", [Spent(DAY, 30)], self.now)
        self.engine.stop()
        refusal = two.reserve("3", [Hold(DAY, 11, 100)], self.now)
        assert refusal is not None
        self.assertEqual(90, refusal.used)
        self.assertIsNone(two.reserve("4", [Hold(DAY, 10, 100)], self.now))
        self.monotonic += 31
        with self.assertRaises(BudgetUnknown):
            two.reserve("5", [Hold(DAY, 1, 100)], self.now)
        self.assertIsNone(two.reserve("6", [Hold(MINUTE, 1, 10), Hold(SLOT, 1, 2)], self.now))

    def test_what_was_spent_without_the_engine_counts_once_when_it_is_back(self) -> None:
        one, two = self.limits("one"), self.limits("two")
        self.assertIsNone(one.reserve("1", [Hold(DAY, 50, 100)], self.now))
        self.engine.stop()
        self.assertEqual([40], one.settle("1", [Spent(DAY, 40)], self.now))
        self.assertIsNone(one.settle("1", [Spent(DAY, 40)], self.now))
        self.engine.start()
        self.wait_until_shared()
        self.assertEqual(40, two.usage([DAY], self.now)[0].total)
        self.assertIsNone(two.reserve("2", [Hold(DAY, 60, 100)], self.now))

    def test_a_slot_that_is_taken_is_still_taken_without_the_engine(self) -> None:
        one = self.limits("one")
        self.assertIsNone(one.reserve("1", [Hold(SLOT, 1, 1)], self.now))
        self.engine.stop()
        self.assertIsNotNone(one.reserve("2", [Hold(SLOT, 1, 1)], self.now))
