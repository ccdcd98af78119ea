"""Clocks that jump: nothing stored gets old by it, unless the clock stands by it for an hour."""

import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.chats.store import ChatStore
from deepseek_cursor_proxy.steady_clock import SteadyClock
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from deepseek_cursor_proxy.storage.responses import ResponseStore, StoredResponse

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

    def steady(self) -> SteadyClock:
        return SteadyClock(DAY, lambda: self.wall, lambda: self.running)


class TestSteadyClock(unittest.TestCase):
    def setUp(self) -> None:
        self.clocks = Clocks()
        self.clock = self.clocks.steady()

    def test_the_steady_clock_follows_a_system_clock_that_does_not_jump(self) -> None:
        for seconds in (0, 1, HOUR, 100 * DAY):
            self.clocks.pass_by(seconds)
            self.assertEqual(self.clocks.wall, self.clock())
        for jump in (-HOUR, 10 * HOUR, -DAY, DAY):
            self.clocks.wall += jump
            self.assertEqual(self.clocks.wall, self.clock())

    def test_a_clock_jump_is_believed_after_an_hour_and_not_before(self) -> None:
        for jump in (YEAR, -YEAR, 2 * DAY):
            before = self.clock()
            self.clocks.wall += jump
            self.assertEqual(before, self.clock())
            self.clocks.pass_by(HOUR - 1)
            self.assertEqual(before + HOUR - 1, self.clock())
            self.clocks.pass_by(1)
            self.assertEqual(self.clocks.wall, self.clock())

    def test_a_clock_jump_that_is_corrected_has_no_effect(self) -> None:
        for jump in (YEAR, -YEAR):
            self.clocks.wall += jump
            self.clock()
            self.clocks.pass_by(HOUR / 2)
            self.clock()
            self.clocks.wall -= jump
            self.assertEqual(self.clocks.wall, self.clock())

    def test_every_clock_jump_starts_its_own_hour(self) -> None:
        before = self.clock()
        for _ in range(4):
            self.clocks.wall += YEAR
            self.clock()
            self.clocks.pass_by(HOUR - 1)
        self.assertEqual(before + 4 * (HOUR - 1), self.clock())

    def test_after_a_restart_time_runs_on_from_the_newest_row(self) -> None:
        self.clock.resume_from(NOW - YEAR)
        self.assertEqual(NOW - YEAR, self.clock())
        self.clocks.pass_by(HOUR)
        self.assertEqual(self.clocks.wall, self.clock())
        for newest in (NOW - DAY / 2, NOW + YEAR):
            clock = self.clocks.steady()
            clock.resume_from(newest)
            self.assertEqual(self.clocks.wall, clock())


class TestStores(unittest.TestCase):
    """The stores of a proxy with a clock that is set wrong, while it runs and before it starts."""

    def setUp(self) -> None:
        self.path = Path(self.enterContext(tempfile.TemporaryDirectory())) / "store.sqlite3"
        self.clocks = Clocks()
        self.enterContext(mock.patch("deepseek_cursor_proxy.steady_clock.time", self))
        self.open()
        self.reasonings.record([((KEY,), "why")])
        self.put("done")
        self.put("job", "in_progress")

    def put(self, name: str, status: str = "completed") -> None:
        self.responses.put(ME, StoredResponse({"id": name, "status": status}, []))

    def complete_job(self) -> bool:
        return self.responses.update(ME, StoredResponse({"id": "job", "status": "completed"}, []))

    def open(self) -> None:
        self.reasonings = ReasoningStore(self.path, max_age_seconds=30 * DAY)
        details: Any = {"max_age_seconds": 30 * DAY, "clock": self.reasonings.clock}
        self.responses = ResponseStore(self.reasonings.database, **details)
        self.chats = ChatStore(self.reasonings.database, **details)
        for store in (self.reasonings, self.chats, self.responses):
            self.addCleanup(store.close)

    def restart(self) -> None:
        for store in (self.responses, self.chats, self.reasonings):
            store.close()
        self.open()

    def assert_all_there(self) -> None:
        self.assertEqual([0, 0, 0], [each.prune() for each in (self.reasonings, self.responses, self.chats)])
        self.assertEqual({KEY: ["why"]}, self.reasonings.find([KEY]))
        for name in ("done", "job"):
            self.assertIsNotNone(self.responses.get(ME, name))

    def test_a_clock_jump_while_the_proxy_runs_deletes_no_row(self) -> None:
        for jump in (YEAR, -YEAR, -YEAR, YEAR):
            self.clocks.wall += jump
            self.assert_all_there()
            self.clocks.pass_by(HOUR / 2)
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

    def test_rows_stored_while_the_clock_is_wrong_survive_its_correction(self) -> None:
        for number, jump in enumerate((YEAR, -YEAR)):
            self.clocks.wall += jump
            self.put(f"new-{number}")
            self.clocks.pass_by(HOUR / 2)
            self.clocks.wall -= jump
            self.clocks.pass_by(2 * HOUR)
            self.assert_all_there()
            self.assertIsNotNone(self.responses.get(ME, f"new-{number}"))

    def test_rows_that_are_really_old_are_pruned(self) -> None:
        self.complete_job()
        self.clocks.pass_by(31 * DAY)
        self.assertEqual([1, 2], [self.reasonings.prune(), self.responses.prune()])

    # In place of the module `time` …

    def time(self) -> float:
        return self.clocks.wall

    def monotonic(self) -> float:
        return self.clocks.running
