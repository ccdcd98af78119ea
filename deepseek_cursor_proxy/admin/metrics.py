"""GET /metrics: every metric with its name, type and help. What is counted over time comes from `statistics`."""

import sys
from collections.abc import Collection, Iterator, Mapping

from deepseek_cursor_proxy import __version__
from deepseek_cursor_proxy.admin.context import AdminContext
from deepseek_cursor_proxy.admin.prometheus import (
    OPENMETRICS_END,
    OPENMETRICS_TYPE,
    TEXT_TYPE,
    Counter,
    Family,
    Sample,
    render,
    wants_openmetrics,
)
from deepseek_cursor_proxy.admin.state import measure_process
from deepseek_cursor_proxy.admin.statistics import OTHER, Statistics
from deepseek_cursor_proxy.deepseek.model_names import MODELS
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.http1.messages import HttpReply
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.upstream.call_limit import CallLimit

_NAME_LENGTH = 60
_COST_NAMES = {"USD": "dcp_cost_usd_total", "CNY": "dcp_cost_cny_total"}


def reply(context: AdminContext, accept: str) -> HttpReply:
    """All metrics, in the format that an Accept header asks for."""
    services = context.services()
    statistics = context.statistics()
    openmetrics = wants_openmetrics(accept)
    with statistics.lock:
        for upstream in services.upstreams.all:
            statistics.reroutes.add(0, upstream.name)
        # Rendered under the lock, so that all numbers are of one moment.
        body = render(_totals(statistics), openmetrics=openmetrics)
    for families in (_current(context, services), _process(context)):
        body += render(families, openmetrics=openmetrics)
    kind = OPENMETRICS_TYPE if openmetrics else TEXT_TYPE
    headers = (("Content-Type", kind), ("Cache-Control", "no-store"), ("Vary", "Accept"))
    return HttpReply(200, body + OPENMETRICS_END if openmetrics else body, headers)


def _totals(counts: Statistics) -> Iterator[Family]:
    yield Family(
        "dcp_requests_total", "counter", "Requests that ended, by API, model and outcome.", counts.requests.samples()
    )
    yield Family(
        "dcp_tokens_total",
        "counter",
        "Tokens by kind: hit and miss of the prefix cache, thinking, and output without thinking.",
        counts.tokens.samples(),
    )
    for currency, costs in counts.costs.items():
        help = f"What requests cost, in {currency}; an estimate. Those of unknown price are not in it."
        yield Family(_COST_NAMES[currency], "counter", help, costs.samples())
    yield Family(
        "dcp_request_seconds", "histogram", "Time from request to last byte.", counts.request_seconds.samples()
    )
    yield Family(
        "dcp_first_token_seconds",
        "histogram",
        "Time from request to first token, thinking included.",
        counts.first_token_seconds.samples(),
    )
    yield Family(
        "dcp_upstream_queue_seconds", "histogram", "Time that calls waited for a slot.", counts.queue_seconds.samples()
    )
    help = "Calls that another upstream got because this one failed."
    yield Family("dcp_reroutes_total", "counter", help, counts.reroutes.samples())
    yield Family("dcp_retries_total", "counter", "Calls made again, by what had failed.", counts.retries.samples())
    yield Family(
        "dcp_reasoning_turns_total",
        "counter",
        "Assistant turns sent, by where their reasoning came from.",
        counts.turns.samples(),
    )
    yield Family(
        "dcp_recoveries_total",
        "counter",
        "Requests sent with turns as a transcript, because reasoning was lost.",
        counts.recoveries.samples(),
    )
    yield Family(
        "dcp_divergences_total",
        "counter",
        "Requests that changed what the chat had sent before, by the first part that differs.",
        counts.divergences.samples(),
    )


def _current(context: AdminContext, services: Services) -> Iterator[Family]:
    streams = services.request_log.count_streams()
    yield _gauge("dcp_streams_in_flight", "Streamed answers that are running.", streams)
    limits = services.upstream.call_limits.snapshot()
    calls = sum(limit.running_calls for limit in limits.values())
    yield _gauge("dcp_upstream_calls", "Calls to upstreams that are running.", calls)
    states = [Sample(int(each.state == "closed"), {"upstream": each.name}) for each in services.upstreams.all]
    yield Family("dcp_upstream_up", "gauge", "1 if the upstream is asked, 0 while others are asked first.", states)
    help = "Calls that wait for a slot, by model."
    yield Family("dcp_upstream_waiting", "gauge", help, _waiting_calls(limits, _limit_names(context)).samples())
    yield _gauge("dcp_connections", "Connections of clients.", len(context.server.connections))
    store = context.store_states.read(services.reasoning_store.database)
    rows = [Sample(number, {"table": table}) for table, number in store.size.rows.items()]
    yield Family("dcp_store_rows", "gauge", "Rows in the store, counted at most every minute.", rows)
    yield _gauge("dcp_store_bytes", "Size of the store's file.", store.size.bytes)
    yield Family(
        "dcp_store_faults_total", "counter", "Times that the store could not be used.", [Sample(store.fault_count)]
    )


def _limit_names(context: AdminContext) -> set[str]:
    """The names of call limits that have a label: those of the settings, and of models that known callers asked for."""
    services, statistics = context.services(), context.statistics()
    tables = [each.name for each in services.upstreams.all if each.table is not None]
    of_tables = {name for table in tables for name in (table, f"{table}/", f"{table}/flash")}
    of_routes = {f'[passthrough."{key}"]' for key in services.config.passthrough}
    with statistics.lock:
        return {*MODELS, services.config.upstream_model, *of_tables, *of_routes, *statistics.models}


def _waiting_calls(limits: Mapping[str, CallLimit], names: Collection[str]) -> Counter:
    """Calls that wait, by model; clients of some hosts may name any."""
    found = Counter("model")
    for model, limit in limits.items():
        name = safe_text(model, _NAME_LENGTH)
        found.add(limit.queued_calls, name if name in names else OTHER)
    return found


def _process(context: AdminContext) -> Iterator[Family]:
    use = measure_process()
    python = ".".join(map(str, sys.version_info[:3]))
    cpu = [Sample(use.cpu_seconds)]
    yield Family("process_cpu_seconds_total", "counter", "CPU time of the proxy, user and system.", cpu)
    if use.memory_bytes is not None:
        yield _gauge("process_resident_memory_bytes", "Memory of the proxy.", use.memory_bytes)
    if use.open_files is not None:
        yield _gauge("process_open_fds", "Open file descriptors.", use.open_files)
    if use.most_files is not None:
        yield _gauge("process_max_fds", "The most file descriptors that may be open.", use.most_files)
    yield _gauge("process_start_time_seconds", "Unix time of the start.", context.started_at)
    build = Sample(1, {"version": __version__, "python": python})
    yield Family("dcp_build_info", "gauge", "Versions of the proxy and of Python; always 1.", [build])


def _gauge(name: str, help: str, value: float) -> Family:
    return Family(name, "gauge", help, [Sample(value)])
