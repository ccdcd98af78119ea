"""What was used, as JSON: GET /api/usage. Its days are those of this machine's clock."""

import re
from collections.abc import Mapping
from datetime import date
from typing import Any

from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.features.dashboard.context import AdminContext
from deepseek_cursor_proxy.features.usage.feature import Usage
from deepseek_cursor_proxy.features.usage.report import GROUPS, Period, make_report

_DEFAULT_DAYS = 30


def report(context: AdminContext, parameters: Mapping[str, str]) -> dict[str, Any]:
    """The sums that a query asks for; BadRequest for one that makes no sense, Overloaded for a store that fails."""
    period, by = _period(parameters), parameters.get("by", "day")
    if by not in GROUPS:
        raise BadRequest(f"The parameter by is none of {', '.join(GROUPS)}.", param="by")
    services = context.services()
    found: dict[str, Any] = services.get(Usage).read(
        services, (period, by), lambda connection: make_report(connection, period, by, services.prices).as_json()
    )
    return found


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
