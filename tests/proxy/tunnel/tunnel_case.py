"""The supervisor with stand-ins for tunnel programs: their processes are counted, and nothing of them may be left."""

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

from deepseek_cursor_proxy.cli import tunnel
from deepseek_cursor_proxy.cli.tunnel import Program, Tunnel
from deepseek_cursor_proxy.errors import StartupError
from tests.support import tunnel_stand_in
from tests.support.tunnel_stand_in import PORT, Part

QUICK = {"start_seconds": 20.0, "pauses": (0.001,), "steady_seconds": 3600.0}


def open_files() -> int:
    return 0 if sys.platform == "win32" else len(os.listdir("/dev/fd"))


class TunnelCase(unittest.TestCase):
    kind: type[Program]

    def setUp(self) -> None:
        self.addCleanup(self.expect_nothing_left, threading.enumerate(), open_files())
        self.name = self.kind.name
        self.announced: queue.Queue[str] = queue.Queue()
        self.progress: queue.Queue[str] = queue.Queue()
        self.children: list[subprocess.Popen[bytes]] = []
        self.guards: list[subprocess.Popen[bytes]] = []
        self.home = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.binary = self.home / (f"{self.name}.cmd" if sys.platform == "win32" else self.name)
        self.enterContext(mock.patch.object(tunnel, "Popen", self.launch))

    def launch(self, command: Any, **options: Any) -> "subprocess.Popen[bytes]":
        launched = self.guards if command[0] == "/bin/sh" else self.children
        launched.append(subprocess.Popen(command, **options))
        return launched[-1]

    def tunnel(self, *plan: Part, script: dict[str, str] | None = None, **options: Any) -> Tunnel:
        tunnel_stand_in.install(self.binary, *plan, **(script or {}))
        timing = {name: options.pop(name, seconds) for name, seconds in QUICK.items()}
        own = {name: options.pop(name) for name in ("announce", "on_url") if name in options}
        program = self.kind(PORT, **{"binary": str(self.binary), **options})
        tunnel = Tunnel(program, **{"announce": self.announce, "on_url": str, **own})
        vars(tunnel).update(timing)
        self.addCleanup(tunnel.stop)
        return tunnel

    def announce(self, text: str) -> None:
        # What only shows progress ends in dots.
        (self.progress if text.endswith("…") else self.announced).put(text)

    def failure(self, *plan: Part, **options: Any) -> str:
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

    def launched(self) -> list[list[str]]:
        return [arguments for _, arguments in tunnel_stand_in.launches(self.home)]

    def expect_announced(self, *texts: str) -> None:
        self.assertEqual([self.announced.get(timeout=20) for _ in texts], list(texts))

    def expect_nothing_left(self, threads: list[threading.Thread], files: int) -> None:
        self.expect_children_gone()
        self.assertEqual(set(threading.enumerate()) - set(threads), set())
        self.assertLessEqual(open_files(), files)

    def expect_children_gone(self) -> None:
        started = self.children + self.guards
        self.assertNotIn(None, [child.returncode for child in started], "a child runs or was not reaped")

    def lost(self, reason: str = "") -> str:
        return f"{self.name}: the tunnel is lost{reason and f' ({reason})'}; restarting it"

    @property
    def back(self) -> str:
        return f"{self.name}: the tunnel is back"

    def moved(self, url: str) -> str:
        return f"{self.name}: the public URL has changed; paste this Base URL into Cursor: {url}/v1"
