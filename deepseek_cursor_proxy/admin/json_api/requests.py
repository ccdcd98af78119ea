"""Requests as JSON: those that ended (rows), those in flight, and the details of one.

Records have no prompt, no answer and no key. Only with tracing on the bodies are added, from the trace file, which has
no key either. What is not known is null.
"""

import json
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.observers.events import RequestFacts
from deepseek_cursor_proxy.observers.explain_trace import PROOFS
from deepseek_cursor_proxy.observers.request_log import RequestRecord, RunningRequest, TurnCounts
from deepseek_cursor_proxy.storage.usage_rows import UsageRow
from deepseek_cursor_proxy.usage.prices.price_list import Cost

_TRACING_HINT = "Bodies are kept only while tracing is on: set trace_dir to a directory and send SIGHUP, or restart."
_MISSING_HINT = "There is no trace of this request: it began before tracing was on, or its file was deleted."
_LEDGER_HINT = "Of requests this old only figures are kept; if there is a trace, it is in the directory of trace_dir."
_LARGE_HINT = "The trace of this request is too large to be shown here; read it in the directory of trace_dir."
# What a browser can still show.
_MOST_TRACE_BYTES = 16 * 1024 * 1024


def row(record: RequestRecord) -> dict[str, Any]:
    tokens, timing = record.tokens, record.timing
    return {
        # Requests of earlier runs, of which numbers say nothing, have negative ones.
        "id": record.number,
        **_facts(record.facts),
        "ended_at": _time(record.ended_at),
        "outcome": record.result.value,
        "status": record.status,
        "message": record.message,
        "tokens": _tokens(tokens) if tokens is not None else None,
        "searches": tokens.searches if tokens is not None else 0,
        **_cost(record.cost),
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
        "messages": record.facts.messages,
        "tools": record.facts.tools,
        "body_bytes": record.facts.body_bytes,
        "upstream": record.upstream or None,
        "cached": record.is_cached,
    }


def ledger_row(row: UsageRow) -> dict[str, Any]:
    """The row of a request that is no longer in memory; of some things the ledger knows less."""
    tokens = {"hit": row.hit, "miss": row.miss, "output": row.output, "thinking": row.thinking}
    return {
        "id": -row.id,
        "number": row.number,
        "started_at": _time(row.ended_at - row.seconds),
        "api": row.api,
        "model": row.model or None,
        "requested_model": row.requested_model or None,
        "key": row.key or None,
        "session": row.session or None,
        "stream": bool(row.stream),
        "ended_at": _time(row.ended_at),
        "outcome": row.outcome,
        "status": row.status,
        "message": None,
        "tokens": tokens if row.output is not None else None,
        "searches": row.searches,
        "cost_usd": row.cost,
        "saved_usd": row.saved,
        "divergence_usd": row.divergence_cost,
        "seconds": {
            "queue": _seconds(row.queue_seconds),
            "connect": _seconds(row.connect_seconds),
            "first_token": _seconds(row.first_token_seconds),
            "total": _seconds(row.seconds),
        },
        "retries": row.retries,
        "turns": {name: getattr(row, name) for name in TurnCounts._fields},
        "repairs": {},
        "divergence": row.divergence,
        "messages": row.messages,
        "tools": row.tools,
        "body_bytes": row.body_bytes,
        "upstream": row.upstream or None,
        # Nothing else is free and was sent nowhere.
        "cached": row.cost == 0 and not row.upstream,
    }


def ledger_details(row: UsageRow) -> dict[str, Any]:
    more: dict[str, Any] = {
        "strip": [],
        "finish_reason": None,
        "dropped": [],
        "bodies": None,
        "bodies_hint": _LEDGER_HINT,
    }
    return {**ledger_row(row), **more}


def _cost(cost: Cost | None) -> dict[str, float | None]:
    amount, saved, divergence = (None, None, None) if cost is None else cost[:3]
    return {"cost_usd": amount, "saved_usd": saved, "divergence_usd": divergence}


def _tokens(tokens: Tokens) -> dict[str, int]:
    return {"hit": tokens.hit, "miss": tokens.miss, "output": tokens.output, "thinking": tokens.thinking}


def running(request: RunningRequest) -> dict[str, Any]:
    return {
        **_facts(request.facts),
        "phase": request.phase,
        "age_seconds": _seconds(request.age_seconds),
        "output_tokens_estimate": request.output_tokens_estimate,
        "first_token_seconds": _seconds(request.first_token_seconds),
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
        "stream": facts.stream,
    }


def details(record: RequestRecord, trace_dir: Path | None, run: str) -> dict[str, Any]:
    """The row of a request of this run with its turns, and its bodies if it was traced."""
    marks = [{"index": mark.message, "source": mark.source, "proof": PROOFS.get(mark.proof)} for mark in record.strip]
    more = {"strip": marks, "finish_reason": record.finish_reason, "dropped": list(record.dropped)}
    return {**row(record), **more, **_bodies(record.number, trace_dir, run)}


def _bodies(number: int, trace_dir: Path | None, run: str) -> dict[str, Any]:
    if trace_dir is None:
        return {"bodies": None, "bodies_hint": _TRACING_HINT}
    try:
        # Only here: most proxies write no trace.
        from deepseek_cursor_proxy.observers.trace import file_end

        path = next(trace_dir.expanduser().glob(f"*-{file_end(run, number)}"), None)
        if path is None:
            return {"bodies": None, "bodies_hint": _MISSING_HINT}
        if path.stat().st_size > _MOST_TRACE_BYTES:
            return {"bodies": None, "bodies_hint": _LARGE_HINT}
        trace = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {"bodies": None, "bodies_hint": _MISSING_HINT}
    names = {"client": "client_request", "upstream": "upstream_request", "answer": "reply"}
    return {"bodies": {name: trace.get(key) for name, key in names.items()}, "bodies_hint": None}


def _time(unix: float) -> float:
    return round(unix, 3)


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
