"""Other proxies that the benchmark starts itself: a command with `{port}` and `{upstream}` in it.

Each process has a home of its own, runs on the core of the measured ones and ends with its block. Its own Python writes
bytecode, as ours does. Another proxy may be a server with processes below it, which end with it.
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.bench.rounds import CpuPinning, Target
from tests.support.processes import BenchmarkFailed, Server

# Some import hundreds of packages.
_START_SECONDS = 90.0
_LOOK_SECONDS = 0.002
_END_SECONDS = 10.0


@dataclass(frozen=True)
class OtherCommand:
    """The column of another proxy, and the command that starts it."""

    name: str
    text: str
    # Where its Python looks for packages first; ours must not take the place of one with the same name.
    path: str = ""

    def words(self, port: int, upstream: Server) -> list[str]:
        text = self.text.replace("{port}", str(port)).replace("{upstream}", upstream.url)
        return shlex.split(text)

    @contextmanager
    def running(self, upstream: Server, home: Path, pinning: CpuPinning) -> Iterator[Target]:
        home.mkdir(exist_ok=True)
        port = _free_port()
        environment = {**os.environ, "PYTHONPATH": self.path, "HOME": str(home), "USERPROFILE": str(home)}
        with (home / "log").open("ab") as log, pinning.on_measured_core():
            process = subprocess.Popen(
                self.words(port, upstream), env=environment, cwd=home, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}/v1"
            self._wait_for_port(process, port, home / "log")
            yield Target(self.name, url, tuple(Server(url, pid) for pid in _session(process.pid)))
        finally:
            _end(process)

    def _wait_for_port(self, process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
        pause, deadline = threading.Event(), time.monotonic() + _START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            pause.wait(_LOOK_SECONDS)
        *_, last = ["nothing was said", *filter(None, log.read_text(errors="replace").splitlines())]
        raise BenchmarkFailed(f"{self.name} did not start: {last[-300:]}")


def _session(leader: int) -> list[int]:
    """The processes of a session, where the system tells; a server may have workers."""
    pids = (int(name) for name in (os.listdir("/proc") if sys.platform == "linux" else ()) if name.isdecimal())
    return [pid for pid in pids if _session_of(pid) == leader] or [leader]


def _session_of(pid: int) -> int:
    with suppress(OSError):
        return os.getsid(pid)
    return 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process and those that it started, which are in its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(OSError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
            return
