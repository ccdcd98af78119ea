import os
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from deepseek_cursor_proxy.config.declaration import SECRET_VARIABLE
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.storage import private_files
from deepseek_cursor_proxy.storage.private_files import InstallationSecret, given_secret
from tests.support.systems import needs_symlinks
from tests.support.width import some, width


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


def secret_beside(store: Path) -> bytes:
    """The secret that another process finds or creates."""
    return InstallationSecret(store).read()


class TestInstallationSecret(unittest.TestCase):
    def setUp(self) -> None:
        self.store = Path(self.enterContext(tempfile.TemporaryDirectory())) / "deep" / "store.sqlite3"
        self.path = self.store.with_name(private_files.SECRET_NAME)

    def test_the_secret_is_created_once_and_stays(self) -> None:
        first = secret_beside(self.store)
        self.assertEqual(32, len(first))
        self.assertEqual(first, secret_beside(self.store))
        self.assertEqual([private_files.SECRET_NAME], os.listdir(self.path.parent))
        if os.name == "posix":
            modes = [stat.S_IMODE(path.stat().st_mode) for path in (self.path, self.path.parent)]
            self.assertEqual([0o600, 0o700], modes)
        self.assertNotEqual(first, secret_beside(self.store.parent / "other" / "store.sqlite3"))

    def test_a_store_in_memory_has_a_secret_in_memory(self) -> None:
        self.assertNotEqual(secret_beside(Path(":memory:")), secret_beside(Path(":memory:")))
        secret = InstallationSecret(Path(":memory:"))
        self.assertEqual(secret.read(), secret.read())

    def test_processes_that_start_at_once_get_one_secret_also_without_hard_links(self) -> None:
        program = (
            "import os, sys, time; os.link = None\n"
            "from pathlib import Path\n"
            "from deepseek_cursor_proxy.storage.private_files import InstallationSecret\n"
            "print('ready', flush=True); sys.stdin.readline()\n"
            "print(InstallationSecret(Path(sys.argv[1])).read().hex())\n"
        )
        for held in some((None, b"", b"short", b"x" * 40), 2):
            with self.subTest(held):
                if held is not None:
                    self.path.write_bytes(held)
                command = [sys.executable, "-c", program, str(self.store)]
                processes = [
                    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                    for _ in range(width(3, 6))
                ]
                for each in processes:
                    assert each.stdout is not None
                    each.stdout.readline()
                for each in processes:
                    assert each.stdin is not None
                    each.stdin.write("go\n")
                    each.stdin.flush()
                found = {each.communicate(timeout=60)[0].strip() for each in processes}
                self.assertEqual({self.path.read_bytes().hex()}, found)
                self.assertEqual([private_files.SECRET_NAME], os.listdir(self.path.parent))

    @unittest.skipUnless(os.name == "posix", "flock is POSIX's")
    def test_the_secret_is_created_on_a_file_system_without_locks(self) -> None:
        with mock.patch("fcntl.flock", side_effect=OSError(37, "No locks available")):
            self.assertEqual(secret_beside(self.store), secret_beside(self.store))

    def test_a_secret_that_cannot_be_written_is_one_warning(self) -> None:
        with (
            mock.patch(
                "deepseek_cursor_proxy.storage.private_files.make_directory", side_effect=OSError(30, "Read-only")
            ),
            self.assertLogs("deepseek_cursor_proxy.storage.private_files", "WARNING") as logged,
        ):
            self.assertEqual(32, len(secret_beside(self.store)))
        self.assertIn("Read-only", logged.output[0])

    def test_a_secret_that_is_given_is_used_in_place_of_the_file(self) -> None:
        secret = bytes(range(32))
        for text in (secret.hex(), secret.hex().upper() + "\n"):
            self.assertEqual(secret, given_secret({SECRET_VARIABLE: text}))
        self.assertIsNone(given_secret({}))
        self.assertEqual(secret, InstallationSecret(self.store, secret).read())
        self.assertFalse(self.path.exists())

    def test_a_secret_that_cannot_be_used_is_refused_and_not_shown(self) -> None:
        with self.assertRaises(StartupError) as caught:
            given_secret({SECRET_VARIABLE: "abc123"})
        self.assertIn("64 hexadecimal digits", str(caught.exception))
        self.assertNotIn("abc123", str(caught.exception))
