import os
import random
import sqlite3
import stat
import time
import unittest
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest import mock

from deepseek_cursor_proxy.storage.faults import Damaged, Locked, Unusable
from deepseek_cursor_proxy.storage.sqlite import file_check, schema
from deepseek_cursor_proxy.storage.sqlite.database import Database
from tests.support.databases import StoreFileTestCase

OURS = schema.STORE.application_id


class FileTestCase(StoreFileTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.place = self.path.parent

    def make_ours(self) -> bytes:
        with closing(self.open()) as opened, opened.transaction() as connection:
            for number in range(50):
                connection.execute("INSERT INTO reasonings (text, used_at) VALUES (randomblob(900), ?)", (number,))
        return self.path.read_bytes()

    def make(self, *statements: str) -> bytes:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)
        return self.path.read_bytes()

    @contextmanager
    def living(self, statement: str) -> Iterator[Path]:
        """Another database that is open, with this statement in its WAL file."""
        path = self.place / "living"
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=WAL").fetchall()
            connection.execute(statement)
            yield path
        path.unlink()

    def expect_left_alone(self, words: str) -> None:
        before = self.contents()
        with self.assertRaisesRegex(Unusable, words) as caught:
            file_check.inspect(self.path, schema.STORE)
        self.assertNotIsInstance(caught.exception, Damaged)
        self.assertIn("--reasoning-content-path", str(caught.exception))
        self.assertEqual(before, self.contents())

    def contents(self) -> dict[Path, bytes]:
        """All files but SQLite's index of the log, which any reader of the log may add and no program needs."""
        files = [path for path in self.place.iterdir() if path.is_file() and not path.name.endswith("-shm")]
        return {path: path.read_bytes() for path in files}

    def expect_damaged(self) -> None:
        with self.assertRaises(Damaged):
            file_check.inspect(self.path, schema.STORE)


class TestInspect(FileTestCase):
    def test_no_file_an_empty_file_and_our_database_pass(self) -> None:
        file_check.inspect(self.path, schema.STORE)
        self.path.touch()
        file_check.inspect(self.path, schema.STORE)
        self.make_ours()
        file_check.inspect(self.path, schema.STORE)
        self.assertEqual([self.path], list(self.place.iterdir()))
        # An empty database may become ours.
        self.path.unlink()
        self.make("PRAGMA journal_mode=WAL")
        file_check.inspect(self.path, schema.STORE)

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
        random_bytes, image = rng.randbytes(300_000), b"\x89PNG\r\n\x1a\n" + rng.randbytes(90_000)
        # Looks like a page's kind at each boundary, and is none.
        pages = (b"\x0d" + b"abcdefg" * 600)[:4096] * 20
        for content in (b"x", b"SQL", b"Dear reader, " * 5000, b"\r\n" * 50_000, random_bytes, image, pages):
            with self.subTest(content[:8]):
                self.path.write_bytes(content)
                self.expect_left_alone("not an SQLite database")

    def test_a_database_of_another_program_is_left_alone(self) -> None:
        self.make("CREATE TABLE theirs (x)")
        self.expect_left_alone("another program")

    def test_a_database_of_a_newer_schema_is_left_alone(self) -> None:
        self.make(f"PRAGMA application_id = {OURS}", "CREATE TABLE x (y)", "PRAGMA user_version = 999")
        self.expect_left_alone(r"newer version of this program \(schema 999\)")

    def test_the_wal_file_of_a_crash_is_read_too(self) -> None:
        """Another program's id may still be in the log; opening the file with SQLite would copy it into the file."""
        with self.living("CREATE TABLE theirs (x)") as living:
            for end in ("", "-wal"):
                Path(f"{self.path}{end}").write_bytes(Path(f"{living}{end}").read_bytes())
        self.expect_left_alone("another program")

    def test_an_uncommitted_transaction_in_the_wal_file_is_ignored(self) -> None:
        with self.living("PRAGMA user_version = 999") as living:
            log = Path(f"{living}-wal").read_bytes()
            self.path.write_bytes(living.read_bytes())
        self.assertEqual(32 + 24 + 4096, len(log))
        # Without the number of pages that makes a frame the last of its transaction.
        Path(f"{self.path}-wal").write_bytes(log[:36] + bytes(4) + log[40:])
        file_check.inspect(self.path, schema.STORE)

    def test_a_page_torn_by_a_power_cut_is_no_damage_while_the_log_has_it(self) -> None:
        living = Database(self.place / "living")
        living.open()
        living.confirm()
        data = (self.place / "living").read_bytes()
        Path(f"{self.path}-wal").write_bytes((self.place / "living-wal").read_bytes())
        living.close()
        self.path.write_bytes(bytes(4096) + data[4096:])
        file_check.inspect(self.path, schema.STORE)
        with closing(Database(self.path)) as recovered:
            recovered.open(may_set_aside=False)
            recovered.confirm()

    def test_a_damaged_database_is_distinguished_from_a_foreign_file(self) -> None:
        data = self.make_ours()
        rng = random.Random(4)
        for name, content in {
            "head zeroed": bytes(100) + data[100:],
            "first page zeroed": bytes(4096) + data[4096:],
            "all zeroed": bytes(len(data)),
            "head overwritten": rng.randbytes(4096) + data[4096:],
            "first page overwritten behind the magic": data[:16] + rng.randbytes(4080) + data[4096:],
            "cut off within the magic": data[:9],
            "cut off within the head": data[:60],
        }.items():
            with self.subTest(name):
                self.path.write_bytes(content)
                self.expect_damaged()
                self.assertEqual(content, self.path.read_bytes())

    def test_another_programs_database_is_damaged_only_if_it_cannot_be_read(self) -> None:
        data = self.make("CREATE TABLE theirs (x)", "INSERT INTO theirs VALUES (zeroblob(50000))")
        self.path.write_bytes(data[: len(data) // 2])
        self.expect_damaged()
        # With its log beside it, half of a database may be healthy.
        Path(f"{self.path}-wal").write_bytes(b"not for us to read")
        self.expect_left_alone("another program")

    def test_a_file_that_another_process_changes_meanwhile_is_not_damaged(self) -> None:
        """Its log is copied into the file while we read it: half of it is old."""
        ours = self.make_ours()
        self.path.unlink()
        self.make("PRAGMA journal_mode=WAL")

        def copy_log(*_: object) -> None:
            self.path.write_bytes(ours)
            with closing(sqlite3.connect(self.place / "no database")) as connection:
                (self.place / "no database").write_bytes(b"no database" * 100)
                connection.execute("PRAGMA user_version")

        with mock.patch.object(file_check, "_read_identity", copy_log), self.assertRaises(Locked):
            file_check.inspect(self.path, schema.STORE)


class TestSideFiles(FileTestCase):
    @unittest.skipIf(os.name == "nt", "modes are a POSIX thing")
    def test_read_only_side_files_become_writable_with_their_database(self) -> None:
        self.make_ours()
        side, link = Path(f"{self.path}-shm"), Path(f"{self.path}-wal")
        side.touch(0o400)
        (self.place / "somewhere").touch(0o400)
        link.symlink_to(self.place / "somewhere")
        for ours, theirs in ((0o400, 0o400), (0o600, 0o600)):
            with self.subTest(oct(ours)):
                self.path.chmod(ours)
                file_check.grant_side_files(self.path)
                self.assertEqual(theirs, stat.S_IMODE(side.stat().st_mode))
        self.assertEqual(0o400, stat.S_IMODE(link.stat().st_mode), "what is elsewhere is not ours to change")

    @unittest.skipIf(os.name == "nt", "modes are a POSIX thing")
    def test_opening_a_database_makes_its_side_files_writable(self) -> None:
        self.make_ours()
        side = Path(f"{self.path}-shm")
        side.write_bytes(bytes(32768))
        side.chmod(0o400)
        self.open()
        self.assertEqual(0o600, stat.S_IMODE(side.stat().st_mode))


class TestSetAside(FileTestCase):
    def test_set_aside_moves_the_side_files_too_and_makes_all_private(self) -> None:
        for end in ("", "-wal", "-shm"):
            Path(f"{self.path}{end}").write_text(f"main{end}")
            Path(f"{self.path}{end}").chmod(0o644)
        target = file_check.set_aside(self.path, "corrupt")
        self.assertRegex(target.name, r"^store\.sqlite3\.corrupt-\d{8}-\d{6}$")
        names = {target.name + end for end in ("", "-wal", "-shm")}
        self.assertEqual(names, {path.name for path in self.place.iterdir()})
        for path in self.place.iterdir():
            self.assertEqual("main" + path.name.removeprefix(target.name), path.read_text())
            if os.name == "posix":
                self.assertEqual(0o600, stat.S_IMODE(path.stat().st_mode))

    def test_set_aside_overwrites_no_file(self) -> None:
        with mock.patch.object(time, "strftime", return_value="20250101-000000"):
            for number in range(3):
                self.path.write_text(str(number))
                file_check.set_aside(self.path, "corrupt")
        self.assertEqual(["0", "1", "2"], [path.read_text() for path in sorted(self.place.iterdir())])

    def test_set_aside_of_a_file_that_is_gone_leaves_no_file(self) -> None:
        with self.assertRaises(FileNotFoundError):
            file_check.set_aside(self.path, "corrupt")
        self.assertEqual([], list(self.place.iterdir()))

    def test_side_files_of_a_deleted_database_are_removed(self) -> None:
        strays = [Path(f"{self.path}-wal"), Path(f"{self.path}-shm")]
        self.path.write_text("database")
        for stray in strays:
            stray.write_text("stray")
        before = file_check.file_identity(self.path)
        file_check.remove_stray_side_files(self.path, before)
        file_check.remove_stray_side_files(self.path, None)
        self.assertTrue(all(stray.exists() for stray in strays))
        replacement = self.place / "replacement"
        replacement.write_text("another database")
        replacement.replace(self.path)
        file_check.remove_stray_side_files(self.path, None)
        self.assertTrue(all(stray.exists() for stray in strays), "they may belong to either file")
        file_check.remove_stray_side_files(self.path, before)
        self.assertEqual([self.path], list(self.place.iterdir()))
        self.path.unlink()
        strays[1].write_text("stray")
        file_check.remove_stray_side_files(self.path, None)
        self.assertEqual([], list(self.place.iterdir()))
