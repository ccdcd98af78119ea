import sqlite3
import threading
from collections.abc import Collection, Iterator
from typing import NamedTuple
from unittest import mock

from deepseek_cursor_proxy.storage import table
from deepseek_cursor_proxy.storage.table import Table
from deepseek_cursor_proxy.storage.write_behind import WriteBehind
from tests.support.databases import StoreTestCase
from tests.support.polling import PATIENCE, wait_until


class Thing(NamedTuple):
    name: int
    text: bytes
    used_at: float


class WaitingThings(WriteBehind[Thing]):
    def keys(self, entry: Thing) -> Collection[int]:
        return [entry.name]


class Things(Table[Thing]):
    name = "things"
    title = "things"
    waiting_type = WaitingThings
    size = "length(text)"

    def write(self, thing: Thing) -> object:
        return self._waiting.write([thing])

    def _write_entry(self, connection: sqlite3.Connection, entry: Thing) -> None:
        connection.execute("INSERT OR REPLACE INTO things VALUES (?, ?, ?)", entry)


class TestTable(StoreTestCase):
    store_type = Things

    def setUp(self) -> None:
        super().setUp()
        self.execute("CREATE TABLE things (id INTEGER PRIMARY KEY, text BLOB, used_at REAL)")

    def write(self, names: range, size: int = 1) -> None:
        for name in names:
            self.store.write(Thing(name, bytes(size), self.now))
            self.now += 1

    def names(self) -> list[int]:
        return [name for (name,) in self.select("SELECT id FROM things ORDER BY id")]

    def test_the_longest_unused_go_beyond_the_limits_of_number_and_bytes(self) -> None:
        for limits, left in (({"max_rows": 3}, 3), ({"max_bytes": 1_000_000}, 4)):
            with self.subTest(**limits):
                self.execute("DELETE FROM things")
                self.store = self.store_on(self.database, **limits)
                self.write(range(10), 250_000)
                self.assertEqual(10 - left, sum(self.store.prune()))
                self.assertEqual(list(range(10 - left, 10)), self.names())

    def test_one_pruning_deletes_a_tenth_at_most_because_of_age(self) -> None:
        """A clock that is a year ahead for a moment deletes little."""
        self.store = self.store_on(self.database, max_age_seconds=50)
        self.store.writes_between_prunings = 1000
        self.write(range(100))
        self.now += 365 * 24 * 3600
        self.assertEqual(10, sum(self.store.prune()))
        self.now -= 365 * 24 * 3600
        for left in (81, 73, 66):
            sum(self.store.prune())
            self.assertEqual(list(range(100 - left, 100)), self.names())
        for _ in range(10):
            sum(self.store.prune())
        self.assertEqual(list(range(50, 100)), self.names(), "what is not too old stays")

    def test_a_row_that_cannot_be_written_waits_in_memory_and_is_written_when_the_file_reopens(self) -> None:
        locker = self.lock()
        self.write(range(1))
        self.assertFalse(self.store.write(Thing(0, b"x", self.now)))
        self.assertEqual([], self.names())
        locker.execute("ROLLBACK")
        self.database.reopen()
        self.assertEqual([(b"x",)], self.select("SELECT text FROM things"))

    def test_pruning_runs_once_for_many_writes_on_another_thread(self) -> None:
        threads: list[threading.Thread] = []

        def prune() -> Iterator[int]:
            threads.append(threading.current_thread())
            yield 0

        with mock.patch.object(self.store, "prune", prune):
            self.write(range(63))
            self.assertEqual([], threads)
            self.write(range(63, 65))
            self.assertTrue(self.database.background.wait(PATIENCE))
        self.assertEqual(1, len(threads))
        self.assertNotIn(threading.current_thread(), threads)

    def test_writes_do_not_hurry_a_pruning_that_runs(self) -> None:
        """Its pauses are for those who write: each of them would have had the next step follow at once."""
        with mock.patch.object(self.database.background, "run") as run:
            self.write(range(200))
        run.assert_called_once_with(self.store._prune_on)

    def test_rows_that_come_while_a_pruning_runs_are_pruned_too(self) -> None:
        self.store = self.store_on(self.database, max_rows=1)
        self.write(range(63))
        with mock.patch.object(self.store, "measure", side_effect=lambda: self.write(range(63, 200)) or (64, 0)):
            self.write(range(1))
            wait_until(lambda: len(self.names()) > 64)
        self.assertTrue(self.database.background.wait(PATIENCE))
        self.assertEqual([199], self.names())

    def test_close_ends_a_pruning_between_two_steps(self) -> None:
        self.store = self.store_on(self.database, max_rows=1, max_bytes=100)
        self.store.rows_per_step = 1
        with mock.patch.object(table, "_SECONDS_BETWEEN_STEPS", PATIENCE):
            self.write(range(64))
            wait_until(lambda: len(self.names()) == 63)
            self.restart()
        self.assertEqual(63, len(self.names()))

    def test_entries_are_written_between_the_steps_of_a_pruning(self) -> None:
        self.store = self.store_on(self.database, max_rows=1, max_bytes=100)
        self.store.rows_per_step = 1
        with mock.patch.object(table, "_SECONDS_BETWEEN_STEPS", PATIENCE):
            self.write(range(64))
            wait_until(lambda: len(self.names()) == 63)
            self.store._waiting.write_later([Thing(99, b"", self.now)])
            wait_until(lambda: 99 in self.names())
