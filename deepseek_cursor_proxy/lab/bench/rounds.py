"""Those who are compared, and how they take turns.

In every round each of them is asked once, so that a busy moment of the machine hits all of them. CPU time is what a
process used from one turn to its next: work that goes on behind an answer counts. Another proxy that fails is left out
of that measure, and a note says why; the direct way and this proxy have to work.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Generic, TypeVar

from deepseek_cursor_proxy.lab.bench.load_clients import Client
from deepseek_cursor_proxy.lab.bench.machine import Pinning
from deepseek_cursor_proxy.lab.bench.table import DIRECT, OURS, Figure
from deepseek_cursor_proxy.lab.processes import BenchmarkFailed, Server, running_proxy

T = TypeVar("T")

_SETTLING_SECONDS = 5.0
_LOOK_SECONDS = 0.05
# Of a core; timers that fire now and then take less.
_IDLE_SHARE = 0.05


@dataclass(frozen=True)
class Target:
    """Somebody who answers at a base URL, with all the processes that do it; none are known of a stranger."""

    name: str
    url: str
    servers: tuple[Server, ...] = ()

    def cpu_seconds(self) -> float | None:
        return _total([server.cpu_seconds() for server in self.servers])

    def resident_megabytes(self) -> float | None:
        return _total([server.resident_megabytes() for server in self.servers])

    def threads(self) -> float | None:
        return _total([server.threads() for server in self.servers])

    def settle(self) -> None:
        """Waits, not for ever, until it has put away what it was busy with: the next measure is not about that."""
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
def started_proxy(pinning: Pinning, upstream: Server, home: Path, *flags: str) -> Iterator[Target]:
    """This proxy, on the core of those who are measured; whoever starts it stays where it is."""
    with ExitStack() as stack:
        with pinning.measured():
            proxy = stack.enter_context(running_proxy(upstream, home, *flags))
        yield Target(OURS, f"{proxy.url}/v1", (proxy,))


@dataclass
class Rounds(Generic[T]):
    """What each target answered, and the CPU seconds it took, round by round."""

    results: dict[str, list[T]]
    cpu: dict[str, list[float]] = field(default_factory=dict)


@dataclass
class Contest:
    """The direct way, this proxy, and others; with the seconds a measure may take when somebody is slow."""

    direct: Target
    ours: Target
    others: tuple[Target, ...] = ()
    patience: float = 20.0
    pinning: Pinning = field(default_factory=Pinning)
    notes: list[str] = field(default_factory=list)

    @property
    def all(self) -> tuple[Target, ...]:
        return (self.direct, *self.proxies)

    @property
    def proxies(self) -> tuple[Target, ...]:
        return (self.ours, *self.others)

    @contextmanager
    def clients(self, *more: Target) -> Iterator[dict[str, Client]]:
        """A kept-alive connection to everybody."""
        with ExitStack() as stack:
            yield {each.name: stack.enter_context(closing(Client(each.url))) for each in (*self.all, *more)}

    @contextmanager
    def proxy(self, home: Path, *flags: str) -> Iterator[Target]:
        """One more of ours, for as long as it is needed."""
        with started_proxy(self.pinning, self.direct.servers[0], home, *flags) as target:
            yield target

    def in_turns(
        self, what: str, rounds: int, ask: Callable[[Target], T], *, timed: bool = False, more: Sequence[Target] = ()
    ) -> Rounds[T]:
        """Everybody's results; a first round warms up and does not count, and slow ones end when patience does.

        What is timed takes as long as it was told to: neither is done.
        """
        skipped = 0 if timed else 1
        running = [*self.all, *more]
        results: dict[str, list[T]] = {target.name: [] for target in running}
        clocks: dict[str, list[float | None]] = {target.name: [] for target in running}
        started = time.monotonic()
        for number in range(-skipped, rounds):
            for target in list(running):
                clocks[target.name].append(target.cpu_seconds())
                try:
                    results[target.name].append(ask(target))
                except (BenchmarkFailed, OSError) as error:
                    self.give_up(target, what, error)
                    running.remove(target)
            if not timed and number >= 0 and time.monotonic() - started > self.patience:
                break
        for target in running:
            clocks[target.name].append(target.cpu_seconds())
        return Rounds(
            {target.name: results[target.name][skipped:] for target in running},
            {target.name: laps(clocks[target.name][skipped:]) for target in running},
        )

    def give_up(self, target: Target, what: str, why: object) -> None:
        """Goes on without another proxy; BenchmarkFailed if it is none."""
        if target not in self.others:
            raise BenchmarkFailed(f"{what}: {target.name}: {why}")
        self.notes.append(f"{target.name}: {what}: {why}")


def laps(clock: Sequence[float | None]) -> list[float]:
    """What a clock went on by from each look at it to the next; nothing when it could not always be told."""
    known = [moment for moment in clock if moment is not None]
    if len(known) < len(clock):
        return []
    return [after - before for before, after in pairwise(known)]


def added(results: dict[str, list[float]]) -> dict[str, list[float]]:
    """What each proxy took longer than the direct way in the same round."""
    direct = results[DIRECT]
    return {
        name: [through - alone for alone, through in zip(direct, times, strict=True)]
        for name, times in results.items()
        if name != DIRECT
    }


def medians(samples: dict[str, list[float]], scale: float = 1.0) -> dict[str, Figure | None]:
    return {name: Figure.of([scale * each for each in some]) for name, some in samples.items()}


def means(samples: dict[str, list[float]], scale: float = 1.0) -> dict[str, Figure | None]:
    """Of what the proxies spent; what the direct way costs is the lab's own affair."""
    return {name: Figure.mean([scale * each for each in some]) for name, some in samples.items() if name != DIRECT}
