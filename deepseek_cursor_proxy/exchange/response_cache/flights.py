"""Flights: identical questions at the same time. The first one leads: it is sent. The others wait for its answer.

A flight ends with an answer, for all who wait, or without one, because the call failed or its client left. Then each of
them asks again, and the first to do so leads. This file knows no protocol, no store and no upstream.
"""

import threading
from typing import NamedTuple

from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.net.wait import wait_readable
from deepseek_cursor_proxy.net.wakeup import Wakeup
from deepseek_cursor_proxy.storage.answers import CachedAnswer


class Flight:
    """One question that was sent. Written by its leader; the lock of Flights protects all fields."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.waiters: set[Wakeup] = set()
        self.is_over = False
        self.answer: CachedAnswer | None = None
        # Whether it ended because the call failed, and not because its client left.
        self.has_failed = False


class Seat(NamedTuple):
    """A place in a flight: the leader's, or that of one who waits, with what wakes it."""

    flight: Flight
    wakeup: Wakeup | None = None

    @property
    def is_leader(self) -> bool:
        return self.wakeup is None

    def wait(self, seconds: float, peer: Peer | None) -> bool:
        """Whether the flight is over within that time; raises when the client leaves or its answer is ended."""
        assert self.wakeup is not None
        return self.flight.is_over or wait_readable(self.wakeup, seconds, peer)


class Flights:
    """Called by handler threads; the lock protects `_flights`, those that others can join, and each of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[bytes, Flight] = {}

    def join(self, key: bytes) -> Seat | None:
        """A seat in the flight for this key, that of its leader if there was none. None without descriptors."""
        with self._lock:
            flight = self._flights.get(key)
            if flight is None:
                flight = self._flights[key] = Flight(key)
                return Seat(flight)
            try:
                wakeup = Wakeup()
            except OSError:
                return None
            flight.waiters.add(wakeup)
            return Seat(flight, wakeup)

    def leave(self, seat: Seat, answer: CachedAnswer | None = None, *, has_failed: bool = False) -> None:
        """Give the seat back, once. When the leader does, the flight is over, with its answer or without one."""
        flight, wakeup = seat
        with self._lock:
            if wakeup is not None:
                flight.waiters.discard(wakeup)
            else:
                del self._flights[flight.key]
                flight.answer, flight.has_failed, flight.is_over = answer, has_failed, True
                # Under the lock: one that leaves closes its wake-up.
                for each in flight.waiters:
                    each.notify()
        if wakeup is not None:
            wakeup.close()
