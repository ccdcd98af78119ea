"""Measures of memory: agents' chats that grow turn by turn, and turns stored beside few rows and beside many.

The chat is played for real: each answer comes through the proxy, and goes back as clients send it, with the text that
was shown and without reasoning_content. DeepSeek counts the reasonings that arrive, so a proxy that restores nothing
cannot pass for a quick one.
"""

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.bench.load_clients import Client, get, post
from tests.bench.rounds import Contest, Target, added_times, intervals, means, medians
from tests.bench.scale import Scale
from tests.bench.table import OURS, Figure, Row, exponent, quantile
from tests.support.processes import BenchmarkFailed


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


@dataclass
class _GrowthSamples:
    """Samples of growing chats: CPU milliseconds by proxy and length, and our chat at each length."""

    cpu: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    # How many turns the measured requests had on the average.
    turns: dict[int, float] = field(default_factory=dict)
    bodies: dict[int, tuple[bytes, int]] = field(default_factory=dict)


def growing_chats(contest: Contest, scale: Scale, store: Path) -> Iterator[Row]:
    """CPU per request of a chat as it grows, and of one that a proxy just started on the same store has not seen."""
    grown = _GrowthSamples({target.name: {} for target in contest.proxies})
    running, seeds = list(contest.proxies), count()
    for _ in range(scale.chats):
        # Every target has a chat of its own, in case they share a store; a target that failed gets no more requests.
        running = [target for target in running if _measure_growth(contest, scale, target, Chat(next(seeds)), grown)]
    for turns in scale.turns:
        figures = {name: Figure.mean(lengths.get(turns, [])) for name, lengths in grown.cpu.items()}
        yield Row(f"{turns} cached tool turns: CPU per request (mean)", "ms", figures)
    slopes = {name: Figure.single(_slope(lengths, grown.turns)) for name, lengths in grown.cpu.items()}
    span = f"{scale.turns[0]} to {scale.turns[-1]} turns"
    yield Row(f"  growth exponent, {span}", "", slopes)
    seen = _measure_first_seen(contest, scale, grown, store)
    for turns, samples in seen.items():
        yield Row(f"  {turns} turns, first time seen by this process (mean)", "ms", {OURS: Figure.mean(samples)})
    slope = _slope(seen, {turns: float(grown.bodies[turns][1]) for turns in seen})
    yield Row(f"  growth exponent, first time seen, {span}", "", {OURS: Figure.single(slope)})


def _measure_growth(contest: Contest, scale: Scale, target: Target, chat: Chat, grown: _GrowthSamples) -> bool:
    """Play a chat to its full length and measure it on the way; False if another proxy did not get there."""
    started = time.monotonic()
    with closing(Client(target.url)) as client:
        try:
            for turns in scale.turns:
                while chat.turns < turns:
                    chat.play(client)
                    if target in contest.others and time.monotonic() - started > scale.chat_patience:
                        raise BenchmarkFailed(f"given up after {scale.chat_patience:g} s at {chat.turns} turns")
                if target == contest.ours:
                    grown.bodies[turns] = (chat.body(), chat.turns)
                grown.turns[turns] = chat.turns + (scale.turns_measured - 1) / 2
                samples = grown.cpu[target.name].setdefault(turns, [])
                samples += _measure_requests(target, client, chat, scale.turns_measured)
                _check(contest, target, chat.turns - 1)
        except (BenchmarkFailed, OSError) as error:
            contest.drop_target(target, "a growing chat", error)
            return False
    return True


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


def _slope(lengths: dict[int, list[float]], turns: dict[int, float]) -> float | None:
    return exponent({turns[length]: quantile(samples, 0.5) for length, samples in lengths.items() if samples})


def _measure_first_seen(contest: Contest, scale: Scale, grown: _GrowthSamples, store: Path) -> dict[int, list[float]]:
    """CPU milliseconds for each length of our chat, sent to a proxy that knows it from the store only."""
    spent: dict[int, list[float]] = {}
    home, flags = store.parent / "first-seen", ("--reasoning-content-path", str(store))
    for turns, (body, real) in grown.bodies.items():
        samples = spent.setdefault(turns, [])
        for _ in range(scale.first_seen):
            with contest.proxy(home, *flags) as proxy, closing(Client(proxy.url)) as client:
                # Another chat, for whatever is loaded with the first requests.
                warm_up = Chat(-1)
                warm_up.play(client)
                warm_up.play(client)
                before = proxy.cpu_seconds()
                client.ask(post(proxy.url, body))
                after = proxy.cpu_seconds()
                _check(contest, proxy, real)
            if before is not None and after is not None:
                samples.append(1000 * (after - before))
    return spent


def concurrent_chats(contest: Contest, scale: Scale, home: Path) -> Iterator[Row]:
    """What a request of a long chat costs while others of its kind take turns with it, and while it comes alone."""
    alone: list[float] = []
    mixed: list[float] = []
    with contest.proxy(home) as proxy, ExitStack() as stack:
        chats = [Chat(seed) for seed in range(scale.concurrent)]
        # A connection that is unused for long is closed.
        clients = [stack.enter_context(closing(Client(proxy.url))) for _ in chats]
        for _ in range(scale.concurrent_turns):
            for chat, client in zip(chats, clients, strict=True):
                chat.play(client)
        for chat, client in zip(chats, clients, strict=True):
            alone += _measure_requests(proxy, client, chat, 6)[1:]
        for _ in range(5):
            for chat, client in zip(chats, clients, strict=True):
                mixed += _measure_requests(proxy, client, chat, 1)
    name = f"{scale.concurrent} chats of {scale.concurrent_turns} tool turns"
    yield Row(f"{name}, one after another: CPU per request (mean)", "ms", {OURS: Figure.mean(alone)})
    yield Row("  in turns: CPU per request (mean)", "ms", {OURS: Figure.mean(mixed)})
    ratio = sum(mixed) / len(mixed) / (sum(alone) / len(alone)) if mixed and alone else None
    yield Row("  against one after another", "", {OURS: Figure.single(ratio)})


def stored_turns(contest: Contest, scale: Scale, place: Path) -> Iterator[Row]:
    """How much longer a tool call takes because it is stored, beside few rows and beside many."""
    path = place / "full.sqlite3"
    _fill(path, scale.rows)
    numbers = count()
    tools = [{"type": "function", "function": {"name": "tool_7", "parameters": {"type": "object"}}}]

    def ask(target: Target) -> float:
        messages = [{"role": "user", "content": f"bench:turn for file {next(numbers)}"}]
        body = encode_json({"model": "deepseek-v4-pro", "messages": messages, "tools": tools})
        return 1000 * clients[target.name].ask(post(target.url, body)).whole

    with contest.proxy(place / "full", "--reasoning-content-path", str(path)) as proxy:
        full = replace(proxy, name="full store")
        with contest.clients(full) as clients:
            rounds = contest.run_rounds("storing turns", scale.stored_turn_count, ask, more=(full,))
    spent = means(rounds.cpu, 1000)
    figures = medians(added_times(rounds.results))
    beside_many = figures.pop(full.name)
    cpu_beside_many = spent.pop(full.name)
    yield Row("storing a tool-call turn, small store: added p50", "ms", figures)
    yield Row("  CPU per turn (mean)", "ms", spent)
    yield Row(f"  beside {scale.rows:,} rows: added p50", "ms", {OURS: beside_many})
    yield Row("  CPU per turn (mean)", "ms", {OURS: cpu_beside_many})


def _fill(path: Path, rows: int) -> None:
    """Store reasonings as long as real ones between two calls, under as many keys as a real turn has."""
    rng = random.Random(1)
    with closing(ReasoningStore(path, must_open=True)) as store:
        entries = [([rng.randbytes(32) for _ in range(3)], rng.randbytes(150).hex()) for _ in range(rows)]
        if not store.record(entries):
            raise BenchmarkFailed("the store could not be filled")
