"""The limit of calls at once: further ones wait in a queue, for a bounded time.

Callers have fair shares. For every eight slots that a caller has it leaves one free, so that no caller takes them all,
and another still gets one when the calls of the first hang. A slot that becomes free goes to the caller that has the
fewest, of these to the call that came first. The places in the queue are shared in the same way.

A call acquires its slot before it takes a connection and releases it when its response is closed, so it holds the slot
for exactly as long as it costs money upstream. If the client of a queued call leaves, the call leaves the queue at
once. Every model has its own limit, because DeepSeek counts the calls per model.
"""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass

from deepseek_cursor_proxy.deepseek.model_names import model_for_limit
from deepseek_cursor_proxy.errors import QueueFull
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.net.wait import Action, Wakeup, no_action, wait_readable

# Clients may name any model at some hosts: beyond so many, unused limits are forgotten.
_MOST_LIMITS = 64
# Each queued call holds two descriptors; more would only take them from the calls that run.
_MOST_WAITING = 512
_RETRY_AFTER_SECONDS = 2
# Slots of a caller for each that it leaves free. Fewer would halve what one busy caller can use of 480.
_SHARE = 8


@dataclass(eq=False, slots=True)
class Slot:
    """The right to one call. `release` may be called again, and by any thread."""

    limit: "CallLimit"
    caller: bytes
    is_released: bool = False

    def release(self) -> None:
        with self.limit._lock:
            if not self.is_released:
                self.is_released = True
                self.limit._count(self.caller, -1)


class CallLimit:
    """The slots of one model. Called by any thread; the lock protects all fields and `is_granted`."""

    def __init__(self, limit: int, timeout: float) -> None:
        self._limit = limit
        self._timeout = timeout
        self._lock = threading.Lock()
        # Calls for whose callers there is no slot, oldest first.
        self._queue: list[_Waiter] = []
        self.running_calls = 0
        # The same by caller.
        self._held: dict[bytes, int] = {}

    @property
    def queued_calls(self) -> int:
        return len(self._queue)

    @property
    def is_used(self) -> bool:
        """Whether calls run or wait."""
        return bool(self.running_calls or self._queue)

    def has_room(self, caller: bytes = b"") -> bool:
        """Whether a call of this caller would not have to wait."""
        return _is_fair(self._limit - self.running_calls, self._held.get(caller, 0))

    def acquire(self, peer: Peer | None = None, caller: bytes = b"", before_wait: Action = no_action) -> Slot:
        """Wait for a slot; QueueFull if that takes too long. Raises as `net.wait.pause` when the peer leaves."""
        with self._lock:
            # It overtakes no waiting call: callers of these have no room.
            if is_granted := self.has_room(caller):
                self._count(caller, 1)
        if not is_granted:
            before_wait()
            self._wait(peer, caller)
        return Slot(self, caller)

    def _wait(self, peer: Peer | None, caller: bytes) -> None:
        try:
            waiter = _Waiter(caller)
        except OSError:
            raise self._queue_full() from None
        with contextlib.closing(waiter.wakeup):
            with self._lock:
                if not _is_fair(_MOST_WAITING - len(self._queue), sum(each.caller == caller for each in self._queue)):
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
                self._count(waiter.caller, -1)
            else:
                self._queue.remove(waiter)

    def _count(self, caller: bytes, change: int) -> None:
        """Count a call that begins or is over; one that is over leaves its slot to a call that waits."""
        self.running_calls += change
        self._held[caller] = held = self._held.get(caller, 0) + change
        if not held:
            del self._held[caller]
        if change < 0 and self._queue:
            self._grant_slots()

    def _grant_slots(self) -> None:
        while self._queue:
            # The first of those whose callers have the fewest: if it has no room, none has.
            waiter = min(self._queue, key=lambda each: self._held.get(each.caller, 0))
            if not self.has_room(waiter.caller):
                return
            self._queue.remove(waiter)
            self._count(waiter.caller, 1)
            waiter.is_granted = True
            waiter.wakeup.set()

    def _queue_full(self) -> QueueFull:
        return QueueFull(
            f"Too many calls to this model are running already: {self._limit} slots are for all callers together, and "
            "none became free for this one in time. Try again in a moment.",
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


def _is_fair(free: int, own: int) -> bool:
    """Whether a caller that has `own` slots, or places in the queue, may take one of the `free` ones."""
    return free > own // _SHARE


class _Waiter:
    """A queued call. Its wake-up is set when it has its slot."""

    def __init__(self, caller: bytes) -> None:
        self.caller = caller
        self.is_granted = False
        self.wakeup = Wakeup()
