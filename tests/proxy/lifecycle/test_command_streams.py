"""Every command with standard streams, a home or a disk that it cannot use: one sentence and an exit code.

The cases are forks of one interpreter that has imported the command line, because a new one for each would take a
minute; their streams are what an interpreter makes of the descriptors.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.cli.commands import COMMANDS
from deepseek_cursor_proxy.cli.parser import resolve
from tests.support.systems import ROOT
from tests.support.width import width

# Commands that end by themselves, and soon; the flag --help stands for those that do not.
LINES = (
    "serve --help", "--help", "--version", "nonsense",
    "run", "run nonsense", "setup", "setup cursor", "setup codex", "setup codex --print",
    "setup codex --yes", "setup cline --yes",
    "setup codex --undo", "setup codex --undo --yes",
    "service install", "service install --print", "service uninstall", "service status", "service logs",
    "doctor", "doctor --report", "dashboard", "demo", "config show", "config path",
    "usage", "usage --json", "usage --csv", "balance", "explain absent.json", "access-key", "access-key --new",
    "sessions list", "sessions show absent", "sessions export", "store stats", "store secret",
    "store clear", "store clear --yes",
)  # fmt: skip
CONDITIONS = ("no input", "null input", "full output", "no output", "closed pipe", "no streams", "no home")

RUNNER = """
import importlib, json, os, pkgutil, signal, sys

import deepseek_cursor_proxy
from deepseek_cursor_proxy.__main__ import main

for module in pkgutil.walk_packages(deepseek_cursor_proxy.__path__, "deepseek_cursor_proxy."):
    if module.name.split(".")[1] in ("cli", "storage", "sessions"):
        importlib.import_module(module.name)


def run(words, condition, folder):
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(os.open("output", os.O_CREAT | os.O_WRONLY), 1)
    os.dup2(os.open("errors", os.O_CREAT | os.O_WRONLY), 2)
    if condition == "full output":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    if condition == "closed pipe":
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
    closed = {"no input": [0], "no output": [1], "no streams": [0, 1, 2]}.get(condition, [])
    for descriptor in closed:
        os.close(descriptor)
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        stream = None if descriptor in closed else open(descriptor, mode, encoding="utf-8", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.environ["HOME"] = folder
    if condition == "no home":
        import pwd

        def unknown(user):
            raise KeyError(user)

        del os.environ["HOME"]
        pwd.getpwuid = unknown
    sys.argv = ["deepseek-cursor-proxy", *words]


for line in sys.stdin:
    case = json.loads(line)
    os.chdir(case["folder"])
    if pid := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    else:
        # The end of one that hangs.
        signal.alarm(60)
        run(**case)
        sys.exit(main())
"""


@unittest.skipUnless(os.path.exists("/dev/full"), "Linux has a disk that is always full")
class TestCommandStreams(unittest.TestCase):
    def setUp(self) -> None:
        self.home = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_no_command_fails_with_a_traceback(self) -> None:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "DEEPSEEK_CURSOR_PROXY_BASE_URL": "http://127.0.0.1:9",
        }
        runner = subprocess.Popen(
            [sys.executable, "-c", RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
            encoding="utf-8",
        )  # fmt: skip
        with runner:
            for number, (line, condition) in enumerate(_cases()):
                folder = self.home / str(number)
                folder.mkdir()
                code = self.run_case(runner, {"words": line.split(), "condition": condition, "folder": str(folder)})
                with self.subTest(line, condition=condition):
                    self.check(folder, line, condition, code)

    def run_case(self, runner: "subprocess.Popen[str]", case: dict[str, Any]) -> int:
        assert runner.stdin is not None
        assert runner.stdout is not None
        runner.stdin.write(json.dumps(case) + "\n")
        runner.stdin.flush()
        return int(runner.stdout.readline())

    def check(self, folder: Path, line: str, condition: str, code: int) -> None:
        errors = (folder / "errors").read_text(encoding="utf-8")
        self.assertIn(code, (0, 1, 2), errors)
        if line.startswith("service"):
            # The system's own programs print there, too.
            self.assertNotIn("Traceback", errors)
            return
        self.assertLessEqual(len(errors.splitlines()), 1, errors)
        self.assertRegex(errors, r"\A(deepseek-cursor-proxy: .+\n)?\Z")
        # Without sessions there is nothing to write.
        if condition == "full output" and line != "sessions export":
            self.assertNotEqual(0, code)
            self.assertTrue(errors)

    def test_every_command_is_in_the_table(self) -> None:
        leaves = [f"{group.name} {each.name}" for group in COMMANDS for each in resolve(group.commands)]
        names = [each.name for each in COMMANDS if each.run is not None] + leaves
        self.assertEqual([], [name for name in names if not any(line.startswith(name) for line in LINES)])


def _cases() -> Iterator[tuple[str, str]]:
    for row, line in enumerate(LINES):
        for column, condition in enumerate(CONDITIONS):
            is_sample = (row + column) % len(CONDITIONS) == 0 and (row % 3 == 0 or line.startswith("serve"))
            if width(is_sample, True):
                yield line, condition


@unittest.skipUnless(hasattr(os, "fork"), "a terminal that a test can type at")
class TestEndOfInput(unittest.TestCase):
    def test_ctrl_d_at_a_question_is_an_answer(self) -> None:
        cases = (("setup cline", 2), ("service install", 1), ("setup codex", 1), ("balance", 2), ("access-key", 2))
        for line, expected in cases[: width(1, len(cases))]:
            with self.subTest(line), tempfile.TemporaryDirectory() as home:
                code, text = _run_in_terminal(line, home)
                self.assertEqual(expected, code, text)
                self.assertNotIn("Traceback", text)


def _run_in_terminal(line: str, home: str) -> tuple[int, str]:
    """Run a command at a terminal whose user presses Ctrl-D whenever it waits; its exit code and output."""
    import pty

    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": home, "TERM": "dumb"}
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-m", "deepseek_cursor_proxy", *line.split()], environment)
    text, deadline = b"", time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            if not select.select([terminal], [], [], 0.1)[0]:
                os.write(terminal, b"\x04")
                continue
            try:
                text += os.read(terminal, 10_000)
            except OSError:
                # The other side is closed.
                break
        else:
            os.kill(pid, 9)
    finally:
        os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text.decode()
