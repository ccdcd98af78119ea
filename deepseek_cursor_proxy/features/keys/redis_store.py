"""SharedLimits: the limits of keys and groups on the engine.

Every call is one script. All counters have one hash tag, because a request reserves of its key and of its group in one
step. What was spent also goes to the backlog if the engine does not answer, so that it counts although this process
may be killed meanwhile; settling it again changes nothing. An instance with another secret cannot count, as without the
engine: it would spend each budget once more. The clocks of all instances must agree within a few seconds.

An engine that lost its data resets no budget: each call says what this instance knows to be spent, which the engine had
when it last settled, and its file remembers it. A counter that has less, or no amount, is raised to it.
"""

import logging
import threading
from collections.abc import Sequence

from deepseek_cursor_proxy.features.keys.store import (
    LEASE_SECONDS,
    SETTLED_SECONDS,
    TABLES,
    Counter,
    Hold,
    Refusal,
    Spent,
    Used,
)
from deepseek_cursor_proxy.features.redis.client import Script
from deepseek_cursor_proxy.features.redis.connection import Reply
from deepseek_cursor_proxy.features.redis.scripts import RENEW_LIMITS, RESERVE_LIMITS, SETTLE_LIMITS, USED_LIMITS
from deepseek_cursor_proxy.features.redis.state import SharedState
from deepseek_cursor_proxy.storage.faults import FaultGuard, Unusable

_log = logging.getLogger(__name__)

_KEY = b"dcp:{limits}:"
_LEASE = b"%d" % LEASE_SECONDS
# A request may be settled long after the period in which it was admitted.
_COUNTER_SECONDS = 3600
# A counter that counts longer is remembered in the file; others start anew before that matters.
_LASTING_SECONDS = 120
_FIND = "SELECT spent FROM limit_counters WHERE holder = ? AND name = ? AND resets = ?"
_REMEMBER = (
    "INSERT INTO limit_counters (holder, name, resets, spent) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (holder, name, resets) DO UPDATE SET spent = max(spent, excluded.spent)"
)
# One at a time: a clock that is wrong must not reset a budget.
_FORGET = (
    "DELETE FROM limit_counters WHERE (holder, name, resets) IN "
    "(SELECT holder, name, resets FROM limit_counters WHERE nullif(resets, 0) < ? ORDER BY resets LIMIT 1)"
)


class SharedLimits:
    """Called by any thread. The lock protects `_known`."""

    def __init__(self, state: SharedState) -> None:
        self._state = state
        self._database = state.backlog.database
        self._database.require(TABLES)
        self._faults = FaultGuard(_log, "limits")
        self._lock = threading.Lock()
        # What was spent of counters whose period has not ended, as far as this instance knows.
        self._known: dict[Counter, int] = {}

    def reserve(self, request_id: str, holds: Sequence[Hold], now: float) -> Refusal | None:
        arguments = [request_id.encode(), repr(now).encode(), _LEASE]
        for hold in holds:
            arguments += [*self._describe(hold.counter, now), b"%d" % hold.amount, b"%d" % hold.most]
        at, *used = self._numbers(RESERVE_LIMITS, arguments, 3)
        return Refusal(holds[min(at, len(holds)) - 1], Used(*used)) if at else None

    def settle(self, request_id: str, spent: Sequence[Spent], now: float) -> Sequence[int] | None:
        arguments = [request_id.encode(), b"%d" % SETTLED_SECONDS]
        for counter, amount in spent:
            arguments += [*self._describe(counter, now), b"%d" % amount]
        reply = self._state.write(SETTLE_LIMITS, _KEY, arguments)
        if reply is None:
            raise self._fault()
        totals = self._checked(reply, len(spent))
        if totals is not None:
            self._remember([Spent(each.counter, total) for each, total in zip(spent, totals, strict=True)], now)
        return totals

    def renew(self, request_ids: Sequence[str], now: float) -> None:
        self._numbers(RENEW_LIMITS, [repr(now).encode(), _LEASE, *(each.encode() for each in request_ids)], 0)

    def usage(self, counters: Sequence[Counter], now: float) -> Sequence[Used]:
        arguments = [each for counter in counters for each in self._describe(counter, now)]
        numbers = self._numbers(USED_LIMITS, [repr(now).encode(), *arguments], 2 * len(counters))
        return [Used(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]

    def _numbers(self, script: Script, arguments: Sequence[bytes], count: int) -> Sequence[int]:
        numbers = self._checked(self._state.read(script, _KEY, arguments), count)
        if numbers is None:
            raise self._fault()
        return numbers

    def _checked(self, reply: Reply, count: int) -> Sequence[int] | None:
        """The numbers of a reply; None if it has another form. The last one is how many counters were raised."""
        numbers = [each for each in reply if isinstance(each, int) and each >= 0] if isinstance(reply, list) else []
        if not isinstance(reply, list) or not len(reply) == len(numbers) == count + 1:
            return None
        if raised := numbers.pop():
            _log.warning("%s had less than was spent: %d limits got what this proxy knows", self._state.address, raised)
        return numbers

    def _fault(self) -> Unusable:
        return Unusable(f"{self._state.address}: {self._state.fault or 'no reply in time'}", "start it, or wait for it")

    # What this instance knows …

    def _describe(self, counter: Counter, now: float) -> tuple[bytes, bytes, bytes]:
        """A counter's name, what is known of it, and the seconds for which the engine keeps it."""
        seconds = max(0.0, counter.resets - now) + _COUNTER_SECONDS
        name = f"{counter.holder} {counter.limit} {counter.resets}"
        return name.encode(), b"%d" % self._known_of(counter, now), b"%d" % seconds

    def _known_of(self, counter: Counter, now: float) -> int:
        with self._lock:
            known = self._known.get(counter)
        if known is None and counter.resets > now + _LASTING_SECONDS:
            with self._faults.guard("look up"):
                found = self._database.select(_FIND, *counter)
                known = found[0][0] if found else 0
                with self._lock:
                    known = self._known[counter] = max(known, self._known.get(counter, 0))
        return known or 0

    def _remember(self, totals: Sequence[Spent], now: float) -> None:
        with self._lock:
            for counter, total in totals:
                self._known[counter] = max(total, self._known.get(counter, 0))
            for counter in [counter for counter in self._known if counter.resets <= now]:
                del self._known[counter]
        lasting = [(*counter, total) for counter, total in totals if counter.resets > now + _LASTING_SECONDS]
        if lasting:
            with self._faults.guard("record"), self._database.transaction() as connection:
                connection.executemany(_REMEMBER, lasting)
                connection.execute(_FORGET, (now - _COUNTER_SECONDS,))
