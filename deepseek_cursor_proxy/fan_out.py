"""Several answers to one request (n > 1): one exchange per choice, side by side, seen as one.

DeepSeek answers with one choice per call, so each choice is a call of its own, on a thread of its own; this file only
numbers what they say and adds up what they cost. All of them watch the same client: when it leaves, all end.
"""

import queue
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from deepseek_cursor_proxy.admission import Place
from deepseek_cursor_proxy.calling import Asked, Caller
from deepseek_cursor_proxy.conversation import Aside, Batch, Batches, Delta
from deepseek_cursor_proxy.errors import Overloaded
from deepseek_cursor_proxy.exchange import Exchange
from deepseek_cursor_proxy.services import Services
from deepseek_cursor_proxy.stencils import singles
from deepseek_cursor_proxy.upkeep import started

# How many batches may wait for a client that reads slowly.
_WAITING_BATCHES = 64
# How often a thread that waits for room looks whether anybody still reads.
_LOOK_UP_SECONDS = 0.1

_Said = tuple[int, Batch | BaseException | None]


class FanOut:
    """The exchanges of one request. Used by one thread, which must close it; each exchange runs on another."""

    # It waits by itself: its answers come from threads.
    awaited = None
    is_closed = False

    def __init__(self, exchanges: list[Exchange]) -> None:
        self._exchanges = exchanges
        self._said: queue.Queue[_Said] = queue.Queue(_WAITING_BATCHES)
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []

    def notice(self, choice: int) -> str:
        """What the client has to be told before that answer."""
        return self._exchanges[choice].notice()

    @classmethod
    def open(cls, caller: Caller, asked: Asked, services: Services) -> "FanOut":
        """Make all calls at once; if one fails, none is left open and its error is raised."""
        places = services.upstream.gates.to(asked.request.model).enter(caller.peer, asked.request.choices)
        opened: list[Exchange] = []
        errors: list[BaseException] = []

        def call(place: Place) -> None:
            try:
                opened.append(Exchange.open(caller._replace(place=place), asked, services))
            except BaseException as error:
                errors.append(error)

        try:
            with ThreadPoolExecutor(len(places), "choice") as pool:
                for place in places:
                    pool.submit(call, place)
        except RuntimeError:
            # What has its thread still runs to its end, and so does what waits for one of those.
            errors.append(_no_threads())
        if not errors:
            return cls(opened)
        for exchange in opened:
            exchange.close()
        for place in places:
            place.leave()
        first = errors[0]
        errors.clear()
        try:
            raise first
        finally:
            # An error that is held by the frame it was raised in is freed by nobody but the collector.
            del first

    def batches(self, *, with_lulls: bool = False) -> Batches:
        """What the exchanges say, in the order they say it; their usage, added up, comes last."""
        total: dict[str, Any] = {}
        shape: dict[str, Any] = {}
        running = set(range(len(self._exchanges)))
        try:
            self._start()
            while running:
                choice, said = self._said.get()
                if isinstance(said, BaseException):
                    try:
                        raise said
                    finally:
                        # See above.
                        said = None
                if said is None:
                    running.discard(choice)
                    continue
                # One sign of life is enough for all.
                is_speaker = choice == min(running)
                for item in said:
                    if isinstance(item, Delta):
                        total = _sum(total, item.usage or {})
                        shape = shape or {**(item.source or {})}
                if batch := [
                    each
                    for item in said
                    for single in (singles(item) if isinstance(item, Delta) else [item])
                    if (each := _numbered(single, choice, shape, is_speaker)) is not None
                ]:
                    yield batch
            yield [Delta(usage=total or None, source={**shape, "choices": [], "usage": total or None})]
        finally:
            self.close()

    def close(self) -> None:
        """Idempotent. Ends every exchange and waits for its thread."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        for exchange in self._exchanges:
            exchange.close()

    def _start(self) -> None:
        for choice, exchange in enumerate(self._exchanges):
            thread = started(partial(self._run, choice, exchange), f"choice-{choice}")
            if thread is None:
                raise _no_threads()
            self._threads.append(thread)

    def _run(self, choice: int, exchange: Exchange) -> None:
        batches = exchange.batches()
        try:
            for batch in batches:
                if not self._say((choice, batch)):
                    return
            self._say((choice, None))
        except BaseException as error:
            self._say((choice, error))
        finally:
            batches.close()

    def _say(self, said: _Said) -> bool:
        """Whether anybody is still there to hear it."""
        while not self._is_over.is_set():
            try:
                self._said.put(said, timeout=_LOOK_UP_SECONDS)
                return True
            except queue.Full:
                continue
        return False


def _no_threads() -> Overloaded:
    return Overloaded("There is no room for that many answers at once. Try again in a moment.", retry_after=1)


def _numbered(item: Delta | Aside, choice: int, shape: Mapping[str, Any], is_speaker: bool) -> Delta | Aside | None:
    """The same with the number of its choice, in a chunk that belongs to the one answer; usage is told at the end."""
    if isinstance(item, Aside):
        return item if is_speaker else None
    source = {name: value for name, value in (item.source or {}).items() if name != "usage"}
    if "id" in shape:
        source["id"] = shape["id"]
    if not source.get("choices"):
        return None
    source["choices"] = [{**each, "index": choice} for each in source["choices"]]
    return item._replace(choice=choice, usage=None, source=source)


def _sum(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    """Two usages added up, number by number, however deep."""
    added = dict(one)
    for name, value in two.items():
        if isinstance(value, dict):
            inner = added.get(name)
            added[name] = _sum(inner if isinstance(inner, dict) else {}, value)
        elif isinstance(value, int) and not isinstance(value, bool):
            known = added.get(name)
            added[name] = value + (known if isinstance(known, int) else 0)
        else:
            added.setdefault(name, value)
    return added
