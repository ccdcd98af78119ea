import os
import shutil
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from deepseek_cursor_proxy.cli import tunnel
from deepseek_cursor_proxy.errors import StartupError


class ChoiceTest(unittest.TestCase):
    def chosen(self, wanted: str, installed: str = "", token: str = "") -> str:
        paths = {name: f"/bin/{name}" for name in installed.split()}
        with (
            mock.patch.object(tunnel, "find_binary", paths.get),
            mock.patch.object(tunnel, "ngrok_configurations", return_value=[]),
        ):
            return tunnel.choose(wanted, 9000, "", {"NGROK_AUTHTOKEN": token}).name

    def test_a_program_that_is_named_is_taken_else_ngrok_with_a_token_before_cloudflared(self) -> None:
        for wanted, installed, token, name in (
            ("ngrok", "", "", "ngrok"), ("cloudflared", "", "", "cloudflared"),
            ("on", "ngrok cloudflared", "t", "ngrok"), ("on", "ngrok cloudflared", "", "cloudflared"),
            ("on", "cloudflared", "t", "cloudflared"),
        ):  # fmt: skip
            self.assertEqual(name, self.chosen(wanted, installed, token), (wanted, installed, token))
        for name in ("ngrok", "cloudflared"):
            program = tunnel.choose(name, 9000, "https://x.example", {})
            self.assertEqual("https://x.example", program.url)
            self.assertEqual(name == "ngrok", "--url=https://x.example" in program.arguments())

    def test_without_any_the_simplest_one_is_recommended(self) -> None:
        for installed in ("", "ngrok"):
            with self.assertRaisesRegex(StartupError, "no tunnel program is installed; cloudflared .* no account"):
                self.chosen("on", installed)


class TokenTest(unittest.TestCase):
    def setUp(self) -> None:
        self.home = Path(self.enterContext(tempfile.TemporaryDirectory()))
        home = {"HOME": str(self.home), "USERPROFILE": str(self.home)}
        self.enterContext(mock.patch.dict(os.environ, home))

    def test_a_token_is_found_in_the_environment_and_in_every_configuration(self) -> None:
        self.assertFalse(tunnel.has_ngrok_token({}))
        self.assertTrue(tunnel.has_ngrok_token({"NGROK_AUTHTOKEN": "t"}))
        for text, has_token in (
            ("version: 2\nauthtoken: 4nq9\n", True), ("version: 3\nagent:\n    authtoken: 4nq9\n", True),
            ("version: 2\n#authtoken: 4nq9\n", False), ("version: 2\nauthtoken:\n", False), ("\0\ufffd", False),
        ):  # fmt: skip
            for path in tunnel.ngrok_configurations({}):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
                self.assertIs(has_token, tunnel.has_ngrok_token({}), (text, path.parent.name))
                path.unlink()

    def test_each_system_has_its_own_place(self) -> None:
        for system, environment, place in (
            ("linux", {}, ".config/ngrok/ngrok.yml"),
            ("linux", {"XDG_CONFIG_HOME": str(self.home / "x")}, "x/ngrok/ngrok.yml"),
            ("darwin", {}, "Library/Application Support/ngrok/ngrok.yml"),
            ("win32", {}, "AppData/Local/ngrok/ngrok.yml"),
            ("win32", {"LOCALAPPDATA": str(self.home / "y")}, "y/ngrok/ngrok.yml"),
        ):
            with self.subTest(system), mock.patch.object(sys, "platform", system):
                self.assertEqual(self.home / place, tunnel.ngrok_configurations(environment)[0])


class BinaryTest(unittest.TestCase):
    def test_a_program_beside_the_path_is_found_where_installers_put_it(self) -> None:
        for name, place in (
            ("cloudflared", "/opt/homebrew/bin/cloudflared"),
            ("cloudflared", r"C:\Program Files (x86)\cloudflared\cloudflared.exe"),
        ):
            there = place
            with (
                self.subTest(place),
                mock.patch.object(shutil, "which", return_value=None),
                mock.patch.object(os, "access", side_effect=lambda path, _, there=there: path == there),
            ):
                self.assertEqual(place, tunnel.find_binary(name))

    def test_a_path_is_not_looked_for_elsewhere(self) -> None:
        with mock.patch.object(os, "access", return_value=True):
            self.assertIsNone(tunnel.find_binary(os.path.join(os.sep, "absent", "ngrok")))


class QuoteTest(unittest.TestCase):
    def test_a_quoted_message_has_no_token_and_no_control_characters(self) -> None:
        for text, quote in (
            ("Your authtoken: s3cret\r\nERR", "Your authtoken: … ERR"), ("--token eyJhIjoi x", "--token … x"),
            ("\x1b[31mred\u202e", "[31mred"), ("x" * 1000, "x" * 200),
        ):  # fmt: skip
            self.assertEqual(quote, tunnel.one_line(text))
