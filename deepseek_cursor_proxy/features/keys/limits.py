"""The limits of named keys and groups: whether a request has room, and what it has used when it ends.

    admit     before the upstream is called, reserve what the request may use; raises OverLimit or OverBudget
    end       when it is over, replace the reservation by what it did use

A Limiter has no figures of its own: its store has them, for all processes that share it. A
reservation is a lease, renewed by a thread while its request runs. Minutes, days and months are those of UTC; a request
counts in the period in which it was admitted, however long it takes.

An answer without usage, and one whose client left, counts as its prompt and what arrived of the answer, by estimate, or
as the whole reservation if nothing arrived. A call that no upstream accepted, and a cached answer, use nothing but the
request itself. While the engine cannot be used, this process goes by what it knows; after GRACE_SECONDS requests with a
budget get 503, and what ended meanwhile is written when the engine is back.
"""

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain, starmap
from typing import TYPE_CHECKING, NamedTuple

from deepseek_cursor_proxy.config.named_keys import KeyGroup, Limits, NamedKey, format_moment
from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.deepseek.prices import USD, format_amount
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.errors import OverBudget, OverLimit, Overloaded, PriceUnknown
from deepseek_cursor_proxy.features.keys.store import LEASE_SECONDS, Counter, Hold, LimitTables, Refusal, Spent, Used
from deepseek_cursor_proxy.net.threads import BackgroundThread
from deepseek_cursor_proxy.observers.events import Finished, PassedThrough, Result, Terminal
from deepseek_cursor_proxy.storage.database import Database
from deepseek_cursor_proxy.storage.faults import Unusable

if TYPE_CHECKING:
    from deepseek_cursor_proxy.features.keys.redis_store import SharedLimits

_log = logging.getLogger(__name__)

# Money is counted in whole billionths of a dollar: a token costs a few hundred of them.
BILLION = 1_000_000_000
BUDGETS = ("usd_per_month", "usd_per_day")
# Two renewals may fail before a lease ends.
_SECONDS_BETWEEN_RENEWALS = LEASE_SECONDS / 3
# For how long budgets may be passed because the engine cannot be asked.
GRACE_SECONDS = 30.0
_RETRY_AFTER_SECONDS = 5
# A running request ends at any moment.
_SLOT_RETRY_SECONDS = 1
# Tokens per character, as DeepSeek's documentation has it; Chinese takes twice as many.
_TOKENS_PER_CHARACTER = 0.3
# Requests that ended while the engine could not be used, some hundred bytes each.
_MOST_WAITING = 100_000

Holder = NamedKey | KeyGroup


class Estimate(NamedTuple):
    """What a request may use. `price` gives what tokens cost, in billionths of a dollar, or None if it is unknown."""

    prompt: int
    output: int
    price: Callable[[Tokens], int | None]


class Admission(NamedTuple):
    """The reservation of one request, to be settled once. Used by one thread at a time."""

    id: str
    holders: Sequence[Holder]
    holds: tuple[Hold, ...]
    estimate: Estimate
    limiter: "Limiter"

    def end(self, event: Terminal) -> None:
        """Settle what the request used, as its last event says."""
        cost = event.cost if isinstance(event, Finished) else None
        amount = round(cost.amount * BILLION) if cost is not None and cost.currency == USD else None
        self.settle(_used_tokens(event, self.estimate), amount)

    def settle(self, tokens: Tokens | None, cost: int | None = None) -> None:
        """Settle these tokens, at this cost if it is known; None: all that was reserved."""
        if tokens is not None and cost is None:
            cost = self.estimate.price(tokens)
        used = None if tokens is None else tokens.prompt + tokens.output
        self.limiter.settle(self, [Spent(hold.counter, _amount(hold, used, cost)) for hold in self.holds])


def _amount(hold: Hold, tokens: int | None, cost: int | None) -> int:
    known = {"concurrent": 0, "requests_per_minute": 1, "tokens_per_minute": tokens}
    used = known.get(hold.counter.limit, cost)
    return hold.amount if used is None else used


def _used_tokens(event: Terminal, estimate: Estimate) -> Tokens | None:
    """What a request used; None for all that was reserved."""
    nothing = Tokens(0, 0, 0)
    if isinstance(event, PassedThrough):
        # The answer of another upstream is not read.
        return None if event.may_cost else nothing
    if not isinstance(event, Finished) or event.is_cached:
        return nothing
    if event.tokens is not None:
        return event.tokens
    if event.timing.connect is None:
        return nothing
    messages = [event.message, *event.other_messages]
    if characters := sum(_characters(message) for message in messages if message is not None):
        return Tokens(0, estimate.prompt, math.ceil(characters * _TOKENS_PER_CHARACTER))
    return nothing if event.end.result is Result.FAILED else None


def _characters(message: Message) -> int:
    content = message.content if isinstance(message.content, str) else ""
    calls = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return len(content) + len(message.reasoning or "") + calls


class Limiter:
    """Called by any thread. `_lock` protects all fields below it."""

    def __init__(self, store: "LimitTables | SharedLimits", now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now = now
        self._thread = BackgroundThread("key-limits")
        self._lock = threading.Lock()
        self._running: set[str] = set()
        # What the engine has not taken, oldest first; the oldest go beyond the bound.
        self._waiting: deque[tuple[Admission, Sequence[Spent]]] = deque(maxlen=_MOST_WAITING)
        # What was last known to be spent, of periods that have not ended.
        self._spent: dict[Counter, int] = {}
        # Since when the engine cannot be used, and a database in memory that counts meanwhile.
        self._outage_since: float | None = None
        self._spare: Database | None = None

    def admit(self, key: NamedKey, group: KeyGroup | None, estimate: Callable[[], Estimate]) -> Admission | None:
        """Reserve what a request may use; None if it has no limit. Raises a ProxyError if a limit has no room."""
        holders = [each for each in (key, group) if each is not None and any(each.limits)]
        if not holders:
            return None
        now, found = self._now(), estimate()
        holds = _holds(holders, found, now)
        admission = Admission(os.urandom(12).hex(), holders, holds, found, self)
        if (refusal := self._reserve(admission, now)) is not None:
            raise _refuse(refusal, now)
        with self._lock:
            self._running.add(admission.id)
        self._thread.run(self._renew, _SECONDS_BETWEEN_RENEWALS)
        return admission

    def usage(self, counters: Sequence[Counter]) -> Sequence[Used]:
        """What is used of these counters. Raises Unusable."""
        return self._store.usage(counters, self._now())

    def close(self) -> None:
        """Write what waits, if the engine can be used; idempotent. The owner of the engine closes it."""
        self._thread.close()
        with suppress(Unusable):
            self._write_waiting()
        if self._spare is not None:
            self._spare.close()

    # Reserving …

    def _reserve(self, admission: Admission, now: float) -> Refusal | None:
        while True:
            if self._outage_since is None:
                try:
                    return self._store.reserve(admission.id, admission.holds, now)
                except Unusable as fault:
                    self._begin_outage(fault, now)
            with self._lock:
                # Unless it has just ended.
                if self._spare is not None and self._outage_since is not None:
                    self._check_grace(admission, now - self._outage_since)
                    return LimitTables(self._spare).reserve(admission.id, admission.holds, now)

    def _check_grace(self, admission: Admission, seconds: float) -> None:
        if seconds > GRACE_SECONDS and any(hold.counter.limit in BUDGETS for hold in admission.holds):
            raise Overloaded(
                "The proxy cannot count what this key has spent at the moment. The key is fine; try again soon.",
                retry_after=_RETRY_AFTER_SECONDS,
            )

    def _begin_outage(self, fault: Unusable, now: float) -> None:
        with self._lock:
            if self._outage_since is not None:
                return
            self._outage_since, self._spare = now, Database(":memory:")
            self._spare.open()
            LimitTables(self._spare).settle("known", list(starmap(Spent, self._spent.items())), now)
        _log.warning("the limits of keys are kept by this process alone, by what it knows: %s", fault)
        self._thread.run(self._renew, _SECONDS_BETWEEN_RENEWALS)

    # Settling …

    def settle(self, admission: Admission, spent: Sequence[Spent]) -> None:
        with self._lock:
            self._running.discard(admission.id)
            if self._spare is not None:
                LimitTables(self._spare).settle(admission.id, spent, self._now())
                self._waiting.append((admission, spent))
                return
        try:
            self._record(admission, spent)
        except Unusable as fault:
            with self._lock:
                self._waiting.append((admission, spent))
            self._begin_outage(fault, self._now())

    def _record(self, admission: Admission, spent: Sequence[Spent]) -> None:
        """Have the engine settle; warn of a budget that has reached `warn_at`. Raises Unusable."""
        now = self._now()
        totals = self._store.settle(admission.id, spent, now)
        if totals is None:
            return
        with self._lock:
            self._spent.update({each.counter: total for each, total in zip(spent, totals, strict=True)})
            for counter in [counter for counter in self._spent if counter.resets <= now]:
                del self._spent[counter]
        warn_at = {holder.holder: holder.warn_at for holder in admission.holders}
        for hold, (counter, amount), total in zip(admission.holds, spent, totals, strict=True):
            share = warn_at[counter.holder]
            # Exactly one request, of those of all processes, takes the sum across the mark.
            if share is not None and counter.limit in BUDGETS and total - amount < share * hold.most <= total:
                used, resets = _describe(counter.limit, total, hold.most), format_moment(counter.resets)
                _log.warning("%s: %s used of %s, which resets at %s", counter.holder, used, counter.limit, resets)

    # On the limiter's thread …

    def _renew(self) -> float | None:
        with self._lock:
            ids, is_idle = tuple(self._running), not self._running and self._spare is None
        if is_idle:
            return None
        try:
            # Without ids it only finds out whether the engine can be used.
            self._store.renew(ids, self._now())
            self._write_waiting()
        except Unusable as fault:
            self._begin_outage(fault, self._now())
        return _SECONDS_BETWEEN_RENEWALS

    def _write_waiting(self) -> None:
        """Write what waited, and count with the engine again. Raises Unusable."""
        count = 0
        while True:
            with self._lock:
                if not self._waiting:
                    spare, self._spare, self._outage_since = self._spare, None, None
                    break
                entry = self._waiting[0]
            self._record(*entry)
            with self._lock:
                # Beyond its bound the deque has dropped it.
                if self._waiting and self._waiting[0] is entry:
                    self._waiting.popleft()
            count += 1
        if spare is not None:
            spare.close()
            _log.warning("the limits of keys are counted as before; requests that ended meanwhile: %d", count)


def counters(holder: Holder, now: float) -> list[tuple[Counter, int]]:
    """The counters of a holder's limits at that moment, each with the most that it may have."""
    found = []
    for limit, most in holder.limits._asdict().items():
        if most is not None:
            counter = Counter(holder.holder, limit, _resets(limit, now))
            found.append((counter, round(most * BILLION) if limit in BUDGETS else int(most)))
    return found


def counted(limit: str, used: Used) -> Used:
    """What is used for good, and what running requests have reserved but may not need: tokens and money alone."""
    return used if limit in (*BUDGETS, "tokens_per_minute") else Used(used.total)


def _resets(limit: str, now: float) -> int:
    """When the period of a limit ends; 0 if it has none."""
    if limit == "concurrent":
        return 0
    if limit == "usd_per_day":
        return (int(now) // 86400 + 1) * 86400
    if limit == "usd_per_month":
        day = datetime.fromtimestamp(now, UTC)
        return int(datetime(day.year + day.month // 12, day.month % 12 + 1, 1, tzinfo=UTC).timestamp())
    return (int(now) // 60 + 1) * 60


def _holds(holders: Sequence[Holder], estimate: Estimate, now: float) -> tuple[Hold, ...]:
    """What a request reserves; budgets first, because waiting a minute does not help against these."""
    holds, cost = [], estimate.price(Tokens(0, estimate.prompt, estimate.output))
    for counter, most in chain(*(counters(holder, now) for holder in holders)):
        amount = 1
        if counter.limit in BUDGETS:
            if cost is None:
                raise PriceUnknown(
                    f"The price of this model is not known, and {_person(counter.holder)} has a budget. The owner of "
                    "the proxy adds the price to [prices]."
                )
            amount = cost
        elif counter.limit == "tokens_per_minute":
            amount = estimate.prompt + estimate.output
        holds.append(Hold(counter, max(1, amount), most))
    return tuple(sorted(holds, key=lambda hold: Limits._fields.index(hold.counter.limit)))


def _refuse(refusal: Refusal, now: float) -> OverLimit:
    """The error for a request without room, in words: which limit, how much is used and reserved, when it resets."""
    hold, used = refusal
    (_, limit, resets), amount, most = hold
    spent, reserved = counted(limit, used)
    name, figures = f"The limit {limit} of {_person(hold.counter.holder)}", [f"{_describe(limit, spent, most)} used"]
    if limit == "concurrent":
        text = f"{name} is reached: {figures[0]} by requests that run. Try again when one has ended."
        return OverLimit(text, retry_after=_SLOT_RETRY_SECONDS)
    if reserved:
        figures.append(f"{_describe(limit, reserved)} reserved by requests that run")
    if used.total < most:
        figures.append(f"and this request may use {_describe(limit, amount)}")
    if reserved and hold.fits(spent):
        text = f"{name} has no room at the moment: {', '.join(figures)}. Try again when one has ended."
        return OverLimit(text, retry_after=_RETRY_AFTER_SECONDS)
    text = f"{name} is reached: {', '.join(figures)}. It resets at {format_moment(resets)}."
    if limit in BUDGETS:
        return OverBudget(f"{text} The owner of the proxy can raise it.")
    return OverLimit(text, retry_after=max(1, math.ceil(resets - now)))


def _person(holder: str) -> str:
    table, _, name = holder.partition(".")
    return f"the {table.removesuffix('s')} {name}"


def _describe(limit: str, used: int, most: int | None = None) -> str:
    """An amount, or how much of the most: `$4.98 of $5.00`, `60 of 60`."""
    amounts = [each for each in (used, most) if each is not None]
    return " of ".join(format_amount(each / BILLION, USD, 4) if limit in BUDGETS else f"{each:,}" for each in amounts)
