"""SharedLimits: the limits of keys and groups on the engine, for `storage.limits`, and in the file of this instance.

Every call is one script. All counters have one hash tag, because a request reserves of its key and of its group in one
step. What a request spent is acknowledged like any other write: without the engine it waits in the backlog, and counts
once.

The file has what this instance knows: its own requests, and what the engine last said is spent. Without the engine it
goes on with that, for `grace` seconds. Then a request with a budget is refused with BudgetUnknown, while rates and
slots go on per instance. The clocks of all instances must agree within a few seconds.
"""

import sys
import time
from collections.abc import Callable, Sequence

from deepseek_cursor_proxy.storage.limits import (
    LEASE_SECONDS,
    SETTLED_SECONDS,
    BudgetUnknown,
    Counter,
    Hold,
    Refusal,
    Spent,
    Used,
)
from deepseek_cursor_proxy.storage.shared.scripts import RENEW_LIMITS, RESERVE_LIMITS, SETTLE_LIMITS, USED_LIMITS
from deepseek_cursor_proxy.storage.shared.state import SharedState
from deepseek_cursor_proxy.storage.sqlite.limit_rows import SqliteLimits

_KEY = b"dcp:{limits}:"
# The beginning of the limits of money.
_BUDGET = "usd_"
# A request may be settled long after the period in which it was admitted.
_COUNTER_SECONDS = 3600


class SharedLimits:
    """Called by workers and the thread that renews; assigning `_down_since` is atomic."""

    def __init__(
        self, state: SharedState, own: SqliteLimits, grace: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._state = state
        self._own = own
        self._grace = grace
        self._clock = clock
        # Since when no reservation reached the engine.
        self._down_since: float | None = None

    def reserve(self, request_id: str, holds: Sequence[Hold], now: float) -> Refusal | None:
        words = [request_id.encode(), repr(now).encode(), b"%d" % LEASE_SECONDS]
        for hold in holds:
            words += [_name(hold.counter), b"%d" % hold.amount, b"%d" % hold.most]
        match self._state.read(RESERVE_LIMITS, _KEY, words):
            case [int(at), int(used)]:
                self._down_since = None
                if at:
                    return Refusal(holds[at - 1], used)
                self._own.reserve(request_id, [hold._replace(most=sys.maxsize) for hold in holds], now)
                return None
        if self._down_since is None:
            self._down_since = self._clock()
        is_over = self._clock() - self._down_since > self._grace
        if is_over and any(hold.counter.limit.startswith(_BUDGET) for hold in holds):
            raise BudgetUnknown("the engine that counts budgets does not answer", "try again in a moment")
        return self._own.reserve(request_id, holds, now)

    def settle(self, request_id: str, spent: Sequence[Spent], now: float) -> Sequence[int] | None:
        words = [request_id.encode(), b"%d" % SETTLED_SECONDS]
        for counter, amount in spent:
            seconds = max(0.0, counter.resets - now) + _COUNTER_SECONDS
            words += [_name(counter), b"%d" % amount, b"%d" % seconds]
        reply = self._state.write(SETTLE_LIMITS, _KEY, words)
        totals = self._own.settle(request_id, spent, now)
        match reply:
            case [*found]:
                known = [total for total in found if isinstance(total, int)]
                self._own.adopt([each._replace(amount=total) for each, total in zip(spent, known, strict=True)])
                return known
            case 0:
                return None
        return totals

    def renew(self, request_ids: Sequence[str], now: float) -> None:
        words = [repr(now).encode(), b"%d" % LEASE_SECONDS, *(each.encode() for each in request_ids)]
        self._state.read(RENEW_LIMITS, _KEY, words)
        self._own.renew(request_ids, now)

    def usage(self, counters: Sequence[Counter], now: float) -> Sequence[Used]:
        reply = self._state.read(USED_LIMITS, _KEY, [repr(now).encode(), *map(_name, counters)])
        if not isinstance(reply, list):
            return self._own.usage(counters, now)
        numbers = [number for number in reply if isinstance(number, int)]
        return [Used(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]


def _name(counter: Counter) -> bytes:
    return f"{counter.holder} {counter.limit} {counter.resets}".encode()
