"""Sums of the ledger over some days, by day, model, key, API, session or cause of a lost prefix; as values and as JSON.

Sums by day, model, key and API come from the sums of days, which are kept for ever; those by session and by cause, and
how long requests took, from the rows, which are kept for some months. All amounts are in one currency: what was
recorded in another counts as unknown. They are estimates.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from deepseek_cursor_proxy.deepseek.model_resolver import known_model
from deepseek_cursor_proxy.deepseek.prices import PriceList
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.features.request_log.feature import Percentiles
from deepseek_cursor_proxy.features.usage import ledger
from deepseek_cursor_proxy.features.usage.ledger import FAILURES, DayGroup, DaySums, add_sums, day_of
from deepseek_cursor_proxy.observers.events import Result, caller_digest
from deepseek_cursor_proxy.reasoning.chats import cause_of

GROUPS = ("day", "model", "key", "api", "session", "cause")
# What a group without a name is called: a request that ended before it had one, or a refused key.
NAMELESS = "-"
_Name = TypeVar("_Name", bound=Hashable)
# Groups that the sums of days do not have, and the column of the rows with their names.
_COLUMNS = {"session": "session", "cause": "divergence"}
# The names in JSON, where they are not those of DaySums.
_JSON_NAMES = {name: f"{name}_tokens" for name in ("hit", "miss", "output", "thinking")}
_JSON_NAMES["unknown_costs"] = "unknown_cost_requests"


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
        return _unix_time(self.since, 0, float("-inf")), _unix_time(self.until, 1, float("inf"))


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

    def sums_json(self) -> dict[str, Any]:
        sums = {_JSON_NAMES.get(name, name): value for name, value in self.sums._asdict().items()}
        return {**sums, "cost": self.cost}

    def as_json(self) -> dict[str, Any]:
        times = {"seconds": self.seconds, "first_token_seconds": self.first_token_seconds}
        return {**self.sums_json(), **{name: value and value._asdict() for name, value in times.items()}}


class Switched(NamedTuple):
    """Requests for one of DeepSeek's models that another one answered, such as those of sub-agents."""

    requests: int = 0
    cost: float = 0.0
    # What they would have cost at the model that was asked for.
    asked_cost: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "saved": self.asked_cost - self.cost}


class UsageReport(NamedTuple):
    period: Period
    by: str
    currency: str
    groups: tuple[UsageGroup, ...]
    total: UsageGroup
    # By day and model.
    days: Mapping[tuple[str, str], DaySums]
    switched: Switched = Switched()

    def as_json(self) -> dict[str, Any]:
        days: dict[str, dict[str, Any]] = {}
        for (day, model), sums in self.days.items():
            days.setdefault(day, {})[model] = UsageGroup(model, sums).sums_json()
        return {
            "since": self.period.since.isoformat(),
            "until": self.period.until.isoformat(),
            "by": self.by,
            "currency": self.currency,
            "estimate": True,
            "groups": [{"name": group.name, **group.as_json()} for group in self.groups],
            "total": self.total.as_json(),
            "days": [{"day": day, "models": models} for day, models in days.items()],
            "switched": self.switched.as_json(),
        }


def make_report(connection: ledger.Reader, period: Period, by: str, prices: PriceList) -> UsageReport:
    """The sums of a period in the currency of the prices."""
    currency = prices.currency
    days = _read_days(connection, period, currency)
    # A key that got its name later was called by its digest before.
    named = ledger.read_key_names(connection).items() if by == "key" else ()
    names = {caller_digest(namespace): name for namespace, name in named}
    if by in _COLUMNS:
        parts = ledger.sum_by(connection, _COLUMNS[by], *period.moments, FAILURES)
        sums = _sum_by((_name(by, value), _in_currency(part, kept, currency)) for value, kept, part in parts)
    else:
        sums = _sum_by((names.get(name := getattr(group, by), name) or NAMELESS, part) for group, part in days)
    times = _read_times(connection, period, by, names)
    groups = [_group(name, added, times[name]) for name, added in sums.items()]
    # Days are in order; of other groups the most expensive comes first.
    if by != "day":
        groups.sort(key=lambda group: (-group.sums.cost, -group.sums.requests, group.name))
    total = _group("", add_sums(sums.values()), list(chain(*times.values())))
    by_model = _sum_by(((group.day, group.model or NAMELESS), part) for group, part in days)
    return UsageReport(period, by, currency, tuple(groups), total, by_model, _sum_switched(connection, period, prices))


def _sum_switched(connection: ledger.Reader, period: Period, prices: PriceList) -> Switched:
    found = Switched()
    rows = ledger.sum_switched(connection, *period.moments, prices.currency)
    for requested, model, hour, requests, hit, miss, output, searches, cost in rows:
        asked = known_model(requested)
        if asked is None or asked == model:
            continue
        asked_cost = prices.cost(asked, Tokens(hit, miss, output, 0, searches), hour * 3600)
        if asked_cost is not None:
            amount = found.asked_cost + asked_cost.amount
            found = Switched(found.requests + requests, found.cost + cost, amount)
    return found


def sum_day(connection: ledger.Reader, day: date, currency: str) -> UsageGroup:
    """The sums of one day, without how long its requests took: read in an instant."""
    days = _read_days(connection, Period(day, day), currency)
    return UsageGroup(day.isoformat(), add_sums(sums for _, sums in days))


def _read_days(connection: ledger.Reader, period: Period, currency: str) -> list[tuple[DayGroup, DaySums]]:
    days = ledger.read_days(connection, period.since.isoformat(), period.until.isoformat())
    return [(group, _in_currency(sums, group.currency, currency)) for group, sums in days]


# How long a completed request took, in all and until the first token.
_Times = tuple[float, float | None]


def _read_times(
    connection: ledger.Reader, period: Period, by: str, names: Mapping[str, str]
) -> Mapping[str, list[_Times]]:
    """The times of every group. Only these columns: there may be hundreds of thousands of rows."""
    groups: dict[str, list[_Times]] = defaultdict(list)
    column = "ended_at" if by == "day" else _COLUMNS.get(by, by)
    for value, total, first in ledger.read_times(connection, *period.moments, column, Result.COMPLETED.value):
        groups[names.get(name := _name(by, value), name)].append((total, first))
    return groups


def _name(by: str, value: Any) -> str:
    """The group of a row, by what its column has."""
    if by == "day":
        return day_of(value)
    return (cause_of(value) if by == "cause" and value else value) or NAMELESS


def _group(name: str, sums: DaySums, times: Sequence[_Times]) -> UsageGroup:
    firsts = [first for _, first in times if first is not None]
    return UsageGroup(name, sums, Percentiles.of(total for total, _ in times), Percentiles.of(firsts))


def _sum_by(named: Iterable[tuple[_Name, DaySums]]) -> dict[_Name, DaySums]:
    parts: dict[_Name, list[DaySums]] = defaultdict(list)
    for name, sums in named:
        parts[name].append(sums)
    return {name: add_sums(sums) for name, sums in parts.items()}


def _in_currency(sums: DaySums, currency: str, wanted: str) -> DaySums:
    """The sums without amounts of another currency, whose requests then have unknown costs."""
    if currency in ("", wanted):
        return sums
    return sums._replace(unknown_costs=sums.requests, cost=0.0, saved=0.0, divergence_cost=0.0)


def _unix_time(day: date, days: int, otherwise: float) -> float:
    """The Unix time when a day begins, or one some days later; `otherwise` beyond the years of Python or the system."""
    try:
        return (datetime(day.year, day.month, day.day) + timedelta(days)).timestamp()
    except (OverflowError, ValueError, OSError):
        return otherwise
