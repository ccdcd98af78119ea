"""What the benchmark and the soak look at from outside: servers in processes of their own.

The proxy is started as a user starts it, with a HOME of its own; the fake DeepSeek ends when its standard input
does, so it cannot outlive us. What a process uses is read from the system, on Linux only.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from deepseek_cursor_proxy.config.declaration import ENVIRONMENT_PREFIX

# A proxy that stops gives running answers five seconds.
_LAST_SECONDS = 10.0


class BenchmarkFailed(Exception):
    """Something did not do what was to be measured."""


@dataclass(frozen=True)
class Server:
    """A running process that answers at `url`."""

    url: str
    pid: int

    def cpu_seconds(self) -> float | None:
        """The CPU time it has used so far; None where the system does not tell."""
        if sys.platform != "linux":
            return None
        # The number clock_getcpuclockid(3) gives the clock of another process; /proc only counts in 10 ms.
        with suppress(OSError):
            return time.clock_gettime((~self.pid << 3) | 2)
        return None

    def resident_megabytes(self) -> float | None:
        """The memory it has right now; None where the system does not tell."""
        return self._megabytes("VmRSS")

    def peak_megabytes(self) -> float | None:
        """The most memory it ever had; None where the system does not tell."""
        return self._megabytes("VmHWM")

    def threads(self) -> int | None:
        return self._status("Threads")

    def descriptors(self) -> int | None:
        try:
            return len(os.listdir(f"/proc/{self.pid}/fd"))
        except OSError:
            return None

    def _megabytes(self, name: str) -> float | None:
        kilobytes = self._status(name)
        return None if kilobytes is None else kilobytes * 1024 / 1e6

    def _status(self, name: str) -> int | None:
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return None
        # A zombie has no memory to report.
        found = re.search(rf"^{name}:\s*(\d+)", status, re.MULTILINE)
        return int(found[1]) if found else None


@contextmanager
def running_deepseek(home: Path, module: str) -> Iterator[Server]:
    """The fake DeepSeek of a lab module, in a process of its own."""
    with _run_process(home, "-c", f"from {module} import serve_deepseek; serve_deepseek()") as server:
        yield server


@contextmanager
def running_proxy(upstream: Server, home: Path, *flags: str) -> Iterator[Server]:
    with _run_process(home, "-m", "deepseek_cursor_proxy", "--port", "0", "--base-url", upstream.url, *flags) as server:
        yield server


@contextmanager
def _run_process(home: Path, *arguments: str) -> Iterator[Server]:
    home.mkdir(exist_ok=True)
    pipe, log = subprocess.PIPE, home / "log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [sys.executable, *arguments], env=_environment(home), stdin=pipe, stdout=pipe, stderr=errors
        ) as process,
    ):
        try:
            yield Server(_read_url(process, log), process.pid)
        finally:
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_SECONDS)
    finally:
        # Harmless after its end; neither a slow end nor a second Ctrl-C leaves the process behind.
        process.kill()
        process.wait()


def _environment(home: Path) -> dict[str, str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    return {**mine, "HOME": str(home), "USERPROFILE": str(home), "PYTHONPATH": path}


def _read_url(process: "subprocess.Popen[bytes]", log: Path) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(rb"http://127\.0\.0\.1:\d+", line):
            return found[0].decode()
    *_, last = ["nothing was said", *filter(None, log.read_text(errors="replace").splitlines())]
    raise BenchmarkFailed(f"a process did not start: {last[-500:]}")


def wait_for_end_of_stdin(url: str) -> None:
    """Print the URL of the server that this process is, and wait until standard input ends."""
    # Ctrl-C reaches every process of a terminal; the process that started this one ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print(url, flush=True)
    sys.stdin.read()
