"""How many calls run at once: the rest wait their turn, first come first served, for a bounded time.

A place is taken before a connection is and given back when the answer is closed, so it is held for exactly as long as
something upstream costs money. Whoever waits watches its client: one that leaves frees its place in the queue at once.
Every model has a gate of its own, as DeepSeek counts the calls to each.
"""

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable

from deepseek_cursor_proxy.deepseek.models import model_for_limit
from deepseek_cursor_proxy.errors import QueueFull
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.net.wait import wait_readable

# Each holds two descriptors and a thread; beyond that, waiting would only take from those who are being served.
_MOST_WAITING = 512
_RETRY_AFTER_SECONDS = 2


class Place:
    """The right to one call. `leave` may be called again, and by any thread."""

    def __init__(self, admission: "Admission") -> None:
        self._admission = admission
        self.is_left = False

    def leave(self) -> None:
        self._admission.take_back(self)


class Admission:
    """Called by handler threads; the lock protects `running`, `_waiting` and who of them was admitted."""

    def __init__(self, limit: int, timeout: float) -> None:
        self._limit = limit
        self._timeout = timeout
        self._lock = threading.Lock()
        self._waiting: deque[_Waiter] = deque()
        self.running = 0

    @property
    def waiting(self) -> int:
        """How many stand in the queue."""
        return len(self._waiting)

    def enter(self, peer: Peer | None, calls: int = 1) -> tuple[Place, ...]:
        """As many places as there are calls, all at once; QueueFull when they do not come free in time.

        All at once, because calls that wait for each other with half of the places taken would wait for ever.
        Raises ClientGone when `peer` leaves meanwhile.
        """
        with self._lock:
            is_admitted = not self._waiting and self._has_room(calls)
            self.running += calls if is_admitted else 0
        if not is_admitted:
            self._wait(calls, peer)
        return tuple(Place(self) for _ in range(calls))

    def take_back(self, place: Place) -> None:
        with self._lock:
            self.running -= 0 if place.is_left else 1
            place.is_left = True
            self._admit()

    # Waiting …

    def _wait(self, calls: int, peer: Peer | None) -> None:
        try:
            waiter = _Waiter(calls)
        except OSError:
            raise self._queue_full() from None
        with contextlib.closing(waiter):
            with self._lock:
                if len(self._waiting) >= _MOST_WAITING:
                    raise self._queue_full()
                self._waiting.append(waiter)
                self._admit()
            try:
                if wait_readable(waiter.bell, self._timeout, peer):
                    return
            except BaseException:
                self._give_up(waiter)
                raise
            self._give_up(waiter)
            raise self._queue_full()

    def _give_up(self, waiter: "_Waiter") -> None:
        with self._lock:
            if waiter.is_admitted:
                self.running -= waiter.calls
            else:
                self._waiting.remove(waiter)
            self._admit()

    def _admit(self) -> None:
        while self._waiting and self._has_room(self._waiting[0].calls):
            waiter = self._waiting.popleft()
            self.running += waiter.calls
            waiter.admit()

    def _has_room(self, calls: int) -> bool:
        # Whoever wants more than there are gets them when nobody else runs.
        return self.running + calls <= self._limit or self.running == 0

    def _queue_full(self) -> QueueFull:
        return QueueFull(
            f"{self._limit} calls to this model are running already and none ended in time. Try again in a moment, "
            "or raise --max-upstream-calls (--max-flash-calls for Flash).",
            retry_after=_RETRY_AFTER_SECONDS,
        )


class Gates:
    """A gate for every model. Called by handler threads; the lock protects `_gates`, which the settings bound."""

    def __init__(self, limit: Callable[[str], int], timeout: float) -> None:
        self._limit = limit
        self._timeout = timeout
        self._lock = threading.Lock()
        self._gates: dict[str, Admission] = {}

    def to(self, model: str) -> Admission:
        counted = model_for_limit(model)
        gate = self._gates.get(counted)
        if gate is None:
            with self._lock:
                gate = self._gates.setdefault(counted, Admission(self._limit(counted), self._timeout))
        return gate


class _Waiter:
    """Somebody in the queue; his bell is a socket, so that he can watch it together with his client."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.is_admitted = False
        self.bell, self._button = socket.socketpair()

    def admit(self) -> None:
        self.is_admitted = True
        self._button.send(b"\0")

    def close(self) -> None:
        self.bell.close()
        self._button.close()
