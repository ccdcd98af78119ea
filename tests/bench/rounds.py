"""The targets that are compared, and the rounds in which they are measured.

Every round asks each target once, so that a busy moment of the machine hits all of them. CPU time is what a process
used from one request to its next: work after an answer counts. Another proxy that fails is left out of that measure,
and a note says why; the direct way and this proxy must work.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from tests.bench.load_clients import Client
from tests.bench.table import DIRECT, OURS, Figure
from tests.support.processes import BenchmarkFailed, Server, running_proxy

if TYPE_CHECKING:
    from tests.bench.others import OtherCommand

T = TypeVar("T")

_SETTLING_SECONDS = 5.0
_LOOK_SECONDS = 0.05
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
            pause.wait(_LOOK_SECONDS)
            now = self.cpu_seconds() or 0.0
            if now - before < _IDLE_SHARE * _LOOK_SECONDS:
                return
            before = now


def _total(parts: Sequence[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else None


@contextmanager
def start_proxy(pinning: CpuPinning, upstream: Server, home: Path, *flags: str) -> Iterator[Target]:
    with ExitStack() as stack:
        with pinning.on_measured_core():
            proxy = stack.enter_context(running_proxy(upstream, home, *flags))
        yield Target(OURS, f"{proxy.url}/v1", (proxy,))


@dataclass
class Rounds(Generic[T]):
    """Each target's results and CPU seconds, round by round."""

    results: dict[str, list[T]]
    cpu: dict[str, list[float]] = field(default_factory=dict)


@dataclass
class Contest:
    """The direct way, this proxy and others, with the seconds that a measure of slow targets may take."""

    direct: Target
    ours: Target
    others: tuple[Target, ...] = ()
    patience: float = 20.0
    pinning: CpuPinning = field(default_factory=CpuPinning)
    notes: list[str] = field(default_factory=list)
    # Of those among the others that the benchmark has started.
    commands: "tuple[OtherCommand, ...]" = ()

    @property
    def all(self) -> tuple[Target, ...]:
        return (self.direct, *self.proxies)

    @property
    def proxies(self) -> tuple[Target, ...]:
        return (self.ours, *self.others)

    @contextmanager
    def clients(self) -> Iterator[dict[str, Client]]:
        with ExitStack() as stack:
            yield {each.name: stack.enter_context(closing(Client(each.url))) for each in self.all}

    @contextmanager
    def proxy(self, home: Path, *flags: str) -> Iterator[Target]:
        with start_proxy(self.pinning, self.direct.servers[0], home, *flags) as target:
            yield target

    def run_rounds(self, what: str, rounds: int, ask: Callable[[Target], T], *, timed: bool = False) -> Rounds[T]:
        """Each target's results; unless `timed`, after a warm-up round and only as long as `patience` lasts."""
        skipped = 0 if timed else 1
        running = [*self.all]
        results: dict[str, list[T]] = {target.name: [] for target in running}
        clocks: dict[str, list[float | None]] = {target.name: [] for target in running}
        started = time.monotonic()
        for number in range(-skipped, rounds):
            for target in list(running):
                clocks[target.name].append(target.cpu_seconds())
                try:
                    results[target.name].append(ask(target))
                except (BenchmarkFailed, OSError) as error:
                    self.drop(target.name, what, error)
                    running.remove(target)
            if not timed and number >= 0 and time.monotonic() - started > self.patience:
                break
        for target in running:
            clocks[target.name].append(target.cpu_seconds())
        return Rounds(
            {target.name: results[target.name][skipped:] for target in running},
            {target.name: intervals(clocks[target.name][skipped:]) for target in running},
        )

    def drop(self, name: str, what: str, why: object) -> None:
        """Go on without another proxy; BenchmarkFailed for the direct way and for this proxy."""
        if name in (DIRECT, OURS):
            raise BenchmarkFailed(f"{what}: {name}: {why}")
        self.notes.append(f"{name}: {what}: {why}")


def intervals(clock: Sequence[float | None]) -> list[float]:
    """The differences between readings of a clock; none when a reading is missing."""
    known = [moment for moment in clock if moment is not None]
    if len(known) < len(clock):
        return []
    return [after - before for before, after in pairwise(known)]


def added_times(results: dict[str, list[float]]) -> dict[str, list[float]]:
    """How much longer each proxy took than the direct way in the same round."""
    direct = results[DIRECT]
    return {
        name: [through - alone for alone, through in zip(direct, times, strict=True)]
        for name, times in results.items()
        if name != DIRECT
    }


def medians(samples: dict[str, list[float]], scale: float = 1.0) -> dict[str, Figure | None]:
    return {name: Figure.of([scale * each for each in some]) for name, some in samples.items()}


def means(samples: dict[str, list[float]], scale: float = 1.0) -> dict[str, Figure | None]:
    """The means of all proxies; the direct way would measure the lab itself."""
    return {name: Figure.mean([scale * each for each in some]) for name, some in samples.items() if name != DIRECT}
