"""A core for the load and one for the measured processes; elsewhere than on Linux none is pinned, as the table says."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


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
                os.sched_setaffinity(int(thread), cores)
