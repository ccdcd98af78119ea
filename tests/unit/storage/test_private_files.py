"""Private files are private from the first moment, whatever the umask."""

import os
import stat
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from deepseek_cursor_proxy.storage import private_files
from tests.support.systems import needs_symlinks


class PrivateFilesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.umask(0)

    def umask(self, mask: int) -> None:
        self.addCleanup(os.umask, os.umask(mask))

    def expect_mode(self, mode: int, *paths: Path) -> None:
        for path in paths if os.name == "posix" else ():
            self.assertEqual(oct(stat.S_IMODE(path.stat().st_mode)), oct(mode), path)

    def public_file(self, name: str, text: str) -> Path:
        path = self.place / name
        path.write_text(text)
        path.chmod(0o644)
        return path

    def test_a_new_directory_and_its_parents_are_private(self) -> None:
        for mask in (0, 0o077, 0o777):
            with self.subTest(oct(mask)):
                self.umask(mask)
                path = self.place / oct(mask) / "b" / "c"
                private_files.make_directory(path)
                self.expect_mode(0o700, path, path.parent, path.parent.parent)

    def test_an_existing_directory_keeps_its_mode(self) -> None:
        shared = self.place / "shared"
        shared.mkdir(mode=0o755)
        (shared / "file").touch()
        private_files.make_directory(shared)
        private_files.make_directory(shared / "ours")
        self.expect_mode(0o755, shared)
        self.expect_mode(0o700, shared / "ours")
        self.assertTrue((shared / "file").exists())

    def test_a_directory_created_by_another_process_meanwhile_is_no_failure(self) -> None:
        with mock.patch.object(Path, "is_dir", side_effect=[False, True, *[True] * 50]):
            private_files.make_directory(self.place)
        self.assertTrue(self.place.is_dir())

    def test_a_new_file_is_private(self) -> None:
        for mask in (0, 0o077, 0o777):
            with self.subTest(oct(mask)):
                self.umask(mask)
                created, written = self.place / f"created{mask}", self.place / f"written{mask}"
                private_files.create(created)
                private_files.write(written, b"words")
                self.expect_mode(0o600, created, written)
                self.assertEqual(written.read_bytes(), b"words")

    @unittest.skipUnless(os.name == "posix", "modes mean little on Windows")
    def test_a_new_file_is_private_from_the_first_moment(self) -> None:
        """Another process could open it between its creation and a chmod."""
        with mock.patch.object(Path, "chmod"):
            private_files.create(self.place / "created")
            private_files.write(self.place / "written", b"words")
            private_files.make_directory(self.place / "directory")
        self.expect_mode(0o600, self.place / "created", self.place / "written")
        self.expect_mode(0o700, self.place / "directory")

    def test_create_leaves_an_existing_file_unchanged(self) -> None:
        """It may be another program's file, which the caller finds out by reading it."""
        path = self.public_file("old", "old words")
        private_files.create(path)
        self.expect_mode(0o644, path)
        self.assertEqual(path.read_text(), "old words")

    def test_write_replaces_an_existing_file_by_a_private_one(self) -> None:
        path = self.public_file("old", "old words, and many")
        private_files.write(path, b"new")
        self.expect_mode(0o600, path)
        self.assertEqual(path.read_text(), "new")

    @needs_symlinks
    def test_write_replaces_a_symlink_and_leaves_its_target_alone(self) -> None:
        victim = self.public_file("victim", "kept")
        for target in (victim, self.place / "nothing"):
            link = self.place / f"link-to-{target.name}"
            link.symlink_to(target)
            private_files.write(link, b"ours")
            self.assertEqual((False, b"ours"), (link.is_symlink(), link.read_bytes()))
            self.expect_mode(0o600, link)
        self.assertEqual("kept", victim.read_text())
        self.expect_mode(0o644, victim)
        self.assertFalse((self.place / "nothing").exists())

    def test_a_failed_write_leaves_no_file(self) -> None:
        (self.place / "directory").mkdir()
        with self.assertRaises(OSError):
            private_files.write(self.place / "directory", b"words")
        self.assertEqual(["directory"], os.listdir(self.place))
