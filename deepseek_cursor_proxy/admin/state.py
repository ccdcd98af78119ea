"""The state of the proxy for /readyz, metrics and dashboard: whether it is ready, what it uses, what its store holds.

Ready: the store can be used, and an upstream was reached within the last minute. If no call has reached one lately, a
connection is opened to it and closed again, which costs neither money nor a key; the result counts for some seconds, so
that monitors cannot make the proxy knock all the time. Counting the rows of the store takes a while, so a count serves
for a minute. What a system does not tell is None.
"""

import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from deepseek_cursor_proxy.admin.context import AdminContext, Recent
from deepseek_cursor_proxy.errors import ProxyError
from deepseek_cursor_proxy.observers.events import Progress
from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.storage.sqlite.database import Database, StoreSize

if TYPE_CHECKING:
    # The start needs none of it.
    from deepseek_cursor_proxy.exchange.services import Services

_FRESH_SECONDS = 60.0


def why_not_ready(services: "Services", probes: Recent) -> list[str]:
    """The reasons; none if it is ready."""
    fault = services.reasoning_store.database.fault
    reasons = [f"the store cannot be used: {fault}"] if fault is not None else []
    if probes.now() - services.upstream.reached_at >= _FRESH_SECONDS:
        reasons += filter(None, [probes.read("", lambda: _probe(services))])
    return reasons


def _probe(services: "Services") -> str:
    """Why no upstream can be reached; empty if one can."""
    failures = []
    for upstream in services.upstreams.all:
        try:
            services.upstream.probe(upstream.destination(""))
        except ProxyError as error:
            failures.append(error.message)
        else:
            return ""
    return " ".join(failures)


# What happens at the moment …


class CallCounts(NamedTuple):
    running_calls: int = 0
    queued_calls: int = 0


class Gauges(NamedTuple):
    """What the proxy does at the moment."""

    connections: int
    # By the name of the limit.
    calls: dict[str, CallCounts]
    # By upstream: the state of its breaker.
    upstreams: dict[str, str]
    running: list[Progress]
    fault: str
    fault_count: int
    use: "ProcessUse"


def gauges(context: AdminContext) -> Gauges:
    services = context.services()
    database, limits = services.reasoning_store.database, services.upstream.call_limits.snapshot()
    return Gauges(
        len(context.server.connections),
        {name: CallCounts(limit.running_calls, limit.queued_calls) for name, limit in limits.items()},
        {upstream.name: upstream.state for upstream in services.upstreams.all},
        services.request_log.running(),
        str(database.fault or ""),
        database.fault_count,
        measure_process(),
    )


# The process …

# From the kernel's view, so that a late import of this file changes nothing.
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
# Elsewhere a directory has a size that means something else, or none.
_HAS_FD_COUNT = sys.platform == "linux" and os.stat("/proc/self/fd").st_size > 0


class ProcessUse(NamedTuple):
    cpu_seconds: float
    memory_bytes: int | None
    open_files: int | None
    most_files: int | None


def measure_process() -> ProcessUse:
    return ProcessUse(time.process_time(), _memory_bytes(), _open_files(), _most_files())


def _memory_bytes() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    return None


def _open_files() -> int | None:
    """Their number. Linux has it as a size since 6.2: a listing hands the interpreter over for every entry."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            # One of them is for the listing itself.
            return os.stat(folder).st_size if _HAS_FD_COUNT else len(os.listdir(folder)) - 1
    return None


def _most_files() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


# The store …


def store_size(context: AdminContext, database: Database) -> StoreSize:
    """The rows and bytes of the store, as of the last count that worked."""

    def count() -> bool:
        # If it cannot be counted now, `fault` says why; the next count comes in a minute.
        with suppress(Unusable):
            context.store_size = database.size()
        return True

    if database.fault is None:
        context.counts.read("", count)
    return context.store_size
