"""How fast the proxy is: one table, measured and not asserted.

A measurement is a function that yields Rows; `measure` is the list of them. Preparing and storing run in this process,
on a store in a file; the rest is seen from outside, with the proxy and the made-up DeepSeek as processes of their own.
The direct rows show what the client and the made-up DeepSeek cost by themselves. What is compared takes turns, so that
a busy moment of the machine hits all of it. Nothing outlives `run`.
"""

import math
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import date
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TextIO, TypeVar

from deepseek_cursor_proxy import deepseek
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import Message, ToolCall
from deepseek_cursor_proxy.lab.processes import (
    MODELS_REQUEST,
    BenchmarkFailed,
    Client,
    Server,
    completion_request,
    made_up_deepseek,
    running_proxy,
)
from deepseek_cursor_proxy.protocols.chat_request import parse
from deepseek_cursor_proxy.reasoning.display import COLLAPSIBLE
from deepseek_cursor_proxy.reasoning.identity import identify, namespace
from deepseek_cursor_proxy.reasoning.restore import Source, prepare
from deepseek_cursor_proxy.reasoning_store import ReasoningStore
from deepseek_cursor_proxy.wire import decode_json_object, encode_json

T = TypeVar("T")

_CLIENTS = 8
# Chunks of a small answer.
_FEW = 8


@dataclass(frozen=True)
class Row:
    """One line of the table; without samples this machine cannot tell."""

    measure: str
    unit: str
    samples: Sequence[float]
    note: str = ""
    at_most: float | None = None

    def __str__(self) -> str:
        if not self.samples:
            return _line(self.measure, "-", "-", self.note)
        low, median, high = (quantile(self.samples, share) for share in (0.05, 0.5, 0.95))
        note = self.note
        if self.at_most is not None:
            verdict = "reached" if median <= self.at_most else "MISSED"
            note += f"{', ' if note else ''}target {self.at_most:g} {self.unit}: {verdict}"
        return _line(self.measure, f"{_figure(median)} {self.unit}", f"{_figure(low)} - {_figure(high)}", note)


@dataclass(frozen=True)
class Scale:
    """How much of everything is measured."""

    turns: tuple[int, ...] = (50, 100, 200, 400, 800)
    prepared: int = 25
    rows: int = 100_000
    stored: int = 1000
    asked: int = 2000
    chunks: int = 10_000
    streams: int = 9
    bursts: int = 9
    burst: int = 200
    starts: int = 15


QUICK = Scale(prepared=5, stored=300, asked=200, streams=3, bursts=3, burst=50, starts=3)


def run(quick: bool = False, out: TextIO | None = None) -> int:
    """Measure everything and print the rows as they come; 0 unless something could not be measured."""
    out = out or sys.stdout
    machine = f"{platform.python_implementation()} {platform.python_version()} · {platform.platform()}"
    print(f"{machine} · {os.cpu_count()} cores · {date.today()}{' · quick' if quick else ''}\n", file=out)
    print(_line("measure", "median", "p5 - p95", "note"), file=out, flush=True)
    try:
        with tempfile.TemporaryDirectory() as place, closing(measure(QUICK if quick else Scale(), Path(place))) as rows:
            for row in rows:
                print(row, file=out, flush=True)
    except (BenchmarkFailed, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


def measure(scale: Scale, place: Path) -> Generator[Row, None, None]:
    """All rows, each as soon as it is known; closing the generator ends what it started."""
    yield from preparing(scale, place)
    yield from storing(scale, place)
    with made_up_deepseek(place / "deepseek") as direct, running_proxy(direct, place / "proxy") as proxy:
        yield from first_bytes(scale, direct, proxy)
        yield from long_streams(scale, direct, proxy)
        yield from throughput(scale, direct, proxy)
        yield from starting(scale, direct, place / "started")


# From inside …


def preparing(scale: Scale, place: Path) -> Iterator[Row]:
    """CPU time between the bytes of a request and the bytes for DeepSeek, when every turn is remembered."""
    config = ProxyConfig()
    caller = namespace(config.upstream_base_url, "sk-bench")
    chat = _Chat(max(scale.turns))
    bodies = [chat.body(turns) for turns in scale.turns]

    def spent(body: bytes) -> float:
        started = time.process_time()
        request = parse(decode_json_object(body), config)
        history = identify(caller, request.messages)
        prepared = prepare(request, history, store.find(history.exact_keys()), "recover")
        encode_json(deepseek.payload(prepared.request))
        seconds = time.process_time() - started
        if any(turn.source is not Source.STORE for turn in prepared.turns):
            raise BenchmarkFailed("a remembered turn was not found")
        return seconds * 1000

    with closing(ReasoningStore(place / "prepared.sqlite3")) as store:
        longest = identify(caller, parse(decode_json_object(chat.body(max(scale.turns))), config).messages)
        # A shorter chat is the beginning of the longest one, so recording that one serves them all.
        keys = [each.all() for each in longest.keys if each is not None]
        store.record(list(zip(keys, chat.thoughts, strict=True)))
        times = _in_turns(scale.prepared, *(partial(spent, body) for body in bodies))
    for turns, body, each in zip(scale.turns, bodies, times, strict=True):
        target = 50 if turns == 400 else None
        yield Row(f"prepare {turns} cached tool turns, CPU", "ms", each, f"{len(body) / 1e6:.1f} MB", target)
    # Compared within a round: a machine that was slow for a while was slow for both.
    ratios = ([large / small for small, large in zip(*pair, strict=True)] for pair in pairwise(times))
    growth = [quantile(each, 0.5) for each in ratios]
    yield Row("  growth for twice the turns", "times", growth, " ".join(map(_figure, growth)), 2.2)


def storing(scale: Scale, place: Path) -> Iterator[Row]:
    """Time to record a finished turn beside no other and beside many."""
    rng = random.Random(1)

    def spent(store: ReasoningStore) -> float:
        call = ToolCall(f"call_00_{rng.randbytes(12).hex()}", "read_file", '{"path": "src/main.py"}')
        answer = Message("assistant", "I look.", rng.randbytes(1000).hex(), (call,))
        history = identify(rng.randbytes(32), (Message("user", "Look into it."),))
        started = time.perf_counter()
        if not store.record([(history.answer_keys(answer).all(), answer.reasoning or "")]):
            raise BenchmarkFailed("a turn could not be stored")
        return (time.perf_counter() - started) * 1000

    for rows in (0, scale.rows):
        with closing(ReasoningStore(place / f"stored-{rows}.sqlite3")) as store:
            store.record([([rng.randbytes(32)], rng.randbytes(150).hex()) for _ in range(rows)])
            (times,) = _in_turns(scale.stored, partial(spent, store))
        yield Row(f"store a turn, {rows:,} rows present", "ms", times, at_most=5 if rows else None)


# … and from outside.


def first_bytes(scale: Scale, direct: Server, proxy: Server) -> Iterator[Row]:
    """Time until an answer begins, and how much of it the proxy adds."""
    for what, stream in (("answer", False), ("first stream event", True)):
        request = completion_request(_FEW, stream=stream)
        with closing(Client(direct.url)) as straight, closing(Client(proxy.url)) as through:
            asks = [partial(client.ask, request) for client in (straight, through)]
            timings = zip(*_in_turns(scale.asked, *asks), strict=True)
            pairs = [(1000 * alone.first, 1000 * proxied.first) for alone, proxied in timings]
        yield Row(f"small request, {what}: direct", "ms", [alone for alone, _ in pairs])
        yield Row("  added by the proxy", "ms", [proxied - alone for alone, proxied in pairs], at_most=3)


def long_streams(scale: Scale, direct: Server, proxy: Server) -> Iterator[Row]:
    """One unpaced stream at a time, read to its end."""
    request = completion_request(scale.chunks, stream=True)
    cpu = []
    with closing(Client(direct.url)) as straight, closing(Client(proxy.url)) as through:

        def proxied() -> float:
            before = proxy.cpu_seconds()
            seconds = through.ask(request).whole
            after = proxy.cpu_seconds()
            if before is not None and after is not None:
                cpu.append(after - before)
            return seconds

        times = _in_turns(scale.streams, lambda: straight.ask(request).whole, proxied)
    yield Row(f"stream of {scale.chunks:,} chunks: direct", "s", times[0])
    yield Row("  through the proxy", "s", times[1])
    yield Row("  CPU of the proxy", "s", cpu)


def throughput(scale: Scale, direct: Server, proxy: Server) -> Iterator[Row]:
    """Small requests from several clients at once."""
    request = completion_request(_FEW)

    def ask_on(client: Client) -> None:
        for _ in range(scale.burst):
            client.ask(request)

    def rate(clients: Sequence[Client]) -> float:
        started = time.perf_counter()
        list(pool.map(ask_on, clients))
        return len(clients) * scale.burst / (time.perf_counter() - started)

    # The stack is left first: closed connections are what ends the pool's threads early.
    with ThreadPoolExecutor(_CLIENTS) as pool, ExitStack() as stack:
        fleets = [[stack.enter_context(closing(Client(each.url))) for _ in range(_CLIENTS)] for each in (direct, proxy)]
        alone, proxied = _in_turns(scale.bursts, *(partial(rate, fleet) for fleet in fleets))
    yield Row(f"requests per second, {_CLIENTS} clients: direct", "/s", alone)
    yield Row("  through the proxy", "/s", proxied)


def starting(scale: Scale, direct: Server, home: Path) -> Iterator[Row]:
    """From nothing to the first answer, and what an idle proxy holds."""
    memory = []

    def spent() -> float:
        started = time.perf_counter()
        with running_proxy(direct, home) as proxy, closing(Client(proxy.url)) as client:
            client.ask(MODELS_REQUEST)
            seconds = time.perf_counter() - started
            if (megabytes := proxy.resident_megabytes()) is not None:
                memory.append(megabytes)
        return seconds * 1000

    (times,) = _in_turns(scale.starts, spent)
    yield Row("start to first answer", "ms", times)
    yield Row("  idle memory", "MB", memory)


def _in_turns(rounds: int, *measured: Callable[[], T]) -> list[list[T]]:
    """The results of each, all of them taking turns; the first round only warms up."""
    results = [[each() for each in measured] for _ in range(1 + rounds)]
    return [list(each) for each in zip(*results[1:], strict=True)]


class _Chat:
    """An agent's chat as Cursor sends it: 40 tools of 1 kB, results of 2 to 4 kB, the thinking shown in the text."""

    def __init__(self, turns: int) -> None:
        self._rng = random.Random(turns)
        self._code = "".join(f'    value_{n} = look_up("{n:x}")  # {n if n % 200 else "…"}\n' for n in range(1000))
        self.thoughts = [self._text(300, 900) for _ in range(turns)]
        self._opening = [{"role": "system", "content": self._text(4000, 4000)}, {"role": "user", "content": "Fix it."}]
        self._turns = [self._turn(f"call_00_{n:024}", thought) for n, thought in enumerate(self.thoughts)]
        self._tools = [self._tool(f"tool_{n}") for n in range(40)]

    def body(self, turns: int) -> bytes:
        messages = [*self._opening, *chain.from_iterable(self._turns[:turns])]
        return encode_json({"model": "deepseek-v4-pro", "messages": messages, "tools": self._tools, "stream": True})

    def _turn(self, id: str, thought: str) -> list[dict[str, Any]]:
        arguments = f'{{"path": "src/{id}.py", "first": 1, "last": {len(thought)}}}'
        call = {"id": id, "type": "function", "function": {"name": "tool_7", "arguments": arguments}}
        text = COLLAPSIBLE.opening + COLLAPSIBLE.escape(thought) + COLLAPSIBLE.closing + "I read the next file."
        answer = {"role": "assistant", "content": text, "tool_calls": [call]}
        return [answer, {"role": "tool", "tool_call_id": id, "content": self._text(2000, 4000)}]

    def _tool(self, name: str) -> dict[str, Any]:
        fields = {field: {"type": "string", "description": self._text(80, 80)} for field in ("path", "first", "last")}
        parameters = {"type": "object", "properties": fields, "required": list(fields)}
        function = {"name": name, "description": self._text(500, 500), "parameters": parameters}
        return {"type": "function", "function": function}

    def _text(self, least: int, most: int) -> str:
        start = self._rng.randrange(len(self._code) - most)
        return self._code[start : start + self._rng.randint(least, most)]


def quantile(samples: Sequence[float], share: float) -> float:
    """The value that this share of the samples lies below, between two of them where it has to."""
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return below + (above - below) * (place % 1)


def _figure(value: float) -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


def _line(measure: str, median: str, spread: str, note: str) -> str:
    return f"{measure:<44}{median:>13}{spread:>19}  {note}".rstrip()
