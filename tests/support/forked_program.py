"""Processes of the command line that need not import it: forks of one process that has.

To import the package takes most of a start. `start` does for a command what Popen does; the process is a child of the
fork server, which each process of the tests starts when it first needs one, and which tells how its children end.
A fork inherits nothing from the test but its folder: no limits, no ignored signals. Classes of tests that need nothing
else say so (`ServeTest.may_fork`). At the full width every process is a new interpreter.
"""

import atexit
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import IO, Any, TextIO

import deepseek_cursor_proxy
from tests.support.systems import ROOT
from tests.support.width import width

_IS_POSSIBLE = width(hasattr(os, "fork") and hasattr(socket, "send_fds"), False)
_INTERPRETER = (sys.executable, "-W", "error")
# What a proxy imports with its first request; the command line imports the rest.
_IMPORTED_LATE = ("api", "exchange", "admin")


class ForkedProcess:
    """As much of a Popen as tests use. One thread calls it."""

    def __init__(self, pid: int, status: int, stdout: TextIO) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._status = status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self._read_status()
        return self.returncode

    def wait(self, timeout: float) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a fork of the command line", timeout)
            self._read_status()
        assert self.returncode is not None
        return self.returncode

    def _read_status(self) -> None:
        self.returncode = int(os.read(self._status, 100))
        os.close(self._status)


def can_start(command: Sequence[str], environment: dict[str, str]) -> bool:
    """Whether a fork is like a new interpreter: without a program around it, with the usual encoding and path."""
    is_usual = tuple(command[:3]) == _INTERPRETER and command[3] in ("-m", "-c")
    variables = environment.get("PYTHONIOENCODING"), environment.get("PYTHONPATH")
    return _IS_POSSIBLE and is_usual and variables == ("utf-8", str(ROOT))


def start(command: Sequence[str], environment: dict[str, str], stderr: IO[bytes]) -> ForkedProcess:
    """Run a command that `can_start` with these arguments; without an input, its output in a pipe."""
    global _server
    _server = _server or _ForkServer()
    return _server.start(command, environment, stderr)


class _ForkServer:
    """The process that forks, seen from the tests."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        program = f"from {__name__} import run_server; run_server({theirs.fileno()})"
        with theirs:
            self._process = subprocess.Popen(
                [*_INTERPRETER, "-c", program], cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        atexit.register(self._close)

    def start(self, command: Sequence[str], environment: dict[str, str], stderr: IO[bytes]) -> ForkedProcess:
        output, their_output = os.pipe()
        status, their_status = os.pipe()
        request = {"command": list(command[3:]), "environment": environment, "folder": os.getcwd()}
        theirs = (their_output, stderr.fileno(), their_status)
        socket.send_fds(self._control, [json.dumps(request).encode() + b"\n"], theirs)
        pid = int(self._control.recv(100))
        os.close(their_output)
        os.close(their_status)
        return ForkedProcess(pid, status, open(output, encoding="utf-8"))

    def _close(self) -> None:
        self._control.close()
        self._process.wait()


_server: _ForkServer | None = None


# In the fork server …


def run_server(control: int) -> None:
    """Fork a process for each request; in a fork, return from here to run it and to exit as any interpreter does."""
    package = deepseek_cursor_proxy
    importlib.import_module(f"{package.__name__}.cli")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if module.name.split(".")[1] in _IMPORTED_LATE:
            importlib.import_module(module.name)
    with socket.socket(fileno=control) as connection:
        request = _serve(connection)
    if request is not None:
        _run(request)


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """The request that this process, a fork, is to fulfil; None in the server itself, when the tests have ended."""
    # Ctrl-C reaches every process of a terminal; this one ends when the tests do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    statuses: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([control.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 100)
            _report_ends(statuses)
        if control.fileno() not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 3)
        while data and not data.endswith(b"\n"):
            data += control.recv(1 << 20)
        if not data:
            return None
        output, errors, status = descriptors
        if pid := os.fork():
            statuses[pid] = status
            os.close(output)
            os.close(errors)
            control.sendall(b"%d" % pid)
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(output, 1)
        os.dup2(errors, 2)
        for descriptor in (wake, woken, *descriptors, *statuses.values()):
            os.close(descriptor)
        return dict(json.loads(data))


def _report_ends(statuses: dict[int, int]) -> None:
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with open(statuses.pop(pid), "wb") as file:
            file.write(b"%d" % os.waitstatus_to_exitcode(status))


def _run(request: dict[str, Any]) -> None:
    """Be what the interpreter makes of this command and environment."""
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["folder"])
    # Tests in the background, or under nohup, may have started the server with these ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.stdout = sys.__stdout__ = _stream(1, "strict")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2, "backslashreplace")  # type: ignore[misc]
    kind, program, *sys.argv[1:] = request["command"]
    if kind == "-m":
        sys.exit(importlib.import_module(f"{program}.__main__").main())
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})


def _stream(descriptor: int, errors: str) -> io.TextIOWrapper:
    file = io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False))
    return io.TextIOWrapper(file, "utf-8", errors, line_buffering=descriptor == 2)
