"""GET /api/keys: the named keys and groups, what each has used of its limits, what is left, and when that resets.

Figures of limits are the engine's, so they are those of all processes that share it; the sums of today are the
ledger's, by the days of this machine's clock.
"""

import time
from datetime import date
from itertools import chain
from typing import TYPE_CHECKING, Any

from deepseek_cursor_proxy.admin import usage
from deepseek_cursor_proxy.admin.context import AdminContext
from deepseek_cursor_proxy.errors import Overloaded
from deepseek_cursor_proxy.storage.faults import Unusable

if TYPE_CHECKING:
    from deepseek_cursor_proxy.config.named_keys import KeyGroup, NamedKey
    from deepseek_cursor_proxy.exchange.services import Services


def keys(context: AdminContext) -> dict[str, Any]:
    services, now = context.services(), time.time()
    try:
        limits = _limits(services, now)
    except Unusable as fault:
        raise Overloaded(f"The limits cannot be read: {fault}.", retry_after=5) from None
    today = date.today().isoformat()
    report = usage.report(context, {"since": today, "until": today, "by": "key"})
    sums = {group["name"]: group for group in report["groups"]}

    def row(holder: "NamedKey | KeyGroup") -> dict[str, Any]:
        return {"name": holder.name, "note": holder.note, "limits": limits.get(holder.holder, [])}

    def key_row(named: "NamedKey") -> dict[str, Any]:
        of_key = {"group": named.group or None, "models": list(named.models), "expires_at": named.expires}
        used = sums.get(named.name, {"requests": 0, "cost": 0.0})
        return {**row(named), **of_key, "requests_today": used["requests"], "cost_today": used["cost"]}

    config = services.config
    return {
        "now": now,
        "currency": report["currency"],
        "groups": [{**row(group), "share_reasoning": group.share_reasoning} for group in config.groups.values()],
        "keys": list(map(key_row, config.keys.values())),
    }


def _limits(services: "Services", now: float) -> dict[str, list[dict[str, Any]]]:
    """By holder, its limits with what is used of each; amounts of money in dollars. Raises Unusable."""
    if services.limiter is None:
        return {}
    # Only here: a proxy without named keys is smaller without.
    from deepseek_cursor_proxy.usage.limits import BILLION, BUDGETS, counters

    holders: list[NamedKey | KeyGroup] = [*services.config.groups.values(), *services.config.keys.values()]
    found = list(chain(*(counters(holder, now) for holder in holders)))
    used = services.limiter.usage([counter for counter, _ in found])
    limits: dict[str, list[dict[str, Any]]] = {}
    for (counter, most), (spent, reserved) in zip(found, used, strict=True):
        is_money = counter.limit in BUDGETS
        unit = BILLION if is_money else 1
        kind = {"limit": counter.limit, "is_money": is_money, "resets_at": counter.resets or None}
        figures = {"used": (spent + reserved) / unit, "reserved": reserved / unit, "most": most / unit}
        limits.setdefault(counter.holder, []).append({**kind, **figures})
    return limits
