"""Measures of small requests: one after another, many at once, and to a proxy that has just started."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from deepseek_cursor_proxy.json_codec import encode_json
from tests.bench.load_clients import Client, get, post, requests_per_second
from tests.bench.rounds import Contest, Target, added_times, intervals, means, medians
from tests.bench.scale import Scale
from tests.bench.table import OURS, Figure, Row

# This proxy loads what a chat needs a tenth of a second after its start.
_IDLE_SECONDS = 0.5


def question(command: str, *, stream: bool = False) -> bytes:
    """The body of a small request with a command to the benchmark's DeepSeek."""
    messages = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": command}]
    return encode_json({"model": "deepseek-v4-pro", "messages": messages, "stream": stream})


def small_requests(contest: Contest, scale: Scale) -> Iterator[Row]:
    """One client that asks again and again, over one connection."""
    body = question("bench:plain")
    with contest.clients() as clients:
        kept = contest.run_rounds(
            "small requests",
            scale.requests,
            lambda target: 1000 * clients[target.name].ask(post(target.url, body)).whole,
        )
    more = added_times(kept.results)
    yield Row("small request, keep-alive: answer p50", "ms", medians(kept.results))
    yield Row("  added p50", "ms", medians(more))
    yield Row("  added p99", "ms", {name: Figure.of(times, 0.99) for name, times in more.items()})

    yield Row("  CPU per request (mean)", "ms", means(kept.cpu, 1000))


def first_events(contest: Contest, scale: Scale) -> Iterator[Row]:
    body = question("bench:stream 8", stream=True)
    with contest.clients() as clients:
        rounds = contest.run_rounds(
            "first events",
            scale.requests // 2,
            lambda target: 1000 * clients[target.name].ask(post(target.url, body), is_stream=True).first,
        )
    yield Row("first stream event: added p50", "ms", medians(added_times(rounds.results)))
    yield Row("  CPU per stream of 8 chunks (mean)", "ms", means(rounds.cpu, 1000))


def throughput(contest: Contest, scale: Scale) -> Iterator[Row]:
    body = question("bench:plain")

    def burst(target: Target) -> float:
        before = target.cpu_seconds()
        rate = requests_per_second(target.url, scale.clients, post(target.url, body), scale.burst_seconds)
        target.settle()
        answered = rate * scale.burst_seconds
        cpu.setdefault(target.name, []).extend(spent / answered for spent in intervals((before, target.cpu_seconds())))
        return rate

    cpu: dict[str, list[float]] = {}
    rounds = contest.run_rounds("many clients", scale.bursts, burst, timed=True)
    yield Row(f"{scale.clients} keep-alive clients: small requests", "requests/s", medians(rounds.results))
    yield Row("  CPU per request (mean)", "ms", means(cpu, 1000))


@dataclass
class _Starts:
    """What starts of one proxy took: milliseconds to the first answer and of CPU until then, and idle megabytes."""

    times: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)

    def measure(self, start: Callable[[], AbstractContextManager[Target]]) -> None:
        started = time.perf_counter()
        with start() as proxy, closing(Client(proxy.url)) as client:
            client.ask(get(proxy.url, "/models"))
            self.times.append(1000 * (time.perf_counter() - started))
            self.cpu += [1000 * seconds for seconds in (proxy.cpu_seconds(),) if seconds is not None]
            # A proxy may load the rest of itself now.
            threading.Event().wait(_IDLE_SECONDS)
            proxy.settle()
            self.memory += [megabytes for megabytes in (proxy.resident_megabytes(),) if megabytes is not None]


def startup(contest: Contest, scale: Scale, home: Path) -> Iterator[Row]:
    """From nothing to the first answer, and what an idle proxy holds."""
    upstream, pinning = contest.direct.servers[0], contest.pinning
    starts: dict[str, Callable[[], AbstractContextManager[Target]]] = {OURS: lambda: contest.proxy(home)}
    for command in contest.commands:
        starts[command.name] = partial(command.running, upstream, home.with_name(command.name), pinning)
    warm = {name: _Starts() for name in starts}
    for name, start in starts.items():
        # Once before, which writes bytecode.
        _Starts().measure(start)
        deadline = time.monotonic() + contest.patience
        for number in range(scale.starts):
            if number == 0 or time.monotonic() < deadline:
                warm[name].measure(start)
    yield Row(
        "warm start to first /v1/models answer", "ms", {name: Figure.of(each.times) for name, each in warm.items()}
    )
    yield Row("  CPU until then", "ms", {name: Figure.of(each.cpu) for name, each in warm.items()})
    yield Row("  idle memory", "MB", {name: Figure.of(each.memory) for name, each in warm.items()})
