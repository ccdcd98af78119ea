"""Test cases that read a configuration file of their own."""

import os
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.config.loaded_config import LoadedConfig
from deepseek_cursor_proxy.errors import StartupError


class ConfigTestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.home = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.dict(os.environ, {"HOME": str(self.home), "USERPROFILE": str(self.home)}))
        self.file = self.home / "config.toml"

    def load(self, text: str | bytes = "", environment: dict[str, str] | None = None, **flags: Any) -> LoadedConfig:
        self.file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return LoadedConfig.load(self.file, environment or {}, flags)

    def refusal(self, text: str | bytes = "", environment: dict[str, str] | None = None, **flags: Any) -> str:
        with self.assertRaises(StartupError) as caught:
            self.load(text, environment, **flags)
        message = str(caught.exception)
        self.assertTrue(message.startswith("config: ") and message.isprintable(), message)
        self.assertLess(len(message), 500)
        return message

    def assert_refused(self, table: tuple[tuple[str, str], ...]) -> None:
        """Each text of a file is refused with these words and its name, and without a secret."""
        for text, words in table:
            with self.subTest(text):
                message = self.refusal(text)
                self.assertIn(words.replace("{file}", str(self.file)), message)
                self.assertIn(str(self.file), message)
                self.assertNotIn("secret", message)
                self.assertNotIn("sk-", message)
