"""What the Responses and the Messages API cost beside chat completions, with the same answers of DeepSeek.

Only this proxy is measured; each figure is compared with its own chat path, in alternating requests.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from statistics import fmean

from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.upstream.call_limit import CallLimit
from tests.bench.load_clients import CHAT, Client, post
from tests.bench.requests import question
from tests.bench.rounds import Contest, intervals
from tests.bench.scale import Scale
from tests.bench.table import OURS, Figure, Row, exponent
from tests.support.processes import BenchmarkFailed

_MODEL = "deepseek-v4-pro"
_PATIENCE_SECONDS = 20.0


def _response(command: str) -> bytes:
    return encode_json({"model": _MODEL, "instructions": "You are brief.", "input": command, "stream": True})


def _message(command: str) -> bytes:
    messages = [{"role": "user", "content": command}]
    requests = {"model": _MODEL, "max_tokens": 1000, "system": "You are brief.", "messages": messages, "stream": True}
    return encode_json({**requests, "thinking": {"type": "adaptive"}})


@dataclass(frozen=True)
class OtherApi:
    name: str
    path: str
    question: Callable[[str], bytes]


OTHER_APIS = (OtherApi("Responses", "/responses", _response), OtherApi("Messages", "/messages", _message))


def other_apis(contest: Contest, scale: Scale) -> Iterator[Row]:
    for api in OTHER_APIS:
        yield from _first_event_rows(api, contest, scale)
        yield from _stream_rows(api, contest, scale)
    yield from _chain_rows(contest, scale)
    yield from _queue_rows(scale)


def _first_event_rows(api: OtherApi, contest: Contest, scale: Scale) -> Iterator[Row]:
    command, direct, ours = "bench:stream 8", contest.direct.url, contest.ours.url
    added_times = []
    with closing(Client(direct)) as alone, closing(Client(ours)) as through:
        for _ in range(scale.requests // 2):
            before = alone.ask(post(direct, question(command, stream=True)), is_stream=True).first
            after = through.ask(post(ours, api.question(command), api.path), is_stream=True).first
            added_times.append(1000 * (after - before))
    yield Row(f"{api.name}: first stream event: added p50", "ms", {OURS: Figure.of(added_times)})


def _stream_rows(api: OtherApi, contest: Contest, scale: Scale) -> Iterator[Row]:
    command, target = f"bench:stream {scale.chunks}", contest.ours
    requests = {
        CHAT: post(target.url, question(command, stream=True)),
        api.path: post(target.url, api.question(command), api.path),
    }
    spent: dict[str, list[float]] = {path: [] for path in requests}
    with closing(Client(target.url)) as client:
        for _ in range(scale.streams):
            for path, request in requests.items():
                before = target.cpu_seconds()
                client.ask(request, is_stream=True)
                spent[path] += intervals((before, target.cpu_seconds()))
    per = {path: [1000 * 10_000 / scale.chunks * each for each in some] for path, some in spent.items()}
    ratios = [theirs / chat for theirs, chat in zip(per[api.path], per[CHAT], strict=True) if chat]
    yield Row(f"{api.name}: CPU per 10,000 chunks (mean)", "ms", {OURS: Figure.mean(per[api.path])})
    yield Row("  against the chat path", "", {OURS: Figure.of(ratios)})


def _chain_rows(contest: Contest, scale: Scale) -> Iterator[Row]:
    """Stored responses, each going on from the one before: what one costs by how long its input has become."""
    target, previous = contest.ours, None
    spent: list[float] = []
    with closing(Client(target.url)) as client:
        for number in range(scale.chain_length):
            requests = {"model": _MODEL, "input": f"Question {number}. bench:plain", "previous_response_id": previous}
            before = target.cpu_seconds()
            response = client.fetch(post(target.url, encode_json(requests), "/responses"))
            spent += intervals((before, target.cpu_seconds()))
            previous = response.get("id") if isinstance(response, dict) else None
            if previous is None:
                raise BenchmarkFailed(f"a response without an id: {str(response)[:200]}")
    if not spent:
        return
    tenth = max(1, scale.chain_length // 10)
    early, late = spent[tenth // 2 : tenth + tenth // 2], spent[-tenth:]
    yield Row(f"response {tenth} of a chain: CPU (mean)", "ms", {OURS: Figure.mean([1000 * each for each in early])})
    yield Row(f"response {scale.chain_length} of it (mean)", "ms", {OURS: Figure.mean([1000 * each for each in late])})
    growth = exponent({tenth: fmean(early), scale.chain_length - tenth // 2: fmean(late)})
    yield Row("  growth with the length of its input (exponent)", "", {OURS: Figure.single(growth)})


def _queue_rows(scale: Scale) -> Iterator[Row]:
    """Callers at a limit of a third as many slots: how many were served, in which order, and what is left."""
    served = run_queue(scale.callers, scale.callers // 3)
    yield Row(f"{scale.callers} callers at {scale.callers // 3} slots: served", "", {OURS: Figure.single(served.count)})
    yield Row("  furthest from its turn, of all callers", "%", {OURS: Figure.single(100 * served.furthest)})
    yield Row("  slots still taken at the end", "", {OURS: Figure.single(served.left)})


@dataclass(frozen=True)
class QueueResult:
    """Callers that got a slot, the largest distance from a turn as a share of all, and slots taken at the end."""

    count: int
    furthest: float
    left: int


def run_queue(callers: int, slots: int) -> QueueResult:
    """Start all callers, then release slots one by one, each when its successor runs: the limit's order counts."""
    limit = CallLimit(slots, _PATIENCE_SECONDS)
    order: list[int] = []
    # One for each caller, which releases its slot when it is set.
    may_release = [threading.Event() for _ in range(callers)]

    def call(number: int) -> None:
        slot = limit.acquire(caller=b"%d" % number)
        order.append(number)
        may_release[number].wait(_PATIENCE_SECONDS)
        slot.release()

    threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
    for number, thread in enumerate(threads):
        thread.start()
        _wait_until(lambda number=number: len(order) + limit.queued_calls > number)  # type: ignore[misc]
    for turn in range(callers):
        may_release[order[turn]].set()
        _wait_until(lambda turn=turn: len(order) >= min(callers, slots + turn + 1))  # type: ignore[misc]
    for thread in threads:
        thread.join()
    furthest = max(abs(number - turn) for turn, number in enumerate(order))
    return QueueResult(len(order), furthest / callers, limit.running_calls)


def _wait_until(is_so: Callable[[], bool]) -> None:
    """Wait until another thread has done something; BenchmarkFailed after `_PATIENCE_SECONDS`."""
    pause, deadline = threading.Event(), time.monotonic() + _PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise BenchmarkFailed("a caller was left standing")
        pause.wait(0.0005)
