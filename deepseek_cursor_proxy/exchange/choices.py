"""ChoicesExchange: several answers to one request (n > 1), one exchange per choice, with the interface of one.

DeepSeek answers with one choice per call, so each choice is a separate call on a separate thread; this file numbers
their deltas and adds up their usage. The thread that serves the request watches the client, and ends all choices at
once when the client leaves or a choice fails. Observers see one request: the events of its first choice, and one end.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from deepseek_cursor_proxy.conversation import Batch, Batches, Delta, Heartbeat
from deepseek_cursor_proxy.deepseek.apis.chat_stream import split_run
from deepseek_cursor_proxy.deepseek.usage import add_usage, read_usage
from deepseek_cursor_proxy.errors import Overloaded, ProxyError, ProxyStopping, TooLarge, UpstreamFailed
from deepseek_cursor_proxy.exchange.call_context import CallContext, GenerationRequest, RequestReport
from deepseek_cursor_proxy.exchange.exchange import Exchange
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.exchange.targets import first_limit
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.net.threads import start_thread
from deepseek_cursor_proxy.net.wait import wait_readable
from deepseek_cursor_proxy.net.wakeup import Wakeup
from deepseek_cursor_proxy.observers.events import CLIENT_LEFT, COMPLETED, End, Event, Finished, Progress, Received
from deepseek_cursor_proxy.upstream.call_limit import Slot
from deepseek_cursor_proxy.usage.prices import add_costs

# How many batches may wait for a client that reads slowly.
_MAX_WAITING_BATCHES = 64
# How often a choice that waits for space in the queue checks whether the exchange is closed.
_CHECK_SECONDS = 0.1
# Until a choice has output, or the client leaves.
_FOR_EVER_SECONDS = 86400.0


class _Signal(Enum):
    ACCEPTED = "DeepSeek accepted the call"
    ENDED = "the answer is complete"


class _Output(NamedTuple):
    """An output of a choice's thread, for the thread that serves the client."""

    choice: int
    item: Batch | BaseException | _Signal


class ChoicesExchange:
    """The exchanges of one request. Used by one thread, which must close it; each exchange runs on another."""

    def __init__(self, client: Peer | None, outcome: "_Outcome") -> None:
        """Raises Overloaded when there are no descriptors left."""
        self.is_closed = False
        self._client = client
        self._outcome = outcome
        with ExitStack() as stack:
            try:
                # The client of every choice: set, it interrupts whatever they wait for.
                self._shared_peer = Wakeup()
                stack.callback(self._shared_peer.close)
                # Notified of every output, so that one wait watches the outputs and the client together.
                self._wakeup = Wakeup()
            except OSError:
                raise _overload_error() from None
            stack.pop_all()
        self._outputs: queue.Queue[_Output] = queue.Queue(_MAX_WAITING_BATCHES)
        # Outputs that came before all calls were accepted.
        self._early_outputs: deque[_Output] = deque()
        self._exchanges: dict[int, Exchange] = {}
        self._is_closing = threading.Event()
        self._threads: list[threading.Thread] = []

    @classmethod
    def open(cls, context: CallContext, generation: GenerationRequest, services: Services) -> "ChoicesExchange":
        """Make all calls at once; as soon as one fails, none is left open and its error is raised."""
        # Every choice sends a body, and holds it three times over.
        count, size, most = generation.request.choices, generation.body_bytes, services.config.max_request_body_bytes
        if count * size > most:
            raise TooLarge(
                f"{count} choices of a request of {size} bytes: at most {most} bytes together. Ask for fewer."
            )
        outcome = _Outcome(context.report)
        limit = first_limit(context, generation, services)
        slots = limit.acquire(count, context.peer)
        outcome.queue_seconds = outcome.report.seconds
        try:
            exchange = cls(context.peer, outcome)
            try:
                exchange._start(slots, context, generation, services)
            except BaseException as error:
                exchange.close(error)
                raise
        except BaseException:
            for slot in slots:
                slot.release()
            raise
        return exchange

    @property
    def has_owner_key(self) -> bool:
        return any(exchange.has_owner_key for exchange in self._exchanges.values())

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
                choice, items = self._early_outputs.popleft() if self._early_outputs else self._next()
                if items is _Signal.ENDED:
                    unfinished.discard(choice)
                if not isinstance(items, list):
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
                    for single in split_run(item):
                        numbered = _number(single, choice, first)
                        if numbered is not None:
                            batch.append(numbered)
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
        self._is_closing.set()
        self._shared_peer.set(_close_reason(error))
        for thread in self._threads:
            thread.join()
        for exchange in self._exchanges.values():
            exchange.close()
        # An error that was not taken would be held by the frames that hold this queue, until the collector comes by.
        self._outputs = queue.Queue()
        for wakeup in (self._shared_peer, self._wakeup):
            wakeup.close()
        self._outcome.emit(error)

    # By the thread that serves the client …

    def _start(
        self, slots: tuple[Slot, ...], context: CallContext, generation: GenerationRequest, services: Services
    ) -> None:
        for choice, slot in enumerate(slots):
            report = self._outcome.report.copy_for(_ChoiceObserver(self._outcome, choice))
            own = context._replace(slot=slot, peer=self._shared_peer, report=report)
            thread = start_thread(
                partial(self._run, choice, partial(Exchange.open, own, generation, services)), f"choice-{choice}"
            )
            if thread is None:
                raise _overload_error()
            self._threads.append(thread)
        while len(self._exchanges) < len(slots):
            self._early_outputs.append(self._next())

    def _next(self) -> _Output:
        """The next output; raises the failure of a choice, and ClientGone or ProxyStopping as any wait does."""
        while not wait_readable(self._wakeup, _FOR_EVER_SECONDS, self._client):
            continue
        self._wakeup.clear(1)
        output = self._outputs.get()
        if isinstance(output.item, BaseException):
            try:
                raise output.item
            finally:
                # An error that is held by the frame it was raised in is freed by the collector only.
                del output
        return output

    # By the thread of a choice …

    def _run(self, choice: int, open_exchange: Callable[[], Exchange]) -> None:
        try:
            exchange = self._exchanges[choice] = open_exchange()
            self._put(choice, _Signal.ACCEPTED)
            with closing(exchange.deltas()) as batches:
                for batch in batches:
                    if not self._put(choice, batch):
                        return
            self._put(choice, _Signal.ENDED)
        except BaseException as error:
            self._put(choice, error)

    def _put(self, choice: int, item: Batch | BaseException | _Signal) -> bool:
        """Hand on an item, waiting for space in the queue; False if the exchange closes first."""
        while not self._is_closing.is_set():
            try:
                self._outputs.put(_Output(choice, item), timeout=_CHECK_SECONDS)
            except queue.Full:
                continue
            self._wakeup.notify()
            return True
        return False


class _Outcome:
    """How a request with several choices ended. Its choices' threads append to `finished`, which is atomic."""

    def __init__(self, report: RequestReport) -> None:
        self.report = report
        self.queue_seconds = 0.0
        self.progress: list[Callable[[], Progress]] = []
        self.finished: list[Finished] = []

    def emit(self, error: BaseException | None) -> None:
        """Emit the one end of all choices, once all have ended."""
        if self.finished:
            self.report.end(self._merge(error))

    def all_progress(self) -> Progress:
        found = [progress() for progress in self.progress]
        first = [progress.first_delta_seconds for progress in found if progress.first_delta_seconds is not None]
        return found[0]._replace(
            characters=sum(progress.characters for progress in found), first_delta_seconds=min(first, default=None)
        )

    def _merge(self, error: BaseException | None) -> Finished:
        """The end of the request: that of the choice with this error, else of an incomplete choice, else of any."""
        end = End.of(error) if error is not None else None
        decided = max(self.finished, key=lambda finished: (finished.end == end, finished.end is not COMPLETED))
        if end is not None and decided.end in (COMPLETED, CLIENT_LEFT):
            decided = decided._replace(end=end)
        usage: dict[str, Any] = {}
        for finished in self.finished:
            usage = add_usage(usage, finished.usage or {})
        first = [finished.timing.first_delta for finished in self.finished if finished.timing.first_delta is not None]
        messages = [finished.message for finished in self.finished if finished.message is not None]
        timing = decided.timing._replace(first_delta=min(first, default=None), queue=self.queue_seconds)
        return decided._replace(
            timing=timing._replace(total=max(finished.timing.total for finished in self.finished)),
            message=messages[0] if messages else None,
            other_messages=tuple(messages[1:]),
            usage=usage or None,
            tokens=read_usage(usage) if usage else None,
            cost=add_costs([finished.cost for finished in self.finished if finished.tokens is not None]),
            retries=sum(finished.retries for finished in self.finished),
            retry_reasons=tuple(reason for finished in self.finished for reason in finished.retry_reasons),
            rerouted=tuple(name for finished in self.finished for name in finished.rerouted),
        )


class _ChoiceObserver:
    """The observer of one choice, called by its thread: the end is for the outcome, other events only of the first."""

    def __init__(self, outcome: _Outcome, choice: int) -> None:
        self._outcome = outcome
        self._choice = choice

    def emit(self, event: Event) -> None:
        if isinstance(event, Received):
            self._outcome.progress.append(event.progress)
            event = event._replace(progress=self._outcome.all_progress)
        if isinstance(event, Finished):
            self._outcome.finished.append(event)
        elif self._choice == 0:
            self._outcome.report.emit(event)


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
