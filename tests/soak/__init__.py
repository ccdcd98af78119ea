"""The soak: mixed load on a proxy for minutes or hours, and a verdict on what it left behind.

The proxy and the fake DeepSeek are processes of their own; `soak.clients` run on threads of this one. Every interval
prints a line. After the last client, threads and descriptors must be back at their numbers of the start, memory must
not have grown with time, no client may have failed, and the log must hold no traceback. Figures that the system does
not give for another process (threads, descriptors, memory: everywhere but on Linux) are unknown and not judged.
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

from tests.soak import clients
from tests.soak.clients import CLIENTS, IDLE_SECONDS, ClientRun
from tests.support.processes import BenchmarkFailed, Server, running_deepseek, running_proxy

# After the last client the proxy has this long to release threads and descriptors.
_SETTLING_SECONDS = 15.0
# Megabytes per hour that memory may grow, and by how many it varies without growing.
_MAX_DRIFT = 5.0
_NOISE_MEGABYTES = 3.0
# A drift needs this many samples of the second half: before, caches fill, which takes some 40,000 requests.
_SAMPLES = 12
_MOST_FAILURES_SHOWN = 5
_VERDICTS = {True: "held", False: "NOT HELD", None: "unknown"}


@dataclass(frozen=True)
class Scale:
    """Clients at a time, and seconds between two lines."""

    clients: int = 16
    interval: float = 10.0


QUICK = Scale(clients=4, interval=1.0)


@dataclass(frozen=True)
class Figures:
    """What the proxy holds at one moment; None where the system gives no figure."""

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
    """One line of the verdict; `is_met` is None where a figure is unknown."""

    what: str
    words: str
    is_met: bool | None

    def __str__(self) -> str:
        return f"{self.what:<12}{self.words}: {_VERDICTS[self.is_met]}"


@dataclass
class Tally:
    """Requests and failures of all clients. Their threads count; `lock` protects both fields."""

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
    out = out or sys.stdout
    scale = QUICK if quick else Scale()
    try:
        with tempfile.TemporaryDirectory() as place:
            findings = soak(60 * minutes, scale, Path(place), lambda line: print(line, file=out, flush=True))
    except (BenchmarkFailed, OSError) as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    print("", *findings, sep="\n", file=out, flush=True)
    return 1 if any(finding.is_met is False for finding in findings) else 0


def soak(seconds: float, scale: Scale, place: Path, print_line: Callable[[str], None]) -> list[Finding]:
    """Run clients for so long; `print_line` gets a line per interval."""
    home = place / "proxy"
    with running_deepseek(place / "deepseek", clients.__name__) as deepseek, running_proxy(deepseek, home) as proxy:
        tally = Tally()
        _warm_up(proxy, tally)
        start = _measure_at_rest(proxy, tally)
        print_line(_line("minutes", "requests", "failures", "threads", "descriptors", "memory"))
        with _running_clients(scale.clients, proxy, tally):
            samples = list(_watch(seconds, scale.interval, proxy, tally, print_line))
        end = _measure_at_rest(proxy, tally, start)
        log = (home / "log").read_text(encoding="utf-8", errors="replace")
    return _verdict(start, end, samples, tally, log)


def _warm_up(proxy: Server, tally: Tally) -> None:
    """Run every kind of client once: what is built on first use belongs to the figures of the start."""
    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        for client in dict.fromkeys(CLIENTS):
            pool.submit(_run_client, client, ClientRun(proxy.url, random.Random(0), tally.count), tally)


@contextmanager
def _running_clients(count: int, proxy: Server, tally: Tally) -> Iterator[None]:
    is_over = threading.Event()

    def run_clients(number: int) -> None:
        rng = random.Random(number)
        while not is_over.is_set():
            _run_client(rng.choice(CLIENTS), ClientRun(proxy.url, rng, tally.count), tally)

    threads = [threading.Thread(target=run_clients, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def _run_client(client: Callable[[ClientRun], None], run: ClientRun, tally: Tally) -> None:
    try:
        client(run)
    except Exception as error:
        # No failure ends a soak of hours.
        tally.fail(f"{client.__name__}: {type(error).__name__}: {error}")


def _measure_at_rest(proxy: Server, tally: Tally, start: Figures | None = None) -> Figures:
    """The figures once all clients have left and the proxy has settled, or after `_SETTLING_SECONDS`."""
    pause = threading.Event()
    # By then DeepSeek has closed its idle connections; the proxy notices that with its next call.
    pause.wait(2 * IDLE_SECONDS)
    _run_client(clients.tool_loop, ClientRun(proxy.url, random.Random(0), tally.count), tally)
    deadline = time.monotonic() + _SETTLING_SECONDS
    # At the start nothing else runs: what is open after a moment stays open.
    pause.wait(IDLE_SECONDS if start is None else 0)
    figures = Figures.of(proxy)
    while start is not None and not figures.has_settled(start) and time.monotonic() < deadline:
        pause.wait(0.1)
        figures = Figures.of(proxy)
    return figures


def _watch(
    seconds: float, interval: float, proxy: Server, tally: Tally, print_line: Callable[[str], None]
) -> Iterator[tuple[float, Figures]]:
    """Yield the figures after every interval, with the seconds since the beginning."""
    began, pause = time.monotonic(), threading.Event()
    while (gone := time.monotonic() - began) < seconds:
        pause.wait(min(interval, seconds - gone))
        figures, gone = Figures.of(proxy), time.monotonic() - began
        known = (figures.threads, figures.descriptors, figures.megabytes and round(figures.megabytes, 1))
        shown = ("?" if each is None else each for each in known)
        print_line(_line(f"{gone / 60:.1f}", tally.requests, len(tally.failures), *shown))
        yield gone, figures


def _line(*columns: object) -> str:
    return "".join(f"{column:>13}" for column in columns)


def _verdict(
    start: Figures, end: Figures, samples: list[tuple[float, Figures]], tally: Tally, log: str
) -> list[Finding]:
    failed = "".join(f"\n            {each}" for each in tally.failures[:_MOST_FAILURES_SHOWN])
    tracebacks, unexpected = log.count("Traceback (most recent call last)"), log.count("unexpected")
    return [
        _compare_counts("threads", start.threads, end.threads),
        _compare_counts("descriptors", start.descriptors, end.descriptors),
        _judge_drift([(gone, figures.megabytes) for gone, figures in samples if figures.megabytes is not None]),
        Finding("failures", f"{len(tally.failures):,} in {tally.requests:,} requests{failed}", not tally.failures),
        Finding("log", f"{tracebacks} tracebacks, {unexpected} unexpected errors", tracebacks == 0 and unexpected == 0),
    ]


def _compare_counts(what: str, start: int | None, end: int | None) -> Finding:
    if start is None or end is None:
        return Finding(what, "this system does not tell", None)
    return Finding(what, f"{start} at the start, {end} at the end", end <= start)


def _judge_drift(samples: list[tuple[float, float]]) -> Finding:
    """Whether memory grows with time: the last third of the samples against the first, once caches are full."""
    settled = samples[len(samples) // 2 :]
    if len(settled) < _SAMPLES:
        return Finding("memory", "too few samples to tell a drift", None)
    third = len(settled) // 3
    (early_at, early), (late_at, late) = (_median_point(settled[:third]), _median_point(settled[-third:]))
    per_hour = (late - early) / (late_at - early_at) * 3600
    words = f"{early:.1f} MB early, {late:.1f} MB late, {per_hour:+.1f} MB per hour"
    return Finding("memory", words, late - early <= _NOISE_MEGABYTES or per_hour <= _MAX_DRIFT)


def _median_point(samples: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(gone for gone, _ in samples), statistics.median(value for _, value in samples)
