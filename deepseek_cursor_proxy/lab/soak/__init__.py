"""A proxy under mixed load for as long as one likes: does it end as it began?

The proxy and the made-up DeepSeek are processes of their own; visitors (soak_clients) come and go on threads of this
one. A line per interval tells how it goes. At the end, when everybody has left, threads and descriptors have to be back
at the start line, memory must not have grown with time, nothing may have failed, and the log must hold no traceback.
What the system does not tell about another process (threads, descriptors, memory: everywhere but on Linux) is said to
be unknown and not judged.
"""

import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from deepseek_cursor_proxy.lab.processes import BenchmarkFailed, Server, made_up_deepseek, running_proxy
from deepseek_cursor_proxy.lab.soak import clients
from deepseek_cursor_proxy.lab.soak.clients import IDLE_SECONDS, PROXY_FLAGS, VISITORS, Visit

# After the last visitor the proxy has this long to put everything away.
_SETTLING_SECONDS = 15.0
# Megabytes per hour that memory may grow, and what it sways by without growing.
_MOST_DRIFT = 5.0
_SWAY = 3.0
# A drift needs this many samples of the second half: before, caches fill, which takes some 40,000 requests.
_SAMPLES = 12
# How many failures are told in words.
_TOLD = 5


@dataclass(frozen=True)
class Scale:
    """How many visitors there are at a time, and how many seconds lie between two lines."""

    visitors: int = 16
    interval: float = 10.0


QUICK = Scale(visitors=4, interval=1.0)


@dataclass(frozen=True)
class Figures:
    """What the proxy holds at one moment; None is what the system does not tell."""

    threads: int | None
    descriptors: int | None
    megabytes: float | None

    @classmethod
    def of(cls, proxy: Server) -> "Figures":
        return cls(proxy.threads(), proxy.descriptors(), proxy.resident_megabytes())

    def has_settled(self, start: "Figures") -> bool:
        return (self.threads or 0) <= (start.threads or 0) and (self.descriptors or 0) <= (start.descriptors or 0)


@dataclass(frozen=True)
class Finding:
    """One line of the verdict; `held` is None for what cannot be told."""

    what: str
    words: str
    held: bool | None

    def __str__(self) -> str:
        return f"{self.what:<12}{self.words}: {'unknown' if self.held is None else 'held' if self.held else 'NOT HELD'}"


@dataclass
class Tally:
    """What the visitors did. Counted by all their threads; the lock protects all of it."""

    requests: int = 0
    failures: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, requests: int) -> None:
        with self.lock:
            self.requests += requests

    def fail(self, what: str) -> None:
        with self.lock:
            self.failures.append(what)


def run(minutes: float, quick: bool = False, out: TextIO | None = None) -> int:
    """Soak the proxy and print how it went; 0 if everything held, else 1."""
    out = out or sys.stdout
    scale = QUICK if quick else Scale()
    try:
        with tempfile.TemporaryDirectory() as place:
            findings = soak(60 * minutes, scale, Path(place), lambda line: print(line, file=out, flush=True))
    except (BenchmarkFailed, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print("", *findings, sep="\n", file=out, flush=True)
    return 1 if any(finding.held is False for finding in findings) else 0


def soak(seconds: float, scale: Scale, place: Path, tell: Callable[[str], None]) -> list[Finding]:
    """Let visitors in for that long; `tell` gets a line per interval."""
    home = place / "proxy"
    with (
        made_up_deepseek(place / "deepseek", clients.__name__) as deepseek,
        running_proxy(deepseek, home, *PROXY_FLAGS) as proxy,
    ):
        tally = Tally()
        _warm_up(proxy, tally)
        start = _calm(proxy, tally)
        tell(_line("minutes", "requests", "failures", "threads", "descriptors", "memory"))
        with _visitors(scale.visitors, proxy, tally):
            samples = list(_watched(seconds, scale.interval, proxy, tally, tell))
        end = _calm(proxy, tally, start)
        log = (home / "log").read_text(encoding="utf-8", errors="replace")
    return _verdict(start, end, samples, tally, log)


# Visitors …


def _warm_up(proxy: Server, tally: Tally) -> None:
    """Everybody once: whatever is built on first use belongs to the start line."""
    with ThreadPoolExecutor(len(VISITORS)) as pool:
        for visitor in dict.fromkeys(VISITORS):
            pool.submit(_play, visitor, Visit(proxy.url, random.Random(0), tally.count), tally)


@contextmanager
def _visitors(count: int, proxy: Server, tally: Tally) -> Iterator[None]:
    is_over = threading.Event()

    def come_and_go(number: int) -> None:
        rng = random.Random(number)
        while not is_over.is_set():
            _play(rng.choice(VISITORS), Visit(proxy.url, rng, tally.count), tally)

    threads = [threading.Thread(target=come_and_go, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def _play(visitor: Callable[[Visit], None], visit: Visit, tally: Tally) -> None:
    try:
        visitor(visit)
    except Exception as error:
        # Whatever it is, it is no reason to end a soak of hours.
        tally.fail(f"{visitor.__name__}: {type(error).__name__}: {error}")


def _calm(proxy: Server, tally: Tally, start: Figures | None = None) -> Figures:
    """The figures once everybody has left and everything is put away, or was not in time."""
    pause = threading.Event()
    # By then DeepSeek has closed what it does not use; the next call is what makes the proxy notice.
    pause.wait(2 * IDLE_SECONDS)
    _play(clients.tool_loop, Visit(proxy.url, random.Random(0), tally.count), tally)
    deadline = time.monotonic() + _SETTLING_SECONDS
    # Nothing else is going on before the start: what is there after a moment is what stays.
    pause.wait(IDLE_SECONDS if start is None else 0)
    figures = Figures.of(proxy)
    while start is not None and not figures.has_settled(start) and time.monotonic() < deadline:
        pause.wait(0.1)
        figures = Figures.of(proxy)
    return figures


# … and what is seen of them.


def _watched(
    seconds: float, interval: float, proxy: Server, tally: Tally, tell: Callable[[str], None]
) -> Iterator[tuple[float, Figures]]:
    """The figures after every interval, with the seconds since the beginning."""
    began, pause = time.monotonic(), threading.Event()
    while (gone := time.monotonic() - began) < seconds:
        pause.wait(min(interval, seconds - gone))
        figures, gone = Figures.of(proxy), time.monotonic() - began
        known = (figures.threads, figures.descriptors, figures.megabytes and round(figures.megabytes, 1))
        shown = ("?" if each is None else each for each in known)
        tell(_line(f"{gone / 60:.1f}", tally.requests, len(tally.failures), *shown))
        yield gone, figures


def _line(*columns: object) -> str:
    return "".join(f"{column:>13}" for column in columns)


def _verdict(
    start: Figures, end: Figures, samples: list[tuple[float, Figures]], tally: Tally, log: str
) -> list[Finding]:
    failed = "".join(f"\n            {each}" for each in tally.failures[:_TOLD])
    tracebacks, unexpected = log.count("Traceback (most recent call last)"), log.count("unexpected")
    return [
        _returned("threads", start.threads, end.threads),
        _returned("descriptors", start.descriptors, end.descriptors),
        _drifted([(gone, figures.megabytes) for gone, figures in samples if figures.megabytes is not None]),
        Finding("failures", f"{len(tally.failures):,} in {tally.requests:,} requests{failed}", not tally.failures),
        Finding("log", f"{tracebacks} tracebacks, {unexpected} unexpected errors", tracebacks == 0 and unexpected == 0),
    ]


def _returned(what: str, start: int | None, end: int | None) -> Finding:
    if start is None or end is None:
        return Finding(what, "this system does not tell", None)
    return Finding(what, f"{start} at the start, {end} at the end", end <= start)


def _drifted(samples: list[tuple[float, float]]) -> Finding:
    """Whether memory grows with time: the last third of the samples against the first, once caches are full."""
    settled = samples[len(samples) // 2 :]
    if len(settled) < _SAMPLES:
        return Finding("memory", "too few samples to tell a drift", None)
    third = len(settled) // 3
    (early_at, early), (late_at, late) = (_middle(settled[:third]), _middle(settled[-third:]))
    per_hour = (late - early) / (late_at - early_at) * 3600
    words = f"{early:.1f} MB early, {late:.1f} MB late, {per_hour:+.1f} MB per hour"
    return Finding("memory", words, late - early <= _SWAY or per_hour <= _MOST_DRIFT)


def _middle(samples: list[tuple[float, float]]) -> tuple[float, float]:
    """The median moment and the median value."""
    return statistics.median(gone for gone, _ in samples), statistics.median(value for _, value in samples)
