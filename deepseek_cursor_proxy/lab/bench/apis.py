"""What the other doors cost beside the one of chat completions: the same answers of DeepSeek's, told in other events.

All of it is about this proxy alone, so every figure has its own chat path to be held against, asked in turns.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.lab.bench.load_clients import CHAT, Client, post
from deepseek_cursor_proxy.lab.bench.requests import question
from deepseek_cursor_proxy.lab.bench.rounds import Contest, laps
from deepseek_cursor_proxy.lab.bench.scale import Scale
from deepseek_cursor_proxy.lab.bench.table import OURS, Figure, Row, exponent
from deepseek_cursor_proxy.lab.processes import BenchmarkFailed
from deepseek_cursor_proxy.upstream.call_limit import CallLimit

_MODEL = "deepseek-v4-pro"
_PATIENCE_SECONDS = 20.0


def _response(wish: str) -> bytes:
    return encode_json({"model": _MODEL, "instructions": "You are brief.", "input": wish, "stream": True})


def _message(wish: str) -> bytes:
    messages = [{"role": "user", "content": wish}]
    asked = {"model": _MODEL, "max_tokens": 1000, "system": "You are brief.", "messages": messages, "stream": True}
    return encode_json({**asked, "thinking": {"type": "adaptive"}})


@dataclass(frozen=True)
class Door:
    """Another API of ours: where it is, and how a stream is asked for there."""

    name: str
    path: str
    question: Callable[[str], bytes]


DOORS = (Door("Responses", "/responses", _response), Door("Messages", "/messages", _message))


def other_doors(contest: Contest, scale: Scale) -> Iterator[Row]:
    for door in DOORS:
        yield from _first_event(door, contest, scale)
        yield from _unpaced(door, contest, scale)
    yield from _chain(contest, scale)
    yield from _queue(scale)


def _first_event(door: Door, contest: Contest, scale: Scale) -> Iterator[Row]:
    wish, direct, ours = "bench:stream 8", contest.direct.url, contest.ours.url
    added = []
    with closing(Client(direct)) as alone, closing(Client(ours)) as through:
        for _ in range(scale.asked // 2):
            before = alone.ask(post(direct, question(wish, stream=True)), is_stream=True).first
            after = through.ask(post(ours, door.question(wish), door.path), is_stream=True).first
            added.append(1000 * (after - before))
    yield Row(f"{door.name}: first stream event: added p50", "ms", {OURS: Figure.of(added)})


def _unpaced(door: Door, contest: Contest, scale: Scale) -> Iterator[Row]:
    wish, target = f"bench:stream {scale.chunks}", contest.ours
    requests = {
        CHAT: post(target.url, question(wish, stream=True)),
        door.path: post(target.url, door.question(wish), door.path),
    }
    spent: dict[str, list[float]] = {path: [] for path in requests}
    with closing(Client(target.url)) as client:
        for _ in range(scale.streams):
            for path, request in requests.items():
                before = target.cpu_seconds()
                client.ask(request, is_stream=True)
                spent[path] += laps((before, target.cpu_seconds()))
    per = {path: [1000 * 10_000 / scale.chunks * each for each in some] for path, some in spent.items()}
    ratios = [theirs / chat for theirs, chat in zip(per[door.path], per[CHAT], strict=True) if chat]
    yield Row(f"{door.name}: CPU per 10,000 chunks (mean)", "ms", {OURS: Figure.mean(per[door.path])})
    yield Row("  against the chat path", "", {OURS: Figure.of(ratios)})


def _chain(contest: Contest, scale: Scale) -> Iterator[Row]:
    """Stored responses, each going on from the one before: what one costs by how long its input has become."""
    target, previous = contest.ours, None
    spent: list[float] = []
    with closing(Client(target.url)) as client:
        for number in range(scale.chained):
            asked = {"model": _MODEL, "input": f"Question {number}. bench:plain", "previous_response_id": previous}
            before = target.cpu_seconds()
            said = client.fetch(post(target.url, encode_json(asked), "/responses"))
            spent += laps((before, target.cpu_seconds()))
            previous = said.get("id") if isinstance(said, dict) else None
            if previous is None:
                raise BenchmarkFailed(f"a response without an id: {str(said)[:200]}")
    if not spent:
        return
    tenth = max(1, scale.chained // 10)
    early, late = spent[tenth // 2 : tenth + tenth // 2], spent[-tenth:]
    yield Row(f"response {tenth} of a chain: CPU (mean)", "ms", {OURS: Figure.mean([1000 * each for each in early])})
    yield Row(f"response {scale.chained} of it (mean)", "ms", {OURS: Figure.mean([1000 * each for each in late])})
    growth = exponent({tenth: _mean(early), scale.chained - tenth // 2: _mean(late)})
    yield Row("  growth with the length of its input (exponent)", "", {OURS: Figure.single(growth)})


def _queue(scale: Scale) -> Iterator[Row]:
    """Callers at a limit of a third as many slots: how many were served, in which order, and what is left."""
    served = stand_in_line(scale.callers, scale.callers // 3)
    yield Row(f"{scale.callers} callers at {scale.callers // 3} slots: served", "", {OURS: Figure.single(served.count)})
    yield Row("  furthest from its turn, of all callers", "%", {OURS: Figure.single(100 * served.furthest)})
    yield Row("  slots still taken at the end", "", {OURS: Figure.single(served.left)})


@dataclass(frozen=True)
class Served:
    """How many callers got a slot, how far from its turn any was as a share of all, and how many slots stayed taken."""

    count: int
    furthest: float
    left: int


def stand_in_line(callers: int, slots: int) -> Served:
    """Start all callers, one after another, before the first slot is released; then release one by one.

    A caller that got its slot says so before the next is released: the limit's order counts, not the one in which the
    system happens to run its threads.
    """
    limit = CallLimit(slots, _PATIENCE_SECONDS)
    order: list[int] = []
    # One for each caller, which releases its slot when it is set.
    may_release = [threading.Event() for _ in range(callers)]

    def call(number: int) -> None:
        (slot,) = limit.acquire(None)
        order.append(number)
        may_release[number].wait(_PATIENCE_SECONDS)
        slot.release()

    threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
    for number, thread in enumerate(threads):
        thread.start()
        _until(lambda number=number: len(order) + limit.waiting > number)  # type: ignore[misc]
    for turn in range(callers):
        may_release[order[turn]].set()
        _until(lambda turn=turn: len(order) >= min(callers, slots + turn + 1))  # type: ignore[misc]
    for thread in threads:
        thread.join()
    furthest = max(abs(number - turn) for turn, number in enumerate(order))
    return Served(len(order), furthest / callers, limit.running)


def _until(is_so: Callable[[], bool]) -> None:
    """Waits, not for ever, for something that another thread is about to do."""
    pause, deadline = threading.Event(), time.monotonic() + _PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise BenchmarkFailed("a caller was left standing")
        pause.wait(0.0005)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
