"""What the benchmark measures from outside, and with what: servers in processes of their own, and a bare client.

The proxy is started as a user starts it, with a HOME of its own; the made-up DeepSeek ends when its standard input
does, so it cannot outlive us. The client speaks just enough HTTP to find the end of an answer: the time it takes
itself is part of everything that it measures.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deepseek_cursor_proxy.lab.fake_deepseek import Answer, FakeDeepSeek
from deepseek_cursor_proxy.settings import ENVIRONMENT_PREFIX
from deepseek_cursor_proxy.wire import encode_json

# Longer than any answer takes to begin, shorter than the patience of whoever waits for the table.
_PATIENCE_SECONDS = 30.0
# A proxy that is asked to stop gives running answers five seconds.
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
        # A process that has ended, and whom nobody has waited for yet, has no memory to tell of.
        found = re.search(rf"^{name}:\s*(\d+)", status, re.MULTILINE)
        return int(found[1]) if found else None


@contextmanager
def made_up_deepseek(home: Path, module: str = __name__) -> Iterator[Server]:
    """A FakeDeepSeek; this module's answers with as many chunks as the last message says."""
    with _running(home, "-c", f"from {module} import be_deepseek; be_deepseek()") as server:
        yield server


@contextmanager
def running_proxy(upstream: Server, home: Path, *flags: str) -> Iterator[Server]:
    """The proxy, as `python -m` starts it."""
    with _running(home, "-m", "deepseek_cursor_proxy", "--port", "0", "--base-url", upstream.url, *flags) as server:
        yield server


@contextmanager
def _running(home: Path, *arguments: str) -> Iterator[Server]:
    home.mkdir(exist_ok=True)
    pipe, log = subprocess.PIPE, home / "log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [sys.executable, *arguments], env=_environment(home), stdin=pipe, stdout=pipe, stderr=errors
        ) as process,
    ):
        try:
            yield Server(_announced_url(process, log), process.pid)
        finally:
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_SECONDS)
    finally:
        # No harm to one that has ended; but neither its slowness nor an impatient Ctrl-C leaves it behind.
        process.kill()
        process.wait()


def _environment(home: Path) -> dict[str, str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    return {**mine, "HOME": str(home), "USERPROFILE": str(home), "PYTHONPATH": path}


def _announced_url(process: "subprocess.Popen[bytes]", log: Path) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(rb"http://127\.0\.0\.1:\d+", line):
            return found[0].decode()
    raise BenchmarkFailed(f"a process did not start: {log.read_text(errors='replace').strip()[-500:]}")


def be_deepseek() -> None:
    """What the made-up DeepSeek's process does."""
    numbers = count()

    def respond(payload: dict[str, Any]) -> Answer:
        # What was seen is kept for tests; thousands of requests would only fill memory.
        fake.seen.clear()
        chunks = int(payload["messages"][-1]["content"])
        # Real answers differ, and the proxy has to store each; a long one is the same again, so that its chunks are
        # written once and not while the proxy waits.
        thought = f"{next(numbers) if chunks < 100 else 0:08}"
        return Answer(thought * (chunks // 4), "Four" * (chunks // 2), piece=4)

    fake = FakeDeepSeek(responder=respond)
    serve_until_told(fake)


def serve_until_told(fake: FakeDeepSeek) -> None:
    """Serve, and tell where, until standard input ends."""
    # Ctrl-C reaches every process of a terminal; who started this one ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with fake:
        print(fake.url, flush=True)
        sys.stdin.read()


def completion_request(chunks: int, *, stream: bool = False) -> bytes:
    """A small request that asks the made-up DeepSeek for an answer of that many chunks."""
    messages = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": str(chunks)}]
    body = encode_json({"model": "deepseek-v4-pro", "messages": messages, "stream": stream})
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer sk-bench\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


MODELS_REQUEST = b"GET /v1/models HTTP/1.1\r\nHost: bench\r\n\r\n"


@dataclass(frozen=True)
class Timing:
    """Seconds from sending a request to the first piece of JSON in its answer, and to the end of it."""

    first: float
    whole: float


class Client:
    """One kept-alive connection. Used by one thread; another may close it, which ends what it waits for."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port), _PATIENCE_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def ask(self, request: bytes) -> Timing:
        """Sends a request and reads its answer; BenchmarkFailed unless that is a 200."""
        started = time.perf_counter()
        self._socket.sendall(request)
        data = self._receive()
        while b"{" not in data:
            data += self._receive()
        first = time.perf_counter() - started
        head, _, body = data.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise BenchmarkFailed(f"an answer was {data[:300].decode(errors='replace')}")
        self._read_rest(head, body)
        return Timing(first, time.perf_counter() - started)

    def _read_rest(self, head: bytes, body: bytes) -> None:
        if length := re.search(rb"(?i)\r\ncontent-length: *(\d+)", head):
            left = int(length[1]) - len(body)
            while left > 0:
                left -= len(self._receive())
            return
        while not body.endswith(b"\r\n0\r\n\r\n"):
            # Only the end is looked at; a long answer is not kept.
            body = body[-8:] + self._receive()

    def _receive(self) -> bytes:
        data = self._socket.recv(262144)
        if not data:
            raise BenchmarkFailed("an answer was broken off")
        return data
