"""The `service` command: its files and commands on each system, what it shows, asks, writes, runs and refuses."""

import configparser
import contextlib
import io
import os
import plistlib
import re
import subprocess
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.cli import main, service
from deepseek_cursor_proxy.cli.service import Launch, Manager, find_launch, manager
from deepseek_cursor_proxy.errors import StartupError

ODD = ("--model=a b", "--config=C:\\x y\\", '--x="quoted"', "--y=50%", "--z=$HOME", "--w=<&>'", "--v=ü")
LAUNCH = Launch("/opt/my python/bin/python3", ("-m", "deepseek_cursor_proxy", "serve", *ODD), "/home/me & you/100%")
BARE = Launch("/usr/bin/python3", ("-m", "deepseek_cursor_proxy", "serve"))
HOME = Path("/home/me")


def plain(unit: str) -> str:
    """The unit of systemd without the quotes and escapes that it needs for the paths of Windows."""
    return unit.replace('"', "").replace("\\\\", "\\")


class ServiceTest(unittest.TestCase):
    def setUp(self) -> None:
        self.home = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.path = self.home / ".config" / "systemd" / "user" / "deepseek-cursor-proxy.service"
        self.calls: list[str] = []
        self.codes: dict[str, int] = {}
        home = {"HOME": str(self.home), "USERPROFILE": str(self.home), "PATH": ""}
        self.enterContext(mock.patch.dict(os.environ, home, clear=True))
        self.enterContext(mock.patch.object(subprocess, "run", self.call))
        systemd = mock.patch.object(service, "manager", self.manager)
        self.enterContext(systemd)
        self.system = "linux"

    def manager(self, *arguments: Any, user_id: int) -> Manager:
        return manager(*arguments, system=self.system, user_id=user_id)

    def call(self, command: tuple[str, ...], **_: Any) -> Any:
        if command[0] == "absent":
            raise FileNotFoundError
        self.calls.append(" ".join(command))
        return SimpleNamespace(returncode=self.codes.get(command[2] if len(command) > 2 else "", 0))

    def run_command(self, *words: str) -> tuple[int, str, str]:
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = main(["service", *words])
        return code, out.getvalue(), errors.getvalue()

    def test_install_shows_writes_and_starts_the_service_with_the_settings_given(self) -> None:
        with mock.patch.dict(os.environ, {"DEEPSEEK_CURSOR_PROXY_VERBOSE": "yes"}):
            code, out, errors = self.run_command("install", "--yes", "--port", "9100", "--tunnel", "--trace-dir", "t")
        self.assertEqual((0, ""), (code, errors))
        text = self.path.read_text()
        traces = Path("t").absolute()
        self.assertIn(f" serve --port=9100 --tunnel=on --verbose --trace-dir={traces}\n", plain(text))
        self.assertIn(text, out)
        verbs = ["daemon-reload", "enable", "restart"]
        self.assertEqual(verbs, [call.split()[2] for call in self.calls])
        self.assertIn("Installed and started. It runs while you are logged in", out)

    def test_a_second_install_writes_the_same(self) -> None:
        self.run_command("install", "--yes")
        before = self.path.read_bytes()
        code, out, _ = self.run_command("install", "--yes")
        self.assertEqual((0, before), (code, self.path.read_bytes()))
        self.assertTrue(out.startswith(f"Unchanged: {self.path}\n"), out)

    def test_print_changes_nothing(self) -> None:
        for self.system in ("linux", "darwin"):
            code, out, _ = self.run_command("install", "--print")
            self.assertEqual(0, code)
            self.assertIn("deepseek_cursor_proxy", out)
        self.assertEqual([], self.calls)
        self.assertFalse(self.path.exists())

    def test_without_a_terminal_or_a_yes_nothing_is_changed(self) -> None:
        self.enterContext(mock.patch("sys.stdin", io.StringIO()))
        code, _, errors = self.run_command("install")
        self.assertEqual((2, True), (code, "this is not a terminal: add --yes" in errors))
        terminal = mock.patch("deepseek_cursor_proxy.cli.questions.can_ask", return_value=True)
        for answer, is_written in (("n", False), ("", False), ("y", True)):
            with terminal, mock.patch("builtins.input", return_value=answer):
                code, out, _ = self.run_command("install")
            self.assertIs(not is_written, code == 1 and out.endswith("Nothing was changed.\n"))
            self.assertIs(is_written, self.path.exists())

    def test_keys_are_not_written_into_the_service(self) -> None:
        for flag in ("--access-keys", "--admin-key"):
            code, out, errors = self.run_command("install", "--yes", flag, "sk-secret-secret-secret")
            self.assertEqual(2, code)
            self.assertIn("set it in the configuration file", errors)
            self.assertNotIn("secret-secret", out + errors)
        self.assertFalse(self.path.exists())

    def test_a_variable_that_the_service_does_not_see_is_named_without_its_value(self) -> None:
        with mock.patch.dict(os.environ, {"DEEPSEEK_API_KEY": "sk-secret"}):
            _, out, _ = self.run_command("install", "--yes")
        self.assertIn("DEEPSEEK_API_KEY is set in this shell, which the service does not see: put it into ~/", out)
        self.assertNotIn("sk-secret", out + self.path.read_text())

    def test_a_configuration_file_is_named_by_its_whole_path(self) -> None:
        (self.home / "my.toml").write_text("port = 9200\n")
        self.run_command("install", "--yes", "--config", str(self.home / "my.toml"))
        self.assertIn(f" serve --config {self.home / 'my.toml'}\n", plain(self.path.read_text()))

    def test_a_command_that_fails_or_is_missing_is_one_line(self) -> None:
        self.codes["enable"] = 1
        code, _, errors = self.run_command("install", "--yes")
        self.assertEqual(2, code)
        self.assertRegex(errors, r"`systemctl --user enable .+` ended with 1; .+ is written\. Run .+\n\Z")
        with mock.patch.object(subprocess, "run", side_effect=FileNotFoundError):
            code, _, errors = self.run_command("install", "--yes")
        self.assertEqual((2, True), (code, "`systemctl` is not found" in errors))

    def test_a_file_that_cannot_be_written_is_one_line(self) -> None:
        (self.home / ".config").write_text("a file in its place")
        code, _, errors = self.run_command("install", "--yes")
        self.assertEqual((2, True), (code, "cannot write" in errors))
        self.assertEqual([], self.calls)

    def test_uninstall_removes_what_install_wrote(self) -> None:
        self.run_command("install", "--yes")
        self.calls.clear()
        code, out, _ = self.run_command("uninstall", "--yes")
        self.assertEqual((0, False), (code, self.path.exists()))
        disable = "systemctl --user disable --now deepseek-cursor-proxy.service"
        self.assertEqual([disable, "systemctl --user daemon-reload"], self.calls)
        self.assertIn("Settings and stored reasoning are kept.", out)
        code, out, _ = self.run_command("uninstall", "--yes")
        self.assertEqual((0, True), (code, out.startswith("There is no service")))

    def test_status_and_logs_come_from_the_system(self) -> None:
        self.assertEqual(1, self.run_command("status")[0])
        self.run_command("install", "--yes")
        self.assertEqual((0, 0), (self.run_command("status")[0], self.run_command("logs")[0]))
        self.assertEqual(["systemctl", "journalctl"], [call.split()[0] for call in self.calls[-2:]])
        self.codes["status"] = 3
        self.assertEqual(1, self.run_command("status")[0])

    def test_logs_in_a_file_are_its_last_lines(self) -> None:
        self.system = "darwin"
        code, out, _ = self.run_command("logs")
        self.assertEqual((0, True), (code, "There is no log yet" in out))
        log = self.home / "Library" / "Logs" / "deepseek-cursor-proxy.log"
        log.parent.mkdir(parents=True)
        log.write_text("".join(f"line {number}\n" for number in range(1000)))
        self.assertEqual("\n".join(f"line {number}" for number in range(800, 1000)) + "\n", self.run_command("logs")[1])


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
        ):
            with self.subTest(system):
                found = manager(BARE, HOME, environment, system, 501)
                self.assertEqual(HOME / path, found.path)
                if first:
                    self.assertEqual(first, found.install[0][:3])

    def test_an_unknown_system_is_refused(self) -> None:
        for system in ("plan9", "win32"):
            with self.assertRaisesRegex(StartupError, f"services are not supported on {system}"):
                manager(BARE, HOME, {}, system)


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
