"""SharedLimits: the limits of keys and groups on the engine, for `storage.limits`.

Every call is one script. All counters have one hash tag, because a request reserves of its key and of its group in one
step. What was spent also goes to the backlog if the engine does not answer, so that it counts although this process
may be killed meanwhile; settling it again changes nothing. An instance with another secret cannot count, as without the
engine: it would spend each budget once more. The clocks of all instances must agree within a few seconds.
"""

from collections.abc import Sequence

from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.storage.limits import LEASE_SECONDS, SETTLED_SECONDS, Counter, Hold, Refusal, Spent, Used
from deepseek_cursor_proxy.storage.resp.client import Script
from deepseek_cursor_proxy.storage.shared.scripts import RENEW_LIMITS, RESERVE_LIMITS, SETTLE_LIMITS, USED_LIMITS
from deepseek_cursor_proxy.storage.shared.state import SharedState

_KEY = b"dcp:{limits}:"
_LEASE = b"%d" % LEASE_SECONDS
# A busy moment must not look like an outage, in which this process counts alone for a while.
_SECONDS = 0.25
# A request may be settled long after the period in which it was admitted.
_COUNTER_SECONDS = 3600


class SharedLimits:
    """Called by any thread."""

    def __init__(self, state: SharedState) -> None:
        self._state = state

    def reserve(self, request_id: str, holds: Sequence[Hold], now: float) -> Refusal | None:
        words = [request_id.encode(), repr(now).encode(), _LEASE]
        for hold in holds:
            words += [_name(hold.counter), b"%d" % hold.amount, b"%d" % hold.most]
        at, used = self._numbers(RESERVE_LIMITS, words)
        return Refusal(holds[at - 1], used) if at else None

    def settle(self, request_id: str, spent: Sequence[Spent], now: float) -> Sequence[int] | None:
        words = [request_id.encode(), b"%d" % SETTLED_SECONDS]
        for counter, amount in spent:
            seconds = max(0.0, counter.resets - now) + _COUNTER_SECONDS
            words += [_name(counter), b"%d" % amount, b"%d" % seconds]
        reply = self._state.write(SETTLE_LIMITS, _KEY, words)
        if reply is None:
            raise self._fault()
        return [total for total in reply if isinstance(total, int)] if isinstance(reply, list) else None

    def renew(self, request_ids: Sequence[str], now: float) -> None:
        self._numbers(RENEW_LIMITS, [repr(now).encode(), _LEASE, *(each.encode() for each in request_ids)])

    def usage(self, counters: Sequence[Counter], now: float) -> Sequence[Used]:
        numbers = self._numbers(USED_LIMITS, [repr(now).encode(), *map(_name, counters)])
        return [Used(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]

    def _numbers(self, script: Script, words: Sequence[bytes]) -> list[int]:
        reply = self._state.read(script, _KEY, words, _SECONDS)
        if not isinstance(reply, list):
            raise self._fault()
        return [number for number in reply if isinstance(number, int)]

    def _fault(self) -> Unusable:
        return Unusable(f"{self._state.address}: {self._state.fault or 'no reply in time'}", "start it, or wait for it")


def _name(counter: Counter) -> bytes:
    return f"{counter.holder} {counter.limit} {counter.resets}".encode()
