"""The supervisor with stand-ins for tunnel programs: their processes are counted, and nothing of them may be left."""

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.cli.tunnel import child, supervisor
from deepseek_cursor_proxy.cli.tunnel.programs import Program
from deepseek_cursor_proxy.cli.tunnel.supervisor import OURS, Reach, Tunnel, TunnelTiming
from deepseek_cursor_proxy.errors import StartupError
from tests.support.ngrok_stand_in import PORT, install

# The checks of the public URL come with every look.
QUICK = TunnelTiming(start=20, first_check=0.05, watch=0.01, check=0.0, backoff=(0.001,))


def open_files() -> int:
    return 0 if sys.platform == "win32" else len(os.listdir("/dev/fd"))


class TunnelCase(unittest.TestCase):
    # The program, and the script that stands in for it.
    name = ""
    stand_in = ""

    def setUp(self) -> None:
        self.addCleanup(self.expect_nothing_left, threading.enumerate(), open_files())
        self.announced: queue.Queue[str] = queue.Queue()
        self.progress: queue.Queue[str] = queue.Queue()
        self.children: list[subprocess.Popen[bytes]] = []
        self.guards: list[subprocess.Popen[bytes]] = []
        self.home = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.binary = self.home / (f"{self.name}.cmd" if sys.platform == "win32" else self.name)
        self.launches = self.home / "launches"
        self.launches.touch()
        install(self.binary, "exec ")
        (self.home / "stand_in.py").write_text(self.stand_in)
        # The URLs that were checked, and what each check finds.
        self.checked: list[str] = []
        self.reach = OURS
        self.enterContext(mock.patch.object(child, "Popen", self.launch))
        self.enterContext(mock.patch.multiple(supervisor, _POLL=0.02, _CHECK_POLL=0.01))

    def launch(self, command: Any, **options: Any) -> "subprocess.Popen[bytes]":
        launched = self.guards if command[0] == "/bin/sh" else self.children
        launched.append(subprocess.Popen(command, **options))
        return launched[-1]

    def program(self, **options: Any) -> Program:
        """The program under test, for PORT and with the stand-in."""
        raise NotImplementedError

    def ask(self, url: str) -> Reach:
        self.checked.append(url)
        return self.reach

    def tunnel(self, *plan: Any, **options: Any) -> Tunnel:
        (self.home / "plan.json").write_text(json.dumps(plan))
        timing = QUICK._replace(**{name: options.pop(name) for name in TunnelTiming._fields if name in options})
        known = {"ask": self.ask, "announce": self.announce}
        own = {name: options.pop(name) for name in ("ask", "announce", "on_url") if name in options}
        tunnel = Tunnel(self.program(**options), timing=timing, **{**known, **own})
        self.addCleanup(tunnel.stop)
        return tunnel

    def announce(self, text: str) -> None:
        # What only shows progress ends in dots.
        (self.progress if text.endswith("…") else self.announced).put(text)

    def failure(self, *plan: Any, **options: Any) -> str:
        with self.assertRaises(StartupError) as caught:
            self.tunnel(*plan, **options).start()
        self.expect_children_gone()
        message = str(caught.exception)
        self.assertTrue(message.startswith(f"{self.name}: ") and message.isprintable(), message)
        return message

    def kill(self, child: "subprocess.Popen[bytes]") -> None:
        """Kill a stand-in; on Windows it is the child of a script."""
        if sys.platform == "win32":
            subprocess.run(["taskkill", "/F", "/T", "/PID", str(child.pid)], capture_output=True, check=True)
        else:
            child.kill()

    def launched(self) -> list[list[Any]]:
        return [json.loads(line) for line in self.launches.read_text().splitlines()]

    def expect_announced(self, *texts: str) -> None:
        self.assertEqual([self.announced.get(timeout=20) for _ in texts], list(texts))

    def expect_nothing_left(self, threads: list[threading.Thread], files: int) -> None:
        self.expect_children_gone()
        for thread in threading.enumerate():
            if thread.name == "tunnel-check":
                # It may be about to end.
                thread.join(20)
        self.assertEqual(set(threading.enumerate()) - set(threads), set())
        self.assertLessEqual(open_files(), files)

    def expect_children_gone(self) -> None:
        started = self.children + self.guards
        self.assertNotIn(None, [child.returncode for child in started], "a child runs or was not reaped")


def lost(name: str, reason: str = "") -> str:
    return f"{name}: the tunnel is lost{reason and f' ({reason})'}; restarting it"


def back(name: str) -> str:
    return f"{name}: the tunnel is back"


def moved(name: str, url: str) -> str:
    return f"{name}: the public URL has changed; paste this Base URL into Cursor: {url}/v1"


__all__ = ["PORT", "QUICK", "TunnelCase", "back", "lost", "moved"]
