"""The measures, each a function that yields rows, and how much of everything they measure.

The chat is played for real: each answer comes through the proxy, and goes back as clients send it, with the text that
was shown and without reasoning_content. DeepSeek counts the reasonings that arrive, so a proxy that restores nothing
cannot pass for a quick one.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.json_codec import encode_json
from tests.bench.load_clients import Client, Crowd, Timing, get, post, requests_per_second, run_crowd
from tests.bench.rounds import Contest, Rounds, Target, added_times, intervals, means, medians
from tests.bench.table import DIRECT, OURS, Figure, Row, quantile
from tests.support.processes import BenchmarkFailed

_IDLE_SECONDS = 0.5
_RATE = 200
# What a model usually writes per second, in one of many streams.
CROWD_RATE = 20


@dataclass(frozen=True)
class Scale:
    """The whole of it; some minutes for this proxy alone."""

    # Small requests one after another; on new connections and for first events half as many.
    requests: int = 1000
    # One stream at 200 chunks per second: its chunks, and how often.
    paced_chunks: int = 600
    paced_rounds: int = 3
    # Many streams at 20 chunks per second.
    crowds: tuple[int, ...] = (100, 400)
    crowd_seconds: float = 10.0
    crowd_rounds: int = 2
    # Chats of so many tool turns: requests measured at each length.
    turns: tuple[int, ...] = (10, 50, 200, 800)
    turns_measured: int = 10
    # Turns stored.
    stored_turns: int = 500
    starts: int = 10
    clients: int = 32
    burst_seconds: float = 3.0
    bursts: int = 3
    # Seconds after which a measure makes do with the rounds it has, …
    patience: float = 20.0
    # … and after which another proxy's chat, which may grow slower and slower, is given up.
    chat_patience: float = 20.0


QUICK = Scale(
    requests=200, paced_chunks=200, paced_rounds=2, crowd_seconds=2.0, crowd_rounds=1, turns=(10, 50, 200),
    turns_measured=5, stored_turns=100, starts=3, burst_seconds=1.0, bursts=2, patience=5.0,
)  # fmt: skip


# Small requests …


def question(command: str, *, stream: bool = False) -> bytes:
    """The body of a small request with a command to the benchmark's DeepSeek."""
    messages = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": command}]
    return encode_json({"model": "deepseek-v4-pro", "messages": messages, "stream": stream})


def _ask(
    contest: Contest, what: str, rounds: int, body: Callable[[], bytes], read: Callable[[Timing], float]
) -> Rounds[float]:
    """Rounds in which each target is asked over one connection, and what is read of its times."""
    with contest.clients() as clients:
        return contest.run_rounds(what, rounds, lambda target: read(clients[target.name].ask(post(target.url, body()))))


def small_requests(contest: Contest, scale: Scale) -> Iterator[Row]:
    body = question("bench:plain")
    kept = _ask(contest, "small requests", scale.requests, lambda: body, lambda timing: 1000 * timing.whole)
    more = added_times(kept.results)
    yield Row("small request, keep-alive: answer p50", "ms", medians(kept.results))
    yield Row("  added p50", "ms", medians(more))
    yield Row("  added p99", "ms", {name: Figure.of(times, 0.99) for name, times in more.items()})

    yield Row("  CPU per request (mean)", "ms", means(kept.cpu, 1000))


def new_connections(contest: Contest, scale: Scale) -> Iterator[Row]:
    """A client that connects for every request."""
    request = {target.name: post(target.url, question("bench:plain")) for target in contest.all}

    def ask(target: Target) -> float:
        started = time.perf_counter()
        with closing(Client(target.url)) as client:
            client.ask(request[target.name])
            return 1000 * (time.perf_counter() - started)

    rounds = contest.run_rounds("new connections", scale.requests // 2, ask)
    yield Row("small request on a new connection: added p50", "ms", medians(added_times(rounds.results)))
    yield Row("  CPU per request (mean)", "ms", means(rounds.cpu, 1000))


def first_events(contest: Contest, scale: Scale) -> Iterator[Row]:
    body = question("bench:stream 8", stream=True)
    rounds = _ask(contest, "first events", scale.requests // 2, lambda: body, lambda timing: 1000 * timing.first)
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
        try:
            # Once before, which writes bytecode.
            _Starts().measure(start)
            deadline = time.monotonic() + contest.patience
            for number in range(scale.starts):
                if number == 0 or time.monotonic() < deadline:
                    warm[name].measure(start)
        except (BenchmarkFailed, OSError) as error:
            contest.drop(name, "a start", error)
    yield Row(
        "warm start to first /v1/models answer", "ms", {name: Figure.of(each.times) for name, each in warm.items()}
    )
    yield Row("  CPU until then", "ms", {name: Figure.of(each.cpu) for name, each in warm.items()})
    yield Row("  idle memory", "MB", {name: Figure.of(each.memory) for name, each in warm.items()})


# Streams …


def paced_stream(contest: Contest, scale: Scale) -> Iterator[Row]:
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
    yield Row(f"paced {_RATE} chunks/s: chunk delay, added p50", "ms", medians(more))
    yield Row("  added p99", "ms", {name: Figure.of(some, 0.99) for name, some in more.items()})
    yield Row("  CPU per chunk (mean)", "µs", means(rounds.cpu, 1e6 / chunks))


@dataclass(frozen=True)
class _CrowdSample:
    """What a crowd received from one target, the CPU seconds of that, and the memory meanwhile, if they are known."""

    lags: Sequence[int]
    failed: int
    cpu: Sequence[float]
    megabytes: Sequence[float | None]


def crowds(contest: Contest, scale: Scale) -> Iterator[Row]:
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


# Memory: chats that grow turn by turn, and turns that are stored …


class Chat:
    """An agent's chat: 40 tools of 1 kB, results of 2 to 4 kB."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._code = "".join(f'    value_{n} = look_up("{n:x}")  # {n if n % 200 else "…"}\n' for n in range(1000))
        system = {"role": "system", "content": f"You are agent {seed}.\n" + self._text(4000, 4000)}
        self._messages = [encode_json(system), encode_json({"role": "user", "content": "bench:turn"})]
        self._tools = encode_json([self._tool(f"tool_{n}") for n in range(40)])
        self.turns = 0

    def body(self) -> bytes:
        # Joined from encoded parts: the load must not cost more than the proxy.
        messages = b",".join(self._messages)
        return b'{"model":"deepseek-v4-pro","messages":[%b],"tools":%b}' % (messages, self._tools)

    def play(self, client: Client) -> None:
        """Ask for the next turn and append it to the history, with the tool's result."""
        completion = client.fetch(post(client.url, self.body()))
        try:
            message = completion["choices"][0]["message"]
            calls = [_echo_call(call) for call in message["tool_calls"]]
            answer = {"role": "assistant", "content": message.get("content"), "tool_calls": calls}
        except (LookupError, TypeError) as error:
            raise BenchmarkFailed(f"a turn without its call: {str(completion)[:200]}") from error
        result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": self._text(2000, 4000)}
        self._messages += encode_json(answer), encode_json(result)
        self.turns += 1

    def _tool(self, name: str) -> dict[str, Any]:
        fields = {field: {"type": "string", "description": self._text(80, 80)} for field in ("path", "first", "last")}
        parameters = {"type": "object", "properties": fields, "required": list(fields)}
        function = {"name": name, "description": self._text(500, 500), "parameters": parameters}
        return {"type": "function", "function": function}

    def _text(self, least: int, most: int) -> str:
        start = self._rng.randrange(len(self._code) - most)
        return self._code[start : start + self._rng.randint(least, most)]


def _echo_call(call: dict[str, Any]) -> dict[str, Any]:
    function = {name: call["function"][name] for name in ("name", "arguments")}
    return {"id": call["id"], "type": "function", "function": function}


# CPU milliseconds by proxy and by the length of the chat.
Growth = dict[str, dict[int, list[float]]]


def growing_chats(contest: Contest, scale: Scale) -> Iterator[Row]:
    grown: Growth = {target.name: {} for target in contest.proxies}
    for seed, target in enumerate(contest.proxies):
        # Every target has a chat of its own, in case they share a store.
        _measure_growth(contest, scale, target, Chat(seed), grown)
    for turns in scale.turns:
        figures = {name: Figure.mean(lengths.get(turns, [])) for name, lengths in grown.items()}
        yield Row(f"chat of {turns} tool turns: CPU per request (mean)", "ms", figures)


def _measure_growth(contest: Contest, scale: Scale, target: Target, chat: Chat, grown: Growth) -> None:
    """Play a chat to its full length and measure it on the way; another proxy may not get there."""
    started = time.monotonic()
    with closing(Client(target.url)) as client:
        try:
            for turns in scale.turns:
                while chat.turns < turns:
                    chat.play(client)
                    if target in contest.others and time.monotonic() - started > scale.chat_patience:
                        raise BenchmarkFailed(f"given up after {scale.chat_patience:g} s at {chat.turns} turns")
                grown[target.name][turns] = _measure_requests(target, client, chat, scale.turns_measured)
                _check(contest, target, chat.turns - 1)
        except (BenchmarkFailed, OSError) as error:
            contest.drop(target.name, "a growing chat", error)


def _measure_requests(target: Target, client: Client, chat: Chat, requests: int) -> list[float]:
    """CPU milliseconds of each of the next requests."""
    clock = [target.cpu_seconds()]
    for _ in range(requests):
        chat.play(client)
        clock.append(target.cpu_seconds())
    return [1000 * seconds for seconds in intervals(clock)]


def _check(contest: Contest, target: Target, turns: int) -> None:
    """Whether the last request reached DeepSeek with the reasoning of all its turns."""
    with closing(Client(contest.direct.url)) as client:
        restored = client.fetch(get(contest.direct.url, "/restored"))
    if restored == turns:
        return
    words = f"only {restored} of {turns} turns reached DeepSeek with their reasoning"
    if target not in contest.others:
        raise BenchmarkFailed(words)
    about = f"{target.name}: cached tool turns: "
    if not any(note.startswith(about) for note in contest.notes):
        contest.notes.append(about + words)


def stored_turns(contest: Contest, scale: Scale) -> Iterator[Row]:
    """How much longer a tool call takes because it is stored."""
    numbers = count()
    tools = [{"type": "function", "function": {"name": "tool_7", "parameters": {"type": "object"}}}]

    def body() -> bytes:
        messages = [{"role": "user", "content": f"bench:turn for file {next(numbers)}"}]
        return encode_json({"model": "deepseek-v4-pro", "messages": messages, "tools": tools})

    rounds = _ask(contest, "storing turns", scale.stored_turns, body, lambda timing: 1000 * timing.whole)
    yield Row("storing a tool-call turn: added p50", "ms", medians(added_times(rounds.results)))
    yield Row("  CPU per turn (mean)", "ms", means(rounds.cpu, 1000))
