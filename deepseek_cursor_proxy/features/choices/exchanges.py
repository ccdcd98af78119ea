"""ChoicesExchange: several answers to one request (n > 1), one exchange per choice, with the interface of one.

DeepSeek answers with one choice per call, so each choice is an exchange on a thread of its own, which puts what arrives
into a queue. The thread that serves the request numbers the deltas, adds up their usage and watches the client; it ends
all choices when the client leaves or a choice fails. Observers see one request: the events of its first choice, and one
end.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from copy import copy
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from deepseek_cursor_proxy.conversation import Batch, Batches, Delta, Heartbeat
from deepseek_cursor_proxy.deepseek.chat_stream import split_run
from deepseek_cursor_proxy.deepseek.prices import add_costs
from deepseek_cursor_proxy.deepseek.usage import add_usage, read_usage
from deepseek_cursor_proxy.errors import Overloaded, ProxyError, ProxyStopping, TooLarge, UpstreamFailed
from deepseek_cursor_proxy.exchange.client_request import ClientRequest
from deepseek_cursor_proxy.exchange.exchange import Exchange
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.net.threads import start_thread
from deepseek_cursor_proxy.net.wait import Deadline, Wakeup, pause
from deepseek_cursor_proxy.observers import events

_Item = TypeVar("_Item")

# How often a thread that waits for the choices checks its client.
_CHECK_SECONDS = 0.1
# Batches that may wait for a client that reads slowly: what is read of an answer is paid for, and held in memory.
_MOST_WAITING = 64
_FULL_SECONDS = 0.02


class _Output(NamedTuple):
    """What arrived for a choice: a batch, the error that ended it, or None at its end."""

    choice: int
    item: Batch | BaseException | None


class ChoicesExchange:
    """The exchanges of one request. Used by one thread, which must close it; each exchange runs on another."""

    @classmethod
    def open(cls, client: ClientRequest, services: Services) -> "ChoicesExchange":
        """Make all calls at once; as soon as one fails, none is left open and its error is raised."""
        # Every choice sends a body, and holds it three times over.
        count, size, most = client.chat.choices, client.report.body_bytes, services.config.max_request_body_bytes
        if count * size > most:
            raise TooLarge(f"{count} choices of a request of {size} bytes: at most {most} bytes in all. Ask for fewer.")
        exchange = cls(client)
        try:
            for choice in range(count):
                exchange._start(choice, services)
            for _ in range(count):
                if (error := exchange._next(exchange._opened)) is not None:
                    raise error
        except BaseException as error:
            exchange.close(error)
            raise
        exchange._is_open = True
        return exchange

    def __init__(self, client: ClientRequest) -> None:
        """Makes no call yet; see `open`. Raises Overloaded when there are no descriptors left."""
        self.is_closed = False
        self._client = client
        self._report = client.report
        try:
            # The client of every choice: set, it interrupts whatever they wait for.
            self._peer = Wakeup()
        except OSError:
            raise _overload_error() from None
        # Whether DeepSeek accepted all calls. Until then no choice waits: a call may need the slot of another.
        self._is_open = False
        # When to check the client again.
        self._check = Deadline.after(0.0)
        self._threads: list[threading.Thread] = []
        # None for each call that DeepSeek accepted, the error of any other.
        self._opened: SimpleQueue[BaseException | None] = SimpleQueue()
        self._outputs: SimpleQueue[_Output] = SimpleQueue()
        # Written by the threads of the choices: each operation is atomic.
        self._exchanges: dict[int, Exchange] = {}
        self._progress: list[Callable[[], events.Progress]] = []
        self._finished: list[events.Finished] = []

    @property
    def cache_state(self) -> str:
        """The cache is never used: a client that wants several answers wants different ones."""
        return ""

    @property
    def is_sent(self) -> bool:
        return True

    def notice(self, choice: int) -> str:
        return self._exchanges[choice].notice()

    def deltas(self) -> Batches:
        """The deltas of all choices in the order they arrive, numbered; their usage, added up, comes last."""
        total: dict[str, Any] = {}
        first: dict[str, Any] = {}
        unfinished = set(self._exchanges)
        try:
            while unfinished:
                choice, items = self._next(self._outputs)
                if isinstance(items, BaseException):
                    raise items
                if items is None:
                    unfinished.discard(choice)
                    continue
                batch: Batch = []
                for item in items:
                    if isinstance(item, Heartbeat):
                        # One choice's heartbeats are enough for all.
                        if choice == min(unfinished):
                            batch.append(item)
                        continue
                    total = add_usage(total, item.usage or {})
                    first = first or {**(item.chunk or {})}
                    numbered = [_number(single, choice, first) for single in split_run(item)]
                    batch += [delta for delta in numbered if delta is not None]
                if batch:
                    yield batch
            yield [Delta(usage=total or None, chunk={**first, "choices": [], "usage": total or None})]
        except BaseException as error:
            self.close(error)
            raise
        finally:
            self.close()

    def fail(self, error: Exception) -> None:
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        """End every exchange, with this error if there is one, and wait for its thread. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        self._peer.set(_close_reason(error))
        for thread in self._threads:
            thread.join()
        for exchange in self._exchanges.values():
            exchange.close()
        self._peer.close()
        if self._finished:
            self._report.end(self._merge(error))

    def _start(self, choice: int, services: Services) -> None:
        report = self._report.copy_for(partial(self._observe, choice))
        client = copy(self._client)
        client.peer, client.report = self._peer, report
        thread = start_thread(partial(self._run, choice, client, services), f"choice-{choice}")
        if thread is None:
            raise _overload_error()
        self._threads.append(thread)

    def _next(self, queue: "SimpleQueue[_Item]") -> _Item:
        """Wait for the next item; raises ClientGone or ProxyStopping as any wait does."""
        while True:
            # Also while much arrives: a client that closed only its half still takes it all.
            if self._check.is_over:
                pause(0.0, self._client.peer)
                self._check = Deadline.after(_CHECK_SECONDS)
            with suppress(Empty):
                return queue.get(timeout=_CHECK_SECONDS)

    # By the thread of a choice …

    def _run(self, choice: int, client: ClientRequest, services: Services) -> None:
        try:
            exchange = self._exchanges[choice] = Exchange.open(client, services)
        except BaseException as error:
            self._opened.put(error)
            return
        self._opened.put(None)
        try:
            with closing(exchange.deltas()) as batches:
                for batch in batches:
                    while self._is_open and self._outputs.qsize() >= _MOST_WAITING:
                        pause(_FULL_SECONDS, self._peer)
                    self._outputs.put(_Output(choice, batch))
            self._outputs.put(_Output(choice, None))
        except BaseException as error:
            # Other calls may not be accepted yet.
            self._opened.put(error)
            self._outputs.put(_Output(choice, error))

    def _observe(self, choice: int, event: events.Event) -> None:
        """Keep the end of a choice for the one of all; forward other events only of the first choice."""
        if isinstance(event, events.Received):
            self._progress.append(event.progress)
            event = event._replace(progress=self._all_progress)
        if isinstance(event, events.Finished):
            self._finished.append(event)
        elif choice == 0:
            self._report.emit(event)

    # For the report …

    def _all_progress(self) -> events.Progress:
        found = [progress() for progress in self._progress]
        first = [progress.first_delta_seconds for progress in found if progress.first_delta_seconds is not None]
        return found[0]._replace(
            characters=sum(progress.characters for progress in found), first_delta_seconds=min(first, default=None)
        )

    def _merge(self, error: BaseException | None) -> events.Finished:
        """The end of the request: that of the choice with this error, else of an incomplete choice, else of any."""
        end = events.End.of(error) if error is not None else None
        decided = max(self._finished, key=lambda finished: (finished.end == end, finished.end is not events.COMPLETED))
        if end is not None and decided.end in (events.COMPLETED, events.CLIENT_LEFT):
            decided = decided._replace(end=end)
        usage: dict[str, Any] = {}
        for finished in self._finished:
            usage = add_usage(usage, finished.usage or {})
        messages = [finished.message for finished in self._finished if finished.message is not None]
        columns = zip(*(finished.timing for finished in self._finished), strict=True)
        totals, firsts, queues, connects = ([each for each in column if each is not None] for column in columns)
        longest_queue, longest_connect = max(queues, default=None), max(connects, default=None)
        # A choice that was called and has no usage cost something that is not known, and so did all together.
        is_known = all(each.tokens is not None or each.timing.connect is None for each in self._finished)
        return decided._replace(
            timing=events.Timing(max(totals), min(firsts, default=None), longest_queue, longest_connect),
            message=messages[0] if messages else None,
            other_messages=tuple(messages[1:]),
            usage=usage or None,
            tokens=read_usage(usage) if usage and is_known else None,
            cost=add_costs([each.cost for each in self._finished if each.tokens is not None]) if is_known else None,
            retries=sum(finished.retries for finished in self._finished),
            retry_reasons=tuple(reason for finished in self._finished for reason in finished.retry_reasons),
            rerouted=tuple(name for finished in self._finished for name in finished.rerouted),
        )


def _close_reason(error: BaseException | None) -> Callable[[], ProxyError] | None:
    """The error that ends the other choices; None where they end as if their client left."""
    if isinstance(error, ProxyStopping):
        return ProxyStopping
    is_failure = isinstance(error, ProxyError)
    return (lambda: UpstreamFailed("Another choice of the same request failed.")) if is_failure else None


def _overload_error() -> Overloaded:
    return Overloaded("There is no room for that many answers at once. Try again in a moment.", retry_after=1)


def _number(delta: Delta, choice: int, first: Mapping[str, Any]) -> Delta | None:
    """The delta with its choice's number, and the id and date of the `first` chunk; None for a chunk of usage alone."""
    chunk = {name: value for name, value in (delta.chunk or {}).items() if name != "usage"}
    chunk |= {name: first[name] for name in ("id", "created") if name in first}
    if not chunk.get("choices"):
        return None
    chunk["choices"] = [{**entry, "index": choice} for entry in chunk["choices"]]
    return delta._replace(choice=choice, usage=None, chunk=chunk)
