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
from tests.support.width import some, width


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

    def test_a_store_in_memory_has_a_secret_in_memory(self) -> None:
        self.assertNotEqual(secret_beside(Path(":memory:")), secret_beside(Path(":memory:")))
        secret = InstallationSecret(Path(":memory:"))
        self.assertEqual(secret.read(), secret.read())

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
        secret, file = bytes(range(32)), self.store.with_name("shared")
        file.parent.mkdir()
        for content in (secret, secret.hex().encode(), secret.hex().upper().encode() + b"\n"):
            file.write_bytes(content)
            self.assertEqual(secret, given_secret(file, {}))
        self.assertEqual(b"\1" * 32, given_secret(file, {SECRET_VARIABLE: "01" * 32}))
        self.assertIsNone(given_secret(None, {}))
        self.assertEqual(secret, InstallationSecret(self.store, secret).read())
        self.assertFalse(self.path.exists())

    def test_a_secret_that_cannot_be_used_is_refused_and_not_shown(self) -> None:
        file = self.store.with_name("shared")
        with self.assertRaisesRegex(StartupError, "cannot be read"):
            given_secret(file, {})
        with self.assertRaises(StartupError) as caught:
            given_secret(None, {SECRET_VARIABLE: "abc123"})
        self.assertIn("64 hexadecimal digits", str(caught.exception))
        self.assertNotIn("abc123", str(caught.exception))
