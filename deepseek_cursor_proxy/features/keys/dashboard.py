"""GET /api/keys: named keys, groups and their limits. Figures of limits are those of all processes that share them."""

import time
from collections.abc import Mapping
from datetime import date
from itertools import chain
from typing import Any

from deepseek_cursor_proxy.config.named_keys import NamedKey
from deepseek_cursor_proxy.errors import Overloaded
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.features.dashboard.service import AdminContext
from deepseek_cursor_proxy.features.keys.feature import Keys
from deepseek_cursor_proxy.features.keys.limits import BILLION, BUDGETS, Holder, counted, counters
from deepseek_cursor_proxy.storage.faults import Unusable


def keys(context: AdminContext, fields: Mapping[str, str]) -> dict[str, Any]:
    services, now = context.services(), time.time()
    try:
        limits = _limits_by_holder(services, now)
    except Unusable as fault:
        raise Overloaded(f"The limits cannot be read: {fault}.", retry_after=5) from None
    sums = _used_today(context)

    def row(holder: Holder) -> dict[str, Any]:
        return {"name": holder.name, "note": holder.note, "limits": limits.get(holder.holder, [])}

    def key_row(named: NamedKey) -> dict[str, Any]:
        of_key = {"group": named.group or None, "models": list(named.models), "expires_at": named.expires}
        used = sums.get(named.name, {"requests": 0, "cost": 0.0})
        return {**row(named), **of_key, "requests_today": used["requests"], "cost_today": used["cost"]}

    config = services.config
    return {
        "now": now,
        "currency": services.config.currency,
        "groups": [{**row(group), "share_reasoning": group.share_reasoning} for group in config.groups.values()],
        "keys": list(map(key_row, config.keys.values())),
    }


def _used_today(context: AdminContext) -> dict[str, dict[str, Any]]:
    """By name of a key, the sums of today; empty without the feature `usage`."""
    if not context.services().has("usage"):
        return {}
    from deepseek_cursor_proxy.features.usage import dashboard

    today = date.today().isoformat()
    found = dashboard.report(context, {"since": today, "until": today, "by": "key"})
    return {group["name"]: group for group in found["groups"]}


def _limits_by_holder(services: Services, now: float) -> dict[str, list[dict[str, Any]]]:
    """By holder, its limits with what is used of each; amounts of money in dollars. Raises Unusable."""
    limiter = services.get(Keys).limiter
    if limiter is None:
        return {}
    holders: list[Holder] = [*services.config.groups.values(), *services.config.keys.values()]
    found = list(chain(*(counters(holder, now) for holder in holders)))
    used = limiter.usage([counter for counter, _ in found])
    limits: dict[str, list[dict[str, Any]]] = {}
    for (counter, most), each in zip(found, used, strict=True):
        spent, reserved = counted(counter.limit, each)
        is_money = counter.limit in BUDGETS
        unit = BILLION if is_money else 1
        kind = {"limit": counter.limit, "is_money": is_money, "resets_at": counter.resets or None}
        figures = {"used": spent / unit, "reserved": reserved / unit, "most": most / unit}
        limits.setdefault(counter.holder, []).append({**kind, **figures})
    return limits
