"""The state of the proxy: /readyz, /api/stats with the last hour, /metrics, and its settings in /api/config.

Ready: the store can be used, and an upstream was reached within the last minute. If no call has reached one lately, a
connection is opened to it and closed again, which costs neither money nor a key; the result counts for some seconds, so
that monitors cannot make the proxy knock all the time.
"""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, starmap
from typing import Any
from urllib.parse import urlsplit

from deepseek_cursor_proxy import __version__
from deepseek_cursor_proxy.config.declaration import Setting
from deepseek_cursor_proxy.config.loaded_config import DECLARATIONS, LoadedConfig
from deepseek_cursor_proxy.deepseek.model_names import MODELS
from deepseek_cursor_proxy.errors import ProxyError
from deepseek_cursor_proxy.exchange.feature import Recent
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.exchange.upstreams import Upstream
from deepseek_cursor_proxy.features.dashboard import requests
from deepseek_cursor_proxy.features.dashboard.metrics import CONTENT_TYPE, OTHER, Metric, gauge_by, metric, render
from deepseek_cursor_proxy.features.dashboard.service import AdminContext
from deepseek_cursor_proxy.features.request_log.feature import Percentiles, RequestLog, RequestRecord
from deepseek_cursor_proxy.http1.messages import HttpReply
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.upstream.call_limit import CallLimit

_HOUR = 3600.0
_FRESH_SECONDS = 60.0
_PYTHON = ".".join(map(str, sys.version_info[:3]))


def ready(context: AdminContext) -> HttpReply:
    services = context.services()
    reasons = ["the proxy is stopping"] if context.is_stopping else []
    reasons += why_not_ready(services, context.probes)
    if reasons:
        return HttpReply.json({"status": "not ready", "reasons": reasons}, 503)
    facts = (each.readiness() for each in services.features)
    return HttpReply.json({"status": "ready", **dict(chain(*(each.items() for each in facts)))})


def why_not_ready(services: Services, probes: Recent) -> list[str]:
    """The reasons; none if it is ready."""
    fault = services.reasoning_store.database.fault
    reasons = [f"the store cannot be used: {fault}"] if fault is not None else []
    if probes.now() - services.upstream_client.reached_at >= _FRESH_SECONDS:
        reasons += filter(None, [probes.read("", lambda: _probe(services))])
    return reasons


def _probe(services: Services) -> str:
    """Why no upstream can be reached; empty if one can."""
    failures = []
    for upstream in services.upstreams.all:
        try:
            services.upstream_client.probe(upstream.destination(""))
        except ProxyError as error:
            failures.append(error.message)
        else:
            return ""
    return " ".join(failures)


def stats(context: AdminContext) -> dict[str, Any]:
    services, now = context.services(), time.time()
    running, ended = services.get(RequestLog).running(), services.get(RequestLog).ended()
    limits, newest = services.upstream_client.call_limits.snapshot(), ended[0].number if ended else None
    return {
        "version": __version__,
        "started_at": round(context.started_at, 3),
        "now": round(now, 3),
        "uptime_seconds": round(now - context.started_at, 1),
        "base_url": context.base_url,
        "public_url": context.public_url,
        "upstreams": [_upstream(each, limits) for each in services.upstreams.all],
        # Calls that wait for a slot, of every model that has some.
        "waiting": {safe_text(name): limit.queued_calls for name, limit in limits.items() if limit.queued_calls},
        "in_flight": [requests.running(request) for request in running],
        "connections": len(context.server.connections),
        "last_minutes": _last_minutes(context, [request.age_seconds for request in running]),
        "newest_request": newest,
        **context.hours.read(newest, lambda: _last_hour(ended, now)),
        "store": _store(context),
        **dict(chain(*(each.facts(services).items() for each in services.features))),
        "process": _process(),
        "views": list(chain(*(each.views for each in services.features))),
        "tracing": context.config.trace_dir is not None,
        "currency": services.config.currency,
    }


def _upstream(upstream: Upstream, limits: Mapping[str, CallLimit]) -> dict[str, Any]:
    own = [limit for name, limit in limits.items() if upstream.is_own_limit(name)]
    return {
        "name": upstream.name,
        "host": urlsplit(upstream.base_url).hostname,
        "state": upstream.state,
        "calls": sum(limit.running_calls for limit in own),
        "waiting": sum(limit.queued_calls for limit in own),
    }


def _last_minutes(context: AdminContext, ages: Sequence[float]) -> list[dict[str, Any]]:
    statistics = context.statistics()
    with statistics.lock:
        return [{**vars(minute), "busy_seconds": round(minute.busy_seconds, 1)} for minute in statistics.minutes(ages)]


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


def _store(context: AdminContext) -> dict[str, Any]:
    database, size = context.services().reasoning_store.database, context.store_size()
    return {
        "path": database.path,
        "rows": size.rows,
        "bytes": size.bytes,
        "state": str(database.fault or "usable"),
        "faults": database.fault_count,
    }


def _process() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "python": _PYTHON,
        "cpu_seconds": round(time.process_time(), 3),
        "memory_bytes": memory_bytes(),
        "open_files": open_files(),
    }


# /metrics …


def metrics(context: AdminContext) -> HttpReply:
    statistics = context.statistics()
    with statistics.lock:
        for upstream in context.services().upstreams.all:
            statistics.reroutes.add(0, upstream.name)
        # Rendered under the lock, so that all numbers are of one moment.
        body = render(statistics.metrics())
    body += render([*_gauges(context), *_process_metrics(context)])
    return HttpReply(200, body, (("Content-Type", CONTENT_TYPE),))


def _gauges(context: AdminContext) -> Iterator[Metric]:
    services, limits = context.services(), context.services().upstream_client.call_limits.snapshot()
    streams = sum(request.facts.stream for request in services.get(RequestLog).running())
    yield metric("dcp_streams_in_flight", "Streamed answers that are running.", streams)
    calls = sum(limit.running_calls for limit in limits.values())
    yield metric("dcp_upstream_calls", "Calls to upstreams that are running.", calls)
    help, names = "1 if the upstream is asked, 0 while others are asked first.", _limit_names(context)
    ups = [(upstream.name, int(upstream.state == "closed")) for upstream in services.upstreams.all]
    yield gauge_by("dcp_upstream_up", help, "upstream", ups)
    # Clients of some hosts may name any model.
    waiting = [(name if name in names else OTHER, limit.queued_calls) for name, limit in limits.items()]
    yield gauge_by("dcp_upstream_waiting", "Calls that wait for a slot, by model.", "model", waiting)
    yield metric("dcp_connections", "Connections of clients.", len(context.server.connections))
    database, size = services.reasoning_store.database, context.store_size()
    help = "Rows in the store, counted at most every minute."
    yield gauge_by("dcp_store_rows", help, "table", size.rows.items())
    yield metric("dcp_store_bytes", "Size of the store's file.", size.bytes)
    yield metric("dcp_store_faults_total", "Times that the store could not be used.", database.fault_count, "counter")
    for feature in services.features:
        yield from starmap(metric, feature.gauges())


def _limit_names(context: AdminContext) -> set[str]:
    """The names of call limits that have a label: those of the settings, and of models that known callers asked for."""
    services, statistics = context.services(), context.statistics()
    tables = [each.name for each in services.upstreams.all if each.table is not None]
    of_tables = {name for table in tables for name in (table, f"{table}/", f"{table}/flash")}
    of_routes = {f'[passthrough."{key}"]' for key in services.config.passthrough}
    with statistics.lock:
        return {*MODELS, services.config.upstream_model, *of_tables, *of_routes, *statistics.models}


def _process_metrics(context: AdminContext) -> Iterator[Metric]:
    yield metric("process_cpu_seconds_total", "CPU time of the proxy, user and system.", time.process_time(), "counter")
    yield metric("process_start_time_seconds", "Unix time of the start.", context.started_at)
    if (memory := memory_bytes()) is not None:
        yield metric("process_resident_memory_bytes", "Memory of the proxy.", memory)
    if (files := open_files()) is not None:
        yield metric("process_open_fds", "Open file descriptors.", files)
    build = Metric("dcp_build_info", "gauge", "Versions of the proxy and of Python; always 1.", "version", "python")
    build.add(1, __version__, _PYTHON)
    yield build


# The process; None if the system does not say …


def memory_bytes() -> int | None:
    with suppress(OSError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def open_files() -> int | None:
    """Linux has their number as a size since 6.2: a listing hands the interpreter over for every entry."""
    with suppress(OSError):
        size = os.stat("/proc/self/fd").st_size if sys.platform == "linux" else 0
        # One of them is for the listing itself.
        return size or len(os.listdir("/dev/fd")) - 1
    return None


# /api/config …


def settings(context: AdminContext) -> dict[str, Any]:
    """The effective settings and where each comes from. Of a key the beginning of its digest is shown."""
    shown = [_setting(each, context.loaded) for each in DECLARATIONS]
    return {"settings": shown, "config_path": str(context.config_path)}


def _setting(each: Any, loaded: LoadedConfig) -> Mapping[str, Any]:
    value = loaded.shown_value(each)
    origin, is_secret = _origin(loaded.origins[each.field]), isinstance(each, Setting) and each.is_secret
    return {"name": each.key, "value": value, "origin": origin, "help": each.help, "is_secret": is_secret}


def _origin(text: str) -> str:
    """The kind of an origin as `config.loaded_config` writes it; any other text is the path of the file."""
    if text == "default":
        return text
    return next((kind for kind in ("environment", "flag") if text.startswith(f"{kind} ")), "file")
