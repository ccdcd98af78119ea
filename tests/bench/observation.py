"""Measures of what looking at the proxy costs it: metrics, a scrape in a crowd, open dashboards.

Two fresh processes take turns, one as it is started by default, one without the admin listener and what belongs to it.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from tests.bench.load_clients import Client, get, post, requests_per_second, run_crowd
from tests.bench.requests import question
from tests.bench.rounds import Contest, Target, intervals
from tests.bench.scale import Scale
from tests.bench.streams import CROWD_RATE, crowd
from tests.bench.table import OURS, Figure, Row
from tests.support.processes import BenchmarkFailed

_UNOBSERVED = "unobserved"
_DASHBOARDS = 3
_SECONDS_BETWEEN_SCRAPES = 0.2
# As the page does.
_SECONDS_BETWEEN_POLLS = 1.0


def observed_costs(contest: Contest, scale: Scale, home: Path) -> Iterator[Row]:
    with (
        contest.proxy(home / "observed") as observed,
        contest.proxy(home / _UNOBSERVED, "--admin-port", "0") as quiet,
    ):
        admin = _AdminPort.of(home / "observed")
        pair = Contest(contest.direct, observed, (Target(_UNOBSERVED, quiet.url, quiet.servers),), contest.patience)
        yield from _cpu_rows(pair, scale)
        yield from _scrape_rows(observed, admin, scale)
        yield from _dashboard_rows(observed, admin, scale)


class _AdminPort:
    """The admin listener of a proxy, from the files beside its store."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self._key = key

    @classmethod
    def of(cls, home: Path) -> "_AdminPort":
        folder = home / ".deepseek-cursor-proxy"
        urls = [path.read_text() for path in folder.glob("admin-*.url")]
        if not urls:
            raise BenchmarkFailed("a proxy has no admin listener")
        return cls(urls[0], (folder / "admin.key").read_text().strip())

    def request(self, path: str) -> bytes:
        return get(self.url, path).replace(b"sk-bench", self._key.encode())


def _cpu_rows(pair: Contest, scale: Scale) -> Iterator[Row]:
    """The CPU of both, round by round."""
    small, stream = question("bench:plain"), question(f"bench:stream {scale.chunks}", stream=True)
    with pair.clients() as clients:
        requests = pair.run_rounds(
            "observed requests", scale.requests, lambda target: clients[target.name].ask(post(target.url, small))
        )
        streams = pair.run_rounds(
            "observed streams",
            scale.streams,
            lambda target: clients[target.name].ask(post(target.url, stream), is_stream=True),
        )
    yield Row("observed, against not: CPU per small request", "", {OURS: _ratio(requests.cpu)})
    yield Row("  CPU per chunk", "", {OURS: _ratio(streams.cpu)})


def _ratio(cpu: Mapping[str, Sequence[float]]) -> Figure | None:
    spent, unobserved = (sum(cpu.get(name, ())) for name in (OURS, _UNOBSERVED))
    return Figure.single(spent / unobserved) if unobserved else None


def _scrape_rows(observed: Target, admin: _AdminPort, scale: Scale) -> Iterator[Row]:
    """How long a scrape takes while the proxy is busy with streams."""
    for streams in scale.crowds:
        chunks = round(scale.crowd_seconds * CROWD_RATE)
        with _asking(admin, _SECONDS_BETWEEN_SCRAPES, "/metrics") as times:
            run_crowd(crowd(observed, streams, chunks, CROWD_RATE))
        observed.settle()
        yield Row(f"scrape of /metrics during {streams} streams: p50", "ms", {OURS: Figure.of(times)})
        yield Row("  p95", "ms", {OURS: Figure.of(times, 0.95)})


@contextmanager
def _asking(admin: _AdminPort, period: float, *paths: str) -> Iterator[list[float]]:
    """Ask for these paths again and again meanwhile, on a thread; the milliseconds that each took."""
    times: list[float] = []
    is_over = threading.Event()

    def ask() -> None:
        with closing(Client(admin.url)) as client:
            while True:
                times.extend(1000 * client.ask(admin.request(path)).whole for path in paths)
                if is_over.wait(period):
                    return

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield times
    finally:
        is_over.set()
        thread.join()


def _dashboard_rows(observed: Target, admin: _AdminPort, scale: Scale) -> Iterator[Row]:
    """What busy clients cost with and without dashboards open, in turns."""
    without: list[float] = []
    with_them: list[float] = []
    for _ in range(scale.bursts):
        without += _cpu_per_request(observed, scale)
        with ExitStack() as stack:
            for _ in range(_DASHBOARDS):
                stack.enter_context(_asking(admin, _SECONDS_BETWEEN_POLLS, "/api/stats", "/api/requests?limit=100"))
            with_them += _cpu_per_request(observed, scale)
    ratios = [one / other for one, other in zip(with_them, without, strict=True)]
    yield Row(f"{_DASHBOARDS} dashboards open, against none: CPU per small request", "", {OURS: Figure.of(ratios)})


def _cpu_per_request(target: Target, scale: Scale) -> list[float]:
    """The CPU seconds of a request while many clients ask; nothing where the system does not tell."""
    request = post(target.url, question("bench:plain"))
    before = target.cpu_seconds()
    rate = requests_per_second(target.url, scale.clients, request, scale.burst_seconds)
    spent = intervals((before, target.cpu_seconds()))
    target.settle()
    return [seconds / (rate * scale.burst_seconds) for seconds in spent]
