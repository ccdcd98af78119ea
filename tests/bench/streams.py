"""Measures of streams: one at the pace of a quick model, one as fast as it goes, and many at once."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.bench.load_clients import Crowd, post, run_crowd
from tests.bench.requests import question
from tests.bench.rounds import Contest, Rounds, Target, intervals, means, medians
from tests.bench.scale import Scale
from tests.bench.table import DIRECT, Figure, Row, quantile
from tests.support.processes import BenchmarkFailed

_RATE = 200
# What a model usually writes per second, in one of many streams.
CROWD_RATE = 20


def paced_stream(contest: Contest, scale: Scale) -> Iterator[Row]:
    """How late a chunk arrives when the proxy has nothing else to do."""
    chunks = scale.paced_chunks

    def measure(target: Target) -> list[float]:
        result = run_crowd(crowd(target, 1, chunks, _RATE))
        if result.failures:
            raise BenchmarkFailed(result.failures[0])
        return [lag / 1e6 for lag in result.lags]

    rounds = contest.run_rounds("a paced stream", scale.paced_rounds, measure, timed=True)
    lags = {name: [lag for some in results for lag in some] for name, results in rounds.results.items()}
    direct = quantile(lags[DIRECT], 0.5)
    more = {name: [lag - direct for lag in some] for name, some in lags.items() if name != DIRECT}
    yield Row(f"paced {_RATE} chunks/s: chunk delay p50", "ms", medians(lags))
    yield Row("  added p50", "ms", medians(more))
    yield Row("  CPU per chunk (mean)", "µs", means(rounds.cpu, 1e6 / chunks))


def unpaced_stream(contest: Contest, scale: Scale) -> Iterator[Row]:
    """One stream as fast as it goes, read to its end."""
    body = question(f"bench:stream {scale.chunks}", stream=True)
    with contest.clients() as clients:
        rounds = contest.run_rounds(
            "an unpaced stream",
            scale.streams,
            lambda target: scale.chunks / clients[target.name].ask(post(target.url, body), is_stream=True).whole,
        )
    yield Row(f"unpaced stream of {scale.chunks:,} chunks", "chunks/s", medians(rounds.results))
    yield Row("  CPU per 10,000 chunks (mean)", "ms", means(rounds.cpu, 1000 * 10_000 / scale.chunks))


@dataclass(frozen=True)
class _CrowdSample:
    """What a crowd received from one target, the CPU seconds of that, and the memory meanwhile, if they are known."""

    lags: Sequence[int]
    failed: int
    cpu: Sequence[float]
    megabytes: Sequence[float | None]


def crowds(contest: Contest, scale: Scale) -> Iterator[Row]:
    """Many streams at once."""
    chunks = round(scale.crowd_seconds * CROWD_RATE)
    for streams in scale.crowds:

        def measure(target: Target, streams: int = streams) -> _CrowdSample:
            before, memory = target.cpu_seconds(), []
            result = run_crowd(
                crowd(target, streams, chunks, CROWD_RATE), lambda: memory.append(target.resident_megabytes())
            )
            # Before it settles: what came too late was not received.
            spent = intervals((before, target.cpu_seconds()))
            target.settle()
            for why, times in Counter(result.failures).most_common(1):
                contest.notes.append(
                    f"{target.name}: {streams} streams: {len(result.failures)} failed, {times} with: {why}"
                )
            return _CrowdSample(result.lags, len(result.failures), spent, memory)

        rounds = contest.run_rounds(f"{streams} streams", scale.crowd_rounds, measure, timed=True)
        rates = {name: [len(each.lags) / scale.crowd_seconds for each in some] for name, some in rounds.results.items()}
        yield Row(f"{streams} streams x {CROWD_RATE} chunks/s: delivered", "chunks/s", medians(rates))
        yield from _crowd_rows(rounds)


def crowd(target: Target, streams: int, chunks: int, rate: int) -> Crowd:
    request = post(target.url, question(f"bench:paced {rate}/s {chunks}", stream=True))
    return Crowd(target.url, request, streams, chunks, rate)


def _crowd_rows(rounds: Rounds[_CrowdSample]) -> Iterator[Row]:
    failed, late, cpu, memory = {}, {}, {}, {}
    for name, some in rounds.results.items():
        failed[name] = Figure.of([each.failed for each in some])
        late[name] = Figure.of([lag / 1e6 for each in some for lag in each.lags], 0.99)
        cpu[name] = [seconds / max(1, len(each.lags)) for each in some for seconds in each.cpu]
        if name != DIRECT:
            memory[name] = Figure.of([each for some_of in some for each in some_of.megabytes if each is not None])
    yield Row("  failed streams", "", failed)
    yield Row("  lag p99", "ms", late)
    yield Row("  CPU per chunk (mean)", "µs", means(cpu, 1e6))
    yield Row("  memory meanwhile", "MB", memory)
