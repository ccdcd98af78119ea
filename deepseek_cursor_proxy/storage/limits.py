"""The limits of named keys and groups, as an engine counts them: reserved before a call, settled after it.

This is the contract of an engine. There are two, `sqlite/limit_rows` and `shared/limits`, with the calls of LimitStore
and the same results. All arguments and results are values, and every call is one atomic step, however many
processes share the engine. All calls raise Unusable while the engine cannot be used.

A Counter adds up what one holder (`keys.ann`, `groups.lab`) has used of one limit in one period, in whole numbers:
requests, tokens, billionths of a dollar. A period is named by the Unix time at which it ends. The counter of
`concurrent` has no period (0) and nothing is ever spent of it, only reserved.

    used = spent + reserved, where reserved are the holds of requests that run

A reservation is a lease. It ends with `settle`, or LEASE_SECONDS after the last `reserve` or `renew`: what a killed
process has reserved is free again.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

# After this time without `renew` a reservation no longer counts.
LEASE_SECONDS = 20.0
# A request that is settled again within this time is recognised.
SETTLED_SECONDS = 24 * 3600.0


class Counter(NamedTuple):
    holder: str
    # The name of the limit, as the configuration has it: usd_per_day.
    limit: str
    # The end of its period, in Unix time; 0 for a limit without one.
    resets: int = 0


class Hold(NamedTuple):
    """What a request may use of a counter, which has room for `most` in all."""

    counter: Counter
    amount: int
    most: int


class Spent(NamedTuple):
    """What a request did use of a counter."""

    counter: Counter
    amount: int


class Used(NamedTuple):
    spent: int = 0
    reserved: int = 0

    @property
    def total(self) -> int:
        return self.spent + self.reserved


class Refusal(NamedTuple):
    """The first hold that has no room, and what other requests have used of its counter."""

    hold: Hold
    used: int


class LimitStore(Protocol):
    def reserve(self, request_id: str, holds: Sequence[Hold], now: float) -> Refusal | None:
        """Reserve all holds, or none and return the reason. A request that has its holds already keeps them.

        A hold has room if `used + amount <= most`, or if nothing is used: else a request that may cost more than a
        whole budget would never be served.
        """
        ...

    def settle(self, request_id: str, spent: Sequence[Spent], now: float) -> Sequence[int] | None:
        """End the request's reservation and add what it spent, even if the reservation has lapsed.

        Returns what each counter has spent now; None if the request was settled before, which then changes nothing.
        """
        ...

    def renew(self, request_ids: Sequence[str], now: float) -> None:
        """Extend the leases of running requests; a reservation that has lapsed stays so."""
        ...

    def usage(self, counters: Sequence[Counter], now: float) -> Sequence[Used]: ...
