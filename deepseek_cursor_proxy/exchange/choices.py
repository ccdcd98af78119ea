"""Several answers to one request (n > 1): one exchange per choice, side by side, seen as one.

DeepSeek answers with one choice per call, so each choice is a call of its own, on a thread of its own; this file only
numbers what they say and adds up what they cost. The client's own thread watches the client, and ends all of them at
once when it leaves or when one of them fails.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from deepseek_cursor_proxy.conversation import Batch, Batches, Delta, Heartbeat
from deepseek_cursor_proxy.deepseek.repeated_chunks import split_run
from deepseek_cursor_proxy.errors import Overloaded, ProxyError, ProxyStopping, TooLarge, UpstreamFailed
from deepseek_cursor_proxy.exchange.exchange import Exchange
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.exchange.upstream_call import CallContext, GenerationRequest
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.lull import BLOCKING, Lull
from deepseek_cursor_proxy.net.wait import wait_readable
from deepseek_cursor_proxy.net.wakeup import Wakeup
from deepseek_cursor_proxy.threads import start_thread
from deepseek_cursor_proxy.upstream.call_limit import Slot

# How many batches may wait for a client that reads slowly.
_WAITING_BATCHES = 64
# How often a thread that waits for room looks whether anybody still reads.
_LOOK_UP_SECONDS = 0.1
# Until something is said, or the client leaves.
_FOR_EVER_SECONDS = 86400.0

# What a choice says: a batch, its failure, or None when it is over.
_Said = tuple[int, Batch | BaseException | None]


class ChoicesExchange:
    """The exchanges of one request. Used by one thread, which must close it; each exchange runs on another."""

    is_closed = False

    def __init__(self, client: Peer | None) -> None:
        """Raises Overloaded when there are no descriptors left."""
        self._client = client
        with ExitStack() as stack:
            try:
                # The client of every choice: set, it interrupts whatever they wait for.
                self._shared = Wakeup()
                stack.callback(self._shared.close)
                # Notified of everything that is said, so that it can be waited for together with the client.
                self._wakeup = Wakeup()
            except OSError:
                raise _no_room() from None
            stack.pop_all()
        self._said: queue.Queue[_Said] = queue.Queue(_WAITING_BATCHES)
        # What was said before all calls were accepted.
        self._early: deque[_Said] = deque()
        self._exchanges: dict[int, Exchange] = {}
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []

    def notice(self, choice: int) -> str:
        """What the client has to be told before that answer."""
        return self._exchanges[choice].notice()

    @classmethod
    def open(cls, context: CallContext, generation: GenerationRequest, services: Services) -> "ChoicesExchange":
        """Make all calls at once; as soon as one fails, none is left open and its error is raised."""
        _check_size(generation, services.config.max_request_body_bytes)
        slots = services.upstream.call_limits.of(generation.request.model).acquire(
            context.peer, generation.request.choices
        )
        try:
            fan_out = cls(context.peer)
            try:
                fan_out._start(slots, context, generation, services)
            except BaseException as error:
                fan_out.close(error)
                raise
        except BaseException:
            for slot in slots:
                slot.release()
            raise
        return fan_out

    def deltas(self, *, with_lulls: bool = False) -> Batches:
        """What the exchanges say, in the order they say it; their usage, added up, comes last."""
        total: dict[str, Any] = {}
        shape: dict[str, Any] = {}
        running = set(self._exchanges)
        try:
            # It waits by itself: its answers come from threads.
            yield BLOCKING
            while running:
                choice, said = self._early.popleft() if self._early else self._next()
                if said is None:
                    running.discard(choice)
                    continue
                assert not isinstance(said, BaseException)
                # One sign of life is enough for all.
                is_speaker = choice == min(running)
                for item in said:
                    if isinstance(item, Delta):
                        total = _sum(total, item.usage or {})
                        shape = shape or {**(item.source or {})}
                if batch := [
                    each
                    for item in said
                    for single in (split_run(item) if isinstance(item, Delta) else [item])
                    if (each := _numbered(single, choice, shape, is_speaker)) is not None
                ]:
                    yield batch
            yield [Delta(usage=total or None, source={**shape, "choices": [], "usage": total or None})]
        except BaseException as error:
            self.close(error)
            raise
        finally:
            self.close()

    def close(self, error: BaseException | None = None) -> None:
        """Idempotent. Ends every exchange, for that reason if there is one, and waits for its thread."""
        if self.is_closed:
            return
        self.is_closed = True
        self._is_over.set()
        self._shared.set(_close_reason(error))
        for thread in self._threads:
            thread.join()
        for exchange in self._exchanges.values():
            exchange.close()
        # An error that nobody heard would be held by the frames that hold this queue, until the collector comes by.
        self._said = queue.Queue()
        for each in (self._shared, self._wakeup):
            each.close()

    # By the client's thread …

    def _start(
        self, slots: tuple[Slot, ...], context: CallContext, generation: GenerationRequest, services: Services
    ) -> None:
        for choice, slot in enumerate(slots):
            call = partial(Exchange.open, context._replace(slot=slot, peer=self._shared), generation, services)
            thread = start_thread(partial(self._run, choice, call), f"choice-{choice}")
            if thread is None:
                raise _no_room()
            self._threads.append(thread)
        while len(self._exchanges) < len(slots):
            self._early.append(self._next())

    def _next(self) -> _Said:
        """What is said next; raises what a choice failed with, and ClientGone or ProxyStopping as any wait does."""
        while not wait_readable(self._wakeup, _FOR_EVER_SECONDS, self._client):
            continue
        self._wakeup.clear(1)
        choice, said = self._said.get()
        if isinstance(said, BaseException):
            try:
                raise said
            finally:
                # An error that is held by the frame it was raised in is freed by nobody but the collector.
                said = None
        return choice, said

    # By the thread of a choice …

    def _run(self, choice: int, call: "partial[Exchange]") -> None:
        try:
            exchange = self._exchanges[choice] = call()
            # It is accepted, which is as much as it has to say.
            self._say(choice, [])
            with closing(exchange.deltas()) as batches:
                for batch in batches:
                    if not isinstance(batch, Lull) and not self._say(choice, batch):
                        return
            self._say(choice, None)
        except BaseException as error:
            self._say(choice, error)

    def _say(self, choice: int, said: Batch | BaseException | None) -> bool:
        """Whether anybody is still there to hear it."""
        while not self._is_over.is_set():
            try:
                self._said.put((choice, said), timeout=_LOOK_UP_SECONDS)
            except queue.Full:
                continue
            self._wakeup.notify()
            return True
        return False


def _close_reason(error: BaseException | None) -> Callable[[], ProxyError] | None:
    """What ends the other choices; None where they end as if their client left."""
    if isinstance(error, ProxyStopping):
        return ProxyStopping
    return _other_choice_failed if isinstance(error, ProxyError) else None


def _other_choice_failed() -> ProxyError:
    return UpstreamFailed("Another choice of the same request failed.")


def _check_size(generation: GenerationRequest, most: int) -> None:
    """TooLarge when the bodies of all calls together are: every choice sends one, and holds it three times over."""
    count = generation.request.choices
    if count * generation.body_bytes > most:
        raise TooLarge(
            f"{count} choices of a request of {generation.body_bytes} bytes: at most {most} bytes together. "
            "Ask for fewer."
        )


def _no_room() -> Overloaded:
    return Overloaded("There is no room for that many answers at once. Try again in a moment.", retry_after=1)


def _numbered(
    item: Delta | Heartbeat, choice: int, shape: Mapping[str, Any], is_speaker: bool
) -> Delta | Heartbeat | None:
    """The same with the number of its choice, in a chunk that belongs to the one answer; usage is told at the end."""
    if isinstance(item, Heartbeat):
        return item if is_speaker else None
    source = {name: value for name, value in (item.source or {}).items() if name != "usage"}
    source |= {name: shape[name] for name in ("id", "created") if name in shape}
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
