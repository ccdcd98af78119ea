"""`--tunnel` as a process: the program that is found, its URL in the start-up text, its end; ngrok is in lifecycle/."""

import contextlib
import json
import os
import re
import shlex
import signal
import sys
import unittest

from tests.support.program import WINDOWS, Process, ServeTest
from tests.support.tunnel_edge import Edge

# Prints the line of localhost.run, or nothing for a host of one's own, and stays.
SSH = """
import json, os, pathlib, sys, threading
home = pathlib.Path(__file__).parent
(home / "launch.tmp").write_text(json.dumps([os.getpid(), sys.argv[1:]]))
(home / "launch.tmp").rename(home / "launch")
if sys.argv[-1] == "nokey@localhost.run":
    print("{0} tunneled with tls termination, https://{0}", flush=True)
threading.Event().wait(60)
"""


@unittest.skipIf(WINDOWS, "the stand-in is a script with a shebang")
class TunnelServeTest(ServeTest):
    may_fork = True

    def setUp(self) -> None:
        super().setUp()
        self.edge = self.enterContext(contextlib.closing(Edge(self.forwarded_port)))
        (self.bin / "ssh.py").write_text(SSH.format(self.edge.url.removeprefix("https://")))
        command = shlex.join([sys.executable, "-S", "-E", str(self.bin / "ssh.py")])
        (self.bin / "ssh").write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (self.bin / "ssh").chmod(0o755)
        # Nothing but ssh is installed.
        self.tools = {"PATH": str(self.bin), **self.edge.environment}

    def launched(self) -> tuple[int, list[str]]:
        process, arguments = json.loads((self.bin / "launch").read_text())
        return process, arguments

    def forwarded_port(self) -> int:
        if not (self.bin / "launch").exists():
            raise OSError
        return int(self.launched()[1][-2].rpartition(":")[2])

    def expect_stopped_with_its_tunnel(self, process: Process) -> None:
        child, _ = self.launched()
        process.send(signal.SIGTERM)
        self.expect_stopped(process)
        with self.assertRaises(ProcessLookupError):
            os.kill(child, 0)

    def test_a_tunnel_without_a_name_is_the_first_that_is_installed(self) -> None:
        process, welcome = self.serve("--tunnel", **self.tools)
        progress = rf"Opening a tunnel with ssh through localhost.run; .+\n{self.edge.url} is assigned; .+\ndeepseek"
        self.assertRegex(welcome, rf"\A{progress}")
        self.assertIn(f"Override OpenAI Base URL   {self.edge.url}/v1\n", welcome)
        self.assertIn("The first key that DeepSeek accepts will be the only one served", welcome)
        self.assertNotIn("does not lead", welcome)
        self.assertEqual("nokey@localhost.run", self.launched()[1][-1])
        self.expect_health(self.forwarded_port())
        self.expect_stopped_with_its_tunnel(process)

    def test_a_host_of_ones_own_is_taken_from_the_file(self) -> None:
        self.directory.mkdir()
        (self.directory / "config.toml").write_text(f'tunnel = "ssh:me@home"\ntunnel_url = "{self.edge.url}"\n')
        process, welcome = self.serve(**self.tools)
        self.assertIn(f"Override OpenAI Base URL   {self.edge.url}/v1\n", welcome)
        self.assertEqual("me@home", self.launched()[1][-1])
        self.expect_stopped_with_its_tunnel(process)

    def test_the_dashboard_is_not_behind_the_tunnel(self) -> None:
        process = self.launch("--port", "0", "--admin-port", "9801", "--tunnel", "ssh", **self.tools)
        welcome = process.read_until("Stop with Ctrl-C.\n")
        admin = int(
            re.search(r"http://localhost:(\d+)|http://127\.0\.0\.1:(\d+)/", welcome)[0].rstrip("/").split(":")[-1]
        )
        self.assertNotIn(str(admin), " ".join(self.launched()[1]))
        self.assertNotEqual(admin, self.forwarded_port())
        self.expect_stopped_with_its_tunnel(process)

    def test_without_a_tunnel_program_the_start_is_one_line(self) -> None:
        (self.bin / "ssh").unlink()
        line = self.refusal("--port", "0", "--tunnel", **self.tools)
        self.assertRegex(line, "^no tunnel program is installed; cloudflared is the simplest: install it from https://")

    def test_no_tunnel_wins_over_the_file(self) -> None:
        self.directory.mkdir()
        (self.directory / "config.toml").write_text("ngrok = true\n")
        _, welcome = self.serve("--no-tunnel", **self.tools)
        self.assertIn("start it with --tunnel", welcome)
