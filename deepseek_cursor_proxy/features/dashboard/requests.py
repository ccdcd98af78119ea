"""Requests as JSON: GET /api/requests, page by page, and the details of one; those in flight.

A request in memory and one of the ledger (`features/usage`) are the same RequestRecord, so one function makes the row
of both. Records have no prompt, no answer and no key. What is not known is null.

The id of a request in memory is its number; numbers begin anew with every start, so one of the ledger has the negative
id of its row. A page begins after the id `before`, of either kind: a request may have left the memory meanwhile.
"""

import re
from collections.abc import Callable, Mapping
from itertools import chain, islice
from typing import Any, NamedTuple

from deepseek_cursor_proxy.errors import BadRequest, NotFound
from deepseek_cursor_proxy.features.dashboard.service import AdminContext
from deepseek_cursor_proxy.features.request_log.feature import PROOFS, RequestLog, RequestRecord
from deepseek_cursor_proxy.observers.events import Progress, RequestFacts

_PAGE, _LARGEST_PAGE = 50, 500
_TOKENS = ("hit", "miss", "output", "thinking")
_FILTERS = ("model", "key", "outcome", "session")


class Page(NamedTuple):
    """What is asked of older requests: how many, before which id, and which."""

    limit: int
    before: int | None
    wanted: Mapping[str, str]


def page(
    context: AdminContext, parameters: Mapping[str, str], older: Callable[[Page], list[dict[str, Any]]] | None = None
) -> dict[str, Any]:
    """Requests that ended, newest first: those in memory, then `older` ones. BadRequest for a bad number.

    `after` leaves only those that ended after that request, as long as it is in memory.
    """
    limit = max(1, min(_number(parameters, "limit") or _PAGE, _LARGEST_PAGE))
    before, after = _number(parameters, "before"), _number(parameters, "after")
    wanted = {name: parameters[name] for name in _FILTERS if name in parameters}
    is_in_memory = before is None or before >= 0
    records = context.services().get(RequestLog).ended(before) if is_in_memory else []
    known = next((place for place, each in enumerate(records) if each.number == after), None)
    rows = [row(each) for each in islice((each for each in records[:known] if _matches(each, wanted)), limit + 1)]
    if older is not None and len(rows) <= limit and known is None:
        rows += older(Page(limit + 1 - len(rows), before, wanted))
    shown = rows[:limit]
    return {"requests": shown, "next_before": shown[-1]["id"] if len(rows) > limit else None}


def details(context: AdminContext, parameters: Mapping[str, str], number: str) -> dict[str, Any]:
    """The row of a request of this run with its turns, and its bodies if it was traced. NotFound for no id."""
    services = context.services()
    record = services.get(RequestLog).find(int(number))
    if record is None:
        raise unknown_request()
    more = (each.details(services, record.number).items() for each in services.features)
    return {**detailed_row(record), **dict(chain(*more))}


def unknown_request() -> NotFound:
    return NotFound("No request with this id has ended, or it is forgotten. It may still run.", code="unknown_request")


def detailed_row(record: RequestRecord, id: int | None = None) -> dict[str, Any]:
    """A request with its turns; without bodies, which a feature may add."""
    marks = [{"index": mark.message, "source": mark.source, "proof": PROOFS.get(mark.proof)} for mark in record.strip]
    more: dict[str, Any] = {"strip": marks, "finish_reason": record.finish_reason, "dropped": list(record.dropped)}
    if (repair := record.repair) is not None:
        calls = [f"{call.name}({call.arguments})" for call in repair.calls]
        more["repair"] = {"before": list(repair.markup), "after": calls}
    return {**row(record, id), **more, "bodies": None, "bodies_hint": None}


def _matches(record: RequestRecord, wanted: Mapping[str, str]) -> bool:
    facts = record.facts
    values = {"model": facts.model, "key": facts.key, "outcome": record.result, "session": facts.conversation}
    return all(values[name] == value for name, value in wanted.items())


def _number(parameters: Mapping[str, str], name: str) -> int | None:
    text = parameters.get(name)
    if text is None:
        return None
    if not re.fullmatch("-?[0-9]{1,15}", text):
        raise BadRequest(f"The parameter {name} is not a whole number.", param=name)
    return int(text)


def row(record: RequestRecord, id: int | None = None) -> dict[str, Any]:
    """A request that ended; without an id it is one in memory."""
    facts, tokens, timing = record.facts, record.tokens, record.timing
    cost, saved, divergence_cost, currency, _ = record.cost or (None,) * 5
    return {
        "id": record.number if id is None else id,
        **_facts(facts),
        "ended_at": _time(record.ended_at),
        "outcome": record.result,
        "status": record.status,
        "message": record.message,
        "tokens": dict(zip(_TOKENS, tokens, strict=False)) if tokens is not None else None,
        "searches": tokens.searches if tokens is not None else 0,
        "cost": cost,
        "saved": saved,
        "divergence_cost": divergence_cost,
        "currency": currency,
        "seconds": {
            "queue": _seconds(timing.queue),
            "connect": _seconds(timing.connect),
            "first_token": _seconds(timing.first_delta),
            "total": _seconds(timing.total),
        },
        "retries": record.retries,
        "turns": record.turns._asdict(),
        "repairs": dict(record.repairs),
        "divergence": record.divergence,
        "repaired": record.repair.summary() if record.repair is not None else None,
        "messages": facts.messages,
        "tools": facts.tools,
        "body_bytes": facts.body_bytes,
        "upstream": record.upstream or None,
        "cached": record.is_cached,
    }


def running(request: Progress) -> dict[str, Any]:
    return {
        **_facts(request.facts),
        "phase": request.phase,
        "age_seconds": _seconds(request.age_seconds),
        "output_tokens_estimate": request.output_tokens_estimate,
        "first_token_seconds": _seconds(request.first_delta_seconds),
    }


def _facts(facts: RequestFacts) -> dict[str, Any]:
    return {
        "number": facts.number,
        "started_at": _time(facts.started_at),
        "api": facts.api,
        "model": facts.model or None,
        "requested_model": facts.requested_model or None,
        "key": facts.key or None,
        "session": facts.conversation or None,
        "client": facts.client or None,
        "stream": facts.stream,
    }


def _time(unix: float) -> float:
    return round(unix, 3)


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
