"""The machine below the benchmark: which processes listen on a port, and a core for the measured processes.

Linux only; elsewhere no process is found and none is pinned, and the table says so.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

_LOCAL = ("localhost", "127.0.0.1", "::1")


def find_listeners(url: str) -> tuple[int, ...]:
    """The processes of this machine that listen on a URL's port; empty when the system does not tell."""
    address = urlsplit(url)
    if sys.platform != "linux" or address.hostname not in _LOCAL:
        return ()
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(address.port or 80)}
    processes = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    return tuple(pid for pid in processes if sockets & set(_open_files(pid)))


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                # The local address, and 0A for a socket that listens.
                if fields[1].endswith(f":{port:04X}") and fields[3] == "0A":
                    yield fields[9]


def _open_files(pid: int) -> Iterator[str]:
    # Another user's, or gone by now.
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{name}")


class CpuPinning:
    """While entered, the load has one core, the measured processes the next; a new process inherits its starter's."""

    def __init__(self) -> None:
        self._before: dict[int, set[int]] = {}
        self._load: set[int] = set()
        self._measured: set[int] = set()

    def __enter__(self) -> "CpuPinning":
        if sys.platform == "linux" and len(cores := sorted(os.sched_getaffinity(0))) > 1:
            self._load, self._measured = {cores[0]}, {cores[1]}
        self._pin(os.getpid(), self._load)
        return self

    def __exit__(self, *_: object) -> None:
        if sys.platform == "linux":
            for pid, cores in self._before.items():
                _set_affinity(pid, cores)

    def __str__(self) -> str:
        if not self._load:
            return "not pinned"
        return "pinned: load on core {}, proxies on core {}".format(*self._load, *self._measured)

    @contextmanager
    def on_measured_core(self) -> Iterator[None]:
        """Processes started inside run on the core of the measured ones."""
        self._pin(os.getpid(), self._measured)
        try:
            yield
        finally:
            self._pin(os.getpid(), self._load)

    def pin_measured(self, pid: int) -> None:
        """Move a process that something else started to the core of the measured ones."""
        self._pin(pid, self._measured)

    def _pin(self, pid: int, cores: set[int]) -> None:
        if sys.platform == "linux" and cores:
            with suppress(OSError):
                self._before.setdefault(pid, os.sched_getaffinity(pid))
                _set_affinity(pid, cores)


def _set_affinity(pid: int, cores: set[int]) -> None:
    """Every thread has its own: a thread hands its cores only to threads that it starts later."""
    if sys.platform == "linux":
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                if re.fullmatch(r"\d+", thread):
                    os.sched_setaffinity(int(thread), cores)
