import os
import stat
import tempfile
import unittest
from pathlib import Path

from deepseek_cursor_proxy.cli import running_proxy


class KeyFilesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.store = Path(self.enterContext(tempfile.TemporaryDirectory())) / "new" / "store.sqlite3"
        self.path = self.store.with_name(running_proxy.KEY_FILE)

    def test_the_key_is_made_once_and_private(self) -> None:
        self.assertIsNone(running_proxy.read_key(self.store))
        key = running_proxy.read_or_create_key(self.store)
        self.assertRegex(key, r"\Ask-[\w-]{43}\Z")
        self.assertEqual(key, running_proxy.read_or_create_key(self.store))
        self.assertEqual(key, running_proxy.read_key(self.store))
        if os.name == "posix":
            self.assertEqual(0o600, stat.S_IMODE(self.path.stat().st_mode))

    def test_a_key_of_the_owner_is_taken_and_a_damaged_one_replaced(self) -> None:
        self.store.parent.mkdir()
        self.path.write_text("my-own-key\n")
        self.assertEqual("my-own-key", running_proxy.read_or_create_key(self.store))
        for damage in (b"", b"two words", b"\xff\xfe"):
            self.path.write_bytes(damage)
            with self.subTest(damage):
                self.assertIsNone(running_proxy.read_key(self.store))
                self.assertTrue(running_proxy.read_or_create_key(self.store).startswith("sk-"))

    def test_a_place_that_cannot_be_written_means_a_key_for_this_run(self) -> None:
        self.path.parent.mkdir()
        self.path.mkdir()
        with self.assertLogs(running_proxy.__name__, "WARNING"):
            one = running_proxy.read_or_create_key(self.store)
        self.assertTrue(one.startswith("sk-"))
        memory = Path(":memory:")
        self.assertNotEqual(running_proxy.read_or_create_key(memory), running_proxy.read_or_create_key(memory))
        self.assertFalse(Path(running_proxy.KEY_FILE).exists())

    def test_the_proxy_that_was_started_last_is_asked_first(self) -> None:
        running_proxy.read_or_create_key(self.store)
        first, second = (f"http://127.0.0.1:{port}" for port in (9001, 9002))
        with running_proxy.address_file(self.store, first):
            os.utime(self.store.with_name("admin-9001.url"), (1, 1))
            with running_proxy.address_file(self.store, second):
                self.assertEqual([second, first], running_proxy._addresses(self.store))
            self.assertEqual([first], running_proxy._addresses(self.store))
