"""Clocks that jump: nothing stored is deleted for it, unless the clock stands by it for an hour."""

import math
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.storage.answers import CachedAnswer, CachedAnswers
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from deepseek_cursor_proxy.storage.responses import ResponseStore, StoredResponse
from deepseek_cursor_proxy.storage.steady_clock import PruningClock
from deepseek_cursor_proxy.usage.ledger import UsageLedger
from tests.unit.usage.test_ledger import record

ME, KEY = b"m" * 32, b"k" * 32
HOUR, DAY, YEAR = 3600.0, 24 * 3600.0, 365 * 24 * 3600.0
NOW = 1_800_000_000.0


class Clocks:
    """The clock of the system, which can be set, and the time that a process has been running."""

    def __init__(self) -> None:
        self.wall = NOW
        self.running = 100.0

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.running += seconds

    def pruning(self) -> PruningClock:
        return PruningClock(DAY, lambda: self.wall, lambda: self.running)


class TestPruningClock(unittest.TestCase):
    def setUp(self) -> None:
        self.clocks = Clocks()
        self.clock = self.clocks.pruning()

    def now(self) -> float:
        return self.clock.oldest_kept(0)

    def test_the_clock_follows_a_system_clock_that_does_not_jump(self) -> None:
        for seconds in (0, 1, HOUR, 100 * DAY):
            self.clocks.pass_by(seconds)
            self.assertEqual(self.clocks.wall, self.now())
            self.assertEqual(self.clocks.wall - DAY, self.clock.oldest_kept(DAY))
        for jump in (-HOUR, 10 * HOUR, -DAY, DAY):
            self.clocks.wall += jump
            self.assertEqual(self.clocks.wall, self.now())

    def test_a_clock_jump_is_believed_after_an_hour_and_not_before(self) -> None:
        for jump in (YEAR, -YEAR, 2 * DAY):
            before = self.now()
            self.clocks.wall += jump
            self.assertEqual(before, self.now())
            self.clocks.pass_by(HOUR - 1)
            self.assertEqual(before + HOUR - 1, self.now())
            self.clocks.pass_by(1)
            self.assertEqual(self.clocks.wall, self.now())

    def test_a_clock_jump_that_is_corrected_has_no_effect(self) -> None:
        for jump in (YEAR, -YEAR):
            self.clocks.wall += jump
            self.now()
            self.clocks.pass_by(HOUR / 2)
            self.now()
            self.clocks.wall -= jump
            self.assertEqual(self.clocks.wall, self.now())

    def test_every_clock_jump_starts_its_own_hour(self) -> None:
        before = self.now()
        for _ in range(4):
            self.clocks.wall += YEAR
            self.now()
            self.clocks.pass_by(HOUR - 1)
        self.assertEqual(before + 4 * (HOUR - 1), self.now())

    def test_no_clock_makes_a_row_look_older_than_it_is(self) -> None:
        for jump in (YEAR, -YEAR, -YEAR):
            self.clocks.wall += jump
            self.assertEqual(max(self.now(), self.clocks.wall), self.clock.use_time())

    def resumed_from(self, *times: float) -> float:
        clock = self.clocks.pruning()
        clock.resume(lambda until: max((time for time in times if time <= until), default=None))
        return clock.oldest_kept(0)

    def test_after_a_restart_time_runs_on_from_the_last_time_that_lasted_an_hour(self) -> None:
        for expected, *times in (
            (NOW,),
            (NOW, NOW + YEAR),
            (NOW, NOW - DAY / 2),
            (NOW - YEAR, NOW - YEAR),
            (NOW - YEAR, NOW - YEAR, NOW - YEAR - 5 * HOUR),
            # One start with a wrong clock, or two of them.
            (NOW - YEAR, NOW - YEAR, NOW - YEAR - 5 * HOUR, NOW),
            (NOW - YEAR, NOW - YEAR, NOW - YEAR - 5 * HOUR, NOW, NOW - HOUR / 2),
            # It has lasted.
            (NOW, NOW - YEAR, NOW - YEAR - 5 * HOUR, NOW, NOW - HOUR),
        ):
            with self.subTest(times=[(time - NOW) / DAY for time in times]):
                self.assertEqual(expected, self.resumed_from(*times))
        self.clock.resume(lambda until: NOW - YEAR if until > NOW - YEAR else None)
        self.assertEqual(NOW - YEAR, self.now())
        self.clocks.pass_by(HOUR)
        self.assertEqual(self.clocks.wall, self.now())


class TestStores(unittest.TestCase):
    """The stores of a proxy with a clock that is set wrong, while it runs and before it starts."""

    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.clocks = Clocks()
        for module in ("storage.steady_clock", "usage.ledger"):
            self.enterContext(mock.patch(f"deepseek_cursor_proxy.{module}.time", self))
        self.open()
        self.fill("first")
        self.put("job", "in_progress")

    def fill(self, name: str) -> None:
        """Write a row into each store."""
        key = name.encode()
        self.reasonings.record([((key,), key.decode())])
        self.put(name)
        self.answers.record(key, CachedAnswer(b""))
        self.ledger.add(record(1, self.clocks.wall))
        self.ledger.flush()

    def put(self, name: str, status: str = "completed") -> None:
        self.responses.put(ME, StoredResponse({"id": name, "status": status}, []))

    def complete_job(self) -> bool:
        return self.responses.update(ME, StoredResponse({"id": "job", "status": "completed"}, []))

    def open(self) -> None:
        self.reasonings = ReasoningStore(self.folder / "store.sqlite3", max_age_seconds=30 * DAY)
        database = self.reasonings.database
        details: Any = {"max_age_seconds": 30 * DAY, "pruning": self.reasonings.pruning}
        self.responses = ResponseStore(database, **details)
        self.answers = CachedAnswers(database, **details, clock=self.time)
        self.ledger = UsageLedger(database, max_rows=1000, **details)
        self.stores: list[Any] = [self.responses, self.answers, self.ledger]
        for store in (self.reasonings, *self.stores):
            self.addCleanup(store.close)

    def restart(self) -> None:
        for store in (*self.stores, self.reasonings):
            store.close()
        self.open()

    def prune(self) -> list[int]:
        return [store.prune() for store in (self.reasonings, *self.stores)]

    def assert_all_there(self, *names: str) -> None:
        self.assertEqual([0] * 4, self.prune())
        for name in ("first", *names):
            self.assertEqual({name.encode(): [name]}, self.reasonings.find([name.encode()]))
            self.assertIsNotNone(self.responses.get(ME, name))
        self.assertIsNotNone(self.responses.get(ME, "job"))

    def test_a_clock_jump_while_the_proxy_runs_deletes_no_row(self) -> None:
        for jump in (YEAR, -YEAR, -YEAR, YEAR):
            self.clocks.wall += jump
            self.assert_all_there()
            self.clocks.pass_by(600)
            self.assert_all_there()
            self.assertTrue(self.complete_job())
        self.assert_all_there()

    def test_a_wrong_clock_at_the_start_deletes_no_row(self) -> None:
        for jump in (YEAR, -YEAR, -YEAR, YEAR):
            self.clocks.wall += jump
            self.restart()
            self.responses.fail_orphans()
            self.assert_all_there()
        found = self.responses.get(ME, "job")
        assert found is not None
        self.assertEqual("failed", found.body["status"])

    def test_two_starts_with_a_wrong_clock_and_rows_stored_meanwhile_delete_no_row(self) -> None:
        for jump in (YEAR, 0.0, -YEAR, YEAR, 0.0, -YEAR):
            self.clocks.wall += jump
            self.restart()
            self.assert_all_there()
            self.fill("wrong")
        self.assert_all_there("wrong")

    def test_rows_stored_while_the_clock_is_wrong_survive_its_correction(self) -> None:
        for number, jump in enumerate((YEAR, -YEAR)):
            self.clocks.wall += jump
            self.put(f"new-{number}")
            self.clocks.pass_by(HOUR / 2)
            self.clocks.wall -= jump
            self.clocks.pass_by(2 * HOUR)
            self.assertEqual([0] * 4, self.prune()[:4])
            self.assertIsNotNone(self.responses.get(ME, f"new-{number}"))

    def test_what_is_used_in_the_first_hour_after_a_long_holiday_is_kept(self) -> None:
        self.clocks.pass_by(2 * HOUR)
        self.clocks.wall += 60 * DAY
        self.restart()
        self.fill("new")
        self.clocks.pass_by(2 * HOUR)
        self.prune()
        self.assertEqual({b"new": ["new"]}, self.reasonings.find([b"new", b"first"]))
        self.assertEqual((True, False), tuple(self.responses.get(ME, name) is not None for name in ("new", "first")))

    def test_rows_from_the_future_go_first_when_there_is_too_much(self) -> None:
        """The clock was ahead for days; what is stored after its correction must not be the first to go."""
        self.clocks.wall += 100 * DAY
        self.clocks.pass_by(2 * HOUR)
        self.put("future")
        self.reasonings.record([((b"future",), "future")])
        self.answers.record(b"future", CachedAnswer(b""))
        self.clocks.wall -= 100 * DAY
        self.clocks.pass_by(2 * HOUR)
        self.restart()
        for table in (self.reasonings, self.responses, self.answers):
            most = 2 if table is self.responses else 1
            table.rows.kind = table.kind._replace(max_rows=most, max_bytes=200 if table is self.answers else math.inf)
        self.prune()
        self.assertEqual({b"first": ["first"]}, self.reasonings.find([b"first", b"future"]))
        self.assertIsNotNone(self.responses.get(ME, "first"))
        self.assertIsNone(self.responses.get(ME, "future"))
        with self.reasonings.database.reader() as connection:
            rows = connection.execute("SELECT key FROM cached_answers").fetchall()
        self.assertEqual([(b"first",)], rows)

    def test_rows_that_are_really_old_are_pruned(self) -> None:
        self.complete_job()
        self.clocks.pass_by(31 * DAY)
        self.assertEqual([1, 2, 1, 1], self.prune())

    # Ages and bookings go by the system's clock …

    def test_a_cached_answer_is_fresh_by_the_systems_clock(self) -> None:
        for jump, is_fresh in ((0.0, True), (40 * DAY, False), (-40 * DAY, True), (-2 * DAY, False)):
            self.clocks.wall += jump
            self.restart()
            self.assertEqual(is_fresh, self.answers.find(b"first") is not None)

    def time(self) -> float:
        return self.clocks.wall

    def monotonic(self) -> float:
        return self.clocks.running
