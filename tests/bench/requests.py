"""Measures of small requests: one after another, many at once, and to a proxy that has just started."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from deepseek_cursor_proxy.json_codec import encode_json
from tests.bench.load_clients import Client, get, post, requests_per_second
from tests.bench.rounds import Contest, Target, added_times, means, medians
from tests.bench.scale import Scale
from tests.bench.table import OURS, Figure, Row


def question(command: str, *, stream: bool = False) -> bytes:
    """The body of a small request with a command to the benchmark's DeepSeek."""
    messages = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": command}]
    return encode_json({"model": "deepseek-v4-pro", "messages": messages, "stream": stream})


def small_requests(contest: Contest, scale: Scale) -> Iterator[Row]:
    """One client that asks again and again, over one connection and over a new one each time."""
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

    def ask_anew(target: Target) -> float:
        started = time.perf_counter()
        with closing(Client(target.url)) as client:
            client.ask(post(target.url, body))
            return 1000 * (time.perf_counter() - started)

    fresh = contest.run_rounds("small requests on new connections", scale.requests // 2, ask_anew)
    yield Row("  on a new connection each time: added p50", "ms", medians(added_times(fresh.results)))
    yield Row("  CPU per small request (mean)", "ms", means(kept.cpu, 1000))


def first_events(contest: Contest, scale: Scale) -> Iterator[Row]:
    body = question("bench:stream 8", stream=True)
    with contest.clients() as clients:
        rounds = contest.run_rounds(
            "first events",
            scale.requests // 2,
            lambda target: 1000 * clients[target.name].ask(post(target.url, body), is_stream=True).first,
        )
    yield Row("first stream event: added p50", "ms", medians(added_times(rounds.results)))


def throughput(contest: Contest, scale: Scale) -> Iterator[Row]:
    body = question("bench:plain")

    def burst(target: Target) -> float:
        rate = requests_per_second(target.url, scale.clients, post(target.url, body), scale.burst_seconds)
        target.settle()
        return rate

    rounds = contest.run_rounds("many clients", scale.bursts, burst, timed=True)
    yield Row(f"{scale.clients} keep-alive clients: small requests", "requests/s", medians(rounds.results))


def startup(contest: Contest, scale: Scale, home: Path) -> Iterator[Row]:
    """From nothing to the first answer, and what an idle proxy holds."""
    times, memory = [], []
    for _ in range(scale.starts):
        started = time.perf_counter()
        with contest.proxy(home) as proxy, closing(Client(proxy.url)) as client:
            client.ask(get(proxy.url, "/models"))
            times.append(1000 * (time.perf_counter() - started))
            if (megabytes := proxy.resident_megabytes()) is not None:
                memory.append(megabytes)
    yield Row("start to first /v1/models answer", "ms", {OURS: Figure.of(times)})
    yield Row("  idle memory", "MB", {OURS: Figure.of(memory)})
