"""The limit of calls at once: further ones wait in a queue, first come first served, for a bounded time.

A call acquires its slot before it takes a connection and releases it when its response is closed, so it holds the slot
for exactly as long as it costs money upstream. If the client of a queued call leaves, the call leaves the queue at
once. Every model has its own limit, because DeepSeek counts the calls per model.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable

from deepseek_cursor_proxy.deepseek.model_names import model_for_limit
from deepseek_cursor_proxy.errors import QueueFull
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.net.wait import Wakeup, wait_readable

# Clients may name any model at some hosts: beyond so many, unused limits are forgotten.
_MOST_LIMITS = 64
# Each queued call holds two descriptors; more would only take them from the calls that run.
_MOST_WAITING = 512
_RETRY_AFTER_SECONDS = 2


class Slot:
    """The right to one call. `release` may be called again, and by any thread."""

    def __init__(self, limit: "CallLimit") -> None:
        self.limit = limit
        self.is_released = False

    def release(self) -> None:
        self.limit.release(self)


class CallLimit:
    """The slots of one model. Called by any thread; the lock protects all fields and `is_granted`."""

    def __init__(self, limit: int, timeout: float) -> None:
        self._limit = limit
        self._timeout = timeout
        self._lock = threading.Lock()
        self._queue: deque[_Waiter] = deque()
        self.running_calls = 0

    @property
    def queued_calls(self) -> int:
        return len(self._queue)

    @property
    def is_used(self) -> bool:
        """Whether calls run or wait."""
        return bool(self.running_calls or self._queue)

    @property
    def is_full(self) -> bool:
        """Whether a call would have to wait."""
        with self._lock:
            return bool(self._queue) or self.running_calls >= self._limit

    def acquire(self, peer: Peer | None = None) -> Slot:
        """Wait for a slot; QueueFull if that takes too long. Raises as `net.wait.pause` when the peer leaves."""
        with self._lock:
            is_granted = not self._queue and self.running_calls < self._limit
            self.running_calls += is_granted
        if not is_granted:
            self._wait(peer)
        return Slot(self)

    def release(self, slot: Slot) -> None:
        with self._lock:
            self.running_calls -= 0 if slot.is_released else 1
            slot.is_released = True
            self._grant_slots()

    def _wait(self, peer: Peer | None) -> None:
        try:
            waiter = _Waiter()
        except OSError:
            raise self._queue_full() from None
        with contextlib.closing(waiter.wakeup):
            with self._lock:
                if len(self._queue) >= _MOST_WAITING:
                    raise self._queue_full()
                self._queue.append(waiter)
                self._grant_slots()
            try:
                if not wait_readable(waiter.wakeup, self._timeout, peer) and not waiter.is_granted:
                    raise self._queue_full()
            except BaseException:
                self._give_up(waiter)
                raise

    def _give_up(self, waiter: "_Waiter") -> None:
        with self._lock:
            if waiter.is_granted:
                self.running_calls -= 1
            else:
                self._queue.remove(waiter)
            self._grant_slots()

    def _grant_slots(self) -> None:
        while self._queue and self.running_calls < self._limit:
            waiter = self._queue.popleft()
            self.running_calls += 1
            waiter.is_granted = True
            waiter.wakeup.set()

    def _queue_full(self) -> QueueFull:
        return QueueFull(
            f"{self._limit} calls to this model are running already and none ended in time. Try again in a moment.",
            retry_after=_RETRY_AFTER_SECONDS,
        )


class CallLimits:
    """The limit of every model. Called by any thread; the lock protects `_limits`, one per model name."""

    def __init__(self, limit_of: Callable[[str], int], timeout: float) -> None:
        self._limit_of = limit_of
        self._timeout = timeout
        self._lock = threading.Lock()
        self._limits: dict[str, CallLimit] = {}

    def of(self, model: str) -> CallLimit:
        name = model_for_limit(model)
        limit = self._limits.get(name)
        if limit is None:
            with self._lock:
                new = CallLimit(self._limit_of(name), self._timeout)
                if len(self._limits) >= _MOST_LIMITS:
                    # A call that already holds a dropped limit counts only there.
                    self._limits = {name: limit for name, limit in self._limits.items() if limit.is_used}
                limit = self._limits.setdefault(name, new)
        return limit

    def snapshot(self) -> dict[str, CallLimit]:
        """The limits by model, for a look at how many calls run and wait."""
        with self._lock:
            return dict(self._limits)


class _Waiter:
    """A queued call. Its wake-up is set when it has its slot."""

    def __init__(self) -> None:
        self.is_granted = False
        self.wakeup = Wakeup()
