"""The measures, each a function that yields rows, and how much of everything they measure.

The chat is played for real: each answer comes through the proxy, and goes back as clients send it, with the text that
was shown and without reasoning_content. DeepSeek counts the reasonings that arrive, so a proxy that restores nothing
cannot pass for a quick one.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from deepseek_cursor_proxy.json_codec import encode_json
from tests.bench.load_clients import Client, Crowd, Timing, get, post, requests_per_second, run_crowd
from tests.bench.proxies import Target
from tests.bench.rounds import Contest, added_times, intervals, means, medians
from tests.bench.table import DIRECT, OURS, Figure, Row, quantile
from tests.support.processes import BenchmarkFailed

_IDLE_SECONDS = 0.5


@dataclass(frozen=True)
class Scale:
    """The whole of it; some minutes for this proxy alone."""

    # Small requests one after another; on new connections and for first events half as many.
    requests: int = 1000
    # So many streams at so many chunks per second each: as fast as a model ever writes, and as one usually does.
    streams: tuple[tuple[int, int], ...] = ((1, 200), (100, 20), (400, 20))
    stream_seconds: float = 10.0
    stream_rounds: int = 2
    # Chats of so many tool turns: requests measured at each length.
    turns: tuple[int, ...] = (10, 50, 200, 800)
    turns_measured: int = 10
    # Turns stored.
    stored_turns: int = 500
    starts: int = 10
    clients: int = 32
    burst_seconds: float = 3.0
    bursts: int = 3
    # Seconds after which a measure makes do with the rounds it has, and another proxy's chat is given up.
    patience: float = 20.0


QUICK = Scale(
    requests=200, stream_seconds=2.0, stream_rounds=1, turns=(10, 50, 200), turns_measured=5, stored_turns=100,
    starts=3, burst_seconds=1.0, bursts=2, patience=5.0,
)  # fmt: skip


# One answer after another …


def question(command: str, *, stream: bool = False) -> bytes:
    """The body of a small request with a command to the benchmark's DeepSeek."""
    messages = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": command}]
    return encode_json({"model": "deepseek-v4-pro", "messages": messages, "stream": stream})


def load_lazy_code(target: Target) -> None:
    """Have a proxy load what it loads with the first request of each kind: it is no part of the next ones."""
    with closing(Client(target.url)) as client:
        client.ask(post(target.url, question("bench:plain")))
        client.ask(post(target.url, question("bench:stream 8", stream=True)))
        chat = Chat(-1)
        for _ in range(2):
            chat.play(client)


def small_requests(contest: Contest, scale: Scale) -> Iterator[Row]:
    yield from _answers(contest, "small request", "request", scale.requests, partial(question, "bench:plain"))


def new_connections(contest: Contest, scale: Scale) -> Iterator[Row]:
    what, body = "small request on a new connection", partial(question, "bench:plain")
    yield from _answers(contest, what, "request", scale.requests // 2, body, is_kept=False)


def first_events(contest: Contest, scale: Scale) -> Iterator[Row]:
    body = partial(question, "bench:stream 8", stream=True)
    yield from _answers(contest, "first event", "stream of 8 chunks", scale.requests // 2, body, read=lambda t: t.first)


def long_streams(contest: Contest, scale: Scale) -> Iterator[Row]:
    body = partial(question, "bench:stream 10000", stream=True)
    yield from _answers(contest, "10,000 chunks at once", "stream", max(1, scale.requests // 100), body)


def stored_turns(contest: Contest, scale: Scale) -> Iterator[Row]:
    """How much longer a tool call takes because it is stored."""
    numbers = count()
    tools = [{"type": "function", "function": {"name": "tool_7", "parameters": {"type": "object"}}}]

    def body() -> bytes:
        messages = [{"role": "user", "content": f"bench:turn for file {next(numbers)}"}]
        return encode_json({"model": "deepseek-v4-pro", "messages": messages, "tools": tools})

    yield from _answers(contest, "storing a tool turn", "turn", scale.stored_turns, body)


def _answers(
    contest: Contest, what: str, unit: str, rounds: int, body: Callable[[], bytes], *,
    read: Callable[[Timing], float] = lambda timing: timing.whole, is_kept: bool = True,
) -> Iterator[Row]:  # fmt: skip
    """Rounds in which each target is asked over one connection, or over a new one each time."""
    with contest.clients() as clients:

        def ask(target: Target) -> float:
            timing = clients[target.name].ask(post(target.url, body()))
            if not is_kept:
                clients[target.name].close()
            return 1000 * read(timing)

        measured = contest.run_rounds(what, rounds, contest.all, ask)
    yield Row(f"{what}: added p50", "ms", medians(added_times(measured.results)))
    yield Row(f"  CPU per {unit} (mean)", "ms", means(measured.cpu, 1000))


# Many at once …


def paced_streams(contest: Contest, scale: Scale, streams: int, rate: int) -> Iterator[Row]:
    what, chunks = f"{streams} x {rate} chunks/s", round(scale.stream_seconds * rate)
    memory: dict[str, list[float]] = {proxy.name: [] for proxy in contest.proxies}

    def measure(target: Target) -> Sequence[int]:
        def read_memory() -> None:
            if target.name in memory and (megabytes := target.resident_megabytes()) is not None:
                memory[target.name].append(megabytes)

        request = post(target.url, question(f"bench:paced {rate} {chunks}", stream=True))
        result = run_crowd(Crowd(target.url, request, streams, chunks, rate), read_memory)
        target.settle()
        for why, times in Counter(result.failures).most_common(1):
            contest.notes.append(f"{target.name}: {what}: {len(result.failures)} failed, {times} with: {why}")
        return result.lags

    rounds = contest.run_rounds(what, scale.stream_rounds, contest.all, measure, is_timed=True)
    counts = {name: [len(lags) for lags in some] for name, some in rounds.results.items()}
    lags = {name: [lag / 1e6 for lags in some for lag in lags] for name, some in rounds.results.items()}
    direct = quantile(lags.pop(DIRECT), 0.5)
    more = {name: [lag - direct for lag in some] for name, some in lags.items()}
    yield Row(f"{what}: delivered", "%", medians(counts, 100 / (streams * chunks)))
    yield Row("  added p50 of a chunk", "ms", medians(more))
    yield Row("  added p99 of a chunk", "ms", {name: Figure.of(some, 0.99) for name, some in more.items()})
    yield Row("  CPU per chunk (mean)", "µs", means(_per_unit(rounds.cpu, counts), 1e6))
    yield Row("  memory meanwhile", "MB", medians(memory))


def throughput(contest: Contest, scale: Scale) -> Iterator[Row]:
    def burst(target: Target) -> float:
        request = post(target.url, question("bench:plain"))
        rate = requests_per_second(target.url, scale.clients, request, scale.burst_seconds)
        target.settle()
        return rate

    rounds = contest.run_rounds("many clients", scale.bursts, contest.all, burst, is_timed=True)
    cpu = _per_unit(rounds.cpu, rounds.results)
    yield Row(f"{scale.clients} keep-alive clients: small requests", "requests/s", medians(rounds.results))
    yield Row("  CPU per request (mean)", "ms", means(cpu, 1000 / scale.burst_seconds))


def _per_unit(cpu: dict[str, list[float]], counts: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    return {
        name: [seconds / max(1, number) for seconds, number in zip(some, counts[name], strict=False)]
        for name, some in cpu.items()
    }


# Memory: chats that grow turn by turn …


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


def growing_chats(contest: Contest, scale: Scale) -> Iterator[Row]:
    """A chat through every proxy, each played to its full length and measured on the way."""
    # Of their own, in case they share a store.
    chats = {target.name: Chat(seed) for seed, target in enumerate(contest.proxies)}
    clocks: dict[str, list[float | None]] = {target.name: [] for target in contest.proxies}
    seconds, losses = Counter[str](), dict[str, str]()
    with contest.clients() as clients:

        def play(target: Target) -> None:
            name, chat, started = target.name, chats[target.name], time.monotonic()
            clocks[name].append(target.cpu_seconds())
            chat.play(clients[name])
            restored = clients[DIRECT].fetch(get(contest.direct.url, "/restored"))
            if restored != chat.turns - 1:
                losses.setdefault(name, f"only {restored} of {chat.turns - 1} turns came with their reasoning")
            seconds[name] += time.monotonic() - started
            if name != OURS and seconds[name] > scale.patience:
                raise BenchmarkFailed(f"given up after {scale.patience:g} s at {chat.turns} turns")

        # One more, for the last reading of the clocks.
        rounds = max(scale.turns) + scale.turns_measured + 1
        contest.run_rounds("a growing chat", rounds, contest.proxies, play, is_timed=True)
    for name, loss in losses.items():
        contest.drop(name, "a growing chat", loss)
    for turns in scale.turns:
        cpu = {name: intervals(clock[turns : turns + scale.turns_measured + 1]) for name, clock in clocks.items()}
        yield Row(f"chat of {turns} tool turns: CPU per request (mean)", "ms", means(cpu, 1000))


# Starts …


@dataclass(frozen=True)
class _Start:
    """What a start took, and what the proxy holds when it is idle."""

    seconds: float
    cpu_seconds: float | None
    megabytes: float | None


def startup(contest: Contest, scale: Scale) -> Iterator[Row]:
    """From nothing to the first answer, and what an idle proxy holds."""
    starts = {command.name: partial(contest.start, command, contest.new_home()) for command in contest.commands}

    def start(target: Target) -> _Start:
        started = time.perf_counter()
        with starts[target.name]() as proxy, closing(Client(proxy.url)) as client:
            client.ask(get(proxy.url, "/models"))
            seconds, cpu_seconds = time.perf_counter() - started, proxy.cpu_seconds()
            # A proxy may load the rest of itself now.
            threading.Event().wait(_IDLE_SECONDS)
            proxy.settle()
            return _Start(seconds, cpu_seconds, proxy.resident_megabytes())

    rounds = contest.run_rounds("a start", 1 + scale.starts, contest.proxies, start)
    # Without the first, which creates the store.
    warm = {name: some[1:] for name, some in rounds.results.items()}
    cpu = {name: [one.cpu_seconds for one in some if one.cpu_seconds is not None] for name, some in warm.items()}
    memory = {name: [one.megabytes for one in some if one.megabytes is not None] for name, some in warm.items()}
    times = {name: [one.seconds for one in some] for name, some in warm.items()}
    yield Row("warm start to first /v1/models answer", "ms", medians(times, 1000))
    yield Row("  CPU until then", "ms", medians(cpu, 1000))
    yield Row("  idle memory", "MB", medians(memory))
