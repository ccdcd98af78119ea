import logging
import os
import re
import sqlite3
import stat
import subprocess
import sys
import unittest
from contextlib import closing
from pathlib import Path
from unittest import mock

from deepseek_cursor_proxy.storage.faults import Damaged, Locked, Lost, Refused, Unusable
from deepseek_cursor_proxy.storage.sqlite import database, file_check, schema
from deepseek_cursor_proxy.storage.sqlite.database import Database, FetchedRows, open_read_only
from tests.support.databases import StoreFileTestCase
from tests.support.systems import needs_removable_open_files, needs_symlinks
from tests.support.threads import in_background, run_at_once


class TestDatabase(StoreFileTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = self.path.parent / "inner" / "store.sqlite3"

    def pragma(self, opened: Database, name: str) -> object:
        with opened.reader() as connection:
            return connection.execute(f"PRAGMA {name}").fetchone()[0]

    def test_a_new_file_is_in_wal_mode_and_at_the_newest_version(self) -> None:
        opened = self.open()
        self.assertEqual("wal", self.pragma(opened, "journal_mode"))
        self.assertEqual(1, self.pragma(opened, "synchronous"))
        self.assertEqual(schema.STORE.version, self.pragma(opened, "user_version"))

    @unittest.skipUnless(os.name == "posix", "modes are a POSIX thing")
    def test_the_files_of_the_store_are_private_whatever_the_umask(self) -> None:
        before = os.umask(0)
        self.addCleanup(os.umask, before)
        insert(self.open())
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in self.path.parent.iterdir()}
        self.assertEqual({"store.sqlite3", "store.sqlite3-wal", "store.sqlite3-shm"}, set(modes))
        self.assertEqual({0o600}, set(modes.values()))
        self.assertEqual(0o700, stat.S_IMODE(self.path.parent.stat().st_mode))

    def test_a_failed_transaction_leaves_no_row(self) -> None:
        opened = self.open()
        with self.assertRaises(RuntimeError), opened.transaction() as connection:
            connection.execute("INSERT INTO reasonings (text, used_at) VALUES (x'00', 0)")
            raise RuntimeError
        self.assertEqual(0, count(opened))

    def test_two_databases_share_one_file(self) -> None:
        one, two = self.open(), self.open()
        insert(one)
        self.assertEqual(1, count(two))

    def test_the_log_is_emptied_after_the_transaction_of_another_thread(self) -> None:
        opened = self.open()
        with mock.patch.object(database, "_BUSY_SECONDS", 0.0):
            with opened.transaction() as connection:
                connection.execute("INSERT INTO reasonings (text, used_at) VALUES (x'00', 0)")
                thread = in_background(self, opened.empty_log)
                thread.join(0.05)
            thread.join()
        self.assertEqual(0, self.path.with_name("store.sqlite3-wal").stat().st_size)

    def test_many_threads_write_in_turns(self) -> None:
        opened = self.open(Path(":memory:"))
        run_at_once(lambda _: [insert(opened) for _ in range(20)], range(8))
        self.assertEqual(160, count(opened))

    def test_a_file_of_an_earlier_version_is_set_aside_with_one_line(self) -> None:
        for version in (11, 0, -1):
            with self.subTest(version):
                with closing(self.open()) as old, old.transaction() as connection:
                    connection.execute("INSERT INTO reasonings (text, used_at) VALUES (x'00', 0)")
                    connection.execute(f"PRAGMA user_version = {version}")
                with self.assertRaisesRegex(Unusable, f"earlier version, schema {version}"), open_read_only(self.path):
                    self.fail("it was read")
                with self.assertLogs(database.__name__, logging.WARNING) as logged:
                    opened = self.open()
                [line] = logged.output
                self.assertRegex(
                    line, rf"earlier version, schema {version}; it was set aside as \S+\.old-\S+ and a new one"
                )
                self.assertEqual(0, count(opened))
                opened.close()
        self.assertEqual(3, len(list(self.path.parent.glob("*.old-*"))))

    def test_full_durability_is_synchronous_and_checkpoints_flush_the_cache_of_a_mac_drive(self) -> None:
        for durability, *expected in (("normal", 1, 0, 1), ("full", 2, 1, 1)):
            with self.subTest(durability):
                opened = self.open(durability=durability)
                pragmas = ("synchronous", "fullfsync", "checkpoint_fullfsync")
                self.assertEqual(expected, [self.pragma(opened, name) for name in pragmas])
                opened.close()

    def test_the_wal_file_stays_small(self) -> None:
        opened = self.open()
        for _ in range(60):
            with opened.transaction() as connection:
                connection.execute("INSERT INTO reasonings (text, used_at) VALUES (zeroblob(200000), 0)")
        self.assertLess(Path(f"{self.path}-wal").stat().st_size, 5_000_000)

    def test_rows_that_are_not_fetched_keep_no_statement_open(self) -> None:
        """PyPy ends a statement when its garbage is collected, and until then nothing can be committed."""
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            connection.execute("CREATE TABLE t (x)")
            connection.execute("INSERT INTO t VALUES (1), (2)")
            connection.execute("BEGIN")
            rows = [FetchedRows(connection.execute(f"SELECT x FROM t -- {n}")) for n in range(3)]
            connection.execute("COMMIT")
            connection.execute("DROP TABLE t")
        self.assertEqual(((1,), [(1,), (2,)], [(1,), (2,)]), (rows[0].fetchone(), rows[1].fetchall(), list(rows[2])))

    @needs_symlinks
    def test_a_symlink_to_the_store_is_followed(self) -> None:
        self.path.parent.mkdir()
        elsewhere = self.path.parent / "elsewhere.sqlite3"
        self.path.symlink_to(elsewhere)
        opened = self.open()
        insert(opened)
        self.assertTrue(elsewhere.exists())
        self.assertEqual(1, count(opened))


def insert(opened: Database) -> None:
    with opened.transaction() as connection:
        connection.execute("INSERT INTO reasonings (text, used_at) VALUES (x'00', 0)")


def count(opened: Database) -> int:
    with opened.reader() as connection:
        return int(connection.execute("SELECT count(*) FROM reasonings").fetchone()[0])


@unittest.skipUnless(os.name == "posix", "only POSIX drops locks when another descriptor is closed")
class TestSeveralInOneProcess(StoreFileTestCase):
    # Tries to take the lock that SQLite's connections to the file share, as a process does that finds no other.
    LOCK = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 2**30 + 2)"

    def is_locked(self) -> bool:
        run = subprocess.run([sys.executable, "-IS", "-c", self.LOCK, self.path], stderr=subprocess.PIPE, check=False)
        self.assertTrue(run.returncode == 0 or b"BlockingIOError" in run.stderr, run.stderr)
        return run.returncode != 0

    def test_no_database_or_reader_takes_the_locks_of_another_on_the_file_away(self) -> None:
        first = self.open()
        insert(first)
        link = self.path.with_name("link")
        link.symlink_to(self.path)
        self.assertTrue(self.is_locked())
        for path in (self.path, link):
            with self.subTest(path.name):
                # Whose first page is then not in the log.
                first.empty_log()
                others = [Database(path) for _ in range(4)]
                run_at_once(Database.open, others)
                for other in others:
                    insert(other)
                    other.close()
                self.assertTrue(self.is_locked())
                with open_read_only(path) as connection:
                    self.assertLess(4, connection.execute("SELECT count(*) FROM reasonings").fetchone()[0])
                self.assertTrue(self.is_locked())
        insert(first)
        first.close()
        self.assertFalse(self.is_locked())

    def test_a_file_is_inspected_again_after_it_was_closed(self) -> None:
        for _ in range(2):
            self.open().close()
        with open_read_only(self.path), self.assertRaises(ValueError), open_read_only(self.path):
            raise ValueError
        self.path.write_bytes(b"no database at all" * 100)
        for opened in (Database(self.path), Database(self.path)):
            with self.assertRaisesRegex(Unusable, "left alone"):
                opened.open()
        self.assertEqual([], file_check._claims)

    def test_a_hard_link_to_an_open_file_is_refused_because_it_would_have_its_own_log(self) -> None:
        first = self.open()
        insert(first)
        other = self.path.with_name("other.sqlite3")
        os.link(self.path, other)
        with self.assertRaisesRegex(
            Unusable, f"a hard link to {re.escape(os.path.realpath(self.path))}, which is open"
        ):
            Database(other).open()
        self.assertTrue(self.is_locked())
        first.close()
        self.assertEqual(1, count(self.open(other)))


class TestFaults(StoreFileTestCase):
    """The first call meets a fault, later ones raise it at once, until the file is opened again."""

    def setUp(self) -> None:
        super().setUp()
        self.faults = 0
        self.opened = self.open(on_fault=self.count_fault)
        insert(self.opened)

    def count_fault(self) -> None:
        self.faults += 1

    def waits(self) -> list[object]:
        """The busy timeouts that are set from now on."""
        timeouts: list[object] = []
        set_patience = self.opened._set_busy_timeout

        def watched(connection: sqlite3.Connection, seconds: float) -> None:
            timeouts.append(seconds)
            set_patience(connection, seconds)

        self.opened._set_busy_timeout = watched  # type: ignore[method-assign]
        return timeouts

    def test_a_locked_file_is_waited_for_once_and_can_be_read(self) -> None:
        other, waits = self.lock(), self.waits()
        for _ in range(3):
            with self.assertRaises(Locked):
                insert(self.opened)
        self.assertEqual(([database._BUSY_SECONDS], 1), (waits, self.faults))
        self.assertEqual(1, count(self.opened))
        with self.assertRaises(Locked):
            self.opened.confirm()
        other.execute("ROLLBACK")
        with self.assertRaises(Locked):
            insert(self.opened)
        self.opened.confirm()
        insert(self.opened)
        self.assertEqual(2, count(self.opened))

    def test_pending_writes_reach_a_reopened_file_before_any_other(self) -> None:
        other = self.lock()
        with self.assertRaises(Locked):
            insert(self.opened)

        def write_pending() -> None:
            with self.assertRaises(Locked):
                insert(self.opened)
            with self.opened.transaction(is_retry=True) as connection:
                connection.execute("INSERT INTO reasonings (text, used_at) VALUES (x'01', 0)")

        self.opened.on_reopen(write_pending)
        with self.assertRaises(Locked):
            self.opened.reopen()
        other.execute("ROLLBACK")
        self.opened.reopen()
        insert(self.opened)
        self.assertEqual(3, count(self.opened))

    def test_a_lock_that_comes_and_goes_costs_one_wait(self) -> None:
        other, waits = self.lock(), self.waits()
        for _ in range(2):
            with self.assertRaises(Locked):
                insert(self.opened)
            other.execute("ROLLBACK")
            self.opened.confirm()
            other.execute("BEGIN EXCLUSIVE")
        self.assertEqual(1, sum(1 for seconds in waits if seconds))

    def test_a_request_waits_less_than_half_a_second_for_a_locked_file(self) -> None:
        self.assertLess(2 * database._BUSY_SECONDS, 0.5)

    def test_a_damaged_file_is_set_aside_by_open_and_not_before(self) -> None:
        with self.opened.reader() as connection:
            roots = [page for (page,) in connection.execute("SELECT rootpage FROM sqlite_master WHERE rootpage > 0")]
        self.opened.close()
        data = self.path.read_bytes()
        damaged = bytearray(data)
        for page in roots:
            # The schema, which may take more than the first page, stays.
            damaged[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
        self.path.write_bytes(damaged)
        self.opened = self.open()
        with self.assertRaises(Damaged):
            count(self.opened)
        with self.assertRaises(Damaged):
            insert(self.opened)
        self.assertEqual([], list(self.path.parent.glob("*.corrupt-*")))
        with self.assertLogs(database.__name__, logging.WARNING) as logged:
            self.opened.open()
            self.opened.confirm()
        self.assertEqual(1, len(logged.records))
        [aside] = self.path.parent.glob("*.corrupt-*")
        self.assertIn(os.path.realpath(aside), logged.output[0])
        self.assertEqual(data[:4096], aside.read_bytes()[:4096])
        self.assertEqual(0, count(self.opened))

    def test_a_damaged_file_stays_in_place_without_may_set_aside(self) -> None:
        self.opened.close()
        self.path.write_bytes(bytes(8192))
        with self.assertRaises(Damaged):
            Database(self.path).open(may_set_aside=False)
        self.assertEqual([self.path], list(self.path.parent.iterdir()))

    @needs_removable_open_files
    def test_a_new_file_of_another_process_is_not_set_aside(self) -> None:
        """Two proxies meet the same damage: the slower one must not move the fresh file of the faster one."""
        with self.assertRaises(Damaged), self.opened.reader():
            raise Damaged("malformed")
        for path in self.path.parent.iterdir():
            path.rename(path.with_name("aside-" + path.name))
        insert(self.open())
        self.opened.open()
        self.opened.confirm()
        self.assertEqual(1, count(self.opened))
        self.assertEqual([], list(self.path.parent.glob("*.corrupt-*")))

    def test_of_two_processes_that_start_on_a_damaged_file_one_sets_it_aside(self) -> None:
        self.opened.close()
        self.path.write_bytes(bytes(8192))
        slower, inspect = Database(self.path), file_check.inspect
        self.addCleanup(slower.close)

        def overtaken(path: Path, newest_version: int) -> None:
            """Both have seen the damage; the other one does something about it before this one does."""
            with mock.patch.object(file_check, "inspect", inspect), self.assertLogs(database.__name__, logging.WARNING):
                insert(self.open())
            raise Damaged("seen before")

        looks = [overtaken, inspect]
        with mock.patch.object(file_check, "inspect", side_effect=lambda *given: looks.pop(0)(*given)):
            slower.open()
        self.assertEqual(1, count(slower))
        self.assertEqual(1, len([path for path in self.path.parent.glob("*.corrupt-*") if path.name[-1].isdigit()]))

    def test_the_next_write_notices_a_deleted_replaced_or_emptied_file(self) -> None:
        def remove() -> None:
            for path in self.path.parent.iterdir():
                path.unlink()

        def replace() -> None:
            copy = self.path.with_name("copy")
            copy.write_bytes(self.path.read_bytes())
            copy.rename(self.path)

        def remove_log() -> None:
            Path(f"{self.path}-wal").unlink()

        def empty() -> None:
            os.truncate(self.path, 0)

        # Windows removes and renames no file that is open.
        for happens in (empty,) if os.name == "nt" else (remove, replace, remove_log, empty):
            with self.subTest(happens.__name__):
                happens()
                with self.assertRaises(Lost):
                    insert(self.opened)
                with self.assertLogs(database.__name__, logging.WARNING):
                    self.opened.open()
                self.opened.confirm()
                insert(self.opened)
                with closing(self.open()) as again:
                    self.assertEqual(count(self.opened), count(again))

    def test_a_folder_without_permission_leaves_an_open_file_usable(self) -> None:
        with mock.patch.object(os, "stat", side_effect=PermissionError(13, "Permission denied")):
            insert(self.opened)
        self.assertEqual((2, 0), (count(self.opened), self.faults))

    @needs_removable_open_files
    def test_a_deleted_wal_file_loses_no_committed_row(self) -> None:
        Path(f"{self.path}-wal").unlink()
        with self.assertRaises(Lost):
            insert(self.opened)
        with self.assertLogs(database.__name__, logging.WARNING):
            self.opened.open()
        self.assertEqual(1, count(self.opened))

    def test_tables_and_version_are_read_in_one_snapshot(self) -> None:
        """Else a migration by another process in between looks like a file that lost its tables."""
        other = self.lock("BEGIN IMMEDIATE")
        reader = sqlite3.connect(self.path, isolation_level=None)
        self.addCleanup(reader.close)

        def migrate(statement: str) -> None:
            if "application_id" in statement and other.in_transaction:
                other.execute("PRAGMA user_version = 99")
                other.execute("COMMIT")

        reader.set_trace_callback(migrate)
        schema.STORE.check(reader)
        self.assertFalse(other.in_transaction)

    def test_a_wrong_statement_is_no_fault_of_the_file(self) -> None:
        with self.assertRaises(Refused), self.opened.reader() as connection:
            connection.execute("SELEKT")
        self.assertEqual(0, self.faults)
        insert(self.opened)

    def test_a_fault_that_is_raised_often_does_not_grow_its_traceback(self) -> None:
        self.lock()
        for _ in range(50):
            with self.assertRaises(Unusable):
                insert(self.opened)
        assert self.opened._write_fault is not None
        self.assertIsNone(self.opened._write_fault.__traceback__)

    def test_a_closed_database_stays_closed(self) -> None:
        self.opened.close()
        for use in (self.opened.open, self.opened.confirm, lambda: insert(self.opened), lambda: count(self.opened)):
            with self.assertRaises(Unusable):
                use()
