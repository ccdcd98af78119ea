"""Private files are private from the first moment, whatever the umask."""

import os
import stat
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from deepseek_cursor_proxy import private_files


class PrivateFilesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.umask(0)

    def umask(self, mask: int) -> None:
        self.addCleanup(os.umask, os.umask(mask))

    def expect_mode(self, path: Path, mode: int) -> None:
        if os.name == "posix":
            self.assertEqual(oct(stat.S_IMODE(path.stat().st_mode)), oct(mode))

    def test_a_new_directory_and_its_parents_are_private(self) -> None:
        for mask in (0, 0o077, 0o777):
            with self.subTest(oct(mask)):
                self.umask(mask)
                path = self.place / oct(mask) / "b" / "c"
                private_files.make_directory(path)
                for each in (path, path.parent, path.parent.parent):
                    self.expect_mode(each, 0o700)

    def test_an_existing_directory_keeps_its_mode(self) -> None:
        shared = self.place / "shared"
        shared.mkdir(mode=0o755)
        (shared / "file").touch()
        private_files.make_directory(shared)
        private_files.make_directory(shared / "ours")
        self.expect_mode(shared, 0o755)
        self.expect_mode(shared / "ours", 0o700)
        self.assertTrue((shared / "file").exists())

    def test_a_directory_created_by_another_process_meanwhile_is_no_failure(self) -> None:
        with mock.patch.object(Path, "is_dir", side_effect=[False, True, *[True] * 50]):
            private_files.make_directory(self.place)
        self.assertTrue(self.place.is_dir())

    def test_a_file_in_place_of_a_directory_is_an_os_error(self) -> None:
        (self.place / "file").write_text("kept")
        for path in (self.place / "file", self.place / "file" / "a" / "b"):
            with self.subTest(path.name), self.assertRaises(OSError):
                private_files.make_directory(path)
        self.assertEqual((self.place / "file").read_text(), "kept")

    def test_a_new_file_is_private(self) -> None:
        for mask in (0, 0o077, 0o777):
            with self.subTest(oct(mask)):
                self.umask(mask)
                private_files.create(self.place / f"created{mask}")
                private_files.write(self.place / f"written{mask}", b"words")
                self.expect_mode(self.place / f"created{mask}", 0o600)
                self.expect_mode(self.place / f"written{mask}", 0o600)
                self.assertEqual((self.place / f"written{mask}").read_bytes(), b"words")

    @unittest.skipUnless(os.name == "posix", "modes mean little on Windows")
    def test_a_new_file_is_private_from_the_first_moment(self) -> None:
        """Another process could open it between its creation and a chmod."""
        with mock.patch.object(Path, "chmod"):
            private_files.create(self.place / "created")
            private_files.write(self.place / "written", b"words")
            private_files.make_directory(self.place / "directory")
        self.expect_mode(self.place / "created", 0o600)
        self.expect_mode(self.place / "written", 0o600)
        self.expect_mode(self.place / "directory", 0o700)

    def test_create_leaves_an_existing_file_unchanged(self) -> None:
        """It may be another program's file, which the caller finds out by reading it."""
        path = self.place / "old"
        path.write_text("old words")
        path.chmod(0o644)
        private_files.create(path)
        self.expect_mode(path, 0o644)
        self.assertEqual(path.read_text(), "old words")

    def test_write_replaces_an_existing_file_by_a_private_one(self) -> None:
        path = self.place / "old"
        path.write_text("old words, and many")
        path.chmod(0o644)
        private_files.write(path, b"new")
        self.expect_mode(path, 0o600)
        self.assertEqual(path.read_text(), "new")

    def test_write_replaces_a_symlink_and_leaves_its_target_alone(self) -> None:
        victim = self.place / "victim"
        victim.write_text("kept")
        victim.chmod(0o644)
        for target in (victim, self.place / "nothing"):
            link = self.place / f"link-to-{target.name}"
            try:
                link.symlink_to(target)
            except OSError:
                self.skipTest("links need a right here")
            private_files.write(link, b"ours")
            self.assertEqual((False, b"ours"), (link.is_symlink(), link.read_bytes()))
            self.expect_mode(link, 0o600)
        self.assertEqual("kept", victim.read_text())
        self.expect_mode(victim, 0o644)
        self.assertFalse((self.place / "nothing").exists())

    def test_a_failed_write_leaves_no_file(self) -> None:
        (self.place / "directory").mkdir()
        with self.assertRaises(OSError):
            private_files.write(self.place / "directory", b"words")
        self.assertEqual(["directory"], os.listdir(self.place))
