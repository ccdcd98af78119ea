"""The ledger as JSON for the dashboard: sums (/api/usage), and the requests that it knows (/api/requests).

Days are those of this machine's clock. The requests take the place of the dashboard's own, which are those in memory.
The id of a request in memory is its number; one of the ledger has the negative id of its row. Of these only figures are
kept.
"""

import re
from collections.abc import Mapping
from datetime import date
from typing import Any

from deepseek_cursor_proxy.deepseek.prices import Cost
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.errors import BadRequest, Overloaded
from deepseek_cursor_proxy.features.dashboard import requests
from deepseek_cursor_proxy.features.dashboard.requests import Page
from deepseek_cursor_proxy.features.dashboard.service import AdminContext
from deepseek_cursor_proxy.features.request_log.feature import RequestLog, RequestRecord, TurnCounts
from deepseek_cursor_proxy.features.usage import ledger
from deepseek_cursor_proxy.features.usage.feature import Usage, ledger_connection
from deepseek_cursor_proxy.features.usage.ledger import UsageRow
from deepseek_cursor_proxy.features.usage.report import GROUPS, Period, make_report
from deepseek_cursor_proxy.observers.events import RequestFacts, Result, Timing

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


_LEDGER_HINT = "Of requests this old only figures are kept; if there is a trace, it is in the directory of trace_dir."


def page(context: AdminContext, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Requests that ended, newest first: those in memory, then those of the ledger."""

    def older(page: Page) -> list[dict[str, Any]]:
        try:
            return _ledger_rows(context, page)
        except Overloaded:
            # The dashboard still shows the newest while the store is at fault.
            if page.before is not None:
                raise
            return []

    return requests.page(context, parameters, older)


def _ledger_rows(context: AdminContext, page: Page) -> list[dict[str, Any]]:
    services, before = context.services(), page.before
    # By the very time that the ledger has: no order of times would do, because the clock may be set back.
    in_memory = {(each.number, each.ended_at) for each in services.get(RequestLog).ended()}
    with ledger_connection(services.reasoning_store.database) as connection:
        before_id = -before if before is not None and before < 0 else None
        if before is not None and before >= 0 and all(number != before for number, _ in in_memory):
            before_id = ledger.find_id(connection, before, context.started_at)
        found = ledger.read_page(connection, page.limit + len(in_memory), before_id, page.wanted)
    others = [each for each in found if (each.number, each.ended_at) not in in_memory]
    return [requests.row(_to_record(each), -each.id) for each in others[: page.limit]]


def details(context: AdminContext, parameters: Mapping[str, str], number: str) -> dict[str, Any]:
    """The row of a request of the ledger; NotFound for no id."""
    with ledger_connection(context.services().reasoning_store.database) as connection:
        found = ledger.find(connection, -int(number))
    if found is None:
        raise requests.unknown_request()
    return {**requests.detailed_row(_to_record(found), int(number)), "bodies_hint": _LEDGER_HINT}


def _to_record(found: UsageRow) -> RequestRecord:
    """The request that a row of the ledger was made of; of some things the ledger knows less."""
    facts = RequestFacts(
        *(found.number, found.ended_at - found.seconds, found.api, found.key, found.requested_model, found.model),
        *(bool(found.stream), found.messages, found.tools, found.body_bytes, found.session, found.client),
    )
    tokens = cost = None
    if found.hit is not None and found.miss is not None and found.output is not None:
        tokens = Tokens(found.hit, found.miss, found.output, found.thinking or 0, found.searches)
    if found.cost is not None:
        cost = Cost(found.cost, found.saved or 0.0, found.divergence_cost or 0.0, found.currency, found.price_version)
    timing = Timing(found.seconds, found.first_token_seconds, found.queue_seconds, found.connect_seconds)
    record = RequestRecord(facts, Result(found.outcome), found.status, None, timing, found.upstream)
    return record._replace(
        tokens=tokens,
        cost=cost,
        retries=found.retries,
        turns=TurnCounts(*(getattr(found, name) for name in TurnCounts._fields)),
        divergence=found.divergence,
        # Nothing else is free and was sent nowhere.
        is_cached=found.cost == 0 and not found.upstream,
    )
