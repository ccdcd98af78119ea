"""`run` with a stand-in for a client: what the client gets, signals, the terminal, the exit code, the log."""

import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import unittest
from pathlib import Path

from deepseek_cursor_proxy.cli import running_proxy
from deepseek_cursor_proxy.config import ProxyConfig
from tests.proxy.lifecycle.test_missing_functions import WINDOWS as MISSING
from tests.proxy.lifecycle.test_missing_functions import WITHOUT
from tests.support.program import COMMAND, PATIENCE, WINDOWS, ServeTest

# Speaks with the proxy that its flags name, then does what its last argument says.
STAND_IN = """
import json, os, signal, socket, sys, time

def health():
    address = next(word for word in sys.argv if "base_url=" in word).partition("://")[2].partition("/")[0]
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(b"POST /v1/nothing HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 0\\r\\n\\r\\n")
        connection.sendall(b"GET /healthz HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
        return connection.makefile().read().splitlines()[-1]

def note(number, frame):
    os.write(1, f"signal {signal.Signals(number).name} {health()}\\n".encode())
    if number != signal.SIGINT:
        sys.exit(9)

for name in ("SIGINT", "SIGTERM", "SIGHUP"):
    if hasattr(signal, name):
        signal.signal(getattr(signal, name), note)
catalogue = next(word for word in sys.argv if "catalog" in word).partition("=")[2]
print(json.dumps({
    "flags": sys.argv[1:], "key": os.environ.get("DEEPSEEK_API_KEY"), "health": health(),
    "models": len(json.load(open(catalogue))["models"]), "no_proxy": os.environ["NO_PROXY"],
}), flush=True)
what = sys.argv[-1]
if what == "wait":
    # If a test fails and ends `run` alone.
    signal.alarm(600)
    # A signal that comes just before a wait does not end it.
    while True:
        time.sleep(0.5)
if what == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(what) if what.isdigit() else 0)
"""


class RunTest(ServeTest):
    may_fork = True

    def setUp(self) -> None:
        super().setUp()
        script = self.bin / "stand_in.py"
        script.write_text(STAND_IN, encoding="utf-8")
        name, text = "codex", f'#!/bin/sh\nexec "{sys.executable}" -I -S "{script}" "$@"\n'
        if WINDOWS:
            name, text = "codex.cmd", f'@"{sys.executable}" -I -S "{script}" %*\n'
        (self.bin / name).write_text(text, encoding="utf-8")
        (self.bin / name).chmod(0o700)

    def environment(self, **more: str) -> dict[str, str]:
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        return super().environment(**{"PATH": path, "DEEPSEEK_API_KEY": "sk-of-the-user", **more})

    def logs(self) -> list[Path]:
        return sorted(self.directory.glob("run-*.log"))

    def test_the_client_gets_a_proxy_a_key_and_its_arguments_and_gives_its_exit_code(self) -> None:
        process = self.launch("run", "--model", "deepseek-v4-pro", "codex", "exec", "--model", "a b", "-c", "7")
        self.assertEqual(7, process.wait(), process.errors)
        found = json.loads(process.rest())
        self.assertEqual(["exec", "--model", "a b", "-c", "7"], found["flags"][-5:])
        self.assertIn("model=deepseek-v4-pro", found["flags"])
        self.assertEqual(("sk-of-the-user", '{"ok":true}', 2), (found["key"], found["health"], found["models"]))
        self.assertTrue(found["no_proxy"].endswith("127.0.0.1,localhost"))
        [log] = self.logs()
        self.assertEqual(f"deepseek-cursor-proxy: the log of this run is {log}\n", process.errors)
        self.assertIn("/v1/nothing", log.read_text("utf-8"))
        self.expect_mode(log, 0o600)
        # No configuration and no catalogue is left.
        self.assertFalse((self.directory / "config.toml").exists() or (self.home / ".codex").exists())
        self.assertFalse(Path(next(word for word in found["flags"] if "catalog" in word).partition("=")[2]).exists())

    def test_the_running_proxy_is_used(self) -> None:
        _, welcome = self.serve("--admin-port", "9001")
        process = self.launch("run", "codex")
        self.assertEqual((0, []), (process.wait(), self.logs()), process.errors)
        [address] = [word for word in json.loads(process.rest())["flags"] if "base_url=" in word]
        self.assertIn(address.partition("=")[2], welcome)

    def test_only_the_newest_logs_are_kept(self) -> None:
        self.directory.mkdir()
        for number in range(12):
            (self.directory / f"run-20260101-0000{number:02}-codex-1.log").write_text("x")
        self.assertEqual(0, self.launch("run", "codex").wait())
        self.assertEqual(10, len(self.logs()))
        self.assertIn("000003-codex", self.logs()[0].name)

    @unittest.skipIf(WINDOWS, "the stand-in does not wait there")
    def test_the_dashboard_shows_the_proxy_of_a_run_and_no_other_client_is_pointed_to_it(self) -> None:
        process = self.launch("run", "codex", "wait")
        process.read_until("flags")
        config = ProxyConfig(reasoning_content_path=self.store)
        self.assertIsNone(running_proxy.find(config))
        found = running_proxy.find(config, with_runs=True)
        assert found is not None
        self.assertEqual((True, 200), (found.is_proven, found.status))
        process.send(signal.SIGTERM)
        self.assertEqual((9, []), (process.wait(), list(self.directory.glob("*.url"))))

    @unittest.skipIf(WINDOWS, "Windows has no such signals")
    def test_a_signal_is_passed_on_and_one_that_ends_the_client_is_its_exit_code(self) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            process = self.launch("run", "codex", "wait")
            process.read_until("flags")
            process.send(number)
            self.assertEqual(9, process.wait(), process.errors)
            self.assertIn(f'signal {number.name} {{"ok":true}}', process.rest())
        self.assertEqual(128 + signal.SIGKILL, self.launch("run", "codex", "kill").wait())

    @unittest.skipIf(WINDOWS, "Windows has no pseudo-terminals")
    def test_ctrl_c_in_a_terminal_reaches_the_client_and_leaves_the_proxy_running(self) -> None:
        terminal, theirs = os.openpty()
        name = os.ttyname(theirs)
        # The first to open a terminal without having one gets it as its own.
        script = f"exec {shlex.join(COMMAND)} run codex wait <>{name} >&0 2>&0"
        process = subprocess.Popen(["/bin/sh", "-c", script], env=self.environment(), start_new_session=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        with open(terminal, "r+b", buffering=0) as screen:
            for answer, keys in ((b"flags", b"\x03"), (b"SIGINT", b"\x03"), (b"SIGINT", b"")):
                seen = b""
                while not re.search(answer + b".*true", seen):
                    self.assertTrue(select.select([screen], [], [], PATIENCE)[0], seen)
                    seen += screen.read(10_000)
                screen.write(keys)
            process.terminate()
            self.assertEqual(9, process.wait(PATIENCE))
        os.close(theirs)

    @unittest.skipUnless(sys.platform == "linux", "the other systems lack them by themselves")
    def test_it_runs_without_what_windows_lacks(self) -> None:
        self.command = (sys.executable, "-c", WITHOUT, "like-windows", json.dumps(MISSING), "deepseek_cursor_proxy")
        process = self.launch("run", "--reasoning-content-path", ":memory:", "codex", "5")
        self.assertEqual(5, process.wait(), process.errors)
