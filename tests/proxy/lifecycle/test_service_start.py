"""The command of a service really starts the proxy: from a checkout and from an archive."""

import signal
import subprocess
import sys
import unittest

from deepseek_cursor_proxy.cli.service import Launch, find_launch
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

    def run_logged(self, launch: Launch) -> str:
        """What the proxy prints from its start to its end, in the environment that a service has."""
        log = self.bin / "log"
        environment = {name: value for name, value in self.environment().items() if name != "PYTHONPATH"}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *launch.arguments],
                cwd=launch.folder or self.home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        wait_until(lambda: process.poll() is not None or "Stop with Ctrl-C." in log.read_text(encoding="utf-8"))
        process.send_signal(signal.SIGTERM)
        self.assertEqual(0, process.wait(PATIENCE), log.read_text(encoding="utf-8"))
        return log.read_text(encoding="utf-8")

    def test_every_installation_is_started_by_its_command(self) -> None:
        for name, launch in self.launches().items():
            with self.subTest(name):
                self.assertEqual(sys.executable, launch.python)
                self.assertIn("is running.", self.run_logged(launch))
