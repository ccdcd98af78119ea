"""The rounds in which targets are compared.

Every round asks each target once, so that a busy moment of the machine hits all of them. CPU time is what a process
used from one request to its next: work after an answer counts. Another proxy that fails is left out of that measure,
and a note says why; the direct way and this proxy must work.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Generic, TypeVar

from tests.bench.load_clients import Client
from tests.bench.proxies import CpuPinning, ProxyCommand, Target
from tests.bench.table import DIRECT, OURS, Figure
from tests.support.processes import BenchmarkFailed

T = TypeVar("T")


@dataclass
class Rounds(Generic[T]):
    """Each target's results and CPU seconds, round by round."""

    results: dict[str, list[T]]
    cpu: dict[str, list[float]]


@dataclass
class Contest:
    """The direct way, this proxy and others, with the seconds that a measure of slow targets may take."""

    direct: Target
    commands: Sequence[ProxyCommand]
    place: Path
    pinning: CpuPinning
    patience: float = 20.0
    notes: list[str] = field(default_factory=list)
    # Of each command, while it runs.
    proxies: Sequence[Target] = ()

    @property
    def all(self) -> tuple[Target, ...]:
        return (self.direct, *self.proxies)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, every proxy runs, with an empty home."""
        with ExitStack() as stack:
            self.proxies = [stack.enter_context(self.start(command, self.new_home())) for command in self.commands]
            yield

    def start(self, command: ProxyCommand, home: Path) -> AbstractContextManager[Target]:
        return command.running(self.direct.servers[0], home, self.pinning)

    def new_home(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.place))

    @contextmanager
    def clients(self) -> Iterator[dict[str, Client]]:
        with ExitStack() as stack:
            yield {each.name: stack.enter_context(closing(Client(each.url))) for each in self.all}

    def run_rounds(
        self, what: str, rounds: int, targets: Sequence[Target], ask: Callable[[Target], T], *, is_timed: bool = False
    ) -> Rounds[T]:
        """The results of each target that did not fail; unless `is_timed`, only as long as `patience` lasts."""
        running = [*targets]
        results: dict[str, list[T]] = {target.name: [] for target in running}
        clocks: dict[str, list[float | None]] = {target.name: [] for target in running}
        started = time.monotonic()
        for _ in range(rounds):
            for target in list(running):
                clocks[target.name].append(target.cpu_seconds())
                try:
                    results[target.name].append(ask(target))
                except (BenchmarkFailed, OSError) as error:
                    self.drop(target.name, what, error)
                    running.remove(target)
            if not is_timed and time.monotonic() - started > self.patience:
                break
        for target in running:
            clocks[target.name].append(target.cpu_seconds())
        return Rounds(
            {target.name: results[target.name] for target in running},
            {target.name: intervals(clocks[target.name]) for target in running},
        )

    def drop(self, name: str, what: str, why: object) -> None:
        """Go on without another proxy; BenchmarkFailed for the direct way and for this proxy."""
        if name in (DIRECT, OURS):
            raise BenchmarkFailed(f"{what}: {name}: {why}")
        self.notes = [*dict.fromkeys((*self.notes, f"{name}: {what}: {why}"))]


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
