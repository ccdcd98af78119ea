import os
import sqlite3
import stat
import tempfile
import threading
import unittest
from pathlib import Path

from deepseek_cursor_proxy import database
from deepseek_cursor_proxy.database import Database
from deepseek_cursor_proxy.errors import StartupError


class TestDatabase(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "inner" / "store.sqlite3"

    def open(self, path: Path | None = None) -> Database:
        opened = Database(path or self.path)
        self.addCleanup(opened.close)
        return opened

    def pragma(self, opened: Database, name: str) -> object:
        with opened.reading() as connection:
            return connection.execute(f"PRAGMA {name}").fetchone()[0]

    def test_a_new_file_is_in_wal_mode_and_at_the_newest_version(self) -> None:
        opened = self.open()
        self.assertEqual("wal", self.pragma(opened, "journal_mode"))
        self.assertEqual(1, self.pragma(opened, "synchronous"))
        self.assertEqual(len(database.MIGRATIONS), self.pragma(opened, "user_version"))

    @unittest.skipUnless(os.name == "posix", "modes are a POSIX thing")
    def test_all_its_files_are_private_whatever_the_umask(self) -> None:
        before = os.umask(0)
        self.addCleanup(os.umask, before)
        opened = self.open()
        with opened.transaction() as connection:
            connection.execute("INSERT INTO reasonings (text, used_at) VALUES (x'00', 0)")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in self.path.parent.iterdir()}
        self.assertEqual({"store.sqlite3", "store.sqlite3-wal", "store.sqlite3-shm"}, set(modes))
        self.assertEqual({0o600}, set(modes.values()))
        self.assertEqual(0o700, stat.S_IMODE(self.path.parent.stat().st_mode))

    def test_a_failed_transaction_leaves_nothing(self) -> None:
        opened = self.open()
        with self.assertRaises(RuntimeError), opened.transaction() as connection:
            connection.execute("INSERT INTO reasonings (text, used_at) VALUES (x'00', 0)")
            raise RuntimeError
        with opened.reading() as connection:
            self.assertEqual(0, connection.execute("SELECT count(*) FROM reasonings").fetchone()[0])

    def test_two_openings_of_one_file_share_it(self) -> None:
        one, two = self.open(), self.open()
        with one.transaction() as connection:
            connection.execute("INSERT INTO reasonings (text, used_at) VALUES (x'00', 0)")
        with two.reading() as connection:
            self.assertEqual(1, connection.execute("SELECT count(*) FROM reasonings").fetchone()[0])

    def test_many_threads_take_turns(self) -> None:
        opened = self.open(Path(":memory:"))

        def insert() -> None:
            for _ in range(20):
                with opened.transaction() as connection:
                    connection.execute("INSERT INTO reasonings (text, used_at) VALUES (x'00', 0)")

        threads = [threading.Thread(target=insert) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with opened.reading() as connection:
            self.assertEqual(160, connection.execute("SELECT count(*) FROM reasonings").fetchone()[0])

    def test_migrations_run_from_where_the_file_is(self) -> None:
        steps: list[str] = []
        before = list(database.MIGRATIONS)
        self.addCleanup(database.MIGRATIONS.__setitem__, slice(None), before)
        self.open().close()
        database.MIGRATIONS.append(lambda connection: steps.append("second"))
        self.open().close()
        self.open().close()
        self.assertEqual(["second"], steps)

    def test_what_cannot_be_used_is_one_line_with_a_remedy(self) -> None:
        self.path.parent.mkdir()
        newer, foreign, damaged, folder = (self.path.with_name(name) for name in ("newer", "foreign", "damaged", "dir"))
        for path, statement in ((newer, "PRAGMA user_version = 999"), (foreign, "CREATE TABLE theirs (x)")):
            connection = sqlite3.connect(path)
            connection.execute(statement)
            connection.commit()
            connection.close()
        damaged.write_bytes(b"this is no database, and long enough to be looked at as one" * 100)
        folder.mkdir()
        under_file = damaged / "store.sqlite3"
        for path in (newer, foreign, damaged, folder, under_file):
            before = path.read_bytes() if path.is_file() else b""
            with self.subTest(path.name), self.assertRaises(StartupError) as caught:
                Database(path)
            self.assertIn("--reasoning-content-path", str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))
            self.assertEqual(before, path.read_bytes() if path.is_file() else b"")
