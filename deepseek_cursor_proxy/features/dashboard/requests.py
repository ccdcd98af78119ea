"""Requests as JSON: GET /api/requests, page by page, and the details of one; those in flight.

A request in memory and one of the ledger are the same RequestRecord, so one function makes the row of both. Records
have no prompt, no answer and no key. Only with tracing on the bodies are added, from the trace file, which has no key
either. What is not known is null.

The id of a request in memory is its number; numbers begin anew with every start, so one of the ledger has the negative
id of its row. A page begins after the id `before`, of either kind: a request may have left the memory meanwhile.
"""

import json
import re
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.deepseek.prices import Cost
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.errors import BadRequest, NotFound, Overloaded
from deepseek_cursor_proxy.features.dashboard.context import AdminContext
from deepseek_cursor_proxy.features.traces.trace import PROOFS, file_end
from deepseek_cursor_proxy.features.usage import ledger
from deepseek_cursor_proxy.features.usage.admin import ledger_connection
from deepseek_cursor_proxy.features.usage.ledger import UsageRow
from deepseek_cursor_proxy.observers.events import Progress, RequestFacts, Result, Timing
from deepseek_cursor_proxy.observers.request_log import RequestRecord, TurnCounts

_PAGE, _LARGEST_PAGE = 50, 500
_TOKENS = ("hit", "miss", "output", "thinking")
_FILTERS = ("model", "key", "outcome", "session")
_TRACING_HINT = "Bodies are kept only while tracing is on: set trace_dir to a directory and send SIGHUP, or restart."
_MISSING_HINT = "There is no trace of this request: it began before tracing was on, or its file was deleted."
_LEDGER_HINT = "Of requests this old only figures are kept; if there is a trace, it is in the directory of trace_dir."
_LARGE_HINT = "The trace of this request is too large to be shown here; read it in the directory of trace_dir."
# What a browser can still show.
_MOST_TRACE_BYTES = 16 * 1024 * 1024


def page(context: AdminContext, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Requests that ended, newest first: those in memory, then those of the ledger. BadRequest for a bad number.

    `after` leaves only those that ended after that request, as long as it is in memory.
    """
    limit = max(1, min(_number(parameters, "limit") or _PAGE, _LARGEST_PAGE))
    before, after = _number(parameters, "before"), _number(parameters, "after")
    wanted = {name: parameters[name] for name in _FILTERS if name in parameters}
    is_in_memory = before is None or before >= 0
    records = context.services().request_log.ended(before, sys.maxsize) if is_in_memory else []
    known = next((place for place, each in enumerate(records) if each.number == after), None)
    rows = [row(each) for each in islice((each for each in records[:known] if _matches(each, wanted)), limit + 1)]
    try:
        if len(rows) <= limit and known is None:
            rows += _ledger_rows(context, before, wanted, limit + 1 - len(rows))
    except Overloaded:
        # The dashboard goes on showing the newest while the store is at fault.
        if before is not None:
            raise
    shown = rows[:limit]
    return {"requests": shown, "next_before": shown[-1]["id"] if len(rows) > limit else None}


def _ledger_rows(
    context: AdminContext, before: int | None, wanted: Mapping[str, str], limit: int
) -> list[dict[str, Any]]:
    services = context.services()
    # By the very time that the ledger has: no order of times would do, because the clock may be set back.
    in_memory = {(each.number, each.ended_at) for each in services.request_log.ended(limit=sys.maxsize)}
    with ledger_connection(services.reasoning_store.database) as connection:
        before_id = -before if before is not None and before < 0 else None
        if before is not None and before >= 0 and all(number != before for number, _ in in_memory):
            before_id = ledger.find_id(connection, before, context.started_at)
        found = ledger.read_page(connection, limit + len(in_memory), before_id, wanted)
    others = [each for each in found if (each.number, each.ended_at) not in in_memory]
    return [row(_to_record(each), -each.id) for each in others[:limit]]


def _matches(record: RequestRecord, wanted: Mapping[str, str]) -> bool:
    facts = record.facts
    values = {"model": facts.model, "key": facts.key, "outcome": record.result.value, "session": facts.session}
    return all(values[name] == value for name, value in wanted.items())


def _number(parameters: Mapping[str, str], name: str) -> int | None:
    text = parameters.get(name)
    if text is None:
        return None
    if not re.fullmatch("-?[0-9]{1,15}", text):
        raise BadRequest(f"The parameter {name} is not a whole number.", param=name)
    return int(text)


def details(context: AdminContext, id: int) -> dict[str, Any]:
    """The row of a request with its turns, and its bodies if it is of this run and was traced. NotFound for no id."""
    services = context.services()
    log, old = services.request_log, None
    if id < 0:
        with ledger_connection(services.reasoning_store.database) as connection:
            old = ledger.find(connection, -id)
    record = _to_record(old) if old is not None else log.find(id)
    if record is None:
        raise NotFound(
            "No request with this id has ended, or it is forgotten by now. It may still run.", code="unknown_request"
        )
    marks = [{"index": mark.message, "source": mark.source, "proof": PROOFS.get(mark.proof)} for mark in record.strip]
    more: dict[str, Any] = {"strip": marks, "finish_reason": record.finish_reason, "dropped": list(record.dropped)}
    if (repair := record.repair) is not None:
        calls = [f"{call.name}({call.arguments})" for call in repair.calls]
        more["repair"] = {"before": list(repair.markup), "after": calls}
    bodies = _no_bodies(_LEDGER_HINT) if old is not None else _bodies(id, context.config.trace_dir, log.run)
    return {**row(record, id), **more, **bodies}


def _bodies(number: int, trace_dir: Path | None, run: str) -> dict[str, Any]:
    if trace_dir is None:
        return _no_bodies(_TRACING_HINT)
    try:
        path = next(trace_dir.expanduser().glob(f"*-{file_end(run, number)}"))
        if path.stat().st_size > _MOST_TRACE_BYTES:
            return _no_bodies(_LARGE_HINT)
        trace = json.loads(path.read_bytes())
    except (StopIteration, OSError, ValueError):
        return _no_bodies(_MISSING_HINT)
    names = {"client": "client_request", "upstream": "upstream_request", "answer": "reply"}
    return {"bodies": {name: trace.get(key) for name, key in names.items()}, "bodies_hint": None}


def _no_bodies(hint: str) -> dict[str, Any]:
    return {"bodies": None, "bodies_hint": hint}


def row(record: RequestRecord, id: int | None = None) -> dict[str, Any]:
    """A request that ended; without an id it is one in memory."""
    facts, tokens, timing = record.facts, record.tokens, record.timing
    cost, saved, divergence_cost, currency, _ = record.cost or (None,) * 5
    return {
        "id": record.number if id is None else id,
        **_facts(facts),
        "ended_at": _time(record.ended_at),
        "outcome": record.result.value,
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
        "session": facts.session or None,
        "client": facts.client or None,
        "stream": facts.stream,
    }


def _time(unix: float) -> float:
    return round(unix, 3)


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
