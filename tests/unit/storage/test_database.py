import logging
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
import unittest
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.net.threads import BackgroundThread
from deepseek_cursor_proxy.storage import database, schema
from deepseek_cursor_proxy.storage import database as store_module
from deepseek_cursor_proxy.storage.database import Database, OutageLog, Reopener, open_read_only
from deepseek_cursor_proxy.storage.faults import Damaged, Locked, Lost, Refused, Unusable
from tests.support.databases import StoreFileTestCase
from tests.support.polling import PATIENCE, wait_until
from tests.support.systems import needs_symlinks
from tests.support.threads import run_at_once


class TestDatabase(StoreFileTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = self.path.parent / "inner" / "store.sqlite3"

    def pragma(self, opened: Database, name: str) -> object:
        with opened.reader() as connection:
            return connection.execute(f"PRAGMA {name}").fetchone()[0]

    def test_a_file_of_an_earlier_version_is_set_aside_with_one_line(self) -> None:
        for version in (11, 0, -1):
            with self.subTest(version):
                with closing(self.open()) as old, old.transaction() as connection:
                    connection.execute("INSERT INTO reasonings VALUES (NULL, randomblob(16), x'00', 0)")
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
        pragmas = ("journal_mode", "user_version", "synchronous", "fullfsync", "checkpoint_fullfsync")
        for durability, *values in (("normal", 1, 0, 1), ("full", 2, 1, 1)):
            expected = ["wal", schema.STORE.version, *values]
            with self.subTest(durability):
                opened = self.open(durability=durability)
                self.assertEqual(expected, [self.pragma(opened, name) for name in pragmas])
                opened.close()

    @needs_symlinks
    def test_a_start_on_a_file_that_is_there_writes_nothing(self) -> None:
        """A write waits for the disk twice."""
        self.open().close()
        opened = self.open()
        self.assertTrue(opened.reopen())
        self.assertEqual(0, Path(f"{self.path}-wal").stat().st_size)

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
        connection.execute("INSERT INTO reasonings VALUES (NULL, randomblob(16), x'00', 0)")


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


class TestFaults(StoreFileTestCase):
    """The first call meets a fault, later ones raise it at once, until the file is opened again."""

    def setUp(self) -> None:
        super().setUp()
        self.faults = 0
        self.opened = self.open(on_fault=self.count_fault)
        insert(self.opened)

    def count_fault(self) -> None:
        self.faults += 1

    def test_a_locked_file_is_waited_for_once_and_can_be_read(self) -> None:
        other = self.lock()
        with self.assertRaises(Locked):
            insert(self.opened)
        with mock.patch.object(time, "sleep") as slept:
            for _ in range(2):
                with self.assertRaises(Locked):
                    insert(self.opened)
        slept.assert_not_called()
        self.assertEqual(1, self.faults)
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
            with self.opened.transaction(despite_fault=True) as connection:
                connection.execute("INSERT INTO reasonings VALUES (NULL, randomblob(16), x'01', 0)")

        self.opened.on_reopen(write_pending)
        with self.assertRaises(Locked):
            self.opened.reopen()
        other.execute("ROLLBACK")
        self.opened.reopen()
        insert(self.opened)
        self.assertEqual(3, count(self.opened))

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

    def test_of_two_processes_that_start_on_a_damaged_file_one_sets_it_aside(self) -> None:
        self.opened.close()
        self.path.write_bytes(bytes(8192))
        slower = Database(self.path)
        self.addCleanup(slower.close)
        set_aside = slower._set_aside

        def overtaken(*given: Any) -> None:
            """Both have seen the damage; the other one does something about it before this one does."""
            with self.assertLogs(database.__name__, logging.WARNING):
                insert(self.open())
            set_aside(*given)

        with mock.patch.object(slower, "_set_aside", overtaken):
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

        def empty() -> None:
            os.truncate(self.path, 0)

        # Windows removes and renames no file that is open.
        for happens in (empty,) if os.name == "nt" else (remove, replace, empty):
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

    def test_a_required_table_is_there_also_after_the_file_was_locked_or_replaced(self) -> None:
        def has_table() -> bool:
            return bool(self.opened.select("SELECT 1 FROM sqlite_master WHERE name = 'notes'"))

        lock = self.lock("BEGIN IMMEDIATE")
        with mock.patch.object(database, "_BUSY_SECONDS", 0.01):
            self.opened.require("CREATE TABLE notes (id INTEGER PRIMARY KEY) STRICT;\nCREATE INDEX by_id ON notes (id)")
        self.assertFalse(has_table())
        lock.close()
        self.opened.reopen()
        self.assertEqual(
            {"notes": 0}, {name: rows for name, rows in self.opened.size().rows.items() if name == "notes"}
        )
        os.truncate(self.path, 0)
        with self.assertRaises(Lost):
            insert(self.opened)
        with self.assertLogs(database.__name__, logging.WARNING):
            self.opened.reopen()
        self.assertTrue(has_table())

    def test_a_wrong_statement_is_no_fault_of_the_file(self) -> None:
        with self.assertRaises(Refused), self.opened.reader() as connection:
            connection.execute("SELEKT")
        self.assertEqual(0, self.faults)
        insert(self.opened)

    def test_a_closed_database_stays_closed(self) -> None:
        self.opened.close()
        for use in (self.opened.open, self.opened.confirm, lambda: insert(self.opened), lambda: count(self.opened)):
            with self.assertRaises(Unusable):
                use()


class TestForeignAndDamagedFiles(StoreFileTestCase):
    def make(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    def expect_left_alone(self, words: str) -> None:
        before = self.path.read_bytes() if self.path.is_file() else b""
        with self.assertRaisesRegex(Unusable, words) as caught:
            Database(self.path).open()
        self.assertNotIsInstance(caught.exception, Damaged)
        self.assertIn("--reasoning-content-path", str(caught.exception))
        self.assertEqual([self.path], list(self.path.parent.iterdir()))
        self.assertEqual(before, self.path.read_bytes() if self.path.is_file() else b"")

    def test_a_folder_or_pipe_at_the_path_is_not_opened(self) -> None:
        self.path.mkdir()
        self.expect_left_alone("it is a folder")
        self.path.rmdir()
        if hasattr(os, "mkfifo"):
            # Opening one would wait for a writer for ever.
            os.mkfifo(self.path)
            self.expect_left_alone("not a regular file")

    def test_a_file_that_is_no_database_is_left_alone(self) -> None:
        rng = random.Random(4)
        for content in (b"x", b"Dear reader, " * 5000, b"\r\n" * 50_000, rng.randbytes(300_000)):
            with self.subTest(content[:8]):
                self.path.write_bytes(content)
                self.expect_left_alone("not an SQLite database")

    def test_a_database_of_another_program_or_a_newer_version_is_left_alone(self) -> None:
        self.make("PRAGMA journal_mode=WAL", "CREATE TABLE theirs (x)")
        self.expect_left_alone("another program")
        self.path.unlink()
        ours = f"PRAGMA application_id = {schema.STORE.application_id}"
        self.make(ours, "CREATE TABLE x (y)", "PRAGMA user_version = 999")
        self.expect_left_alone(r"newer version of this program \(schema 999\)")

    def test_an_empty_file_or_database_becomes_ours(self) -> None:
        self.path.touch()
        self.open().close()
        self.path.unlink()
        self.make("PRAGMA journal_mode=WAL")
        insert(self.open())

    def test_a_damaged_database_and_its_side_files_are_set_aside_private_and_overwrite_nothing(self) -> None:
        self.open().close()
        data = self.path.read_bytes()
        for number, content in enumerate((bytes(8192), data[:16] + bytes(4080), data[:600])):
            for end in ("-wal", "-shm"):
                Path(f"{self.path}{end}").write_bytes(b"side")
            self.path.write_bytes(content)
            self.path.chmod(0o644)
            with (
                mock.patch.object(time, "strftime", return_value="20250101-000000"),
                self.assertLogs(database.__name__, logging.WARNING),
            ):
                self.open().close()
            name = f"{self.path.name}.corrupt-20250101-000000{-number or ''}"
            aside = self.path.with_name(name)
            self.assertEqual(content, aside.read_bytes())
            if os.name == "posix":
                self.assertEqual({0o600}, {path.stat().st_mode & 0o777 for path in self.path.parent.iterdir()})


LOG = logging.getLogger("tests.reopener")


class TestReopener(unittest.TestCase):
    def setUp(self) -> None:
        self.enterContext(mock.patch.object(store_module, "_FIRST_DELAY_SECONDS", 0.001))

        self.thread = BackgroundThread("reopen")
        self.addCleanup(self.thread.close)

    def test_the_reopener_retries_until_it_succeeds(self) -> None:
        results = [True, False, False]
        Reopener(results.pop, self.thread).wake()
        self.assertTrue(self.thread.wait(PATIENCE))
        self.assertEqual([], results)

    def test_faults_that_are_met_between_two_tries_cause_none(self) -> None:
        """Every request of an outage meets one, and each try waits for the file."""
        reopen = mock.Mock(return_value=False)
        reopener = Reopener(reopen, self.thread)
        with mock.patch.object(store_module, "_FIRST_DELAY_SECONDS", 3600):
            for _ in range(3):
                is_done = threading.Event()
                reopener.wake()
                self.thread.run(is_done.set)
                self.assertTrue(is_done.wait(PATIENCE))
        self.assertEqual(1, reopen.call_count)

    def test_a_wake_during_a_try_causes_one_more_try(self) -> None:
        go_on = threading.Event()
        reopen = mock.Mock(side_effect=lambda: go_on.wait(PATIENCE))
        reopener = Reopener(reopen, self.thread)
        reopener.wake()
        wait_until(lambda: reopen.called)
        reopener.wake()
        reopener.wake()
        go_on.set()
        self.assertTrue(self.thread.wait(PATIENCE))
        self.assertEqual(2, reopen.call_count)

    def test_close_ends_the_reopener_during_a_delay(self) -> None:
        reopen = mock.Mock(return_value=False)
        reopener = Reopener(reopen, self.thread)
        with mock.patch.object(store_module, "_FIRST_DELAY_SECONDS", 3600):
            reopener.wake()
            wait_until(lambda: reopen.called)
            self.thread.close()
        reopener.wake()
        self.assertTrue(self.thread.wait(0))
        self.assertEqual(1, reopen.call_count)


class TestOutageLog(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 1000.0
        self.enterContext(mock.patch.object(time, "monotonic", side_effect=lambda: self.now))
        self.outage = OutageLog(LOG, "store.sqlite3", "reasoning")
        self.written = 0

    def warnings(self, *, tries: int = 1, written: int = 0) -> list[str]:
        """What an outage of so many tries says."""
        with self.assertLogs(LOG, logging.INFO) as logged:
            for _ in range(tries):
                self.outage.report_fault(Unusable("it is locked", "wait"))
            self.written += written
            self.outage.report_end(self.written)
            LOG.info("end")
        return [record.getMessage() for record in logged.records[:-1]]

    def test_an_outage_is_one_warning_at_its_start_and_one_at_its_end(self) -> None:
        begin = "reasoning is kept in memory until store.sqlite3 is usable again: it is locked; wait"
        end = "store.sqlite3 is usable again; entries written: 7"
        self.assertEqual([begin, end], self.warnings(tries=100, written=7))

    def test_an_outage_that_comes_and_goes_is_warned_about_now_and_then(self) -> None:
        self.assertEqual(2, len(self.warnings()))
        for _ in range(20):
            self.now += 1
            self.assertEqual([], self.warnings())
        self.now += 30
        self.assertEqual(2, len(self.warnings()))

    def test_an_outage_soon_after_another_is_warned_about_if_it_lasts(self) -> None:
        self.warnings()
        with self.assertNoLogs(LOG):
            self.outage.report_fault(Unusable("it is locked", "wait"))
        self.now += 31
        self.assertEqual(2, len(self.warnings()))
