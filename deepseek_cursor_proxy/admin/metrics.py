"""GET /metrics: what `statistics` has counted, and gauges of this moment. Limits of keys are in /api/keys alone."""

import sys
from collections.abc import Iterator

from deepseek_cursor_proxy import __version__
from deepseek_cursor_proxy.admin.context import AdminContext
from deepseek_cursor_proxy.admin.prometheus import CONTENT_TYPE, Metric, render
from deepseek_cursor_proxy.admin.state import Gauges, ProcessUse, gauges, store_size
from deepseek_cursor_proxy.admin.statistics import OTHER
from deepseek_cursor_proxy.deepseek.model_names import MODELS
from deepseek_cursor_proxy.http1.messages import HttpReply
from deepseek_cursor_proxy.redaction import safe_text

_NAME_LENGTH = 60


def reply(context: AdminContext) -> HttpReply:
    services = context.services()
    statistics = context.statistics()
    with statistics.lock:
        for upstream in services.upstreams.all:
            statistics.reroutes.add(0, upstream.name)
        # Rendered under the lock, so that all numbers are of one moment.
        body = render(statistics.metrics())
    now = gauges(context)
    body += render([*_current(context, now), *_process(context, now.use)])
    return HttpReply(200, body, (("Content-Type", CONTENT_TYPE), ("Cache-Control", "no-store")))


def _current(context: AdminContext, now: Gauges) -> Iterator[Metric]:
    services = context.services()
    streams = sum(request.facts.stream for request in now.running)
    yield _metric("dcp_streams_in_flight", "Streamed answers that are running.", streams)
    calls = sum(limit.running_calls for limit in now.calls.values())
    yield _metric("dcp_upstream_calls", "Calls to upstreams that are running.", calls)
    up = Metric("dcp_upstream_up", "gauge", "1 if the upstream is asked, 0 while others are asked first.", "upstream")
    for upstream, state in now.upstreams.items():
        up.add(int(state == "closed"), upstream)
    yield up
    waiting = Metric("dcp_upstream_waiting", "gauge", "Calls that wait for a slot, by model.", "model")
    names = _limit_names(context)
    for model, limit in now.calls.items():
        # Clients of some hosts may name any model.
        name = safe_text(model, _NAME_LENGTH)
        waiting.add(limit.queued_calls, name if name in names else OTHER)
    yield waiting
    yield _metric("dcp_connections", "Connections of clients.", now.connections)
    database = services.reasoning_store.database
    size = store_size(context, database)
    rows = Metric("dcp_store_rows", "gauge", "Rows in the store, counted at most every minute.", "table")
    for table, number in size.rows.items():
        rows.add(number, table)
    yield rows
    yield _metric("dcp_store_bytes", "Size of the store's file.", size.bytes)
    yield _metric("dcp_store_faults_total", "Times that the store could not be used.", now.fault_count, "counter")
    if services.shared is not None:
        help = "1 if this proxy shares its state on the engine, 0 while it goes on alone."
        yield _metric("dcp_engine_up", help, int(not services.shared.fault))


def _limit_names(context: AdminContext) -> set[str]:
    """The names of call limits that have a label: those of the settings, and of models that known callers asked for."""
    services, statistics = context.services(), context.statistics()
    tables = [each.name for each in services.upstreams.all if each.table is not None]
    of_tables = {name for table in tables for name in (table, f"{table}/", f"{table}/flash")}
    of_routes = {f'[passthrough."{key}"]' for key in services.config.passthrough}
    with statistics.lock:
        return {*MODELS, services.config.upstream_model, *of_tables, *of_routes, *statistics.models}


def _process(context: AdminContext, use: ProcessUse) -> Iterator[Metric]:
    help = "CPU time of the proxy, user and system."
    yield _metric("process_cpu_seconds_total", help, use.cpu_seconds, "counter")
    for name, help, value in (
        ("process_resident_memory_bytes", "Memory of the proxy.", use.memory_bytes),
        ("process_open_fds", "Open file descriptors.", use.open_files),
        ("process_max_fds", "The most file descriptors that may be open.", use.most_files),
        ("process_start_time_seconds", "Unix time of the start.", context.started_at),
    ):
        if value is not None:
            yield _metric(name, help, value)
    build = Metric("dcp_build_info", "gauge", "Versions of the proxy and of Python; always 1.", "version", "python")
    build.add(1, __version__, ".".join(map(str, sys.version_info[:3])))
    yield build


def _metric(name: str, help: str, value: float, type: str = "gauge") -> Metric:
    metric = Metric(name, type, help)
    metric.add(value)
    return metric
