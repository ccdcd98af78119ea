import threading
import unittest
from unittest import mock

from deepseek_cursor_proxy.storage import table
from deepseek_cursor_proxy.storage.entries import Kind, Row
from deepseek_cursor_proxy.storage.sqlite.rows import Rows
from deepseek_cursor_proxy.storage.table import Pruner, Table
from tests.support.databases import StoreTestCase
from tests.support.polling import PATIENCE, wait_until
from tests.support.threads import run_at_once


class Things(Table[Row]):
    kind = Kind("things", "things", ("caller", "name"), ("text",))


class TestTable(StoreTestCase):
    store_type = Things

    def setUp(self) -> None:
        super().setUp()
        self.execute(
            "CREATE TABLE things (id INTEGER PRIMARY KEY, caller BLOB, name BLOB, text BLOB, used_at REAL, "
            "UNIQUE (caller, name))"
        )

    def write(self, names: range, size: int = 1) -> None:
        for name in names:
            self.store.write(Row((b"me", b"%d" % name), (bytes(size),), self.now))
            self.now += 1

    def names(self) -> list[int]:
        return [int(name) for (name,) in self.select("SELECT name FROM things ORDER BY id")]

    def test_a_row_is_replaced_or_only_its_time(self) -> None:
        for text, keeps_first, expected in ((b"1", False, b"1"), (b"2", False, b"2"), (b"3", True, b"2")):
            self.now += 1
            written = self.store.write(Row((b"me", b"a"), (text,), self.now, keeps_first))
            self.assertEqual((expected,), written)
            self.assertEqual([(b"a", expected, self.now)], self.store.get_many([b"a", b"b"], [b"me"]))

    @mock.patch.object(Rows, "size", "length(text)")
    def test_the_longest_unused_go_beyond_the_limits_of_number_bytes_and_age(self) -> None:
        for limits, left in (({"max_rows": 3}, 3), ({"max_bytes": 1_000_000}, 4), ({"max_age_seconds": 5.5}, 5)):
            with self.subTest(**limits):
                self.execute("DELETE FROM things")
                self.store = self.store_on(self.database, **limits)
                self.write(range(10), 250_000)
                self.assertEqual(10 - left, self.store.prune())
                self.assertEqual(list(range(10 - left, 10)), self.names())

    def test_two_prunings_at_once_delete_no_more_than_one(self) -> None:
        stores = [self.store_on(self.open(), max_rows=300) for _ in range(2)]
        self.write(range(1000))
        run_at_once(lambda store: store.prune(), stores)
        self.assertEqual(list(range(700, 1000)), self.names())

    def test_a_row_that_cannot_be_written_is_found_in_memory_and_written_when_the_file_reopens(self) -> None:
        locker = self.lock()
        self.write(range(1))
        self.assertIsNone(self.store.write(Row((b"me", b"0"), (b"x",), self.now)))
        self.assertEqual([(b"0", b"x", self.now)], self.store.get_many([b"0"], [b"me"]))
        self.assertEqual([], self.names())
        locker.execute("ROLLBACK")
        self.database.reopen()
        self.assertEqual([(b"x",)], self.select("SELECT text FROM things"))

    def test_a_file_that_cannot_be_used_has_no_rows(self) -> None:
        self.database.close()
        found = self.store.get_many([b"a"], [b"me"]), self.store.get_all(10), self.store.prune()
        self.assertEqual(([], [], 0), found)


class TestPruner(unittest.TestCase):
    def test_pruning_runs_once_for_many_writes_on_another_thread(self) -> None:
        threads: list[threading.Thread] = []
        pruner = Pruner(lambda: threads.append(threading.current_thread()), every=3, name="prune")
        for expected in (0, 0, 1, 1, 1, 2):
            pruner.count_writes()
            for thread in threading.enumerate():
                if thread.name == "prune":
                    thread.join()
            self.assertEqual(expected, len(threads))
        self.assertNotIn(threading.current_thread(), threads)

    def test_close_waits_for_a_running_pruning_and_starts_no_more(self) -> None:
        release, runs = threading.Event(), []
        prune = mock.Mock(side_effect=lambda: runs.append(release.wait(PATIENCE)))
        pruner = Pruner(prune, every=1, name="prune")
        pruner.count_writes()
        wait_until(lambda: prune.called)
        release.set()
        pruner.close()
        pruner.count_writes()
        self.assertEqual([True], runs)
        self.assertTrue(pruner.is_closed)

    def test_writes_during_a_pruning_start_one_more(self) -> None:
        release, runs = threading.Event(), []

        def prune() -> None:
            runs.append(threading.current_thread())
            release.wait(PATIENCE)

        pruner = Pruner(prune, every=1, name="prune")
        pruner.count_writes()
        wait_until(lambda: runs)
        for _ in range(3):
            pruner.count_writes()
        release.set()
        wait_until(lambda: len(runs) == 2)
        pruner.close()
        self.assertEqual(runs[:1] * 2, runs)

    def test_close_ends_the_pause_between_two_pruning_steps(self) -> None:
        pruner = Pruner(lambda: None, every=1, name="prune")
        with mock.patch.object(table, "_SECONDS_BETWEEN_STEPS", 3600):
            pruner.close()
            pruner.pause_step()

    def test_a_write_succeeds_when_no_pruning_thread_can_start(self) -> None:
        runs: list[int] = []
        pruner = Pruner(lambda: runs.append(1), every=1, name="prune")
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            pruner.count_writes()
        self.assertEqual([], runs)
        pruner.count_writes()
        pruner.close()
        self.assertEqual([1], runs)
