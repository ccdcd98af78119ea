import random
from collections.abc import Callable
from unittest import mock

from deepseek_cursor_proxy.features.keys.redis_store import SharedLimits
from deepseek_cursor_proxy.features.keys.store import Counter, Hold, LimitTables, Refusal, Spent, Used
from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.storage.learned import KeyNamespaces
from tests.support.shared_engine import EngineTestCase
from tests.support.width import width

DAY = Counter("keys.ann", "usd_per_day", 1_000_086_400)
MINUTE = Counter("keys.ann", "requests_per_minute", 1_000_000_060)
GROUP = Counter("groups.lab", "usd_per_day", 1_000_086_400)
SLOT = Counter("keys.ann", "concurrent")
URL, OLD, NEW = "http://127.0.0.1:8000/v1", b"old", b"new"
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

    def test_an_engine_that_lost_its_data_resets_no_budget(self) -> None:
        one, two = self.limits("one"), self.limits("two")
        calls: list[Callable[[Counter], object]] = [
            lambda day: self.assertEqual(day, refused(two.reserve("x", [Hold(day, 20, 100)], self.now)).counter),
            lambda day: self.assertEqual([90], two.settle("late", [Spent(day, 0)], self.now)),
            lambda day: self.assertEqual([Used(90)], two.usage([day], self.now)),
        ]
        for number, call in enumerate(calls):
            day = Counter("keys.ann", "usd_per_day", DAY.resets + number)
            with self.subTest(number):
                one.settle(f"one {number}", [Spent(day, 60)], self.now)
                two.settle(f"two {number}", [Spent(day, 30)], self.now)
                self.log.clear()
                self.engine.run(b"FLUSHALL")
                call(day)
                # The engine has it again, so the other one goes by it too.
                self.assertEqual([Used(90)], one.usage([day], self.now))
                [line] = self.log
                self.assertIn("had less than was spent: 1 limits got what this proxy knows", line)

    def test_a_proxy_that_was_restarted_knows_what_was_spent_when_the_engine_does_not(self) -> None:
        self.limits("one").settle("1", [Spent(DAY, 40), Spent(MINUTE, 1)], self.now)
        self.limits("two").settle("2", [Spent(DAY, 50)], self.now)
        for instance in self.instances:
            instance.close()
        self.engine.run(b"FLUSHALL")
        self.assertEqual([Used(90)], self.limits("two").usage([DAY], self.now))
        self.assertEqual([Used(90), Used(0)], self.limits("three").usage([DAY, MINUTE], self.now))

    def test_a_counter_is_kept_until_an_hour_after_its_period(self) -> None:
        one = self.limits()
        one.reserve("1", [Hold(DAY, 50, 100)], self.now)
        one.settle("1", [Spent(DAY, 40)], self.now)
        # Nothing is left of the reservation.
        left = [
            row for kind in (b"h", b"q") for row in self.engine.run(b"SCAN", b"0", b"MATCH", b"*:" + kind + b"*")[1]
        ]
        self.assertEqual([], left)
        # Threads may be told of their totals in another order.
        one._remember([Spent(DAY, 30)], self.now)
        key, rows = b"dcp:{limits}:ckeys.ann usd_per_day 1000086400", "SELECT resets, spent FROM limit_counters"
        self.assertAlmostEqual(86_400 + 3600, self.engine.run(b"TTL", key), delta=60)
        database = self.instances[0].reasonings.database
        self.assertEqual([(DAY.resets, 40)], database.select(rows))
        self.now += 2 * 86_400
        one.settle("2", [Spent(DAY._replace(resets=DAY.resets + 2 * 86_400), 5)], self.now)
        self.assertEqual([(DAY.resets + 2 * 86_400, 5)], database.select(rows))
        self.assertNotIn(DAY, one._known)

    def test_a_counter_that_others_wrote_shows_no_impossible_amount(self) -> None:
        one = self.limits()
        one.settle("1", [Spent(DAY, 40)], self.now)
        key = b"dcp:{limits}:ckeys.ann usd_per_day 1000086400"
        self.assertEqual(b"40", self.engine.run(b"GET", key))
        for number, value in enumerate(
            (b"-9000000000000000000", b"-1", b"39", b"", b"abc", b"1.5", b"1e9", b"9" * 19, b"9" * 30)
        ):
            with self.subTest(value):
                self.engine.run(b"SET", key, value)
                self.assertEqual([Used(40)], one.usage([DAY], self.now))
                self.engine.run(b"SET", key, value)
                self.assertEqual([40], one.settle(f"again {number}", [Spent(DAY, 0)], self.now))
        self.engine.run(b"DEL", key)
        self.engine.run(b"HSET", key, b"a", b"b")
        self.assertIsNone(one.reserve("2", [Hold(DAY, 10, 100)], self.now))
        self.assertEqual([Used(40, 10)], one.usage([DAY], self.now))

    def test_a_reservation_that_others_wrote_does_not_count(self) -> None:
        one = self.limits()
        self.assertIsNone(one.reserve("1", [Hold(DAY, 10, 100)], self.now))
        key, later = b"dcp:{limits}:hkeys.ann usd_per_day 1000086400", b"%.6f" % (self.now + 10)
        for value in (
            *(b"", b"x", b"50", b"x " + later, b"-50 " + later, b"9" * 19 + b" " + later, b"5.5 " + later),
            *(b"50 soon", b"50 99999999999.000000", b"50 -1.0", b"50 %.6f" % self.now),
        ):
            with self.subTest(value):
                self.engine.run(b"HSET", key, b"other", value)
                self.assertEqual([Used(0, 10)], one.usage([DAY], self.now))
        self.engine.run(b"DEL", key)
        self.engine.run(b"SET", key, b"text")
        self.assertEqual([Used()], one.usage([DAY], self.now))
        self.assertIsNone(one.reserve("2", [Hold(DAY, 10, 100)], self.now))

    def test_a_reply_of_another_form_is_an_outage(self) -> None:
        one = self.limits()
        for reply in (None, 1, b"1", [], [1], ["OK"] * 4, [0, -5, 0, 0], [b"1", 0, 0, 0], [0] * 9, [[0, 0, 0, 0]]):
            with self.subTest(reply), mock.patch.object(self.instances[0].state, "read", return_value=reply):
                for call in (
                    lambda: one.reserve("2", [Hold(DAY, 10, 100)], self.now),
                    lambda: one.usage([DAY], self.now),
                ):
                    with self.assertRaises(Unusable):
                        call()
        with mock.patch.object(self.instances[0].state, "write", return_value=[-5, 0]):
            self.assertIsNone(one.settle("3", [Spent(DAY, 1)], self.now))


class TestSharedNamespaces(EngineTestCase):
    def store(self, name: str) -> KeyNamespaces:
        instance = self.instance(name)
        namespaces = KeyNamespaces(instance.reasonings.database)
        namespaces.set_if_absent = instance.state.set_if_absent
        return namespaces

    def test_the_first_of_several_proxies_counts_for_all(self) -> None:
        one, two = self.store("one"), self.store("two")
        self.assertEqual(OLD, one.get("keys.ann", URL, OLD))
        self.assertEqual(OLD, two.get("keys.ann", URL, NEW))
        self.engine.stop()
        # The file knows by now.
        self.assertEqual(OLD, self.store("two").get("keys.ann", URL, NEW))

    def test_a_name_that_is_new_without_the_engine_is_asked_for_again(self) -> None:
        one, two = self.store("one"), self.store("two")
        self.assertEqual(OLD, one.get("keys.ann", URL, OLD))
        self.engine.stop()
        self.assertEqual(NEW, two.get("keys.ann", URL, NEW))
        self.engine.start()
        self.wait_until_shared()
        self.assertEqual(OLD, two.get("keys.ann", URL, NEW))


def refused(refusal: Refusal | None) -> Hold:
    assert refusal is not None
    return refusal.hold
