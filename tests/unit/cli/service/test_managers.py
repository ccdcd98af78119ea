"""Where each system keeps the service, which commands it takes, and how an installation is started again."""

import tempfile
import unittest
from pathlib import Path

from deepseek_cursor_proxy.cli.service.managers import Launch, find_launch, manager
from deepseek_cursor_proxy.errors import StartupError

BARE = Launch("/usr/bin/python3", ("-m", "deepseek_cursor_proxy", "serve"))
HOME = Path("/home/me")


class ManagerTest(unittest.TestCase):
    def test_each_system_has_its_file_and_its_commands(self) -> None:
        for system, environment, path, first in (
            (
                "linux",
                {},
                ".config/systemd/user/deepseek-cursor-proxy.service",
                ("systemctl", "--user", "daemon-reload"),
            ),
            ("linux", {"XDG_CONFIG_HOME": "/home/me/x"}, "x/systemd/user/deepseek-cursor-proxy.service", None),
            ("darwin", {}, "Library/LaunchAgents/deepseek-cursor-proxy.plist", ("launchctl", "bootstrap", "gui/501")),
            ("win32", {"USERNAME": "me"}, ".deepseek-cursor-proxy/service.xml", ("schtasks", "/Create", "/F")),
        ):
            with self.subTest(system):
                found = manager(BARE, HOME, environment, system, 501)
                self.assertEqual(HOME / path, found.path)
                if first:
                    self.assertEqual(first, found.install[0][:3])

    def test_a_task_is_in_the_encoding_that_windows_reads(self) -> None:
        text = manager(BARE, HOME, {"USERNAME": "me", "USERDOMAIN": "PC"}, "win32").text
        self.assertEqual(b"\xff\xfe", text[:2])
        self.assertIn("<UserId>PC\\me</UserId>\r\n", text.decode("utf-16"))

    def test_an_unknown_system_is_refused(self) -> None:
        with self.assertRaisesRegex(StartupError, "services are not supported on plan9"):
            manager(BARE, HOME, {}, "plan9")


class LaunchTest(unittest.TestCase):
    def setUp(self) -> None:
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def launch(self, package: str) -> Launch:
        return find_launch(["--port=1"], "/py", self.place / package / "deepseek_cursor_proxy")

    def test_an_environment_is_named_by_its_python_and_a_checkout_by_its_folder(self) -> None:
        words = ("-m", "deepseek_cursor_proxy", "serve", "--port=1")
        for package, folder in (
            ("venv/lib/python3.13/site-packages", ""),
            ("pipx/venvs/deepseek-cursor-proxy/lib/python3.13/site-packages", ""),
            ("uv/tools/deepseek-cursor-proxy/lib/python3.13/site-packages", ""),
            ("usr/lib/python3/dist-packages", ""),
            ("checkout", str(self.place / "checkout")),
        ):
            self.assertEqual(Launch("/py", words, folder), self.launch(package))

    def test_an_archive_is_run_as_it_is(self) -> None:
        archive = self.place / "proxy.pyz"
        archive.touch()
        self.assertEqual(Launch("/py", (str(archive), "serve", "--port=1")), self.launch("proxy.pyz"))
        self.assertEqual(str(archive), self.launch("proxy.pyz").archive)

    def test_a_temporary_installation_is_refused(self) -> None:
        for package in (
            ".cache/uv/archive-v0/x1/lib/python3.13/site-packages",
            "uv/cache/archive-v0/x1/Lib/site-packages",
            ".local/share/pipx/.cache/ab/lib/python3.13/site-packages",
        ):
            with self.subTest(package), self.assertRaisesRegex(StartupError, "temporary .* `uv tool install` or `pipx"):
                self.launch(package)
