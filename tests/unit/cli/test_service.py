import configparser
import os
import plistlib
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.cli import service
from deepseek_cursor_proxy.cli.service import Launch, Manager, find_launch, manager
from deepseek_cursor_proxy.errors import StartupError
from tests.support.commands import CommandTestCase

ODD = ("--model=a b", "--config=C:\\x y\\", '--x="quoted"', "--y=50%", "--z=$HOME", "--w=<&>'", "--v=ü")
LAUNCH = Launch("/opt/my python/bin/python3", ("-m", "deepseek_cursor_proxy", "serve", *ODD), "/home/me & you/100%")
BARE = Launch("/usr/bin/python3", ("-m", "deepseek_cursor_proxy", "serve"))
HOME = Path("/home/me")


def plain(unit: str) -> str:
    """The unit of systemd without the quotes and escapes that it needs for the paths of Windows."""
    return unit.replace('"', "").replace("\\\\", "\\")


class ServiceTest(CommandTestCase):
    command = ("service",)

    def setUp(self) -> None:
        super().setUp()
        self.path = self.home / ".config" / "systemd" / "user" / "deepseek-cursor-proxy.service"
        self.calls: list[str] = []
        self.codes: dict[str, int] = {}
        self.enterContext(mock.patch.object(subprocess, "run", self.call))
        self.enterContext(mock.patch.object(service, "manager", self.manager))
        self.system = "linux"

    def manager(self, *arguments: Any, user_id: int) -> Manager:
        return manager(*arguments, system=self.system, user_id=user_id)

    def call(self, command: tuple[str, ...], **_: Any) -> Any:
        if command[0] == "absent":
            raise FileNotFoundError
        self.calls.append(" ".join(command))
        return SimpleNamespace(returncode=self.codes.get(command[2] if len(command) > 2 else "", 0))

    def test_install_shows_writes_and_starts_the_service_with_the_settings_given(self) -> None:
        os.environ |= {"DEEPSEEK_CURSOR_PROXY_VERBOSE": "yes", "DEEPSEEK_API_KEY": "sk-secret"}
        out = self.output_of("install", "--yes", "--port", "9100", "--tunnel", "--trace-dir", "t")
        text, traces = self.path.read_text(), Path("t").absolute()
        self.assertIn(f" serve --port=9100 --tunnel=on --verbose --trace-dir={traces}\n", plain(text))
        self.assertIn(text, out)
        self.assertEqual(["daemon-reload", "enable", "restart"], [call.split()[2] for call in self.calls])
        self.assertIn("Installed and started. It runs while you are logged in", out)
        self.assertIn("DEEPSEEK_API_KEY is set in this shell, which the service does not see: put it into ~/", out)
        self.assertNotIn("sk-secret", out + text)

    def test_a_second_install_writes_the_same_and_uninstall_removes_it(self) -> None:
        self.run_command("install", "--yes")
        before = self.path.read_bytes()
        self.assertTrue(self.output_of("install", "--yes").startswith(f"Unchanged: {self.path}\n"))
        self.assertEqual(before, self.path.read_bytes())
        self.calls.clear()
        self.assertIn("Settings and stored reasoning are kept.", self.output_of("uninstall", "--yes"))
        self.assertFalse(self.path.exists())
        disable = "systemctl --user disable --now deepseek-cursor-proxy.service"
        self.assertEqual([disable, "systemctl --user daemon-reload"], self.calls)
        self.assertTrue(self.output_of("uninstall", "--yes").startswith("There is no service"))

    def test_without_a_yes_nothing_is_changed(self) -> None:
        for self.system in ("darwin", "linux"):
            self.assertIn("deepseek_cursor_proxy", self.output_of("install", "--print"))
        ran = self.run_command("install")
        self.assertEqual((2, True), (ran.code, "this is not a terminal: add --yes" in ran.err))
        for answer in ("n", ""):
            ran = self.run_command("install", answers=(answer,))
            self.assertEqual((1, True), (ran.code, ran.out.endswith("Nothing was changed.\n")))
        self.assertEqual(([], []), (self.calls, self.files()))
        self.output_of("install", answers=("y",))
        self.assertTrue(self.path.exists())

    def test_keys_are_not_written_into_the_service(self) -> None:
        for flag in ("--access-keys", "--admin-key"):
            refusal = self.refusal("install", "--yes", flag, "sk-secret-secret-secret")
            self.assertIn("set it in the configuration file", refusal)
            self.assertNotIn("secret-secret", refusal)
        self.assertFalse(self.path.exists())

    def test_what_fails_is_one_line(self) -> None:
        self.codes["enable"] = 1
        failed = r"`systemctl --user enable .+` ended with 1; .+ is written\. Run .+\n\Z"
        self.assertRegex(self.run_command("install", "--yes").err, failed)
        with mock.patch.object(subprocess, "run", side_effect=FileNotFoundError):
            code, _, err = self.run_command("install", "--yes")
        self.assertEqual((2, True), (code, "`systemctl` is not found" in err))
        shutil.rmtree(self.home / ".config")
        (self.home / ".config").write_text("a file in its place")
        self.calls.clear()
        code, _, err = self.run_command("install", "--yes")
        self.assertEqual((2, True, []), (code, "cannot write" in err, self.calls))

    def test_status_and_logs_come_from_the_system(self) -> None:
        self.assertEqual(1, self.run_command("status").code)
        self.run_command("install", "--yes")
        self.assertEqual((0, 0), (self.run_command("status").code, self.run_command("logs").code))
        self.assertEqual(["systemctl", "journalctl"], [call.split()[0] for call in self.calls[-2:]])
        self.codes["status"] = 3
        self.assertEqual(1, self.run_command("status").code)


class ManagerTest(unittest.TestCase):
    def test_each_system_has_its_file_and_its_commands(self) -> None:
        for system, environment, path, first in (
            ("linux", {}, ".config/systemd/user/deepseek-cursor-proxy.service", "systemctl --user daemon-reload"),
            ("linux", {"XDG_CONFIG_HOME": "/home/me/x"}, "x/systemd/user/deepseek-cursor-proxy.service", "systemctl"),
            ("darwin", {}, "Library/LaunchAgents/deepseek-cursor-proxy.plist", "launchctl bootstrap gui/501"),
        ):
            with self.subTest(system):
                found = manager(BARE, HOME, environment, system, 501)
                self.assertEqual(HOME / path, found.path)
                self.assertTrue(" ".join(found.install[0]).startswith(first), found.install)
        for system in ("plan9", "win32"):
            with self.assertRaisesRegex(StartupError, f"services are not supported on {system}"):
                manager(BARE, HOME, {}, system)


class LaunchTest(unittest.TestCase):
    def setUp(self) -> None:
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def launch(self, package: str) -> Launch:
        return find_launch(["--port=1"], "/py", self.place / package / "deepseek_cursor_proxy")

    def test_an_environment_is_named_by_its_python_a_checkout_by_its_folder_an_archive_by_its_path(self) -> None:
        words = ("-m", "deepseek_cursor_proxy", "serve", "--port=1")
        for package, folder in (
            ("venv/lib/python3.13/site-packages", ""),
            ("pipx/venvs/deepseek-cursor-proxy/lib/python3.13/site-packages", ""),
            ("uv/tools/deepseek-cursor-proxy/lib/python3.13/site-packages", ""),
            ("usr/lib/python3/dist-packages", ""),
            ("checkout", str(self.place / "checkout")),
        ):
            self.assertEqual(Launch("/py", words, folder), self.launch(package))
        archive = self.place / "proxy.pyz"
        archive.touch()
        self.assertEqual(Launch("/py", (str(archive), "serve", "--port=1")), self.launch("proxy.pyz"))

    def test_a_temporary_installation_is_refused(self) -> None:
        for package in (
            ".cache/uv/archive-v0/x1/lib/python3.13/site-packages",
            "uv/cache/archive-v0/x1/Lib/site-packages",
            ".local/share/pipx/.cache/ab/lib/python3.13/site-packages",
        ):
            with self.subTest(package), self.assertRaisesRegex(StartupError, "temporary .* `uv tool install` or `pipx"):
                self.launch(package)


class SystemdTest(unittest.TestCase):
    def unit(self, launch: Launch) -> configparser.ConfigParser:
        unit = configparser.ConfigParser(interpolation=None)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read_string(service.systemd_unit(launch))
        return unit

    def test_the_unit_restarts_the_proxy_unless_that_cannot_help(self) -> None:
        service = self.unit(BARE)["Service"]
        self.assertEqual("/usr/bin/python3 -m deepseek_cursor_proxy serve", service["ExecStart"])
        self.assertEqual(("always", "2"), (service["Restart"], service["RestartPreventExitStatus"]))
        self.assertNotIn("WorkingDirectory", service)

    def test_every_word_is_quoted_as_systemd_reads_it(self) -> None:
        service = self.unit(LAUNCH)["Service"]
        self.assertEqual("/home/me & you/100%%", service["WorkingDirectory"])
        self.assertNotRegex(re.sub(r"%%|\$\$", "", service["ExecStart"]), r"[%$]")
        words = re.findall(r'"((?:[^"\\]|\\.)*)"|(\S+)', service["ExecStart"])
        read = [re.sub(r"\\(.)", r"\1", quoted) or bare for quoted, bare in words]
        read = [word.replace("%%", "%").replace("$$", "$") for word in read]
        self.assertEqual([LAUNCH.python, *LAUNCH.arguments], read)


class LaunchdTest(unittest.TestCase):
    def test_the_agent_has_every_word_and_restarts_the_proxy(self) -> None:
        for launch in (LAUNCH, BARE):
            agent = plistlib.loads(service.launchd_agent(launch, "/Users/me & you/x.log").encode())
            self.assertEqual([launch.python, *launch.arguments], agent["ProgramArguments"])
            self.assertEqual(launch.folder, agent.get("WorkingDirectory", ""))
            self.assertEqual("/Users/me & you/x.log", agent["StandardOutPath"])
            self.assertTrue(agent["KeepAlive"] and agent["RunAtLoad"])
            self.assertEqual(0o077, agent["Umask"])
