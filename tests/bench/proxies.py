"""The proxies that are compared, this one among them: a command with `{port}` and `{upstream}` in it for each.

All are started alike. Each process has a home of its own, runs on the core of the measured ones and ends with its
block. Its own Python writes bytecode, as for users. A proxy may be a server with processes below it, which end with it.
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from deepseek_cursor_proxy.config.declaration import ENVIRONMENT_PREFIX
from tests.bench.table import OURS
from tests.support.processes import BenchmarkFailed, Server
from tests.support.systems import ROOT

# Some import hundreds of packages.
_START_SECONDS = 90.0
_LOOK_SECONDS = 0.002
_END_SECONDS = 10.0
_SETTLING_SECONDS = 5.0
_SETTLING_LOOK_SECONDS = 0.05
# The share of a core; timers that fire now and then take less.
_IDLE_SHARE = 0.05


class CpuPinning:
    """While entered, on Linux, the load has one core, the measured processes the next; they inherit it from us."""

    def __init__(self) -> None:
        self._before = os.sched_getaffinity(0) if sys.platform == "linux" else set[int]()
        cores = sorted(self._before)[:2]
        self._load, self._measured = ({each} for each in cores) if len(cores) == 2 else (self._before, self._before)

    def __enter__(self) -> "CpuPinning":
        _pin(self._load)
        return self

    def __exit__(self, *_: object) -> None:
        _pin(self._before)

    def __str__(self) -> str:
        if self._load == self._measured:
            return "not pinned"
        return "pinned: load on core {}, proxies on core {}".format(*self._load, *self._measured)

    @contextmanager
    def on_measured_core(self) -> Iterator[None]:
        """Processes started inside run on the core of the measured ones."""
        _pin(self._measured)
        try:
            yield
        finally:
            _pin(self._load)


def _pin(cores: set[int]) -> None:
    """Every thread has its own: a thread hands its cores only to threads that it starts later."""
    for thread in os.listdir("/proc/self/task") if sys.platform == "linux" else ():
        with suppress(OSError):
            os.sched_setaffinity(int(thread), cores)


@dataclass(frozen=True)
class Target:
    """A base URL that is measured, with the processes behind it; another machine's are not known."""

    name: str
    url: str
    servers: tuple[Server, ...] = ()

    def cpu_seconds(self) -> float | None:
        return _total([server.cpu_seconds() for server in self.servers])

    def resident_megabytes(self) -> float | None:
        return _total([server.resident_megabytes() for server in self.servers])

    def settle(self) -> None:
        """Wait, up to `_SETTLING_SECONDS`, until the processes are idle: the next measure must not count their work."""
        pause, deadline = threading.Event(), time.monotonic() + _SETTLING_SECONDS
        before = self.cpu_seconds()
        while before is not None and time.monotonic() < deadline:
            pause.wait(_SETTLING_LOOK_SECONDS)
            now = self.cpu_seconds() or 0.0
            if now - before < _IDLE_SHARE * _SETTLING_LOOK_SECONDS:
                return
            before = now


def _total(parts: Sequence[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else None


@dataclass(frozen=True)
class ProxyCommand:
    """The column of a proxy, and the command that starts it."""

    name: str
    text: str
    # Where its Python looks for packages first; ours must not take the place of one with the same name.
    path: str = ""

    @contextmanager
    def running(self, upstream: Server, home: Path, pinning: CpuPinning) -> Iterator[Target]:
        port, log = _free_port(), home / "log"
        words = shlex.split(self.text.replace("{port}", str(port)).replace("{upstream}", upstream.url))
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
        environment |= {"PYTHONPATH": self.path, "HOME": str(home), "USERPROFILE": str(home)}
        # Some machines forbid it by default.
        environment["PYTHONDONTWRITEBYTECODE"] = ""
        with log.open("ab") as output, pinning.on_measured_core():
            process = subprocess.Popen(
                words, env=environment, cwd=home, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        try:
            self._wait_for_port(process, port, log)
            url = f"http://127.0.0.1:{port}/v1"
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


THIS_PROXY = ProxyCommand(
    OURS,
    f"{shlex.quote(sys.executable)} -m deepseek_cursor_proxy --port {{port}} --base-url {{upstream}}",
    str(ROOT),
)


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
    for name in ("SIGTERM", "SIGKILL"):
        with suppress(OSError):
            if os.name == "posix":
                os.killpg(process.pid, signal.Signals[name])
            else:
                process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
            return
