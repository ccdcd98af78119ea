"""What was used, as JSON: GET /api/usage, the sums of today, and GET /api/keys: named keys, groups and their limits.

The ledger may have hundreds of thousands of rows, so it is read over a connection of its own: no lookup of a chat waits
for it. One thread reads at a time, and a report serves for some seconds, however many pages ask for it. Its days are
those of this machine's clock; figures of limits are those of all processes that share them.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import date
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepseek_cursor_proxy.deepseek.prices import PriceList
from deepseek_cursor_proxy.errors import BadRequest, Overloaded
from deepseek_cursor_proxy.features.dashboard.context import AdminContext
from deepseek_cursor_proxy.features.usage import ledger
from deepseek_cursor_proxy.features.usage.report import GROUPS, Period, make_report, sum_day
from deepseek_cursor_proxy.storage.database import Database, open_read_only
from deepseek_cursor_proxy.storage.faults import Unusable

if TYPE_CHECKING:
    from deepseek_cursor_proxy.config.named_keys import KeyGroup, NamedKey
    from deepseek_cursor_proxy.proxy import Proxy

_DEFAULT_DAYS = 30


def report(context: AdminContext, parameters: Mapping[str, str]) -> dict[str, Any]:
    """The sums that a query asks for; BadRequest for one that makes no sense, Overloaded for a store that fails."""
    period, by = _period(parameters), parameters.get("by", "day")
    if by not in GROUPS:
        raise BadRequest(f"The parameter by is none of {', '.join(GROUPS)}.", param="by")
    return _read(
        context, (period, by), lambda connection, prices: make_report(connection, period, by, prices).as_json()
    )


def today(context: AdminContext) -> dict[str, Any] | None:
    """The sums of today; None while the store cannot be read."""
    day = date.today()
    with suppress(Overloaded):
        return _read(context, day, lambda connection, prices: sum_day(connection, day, prices.currency).sums_json())
    return None


def _read(context: AdminContext, key: object, read: Callable[[ledger.Reader, PriceList], Any]) -> dict[str, Any]:
    services = context.services()

    def compute() -> Any:
        services.ledger.flush()
        with ledger_connection(services.reasoning_store.database) as connection:
            return read(connection, services.prices)

    value: dict[str, Any] = context.reports.read((key, services.config.currency), compute)
    return value


@contextmanager
def ledger_connection(database: Database) -> Iterator[ledger.Reader]:
    """A connection for reading; Overloaded for a store that cannot be used."""
    try:
        if database.path == ":memory:":
            with database.reader() as connection:
                yield connection
        else:
            with open_read_only(Path(database.path), "usage") as connection:
                yield connection
    except (Unusable, FileNotFoundError) as error:
        raise Overloaded(f"The store cannot be read: {error}.", retry_after=5) from None


def _period(parameters: Mapping[str, str]) -> Period:
    until = _day(parameters, "until") or date.today()
    days = parameters.get("days", _DEFAULT_DAYS)
    if not re.fullmatch("[1-9][0-9]{0,5}", str(days)):
        raise BadRequest("The parameter days is no number of days.", param="days")
    since = _day(parameters, "since") or date.fromordinal(max(1, until.toordinal() - int(days) + 1))
    if since > until:
        raise BadRequest("The parameter since is after until.", param="since")
    return Period(since, until)


def _day(parameters: Mapping[str, str], name: str) -> date | None:
    text = parameters.get(name)
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise BadRequest(f"The parameter {name} is no day such as 2026-11-01.", param=name) from None


# Named keys …


def keys(context: AdminContext) -> dict[str, Any]:
    services, now = context.services(), time.time()
    try:
        limits = _limits_by_holder(services, now)
    except Unusable as fault:
        raise Overloaded(f"The limits cannot be read: {fault}.", retry_after=5) from None
    today = date.today().isoformat()
    used_today = report(context, {"since": today, "until": today, "by": "key"})
    sums = {group["name"]: group for group in used_today["groups"]}

    def row(holder: "NamedKey | KeyGroup") -> dict[str, Any]:
        return {"name": holder.name, "note": holder.note, "limits": limits.get(holder.holder, [])}

    def key_row(named: "NamedKey") -> dict[str, Any]:
        of_key = {"group": named.group or None, "models": list(named.models), "expires_at": named.expires}
        used = sums.get(named.name, {"requests": 0, "cost": 0.0})
        return {**row(named), **of_key, "requests_today": used["requests"], "cost_today": used["cost"]}

    config = services.config
    return {
        "now": now,
        "currency": used_today["currency"],
        "groups": [{**row(group), "share_reasoning": group.share_reasoning} for group in config.groups.values()],
        "keys": list(map(key_row, config.keys.values())),
    }


def _limits_by_holder(services: "Proxy", now: float) -> dict[str, list[dict[str, Any]]]:
    """By holder, its limits with what is used of each; amounts of money in dollars. Raises Unusable."""
    if services.limiter is None:
        return {}
    # Only here: a proxy without named keys is smaller without.
    from deepseek_cursor_proxy.features.keys.limits import BILLION, BUDGETS, counted, counters

    holders: list[NamedKey | KeyGroup] = [*services.config.groups.values(), *services.config.keys.values()]
    found = list(chain(*(counters(holder, now) for holder in holders)))
    used = services.limiter.usage([counter for counter, _ in found])
    limits: dict[str, list[dict[str, Any]]] = {}
    for (counter, most), each in zip(found, used, strict=True):
        spent, reserved = counted(counter.limit, each)
        is_money = counter.limit in BUDGETS
        unit = BILLION if is_money else 1
        kind = {"limit": counter.limit, "is_money": is_money, "resets_at": counter.resets or None}
        figures = {"used": spent / unit, "reserved": reserved / unit, "most": most / unit}
        limits.setdefault(counter.holder, []).append({**kind, **figures})
    return limits
