"""GET /api/stats: what the proxy does now, and what it did in the last hour. GET /api/config: its settings."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deepseek_cursor_proxy import __version__
from deepseek_cursor_proxy.admin import requests, usage
from deepseek_cursor_proxy.admin.context import AdminContext
from deepseek_cursor_proxy.admin.state import Gauges, ProcessUse, gauges, store_size
from deepseek_cursor_proxy.config.declaration import Setting
from deepseek_cursor_proxy.config.loaded_config import DECLARATIONS, LoadedConfig
from deepseek_cursor_proxy.errors import Overloaded
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.exchange.upstreams import Upstream
from deepseek_cursor_proxy.observers.request_log import RequestRecord
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.usage.report import Percentiles

_HOUR = 3600.0


def stats(context: AdminContext) -> dict[str, Any]:
    services, now, current = context.services(), time.time(), gauges(context)
    return {
        "version": __version__,
        "started_at": round(context.started_at, 3),
        "now": round(now, 3),
        "uptime_seconds": round(now - context.started_at, 1),
        "base_url": context.base_url,
        "public_url": context.public_url,
        "upstreams": [_upstream(each, current) for each in services.upstreams.all],
        # Calls that wait for a slot, of every model that has some.
        "waiting": {safe_text(name): limit.queued_calls for name, limit in current.calls.items() if limit.queued_calls},
        "in_flight": [requests.running(request) for request in current.running],
        "connections": current.connections,
        "last_minutes": _last_minutes(context),
        **_last_hour(services.request_log.ended(limit=sys.maxsize), now),
        "today": _today(context),
        "store": _store(context, current),
        "cache": _cache(services),
        "process": _process(current.use),
        "tracing": context.config.trace_dir is not None,
        "currency": services.config.currency,
    }


def _upstream(upstream: Upstream, current: Gauges) -> dict[str, Any]:
    own = [limit for name, limit in current.calls.items() if upstream.is_own_limit(name)]
    return {
        "name": upstream.name,
        "host": urlsplit(upstream.base_url).hostname,
        "state": current.upstreams[upstream.name],
        "calls": sum(limit.running_calls for limit in own),
        "waiting": sum(limit.queued_calls for limit in own),
    }


def _today(context: AdminContext) -> dict[str, Any] | None:
    """The sums of today; null while the store cannot be read."""
    try:
        return usage.today(context)
    except Overloaded:
        return None


def _last_minutes(context: AdminContext) -> list[dict[str, Any]]:
    statistics = context.statistics()
    with statistics.lock:
        return [{**vars(minute)} for minute in statistics.minutes()]


def _last_hour(records: Sequence[RequestRecord], now: float) -> dict[str, Any]:
    """Figures of the last hour, as far back as the log has it: its last thousand requests."""
    recent = [each for each in records if now - each.ended_at <= _HOUR]
    first = Percentiles.of(each.timing.first_delta for each in recent if each.timing.first_delta is not None)
    # A cached answer has tokens that were not generated now.
    used = [each for each in recent if each.tokens is not None and not each.is_cached]
    prompt = sum(each.tokens.prompt for each in used if each.tokens is not None)
    hit = sum(each.tokens.hit for each in used if each.tokens is not None)
    return {
        "first_token_seconds": {"p50": round(first.p50, 4), "p95": round(first.p95, 4)} if first is not None else None,
        "tokens_per_second": _tokens_per_second(used),
        "cache_hit_share": round(hit / prompt, 4) if prompt else None,
    }


def _tokens_per_second(records: Sequence[RequestRecord]) -> float | None:
    """The tokens of all streams by the time they took after the first one. A plain answer comes at once."""
    tokens, seconds = 0, 0.0
    for each in records:
        if each.facts.stream and each.tokens is not None and each.timing.first_delta is not None:
            tokens += each.tokens.output
            seconds += each.timing.total - each.timing.first_delta
    return round(tokens / seconds, 2) if seconds > 0 else None


def _store(context: AdminContext, current: Gauges) -> dict[str, Any]:
    database = context.services().reasoning_store.database
    size = store_size(context, database)
    return {
        "path": database.path,
        "rows": size.rows,
        "bytes": size.bytes,
        "state": current.fault or "usable",
        "faults": current.fault_count,
    }


def _cache(services: Services) -> dict[str, Any] | None:
    """The response cache, since its store was made; None when that cannot be read."""
    try:
        found = services.response_cache.stats(services.prices.currency)
    except Unusable:
        return None
    return {
        "hits": found.totals.hits,
        "misses": found.totals.misses,
        "entries": found.entries,
        "bytes": found.bytes,
        "saved_tokens": found.totals.tokens,
        "saved": round(found.totals.money, 6),
    }


def _process(use: ProcessUse) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "cpu_seconds": round(use.cpu_seconds, 3),
        "memory_bytes": use.memory_bytes,
        "open_files": use.open_files,
    }


def settings(loaded: LoadedConfig, config_path: Path | None) -> dict[str, Any]:
    """The effective settings and where each comes from. Of a key the beginning of its digest is shown."""
    store = loaded.config.reasoning_content_path
    return {
        "settings": [_setting(each, loaded) for each in DECLARATIONS],
        "config_path": str(config_path) if config_path is not None else None,
        "data_dir": None if str(store) == ":memory:" else str(store.expanduser().absolute().parent),
    }


def _setting(each: Any, loaded: LoadedConfig) -> Mapping[str, Any]:
    value = loaded.shown_value(each)
    origin, is_secret = _origin(loaded.origins[each.field]), isinstance(each, Setting) and each.is_secret
    return {"name": each.key, "value": value, "origin": origin, "help": each.help, "is_secret": is_secret}


def _origin(text: str) -> str:
    """The kind of an origin as `config.loaded_config` writes it; any other text is the path of the file."""
    if text == "default":
        return text
    return next((kind for kind in ("environment", "flag") if text.startswith(f"{kind} ")), "file")
