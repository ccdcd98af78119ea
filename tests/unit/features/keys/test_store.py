import sqlite3
import subprocess
import sys
import threading
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.features.keys.store import (
    LEASE_SECONDS,
    SETTLED_SECONDS,
    Counter,
    Hold,
    LimitTables,
    Refusal,
    Spent,
    Used,
)
from deepseek_cursor_proxy.storage import database
from deepseek_cursor_proxy.storage.faults import Locked
from tests.support.databases import DatabaseTestCase

DAY = Counter("keys.ann", "usd_per_day", 1_000_000_800)
GROUP = Counter("groups.lab", "usd_per_day", 1_000_000_800)
SLOT = Counter("keys.ann", "concurrent")
YEAR = 365 * 24 * 3600
LATER = 2 * SETTLED_SECONDS


# Seconds since the call before, a method and its arguments, what it returns.
SEQUENCES: dict[str, list[Any]] = {
    "what is reserved is replaced by what was spent": [
        (0, "reserve", "1", [Hold(DAY, 40, 100), Hold(SLOT, 1, 2)], None),
        (0, "usage", [DAY, SLOT], [Used(0, 40), Used(0, 1)]),
        (0, "settle", "1", [Spent(DAY, 25), Spent(SLOT, 0)], [25, 0]),
        (0, "usage", [DAY, SLOT], [Used(25, 0), Used(0, 0)]),
    ],
    "a request without room is refused and holds nothing": [
        (0, "reserve", "1", [Hold(GROUP, 70, 100)], None),
        (0, "reserve", "2", [Hold(DAY, 31, 100), Hold(GROUP, 31, 100)], Refusal(Hold(GROUP, 31, 100), Used(0, 70))),
        (0, "usage", [DAY, GROUP], [Used(), Used(0, 70)]),
        (0, "reserve", "3", [Hold(DAY, 30, 100), Hold(GROUP, 30, 100)], None),
    ],
    "a request larger than the limit is served only when nothing is used": [
        (0, "reserve", "1", [Hold(DAY, 500, 100)], None),
        (0, "reserve", "2", [Hold(DAY, 500, 100)], Refusal(Hold(DAY, 500, 100), Used(0, 500))),
        (0, "settle", "1", [Spent(DAY, 1)], [1]),
        (0, "reserve", "3", [Hold(DAY, 500, 100)], Refusal(Hold(DAY, 500, 100), Used(1, 0))),
    ],
    "a request reserves once and is settled once, also after a pruning": [
        *[(0, "reserve", "1", [Hold(DAY, 60, 100)], None)] * 2, (0, "usage", [DAY], [Used(0, 60)]),
        (0, "settle", "1", [Spent(DAY, 25)], [25]), (0, "settle", "1", [Spent(DAY, 25)], None),
        (600, "settle", "2", [], []), (0, "settle", "1", [Spent(DAY, 25)], None), (0, "usage", [DAY], [Used(25)]),
    ],
    "a reservation lapses unless it is renewed, and can be made again": [
        (0, "reserve", "killed", [Hold(SLOT, 1, 2)], None),
        (0, "reserve", "runs", [Hold(SLOT, 1, 2)], None),
        (LEASE_SECONDS / 2, "renew", ["runs"], None),
        (LEASE_SECONDS / 2, "usage", [SLOT], [Used(0, 1)]),
        (0, "reserve", "killed", [Hold(SLOT, 1, 2)], None),
        (0, "reserve", "4", [Hold(SLOT, 1, 2)], Refusal(Hold(SLOT, 1, 2), Used(0, 2))),
    ],
    "a lapsed reservation is not renewed but what it spent counts": [
        (0, "reserve", "1", [Hold(DAY, 40, 100)], None),
        (LEASE_SECONDS, "renew", ["1"], None),
        (0, "usage", [DAY], [Used()]),
        (0, "settle", "1", [Spent(DAY, 40)], [40]),
        (0, "usage", [DAY], [Used(40)]),
    ],
    "a counter stays for requests that end after its period, and then goes": [
        (0, "settle", "1", [Spent(DAY, 5)], [5]),
        (800 + 1800, "settle", "2", [], []),
        (0, "settle", "3", [Spent(DAY, 7)], [12]),
        (LATER, "settle", "4", [], []),
        (0, "usage", [DAY], [Used()]),
    ],
    "a counter without a period stays": [
        (0, "settle", "1", [Spent(SLOT, 5)], [5]),
        (LATER, "settle", "2", [], []),
        (0, "usage", [SLOT], [Used(5)]),
    ],
    "periods count apart": [
        (0, "settle", "1", [Spent(DAY, 100)], [100]),
        (0, "reserve", "2", [Hold(DAY, 1, 100)], Refusal(Hold(DAY, 1, 100), Used(100))),
        (0, "reserve", "3", [Hold(DAY._replace(resets=DAY.resets + 86400), 1, 100)], None),
    ],
    "a sum stays a whole number": [
        (0, "settle", "1", [Spent(DAY, 2**63 - 1)], [2**63 - 1]),
        (0, "settle", "2", [Spent(DAY, 2**63 - 1)], [2**63 - 1]),
    ],
}  # fmt: skip


class TestLimitTables(DatabaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.limits = LimitTables(self.database)

    def reserve(self, name: str, *holds: Hold) -> Refusal | None:
        return self.limits.reserve(name, holds, self.now)

    def used(self, *counters: Counter) -> list[Used]:
        return list(self.limits.usage(counters, self.now))

    def test_what_calls_return_and_leave_behind(self) -> None:
        for name, calls in SEQUENCES.items():
            with self.subTest(name):
                self.execute(
                    *(f"DELETE FROM {table}" for table in ("limit_counters", "limit_holds", "settled_requests"))
                )
                self.limits, now = LimitTables(self.database), 1_000_000_000.0
                for number, (seconds, call, *arguments, expected) in enumerate(calls, 1):
                    now += seconds
                    self.assertEqual(expected, getattr(self.limits, call)(*arguments, now), f"call {number}")

    def test_a_pruning_deletes_a_tenth_at_most_whatever_the_clock_says(self) -> None:
        counters = [DAY._replace(holder=f"keys.{number}") for number in range(9)]
        for name in range(9):
            self.limits.settle(str(name), [Spent(counter, 5) for counter in counters if not name], self.now)
        self.limits.settle("a year ahead", (), self.now + YEAR)
        self.assertEqual(8, sum(used.spent == 5 for used in self.used(*counters)))
        self.limits.settle("after that", (), self.now + 2 * SETTLED_SECONDS)
        left = {name for (name,) in self.select("SELECT request FROM settled_requests")}
        self.assertEqual((8, {"a year ahead", "after that"}), (len(left), left - {*map(str, range(9))}))

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

    def test_two_processes_never_pass_a_limit(self) -> None:
        command = [sys.executable, "-c", _RESERVE_AND_SETTLE, str(self.path), str(self.now)]
        processes = [subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in ("a", "b")]
        admitted = sum(int(process.communicate()[0]) for process in processes)
        self.assertEqual(10, admitted)
        self.assertEqual([Used(100)], self.used(DAY))


_RESERVE_AND_SETTLE = """
import sys
from deepseek_cursor_proxy.features.keys.store import Counter, Hold, Spent
from deepseek_cursor_proxy.storage.database import Database
from deepseek_cursor_proxy.features.keys.store import LimitTables

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
