"""Sums of the ledger over some days, by day, model, key, API or session; as values, and as JSON for the admin API.

Sums by day, model, key and API come from the sums of days, which are kept for ever; those by session, and how long
requests took, from the rows, which are kept for some months. All amounts are in one currency: what was recorded in
another counts as unknown. They are estimates.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

from deepseek_cursor_proxy.observers.events import Result
from deepseek_cursor_proxy.storage.sqlite import usage_rows
from deepseek_cursor_proxy.storage.sqlite.usage_rows import DayGroup, DaySums, add_sums
from deepseek_cursor_proxy.usage.ledger import day_of

GROUPS = ("day", "model", "key", "api", "session")
# What a group without a name is called: a request that came not so far, or a key that was refused.
NAMELESS = "-"
_FAILURES = (Result.FAILED.value, Result.REFUSED.value)


class Period(NamedTuple):
    """Days of this machine's clock, both included."""

    since: date
    until: date

    @classmethod
    def last_days(cls, days: int, today: date) -> "Period":
        return cls(today - timedelta(days=days - 1), today)

    @property
    def moments(self) -> tuple[float, float]:
        """Its first moment and the one after its last, as Unix times."""
        begin, end = (datetime(day.year, day.month, day.day) for day in self)
        return _unix_time(lambda: begin, float("-inf")), _unix_time(lambda: end + timedelta(days=1), float("inf"))


class Percentiles(NamedTuple):
    p50: float
    p95: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Percentiles | None":
        found = sorted(values)
        if not found:
            return None
        last = len(found) - 1
        return cls(found[round(last * 0.5)], found[round(last * 0.95)])


class UsageGroup(NamedTuple):
    name: str
    sums: DaySums
    # Of requests that were completed; None if there is no row of one.
    seconds: Percentiles | None = None
    first_token_seconds: Percentiles | None = None

    @property
    def cost(self) -> float | None:
        """None if there is nothing but unknown costs."""
        return None if self.sums.unknown_costs and not self.sums.cost else self.sums.cost


class UsageReport(NamedTuple):
    period: Period
    by: str
    currency: str
    groups: tuple[UsageGroup, ...]
    total: UsageGroup
    days: Mapping[str, Mapping[str, DaySums]]

    def as_json(self) -> dict[str, Any]:
        return {
            "since": self.period.since.isoformat(),
            "until": self.period.until.isoformat(),
            "by": self.by,
            "currency": self.currency,
            "estimate": True,
            "groups": [{"name": group.name, **_group_fields(group)} for group in self.groups],
            "total": _group_fields(self.total),
            "days": [
                {"day": day, "models": {model: _day_fields(sums) for model, sums in models.items()}}
                for day, models in self.days.items()
            ],
        }


def make_report(connection: sqlite3.Connection, period: Period, by: str, currency: str) -> UsageReport:
    """The sums of a period; an empty report if the file has no ledger yet."""
    if not usage_rows.has_tables(connection):
        return UsageReport(period, by, currency, (), UsageGroup("", DaySums()), {})
    read = usage_rows.read_days(connection, period.since.isoformat(), period.until.isoformat())
    days = [(group, _in_currency(sums, group.currency, currency)) for group, sums in read]
    if by == "session":
        sessions = usage_rows.sum_sessions(connection, *period.moments, _FAILURES)
        sums = _sum_by((name or NAMELESS, _in_currency(each, kept, currency)) for name, kept, each in sessions)
    else:
        sums = _sum_by((getattr(group, by) or NAMELESS, each) for group, each in days)
    times, all_times = _read_times(connection, period, by)
    groups = [_group(name, found, times[name]) for name, found in sums.items()]
    total = _group("", add_sums(sums.values()), all_times)
    return UsageReport(period, by, currency, tuple(sorted(groups, key=_order(by))), total, _by_day_and_model(days))


def sum_day(connection: sqlite3.Connection, day: date, currency: str) -> UsageGroup:
    """The sums of one day, without how long its requests took: read in an instant."""
    if not usage_rows.has_tables(connection):
        return UsageGroup("", DaySums())
    kept = usage_rows.read_days(connection, day.isoformat(), day.isoformat())
    return UsageGroup(day.isoformat(), add_sums(_in_currency(sums, group.currency, currency) for group, sums in kept))


def _order(by: str) -> Any:
    """Days in order; other groups with the most expensive first."""
    return (
        (lambda group: group.name)
        if by == "day"
        else (lambda group: (-group.sums.cost, -group.sums.requests, group.name))
    )


class _Times:
    """How long completed requests took, in all and until the first token."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.first_token_seconds: list[float] = []

    def add(self, seconds: float, first: float | None) -> None:
        self.seconds.append(seconds)
        if first is not None:
            self.first_token_seconds.append(first)


def _read_times(connection: sqlite3.Connection, period: Period, by: str) -> tuple[Mapping[str, _Times], _Times]:
    """The times of every group, and all of them. Only these columns: there may be hundreds of thousands of rows."""
    groups: dict[str, _Times] = defaultdict(_Times)
    together = _Times()
    column, done = "ended_at" if by == "day" else by, Result.COMPLETED.value
    for value, seconds, first in usage_rows.read_times(connection, *period.moments, column, done):
        name = day_of(value) if by == "day" else value or NAMELESS
        groups[name].add(seconds, first)
        together.add(seconds, first)
    return groups, together


def _group(name: str, sums: DaySums, times: _Times) -> UsageGroup:
    return UsageGroup(name, sums, Percentiles.of(times.seconds), Percentiles.of(times.first_token_seconds))


def _sum_by(named: Iterable[tuple[str, DaySums]]) -> dict[str, DaySums]:
    found: dict[str, list[DaySums]] = defaultdict(list)
    for name, each in named:
        found[name].append(each)
    return {name: add_sums(each) for name, each in found.items()}


def _by_day_and_model(days: Iterable[tuple[DayGroup, DaySums]]) -> dict[str, dict[str, DaySums]]:
    found: dict[str, dict[str, DaySums]] = {}
    for group, sums in days:
        models, model = found.setdefault(group.day, {}), group.model or NAMELESS
        models[model] = add_sums([models.get(model, DaySums()), sums])
    return found


def _in_currency(sums: DaySums, currency: str, wanted: str) -> DaySums:
    """The sums without amounts of another currency, whose requests then have unknown costs."""
    if currency in ("", wanted):
        return sums
    return sums._replace(unknown_costs=sums.requests, cost=0.0, saved=0.0, divergence_cost=0.0)


def _unix_time(moment: Callable[[], datetime], otherwise: float) -> float:
    """The Unix time of a moment, unless that is beyond the years of Python or the system."""
    try:
        return moment().timestamp()
    except (OverflowError, ValueError, OSError):
        return otherwise


def _group_fields(group: UsageGroup) -> dict[str, Any]:
    sums = group.sums
    return {
        "requests": sums.requests,
        "failed": sums.failed,
        "hit_tokens": sums.hit,
        "miss_tokens": sums.miss,
        "output_tokens": sums.output,
        "thinking_tokens": sums.thinking,
        "searches": sums.searches,
        "cost": group.cost,
        "unknown_cost_requests": sums.unknown_costs,
        "saved": sums.saved,
        "divergence_cost": sums.divergence_cost,
        "seconds": group.seconds._asdict() if group.seconds is not None else None,
        "first_token_seconds": group.first_token_seconds._asdict() if group.first_token_seconds is not None else None,
    }


def _day_fields(sums: DaySums) -> dict[str, Any]:
    return {
        "cost": UsageGroup("", sums).cost,
        "hit_tokens": sums.hit,
        "miss_tokens": sums.miss,
        "output_tokens": sums.output,
        "thinking_tokens": sums.thinking,
        "requests": sums.requests,
    }
