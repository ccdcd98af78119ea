"""Requests as JSON: those that ended (rows), those in flight, and the details of one.

Records have no prompt, no answer and no key. Only with tracing on the bodies are added, from the trace file, which has
no key either. What is not known is null.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.observers.events import RequestFacts
from deepseek_cursor_proxy.observers.explain_trace import PROOFS
from deepseek_cursor_proxy.observers.request_log import RequestLog, RequestRecord, RunningRequest

_TRACING_HINT = "Bodies are kept only while tracing is on: set trace_dir to a directory and send SIGHUP, or restart."
_MISSING_HINT = "There is no trace of this request: it began before tracing was on, or its file was deleted."
_LARGE_HINT = "The trace of this request is too large to be shown here; read it in the directory of trace_dir."
_PAGE, _LARGEST_PAGE = 50, 500
# What a browser can still show.
_MOST_TRACE_BYTES = 16 * 1024 * 1024


def page(log: RequestLog, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Requests that ended, newest first; BadRequest for a number that is none."""
    limit = max(1, min(_number(parameters, "limit") or _PAGE, _LARGEST_PAGE))
    records = log.ended(_number(parameters, "before"), sys.maxsize)
    found = [each for each in records if _matches(each, parameters)]
    shown = found[:limit]
    return {"requests": [row(each) for each in shown], "next_before": shown[-1].number if len(found) > limit else None}


def _number(parameters: Mapping[str, str], name: str) -> int | None:
    text = parameters.get(name)
    if text is None:
        return None
    if not re.fullmatch("-?[0-9]{1,15}", text):
        raise BadRequest(f"The parameter {name} is not a whole number.", param=name)
    return int(text)


def _matches(record: RequestRecord, parameters: Mapping[str, str]) -> bool:
    values = {"model": record.facts.model, "key": record.facts.key, "outcome": record.result.value}
    return all(parameters.get(name, value) == value for name, value in values.items())


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
        "cost_usd": None,
        "saved_usd": None,
        "divergence_usd": None,
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
    }


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


def details(record: RequestRecord, trace_dir: Path | None) -> dict[str, Any]:
    """The row of a request with its turns, and its bodies if it was traced."""
    marks = [{"index": mark.message, "source": mark.source, "proof": PROOFS.get(mark.proof)} for mark in record.strip]
    more = {"strip": marks, "finish_reason": record.finish_reason, "dropped": list(record.dropped)}
    return {**row(record), **more, **_bodies(record, trace_dir)}


def _bodies(record: RequestRecord, trace_dir: Path | None) -> dict[str, Any]:
    if trace_dir is None:
        return {"bodies": None, "bodies_hint": _TRACING_HINT}
    try:
        path = _find_trace(record, trace_dir.expanduser())
        if path is None:
            return {"bodies": None, "bodies_hint": _MISSING_HINT}
        if path.stat().st_size > _MOST_TRACE_BYTES:
            return {"bodies": None, "bodies_hint": _LARGE_HINT}
        trace = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {"bodies": None, "bodies_hint": _MISSING_HINT}
    names = {"client": "client_request", "upstream": "upstream_request", "answer": "reply"}
    return {"bodies": {name: trace.get(key) for name, key in names.items()}, "bodies_hint": None}


def _find_trace(record: RequestRecord, folder: Path) -> Path | None:
    """The file of this request. Numbers begin anew with every start, so an older one may have the same."""
    newest = max(folder.glob(f"*-{record.number:06d}.json"), key=lambda path: path.stat().st_mtime, default=None)
    is_ours = newest is not None and newest.stat().st_mtime >= record.facts.started_at - 1
    return newest if is_ours else None


def _time(unix: float) -> float:
    return round(unix, 3)


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
