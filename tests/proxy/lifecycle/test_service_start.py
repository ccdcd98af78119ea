"""The command of a service really starts the proxy: from a checkout, from an archive, and with its output in a file."""

import os
import signal
import subprocess
import sys
import unittest
from collections.abc import Sequence

from deepseek_cursor_proxy.cli.service import managers
from deepseek_cursor_proxy.cli.service.managers import Launch, find_launch
from tests.support.archive import build_archive
from tests.support.polling import wait_until
from tests.support.program import PATIENCE, WINDOWS, ServeTest

FLAGS = ("--port=0", "--admin-port=0")


@unittest.skipIf(WINDOWS, "a process without a console cannot be asked to stop")
class ServiceStartTest(ServeTest):
    def launches(self) -> dict[str, Launch]:
        archive = build_archive(self.bin)
        return {
            "checkout": find_launch(FLAGS),
            "archive": find_launch(FLAGS, package=archive / "deepseek_cursor_proxy"),
        }

    def run_logged(self, launch: Launch, arguments: Sequence[str]) -> str:
        """What the proxy prints from its start to its end, in the environment that a service has."""
        log = self.bin / "log"
        environment = {name: value for name, value in self.environment().items() if name != "PYTHONPATH"}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=launch.folder or self.home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        files = (log, self.home / "service.log")
        read = lambda: "".join(path.read_text(encoding="utf-8") for path in files if path.exists())  # noqa: E731
        wait_until(lambda: process.poll() is not None or "Stop with Ctrl-C." in read())
        process.send_signal(signal.SIGTERM)
        self.assertEqual(0, process.wait(PATIENCE), read())
        return read()

    def test_every_installation_is_started_by_its_command(self) -> None:
        for name, launch in self.launches().items():
            with self.subTest(name):
                self.assertEqual(sys.executable, launch.python)
                self.assertIn("is running.", self.run_logged(launch, launch.arguments))

    def test_a_process_without_a_console_writes_into_its_log_and_begins_a_large_one_anew(self) -> None:
        log = self.home / "service.log"
        for name, launch in self.launches().items():
            with self.subTest(name):
                with log.open("wb") as file:
                    os.truncate(file.fileno(), 10_000_001)
                self.run_logged(launch, managers._logged(launch, str(log)))
                self.assertEqual(10_000_001, (self.home / "service.log.old").stat().st_size)
                text = log.read_text(encoding="utf-8")
                self.assertIn("is running.", text)
                self.assertTrue(text.endswith("Stopped.\n"), text)
                self.expect_mode(log, 0o600)
                log.unlink()
