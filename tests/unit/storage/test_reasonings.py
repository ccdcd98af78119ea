import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.storage import database
from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore, WaitingReasonings
from deepseek_cursor_proxy.storage.write_behind import WriteBehind
from tests.support.databases import StoreFileTestCase
from tests.support.polling import PATIENCE

DAY = 24 * 3600


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def turn(text: str, *numbers: int, **more: Any) -> dict[str, Any]:
    return {"entries": [([key(number) for number in numbers], text)], **more}


# What is recorded, what is found, how many rows there are.
RECORDED: tuple[tuple[str, list[dict[str, Any]], dict[int, list[str]], int], ...] = (
    ("a reasoning is found under each of its keys", [turn("why", 1, 2, 3)], {n: ["why"] for n in (1, 2, 3)}, 1),
    ("the oldest comes first and equal ones once", [turn(text, 1) for text in ("old", "new", "new", "old")],
     {1: ["old", "new"]}, 2),
    ("the same reasoning again adds no row", [turn("why", 1)] * 3, {1: ["why"]}, 1),
    ("the same reasoning adds keys to its row", [turn("why", 1), turn("why", 2)], {1: ["why"], 2: ["why"]}, 1),
    ("an old text under a key of a newer one comes after that", [turn("old", 1), turn("new", 2), turn("old", 2)],
     {1: ["old"], 2: ["new", "old"]}, 2),
    ("a key leads to its sixteen oldest texts", [turn(str(number), 1, 100 + number) for number in range(20)],
     {1: [*map(str, range(16))]}, 20),
)  # fmt: skip


class StoreTestCase(StoreFileTestCase):
    def store(self, path: str | Path = ":memory:", **details: float) -> ReasoningStore:
        opened = ReasoningStore(path, clock=lambda: self.now, **details)  # type: ignore[arg-type]
        self.addCleanup(opened.close)
        return opened


class TestRecord(StoreTestCase):
    def test_every_recorded_reasoning_is_found_under_its_keys(self) -> None:
        for name, calls, expected, rows in RECORDED:
            with self.subTest(name):
                store = self.store()
                self.assertEqual([True] * len(calls), [store.record(**call) for call in calls])
                self.assertEqual({key(n): texts for n, texts in expected.items()}, store.find([*map(key, range(10))]))
                self.assertEqual(rows, store.stats().reasonings)

    def test_a_reasoning_that_is_too_long_is_not_stored(self) -> None:
        store = self.store(max_bytes=1000)
        with self.assertLogs("deepseek_cursor_proxy", "WARNING"):
            self.assertFalse(store.record([((key(1),), "x" * 1001)]))
        self.assertTrue(store.record([((key(2),), "x" * 1000)]))
        self.assertEqual(1, store.stats().reasonings)

    def test_a_reasoning_of_any_text_is_found_unchanged(self) -> None:
        store = self.store()
        for number, text in enumerate(("", " ", "\0", "\ud800", "思考\u2028", "x" * 1_000_000)):
            store.record([((key(number),), text)])
            self.assertEqual({key(number): [text]}, store.find([key(number)]))

    def test_a_reasoning_is_in_the_file_when_record_returns_true_and_else_after_close(self) -> None:
        for durability, can_wait, is_written in (
            ("normal", False, True), ("normal", True, False), ("full", True, True),
        ):  # fmt: skip
            with self.subTest(durability=durability, can_wait=can_wait):
                path = self.path.with_name(f"{durability}{can_wait}")
                self.enterContext(mock.patch.object(WriteBehind, "seconds_between_batches", 3600))
                store, other = self.store(path, durability=durability), self.store(path)
                self.assertEqual(is_written, store.record(**turn("why", 1), can_wait=can_wait))
                self.assertEqual({key(1): ["why"]}, store.find([key(1)]))
                self.assertEqual({key(1): ["why"]} if is_written else {}, other.find([key(1)]))
                store.close()
                self.assertEqual({key(1): ["why"]}, other.find([key(1)]))

    def test_a_reasoning_that_can_wait_is_written_before_one_that_cannot(self) -> None:
        self.enterContext(mock.patch.object(WriteBehind, "seconds_between_batches", 3600))
        store = self.store(self.path)
        store.record(**turn("plain", 1), can_wait=True)
        self.assertTrue(store.record(**turn("call", 1)))
        self.assertEqual({key(1): ["plain", "call"]}, self.store(self.path).find([key(1)]))

    def test_texts_and_keys_that_wait_take_no_more_than_the_bound(self) -> None:
        self.enterContext(mock.patch.object(WriteBehind, "seconds_between_batches", 3600))
        self.enterContext(mock.patch.object(WaitingReasonings, "bound", 100_000))
        for name, text, numbers in (("texts", "x" * 30_000, 1), ("keys", "", 1000)):
            with self.subTest(name):
                store = self.store()
                for place in range(4):
                    keys = range(place * numbers, (place + 1) * numbers)
                    store.record(**turn(f"{place}{text}", *keys, can_wait=True))
                self.assertEqual(3, len(store._waiting))

    def test_clear_deletes_everything(self) -> None:
        store = self.store(self.path)
        store.record(**turn("x" * 100_000, 1, 2, 3))
        self.assertEqual((1, 3, 100_000), store.stats()[:3])
        self.assertEqual(1, store.clear())
        self.assertEqual({}, store.find([key(1)]))
        self.assertNotIn(b"x" * 100, self.path.read_bytes())


class TestPruning(StoreTestCase):
    def fill(self, store: ReasoningStore, numbers: range, text: str = "", seconds: float = 1) -> None:
        for number in numbers:
            store.record([((key(number),), text or str(number))])
            self.now += seconds

    def test_as_many_reasonings_go_as_limits_and_clock_demand(self) -> None:
        age = {"max_age_seconds": 30 * DAY}
        rows = {"max_rows": 10, "max_age_seconds": 10_000 * DAY}
        for name, limits, count, days, expected in (
            ("there are too many", {"max_rows": 10}, 15, 0, 5),
            ("too many, whatever a clock ahead says", rows, 15, 1000, 5),
            ("too many, whatever a clock behind says", rows, 15, -1000, 5),
            ("too old: a tenth at a time", age, 50, 31, 5),
            ("a clock that jumped back expires none", age, 20, -100, 0),
        ):
            with self.subTest(name):
                store = self.store(**limits)
                self.fill(store, range(count))
                self.now += days * DAY
                self.assertEqual(expected, sum(store.prune()))
                left = {key(n) for n in range(expected, count)}
                self.assertEqual(left, set(store.find([key(n) for n in range(count)])))
                self.assertEqual(len(left), store.stats().keys)

    def test_a_reasoning_used_an_hour_ago_outlives_one_that_was_not_used(self) -> None:
        for details in ({"max_rows": 3}, {"max_bytes": 100_000}):
            store = self.store(**details)
            for number in range(3):
                self.fill(store, range(number, number + 1), f"{number:30000}", 3600)
            # By itself for every 256 turns.
            sum(store.prune())
            store.find([key(0)])
            self.now += 3600
            store.record([((key(3),), f"{3:30000}")])
            sum(store.prune())
            found = set(store.find([key(n) for n in range(4)]))
            self.assertEqual({key(0), key(2), key(3)}, found, details)

    def test_a_reasoning_in_use_does_not_expire(self) -> None:
        store = self.store(max_age_seconds=30 * DAY)
        self.fill(store, range(2))
        for _ in range(3):
            self.now += 20 * DAY
            store.find([key(0)])
            store.record([((key(99),), "another turn carries the use along")])
        sum(store.prune())
        sum(store.prune())
        self.assertEqual({key(0), key(99)}, set(store.find([key(0), key(1), key(99)])))

    def test_close_writes_the_times_of_last_use(self) -> None:
        store = self.store(self.path)
        self.fill(store, range(1))
        self.now += 20 * DAY
        store.find([key(0)])
        store.close()
        self.assertEqual(self.now, self.store(self.path).stats().oldest_use)


class TestCosts(StoreTestCase):
    def test_a_look_up_does_not_wait_for_a_writer(self) -> None:
        store = self.store(self.path)
        store.record([((key(1),), "why")])
        found: list[object] = []
        with store.database.transaction() as connection:
            connection.execute("DELETE FROM reasonings")
            reader = threading.Thread(target=lambda: found.append(store.find([key(1)])))
            reader.start()
            reader.join(PATIENCE)
            self.assertEqual([{key(1): ["why"]}], found)


class TestFaults(StoreTestCase):
    def test_a_closed_store_finds_nothing_and_raises_nothing(self) -> None:
        store = self.store()
        store.close()
        store.close()
        self.assertFalse(store.record([((key(1),), "why")]))
        self.assertEqual({}, store.find([key(1)]))

    def test_a_reasoning_that_sqlite_refuses_stays_pending_until_it_is_written(self) -> None:
        # What the other does to the file takes as long as its disk; that is not the fault here.
        self.enterContext(mock.patch.object(database, "_BUSY_SECONDS", PATIENCE))
        store = self.store(self.path)
        with closing(sqlite3.connect(self.path, isolation_level=None)) as other:
            other.execute("CREATE TRIGGER no BEFORE INSERT ON reasonings BEGIN SELECT raise(ABORT, 'no'); END")
            with self.assertLogs("deepseek_cursor_proxy", logging.WARNING) as logged:
                self.assertFalse(store.record([((key(1),), "why")]))
                self.assertEqual({key(1): ["why"]}, store.find([key(1)]))
                other.execute("DROP TRIGGER no")
                self.assert_reopened(store)
        self.assertEqual(1, len(logged.records), logged.output)
        self.assertEqual((1, {key(1): ["why"]}), (store.stats().reasonings, store.find([key(1)])))

    @contextmanager
    def locked(self, store: ReasoningStore) -> Iterator[Any]:
        """Another process holds the file until the first try to reopen it has failed; the log."""
        locker = self.lock()
        with self.assertLogs("deepseek_cursor_proxy", logging.WARNING) as logged:
            yield logged
            while not logged.records:
                self.assertFalse(store.database.background.wait(0.01))
            locker.execute("ROLLBACK")
            self.assert_reopened(store)

    def assert_reopened(self, store: ReasoningStore) -> None:
        self.assertTrue(store.database.background.wait(PATIENCE))

    def test_a_file_locked_by_another_process_costs_one_warning_and_nothing_is_lost(self) -> None:
        store = self.store(self.path)
        store.record(**turn("why", 1))
        with self.locked(store) as logged:
            self.assertFalse(store.record(**turn("kept", 1, 2)))
            self.assertFalse(store.record(**turn("kept too", 5), can_wait=True))
            found = {key(1): ["why", "kept"], key(2): ["kept"], key(5): ["kept too"]}
            self.assertEqual(found, store.find([key(number) for number in range(9)]))
        self.assertRegex(
            logged.output[0], "kept in memory until .+ is usable again: .*holds it locked; stop that process"
        )
        self.assertRegex(logged.output[1], "is usable again; entries written: 2$")
        self.assertEqual(2, len(logged.records))
        self.assertEqual(found, self.store(self.path).find([key(number) for number in range(9)]))
        self.assertTrue(store.record([((key(6),), "as always")]))

    def test_close_warns_about_reasonings_that_never_reached_the_file(self) -> None:
        self.path.mkdir()
        with self.assertLogs("deepseek_cursor_proxy", logging.WARNING) as logged:
            store = self.store(self.path)
            store.record([((key(1),), "lost")])
            store.close()
        self.assertRegex(logged.output[0], "it is a folder; .+ --reasoning-content-path$")
        self.assertRegex(logged.output[1], "^.+:1 of the reasonings in memory never reached .+ and are forgotten$")
        self.assertEqual({}, store.find([key(1)]))

    def test_must_open_raises_for_a_damaged_file_and_moves_nothing(self) -> None:
        self.path.write_bytes(bytes(8192))
        with self.assertRaisesRegex(Unusable, "it is damaged"):
            ReasoningStore(self.path, must_open=True)
        self.assertEqual([self.path], list(self.path.parent.iterdir()))
