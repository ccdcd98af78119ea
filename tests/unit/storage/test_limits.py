import sqlite3
import subprocess
import sys
import threading
import time
from unittest import mock

from deepseek_cursor_proxy.storage import database, limits
from deepseek_cursor_proxy.storage.faults import Locked
from deepseek_cursor_proxy.storage.limits import (
    LEASE_SECONDS,
    SETTLED_SECONDS,
    Counter,
    Hold,
    LimitTables,
    Refusal,
    Spent,
    Used,
)
from tests.support.databases import DatabaseTestCase
from tests.support.threads import run_at_once

DAY = Counter("keys.ann", "usd_per_day", 1_000_000_800)
GROUP = Counter("groups.lab", "usd_per_day", 1_000_000_800)
SLOT = Counter("keys.ann", "concurrent")


class TestLimitTables(DatabaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.limits = LimitTables(self.database)

    def reserve(self, name: str, *holds: Hold) -> Refusal | None:
        return self.limits.reserve(name, holds, self.now)

    def used(self, *counters: Counter) -> list[Used]:
        return list(self.limits.usage(counters, self.now))

    def test_what_is_reserved_is_replaced_by_what_was_spent(self) -> None:
        self.assertIsNone(self.reserve("1", Hold(DAY, 40, 100), Hold(SLOT, 1, 2)))
        self.assertEqual([Used(0, 40), Used(0, 1)], self.used(DAY, SLOT))
        self.assertEqual([25, 0], self.limits.settle("1", (Spent(DAY, 25), Spent(SLOT, 0)), self.now))
        self.assertEqual([Used(25, 0), Used(0, 0)], self.used(DAY, SLOT))

    def test_a_request_without_room_is_refused_and_holds_nothing(self) -> None:
        self.reserve("1", Hold(GROUP, 70, 100))
        refusal = self.reserve("2", Hold(DAY, 31, 100), Hold(GROUP, 31, 100))
        self.assertEqual(Refusal(Hold(GROUP, 31, 100), Used(0, 70)), refusal)
        self.assertEqual([Used(), Used(0, 70)], self.used(DAY, GROUP))
        self.assertIsNone(self.reserve("3", Hold(DAY, 30, 100), Hold(GROUP, 30, 100)))

    def test_a_request_larger_than_the_limit_is_served_only_when_nothing_is_used(self) -> None:
        self.assertIsNone(self.reserve("1", Hold(DAY, 500, 100)))
        self.assertEqual(Used(0, 500), self.reserve("2", Hold(DAY, 500, 100)).used)
        self.limits.settle("1", (Spent(DAY, 1),), self.now)
        self.assertEqual(Used(1, 0), self.reserve("3", Hold(DAY, 500, 100)).used)

    def test_a_request_is_settled_once(self) -> None:
        self.reserve("1", Hold(DAY, 40, 100))
        self.assertEqual([25], self.limits.settle("1", (Spent(DAY, 25),), self.now))
        self.assertIsNone(self.limits.settle("1", (Spent(DAY, 25),), self.now))
        self.assertEqual([Used(25)], self.used(DAY))

    def test_a_request_that_reserves_twice_holds_once(self) -> None:
        for _ in range(2):
            self.assertIsNone(self.reserve("1", Hold(DAY, 60, 100)))
        self.assertEqual([Used(0, 60)], self.used(DAY))

    def test_a_reservation_lapses_unless_it_is_renewed(self) -> None:
        self.reserve("killed", Hold(SLOT, 1, 2))
        self.reserve("runs", Hold(SLOT, 1, 2))
        self.now += LEASE_SECONDS / 2
        self.limits.renew(["runs"], self.now)
        self.now += LEASE_SECONDS / 2
        self.assertEqual([Used(0, 1)], self.used(SLOT))
        self.assertIsNone(self.reserve("3", Hold(SLOT, 1, 2)))
        self.assertIsNotNone(self.reserve("4", Hold(SLOT, 1, 2)))

    def test_a_lapsed_reservation_is_not_renewed_but_what_it_spent_counts(self) -> None:
        self.reserve("1", Hold(DAY, 40, 100))
        self.now += LEASE_SECONDS
        self.limits.renew(["1"], self.now)
        self.assertEqual([Used()], self.used(DAY))
        self.limits.settle("1", (Spent(DAY, 40),), self.now)
        self.assertEqual([Used(40)], self.used(DAY))

    def test_a_request_whose_reservation_lapsed_can_reserve_again(self) -> None:
        self.reserve("1", Hold(SLOT, 1, 1))
        self.now += LEASE_SECONDS
        self.assertIsNone(self.reserve("1", Hold(SLOT, 1, 1)))
        self.assertEqual([Used(0, 1)], self.used(SLOT))

    def test_a_request_is_settled_once_also_after_a_pruning(self) -> None:
        self.limits.settle("1", (Spent(DAY, 5),), self.now)
        self.now += 3600
        self.limits.settle("2", (), self.now)
        self.assertIsNone(self.limits.settle("1", (Spent(DAY, 5),), self.now))

    def test_a_counter_stays_for_requests_that_end_after_its_period(self) -> None:
        self.limits.settle("1", (Spent(DAY, 5),), self.now)
        self.now = DAY.resets + 1800
        self.limits.settle("2", (), self.now)
        self.assertEqual([12], self.limits.settle("3", (Spent(DAY, 7),), self.now))

    def test_a_counter_without_a_period_is_not_pruned(self) -> None:
        self.limits.settle("1", (Spent(SLOT, 5),), self.now)
        self.now += 2 * SETTLED_SECONDS
        self.limits.settle("2", (), self.now)
        self.assertEqual([Used(5)], self.used(SLOT))

    def test_old_rows_go_also_after_the_clock_was_ahead(self) -> None:
        for name in ("1", "2", "3"):
            self.limits.settle(name, (), self.now)
        self.now += 365 * 24 * 3600
        self.limits.settle("ahead", (), self.now)
        self.now -= 363 * 24 * 3600
        self.limits.settle("last", (), self.now)
        left = {name for (name,) in self.select("SELECT request FROM settled_requests")}
        self.assertEqual((3, {"ahead", "last"}), (len(left), left - {"1", "2", "3"}))

    def test_periods_count_apart(self) -> None:
        self.limits.settle("1", (Spent(DAY, 100),), self.now)
        self.assertIsNotNone(self.reserve("2", Hold(DAY, 1, 100)))
        self.assertIsNone(self.reserve("3", Hold(DAY._replace(resets=DAY.resets + 86400), 1, 100)))

    def test_old_rows_go(self) -> None:
        self.limits.settle("1", (Spent(DAY, 1),), self.now)
        self.now += 2 * SETTLED_SECONDS
        self.limits.settle("2", (), self.now)
        self.assertEqual([("2",)], self.select("SELECT request FROM settled_requests"))
        self.assertEqual([], self.select("SELECT holder FROM limit_counters"))

    def test_a_clock_that_is_a_year_ahead_for_a_moment_resets_one_budget_of_ten_at_most(self) -> None:
        counters = [DAY._replace(holder=f"keys.{number}") for number in range(9)]
        self.limits.settle("1", [Spent(counter, 5) for counter in counters], self.now)
        self.now += 365 * 24 * 3600
        self.limits.settle("2", (), self.now)
        self.now -= 365 * 24 * 3600
        self.assertEqual(8, sum(used.spent == 5 for used in self.used(*counters)))

    def test_a_sum_stays_a_whole_number(self) -> None:
        for name in ("1", "2"):
            self.assertIsNotNone(self.limits.settle(name, (Spent(DAY, 2**63 - 1),), self.now))
        self.assertEqual([Used(2**63 - 1)], self.used(DAY))

    def test_requests_at_once_never_pass_a_limit(self) -> None:
        stores = [LimitTables(self.open()) for _ in range(2)]
        results: list[Refusal | None] = []

        def reserve(number: int) -> None:
            results.append(stores[number % 2].reserve(str(number), (Hold(DAY, 10, 100),), self.now))

        run_at_once(reserve, range(50))
        self.assertEqual((10, 50), (results.count(None), len(results)))
        self.assertEqual([Used(0, 100)], self.used(DAY))

    def test_a_lock_of_another_process_is_waited_for_and_is_no_fault(self) -> None:
        with mock.patch.object(database, "_BUSY_SECONDS", 0.0):
            locker = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            self.addCleanup(locker.close)
            locker.execute("BEGIN IMMEDIATE")
            # The other stores know of the lock.
            with self.assertRaises(Locked), self.database.transaction():
                pass
            timer = threading.Timer(0.05, locker.execute, ("COMMIT",))
            timer.start()
            self.assertIsNone(self.reserve("1", Hold(DAY, 10, 100)))
            timer.join()

    def test_requests_wait_for_a_locked_file_at_the_same_time(self) -> None:
        self.lock("BEGIN IMMEDIATE")
        faults: list[Exception] = []

        def reserve(number: int) -> None:
            try:
                self.reserve(str(number), Hold(DAY, 10, 100))
            except Locked as fault:
                faults.append(fault)

        started = time.monotonic()
        run_at_once(reserve, range(20))
        self.assertEqual(20, len(faults))
        # One after the other they take 16 seconds.
        self.assertLess(time.monotonic() - started, 5 * limits._LOCK_SECONDS)

    def test_a_request_that_waits_to_reserve_and_to_settle_is_delayed_by_two_seconds_at_most(self) -> None:
        self.assertLess(2 * limits._LOCK_SECONDS + database._BUSY_SECONDS, 2)

    def test_two_processes_never_pass_a_limit(self) -> None:
        command = [sys.executable, "-c", _RESERVE_AND_SETTLE, str(self.path), str(self.now)]
        processes = [subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in ("a", "b")]
        admitted = sum(int(process.communicate()[0]) for process in processes)
        self.assertEqual(10, admitted)
        self.assertEqual([Used(100)], self.used(DAY))


_RESERVE_AND_SETTLE = """
import sys
from deepseek_cursor_proxy.storage.limits import Counter, Hold, Spent
from deepseek_cursor_proxy.storage.database import Database
from deepseek_cursor_proxy.storage.limits import LimitTables

path, now, name = sys.argv[1], float(sys.argv[2]), sys.argv[3]
database, day, admitted = Database(path), Counter("keys.ann", "usd_per_day", 1_000_000_800), 0
database.open()
limits = LimitTables(database)
for number in range(25):
    if limits.reserve(f"{name}{number}", (Hold(day, 10, 100),), now) is None:
        admitted += 1
        limits.settle(f"{name}{number}", (Spent(day, 10),), now)
database.close()
print(admitted)
"""
