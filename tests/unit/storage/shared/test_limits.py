import random

from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.storage.limits import Counter, Hold, LimitTables, Spent, Used
from deepseek_cursor_proxy.storage.shared.limits import SharedLimits
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

    def limits(self, name: str = "one") -> SharedLimits:
        return SharedLimits(self.instance(name).state)

    def test_two_instances_return_what_one_file_returns_after_any_sequence_of_calls(self) -> None:
        alone = LimitTables(self.instance("alone").reasonings.database)
        both = [self.limits("one"), self.limits("two")]
        for seed in range(width(120, 2000)):
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

    def test_without_the_engine_nothing_is_reserved_and_what_was_spent_counts_once(self) -> None:
        one, two = self.limits("one"), self.limits("two")
        self.assertIsNone(one.reserve("1", [Hold(DAY, 50, 100)], self.now))
        self.engine.stop()
        for call in (
            lambda: one.reserve("2", [Hold(DAY, 1, 100)], self.now),
            lambda: one.renew((), self.now),
            lambda: one.usage([DAY], self.now),
            lambda: one.settle("1", [Spent(DAY, 40)], self.now),
            # Tried again, as the Limiter does.
            lambda: one.settle("1", [Spent(DAY, 40)], self.now),
        ):
            with self.assertRaises(Unusable):
                call()
        self.engine.start()
        self.wait_until_shared()
        self.assertEqual([Used(40)], two.usage([DAY], self.now))
        self.assertIsNone(one.settle("1", [Spent(DAY, 40)], self.now))
        self.assertEqual([Used(40)], two.usage([DAY], self.now))

    def test_an_instance_with_another_secret_cannot_count(self) -> None:
        self.limits("one").settle("1", [Spent(DAY, 40)], self.now)
        other = SharedLimits(self.instance("other", secret=b"x" * 32).state)
        with self.assertRaisesRegex(Unusable, "another installation secret"):
            other.reserve("2", [Hold(DAY, 10, 100)], self.now)
        with self.assertRaises(Unusable):
            other.settle("2", [Spent(DAY, 10)], self.now)
