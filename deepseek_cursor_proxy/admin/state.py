"""The state of the proxy for /readyz, metrics and dashboard: whether it is ready, what it uses, what its store holds.

Ready: the store can be used, and an upstream was reached within the last minute. If no call has reached one lately, a
connection is opened to it and closed again, which costs neither money nor a key; the result counts for some seconds, so
that monitors cannot make the proxy knock all the time. Counting the rows of the store takes a while, so a count serves
for a minute. What a system does not tell is None.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from deepseek_cursor_proxy.errors import ProxyError
from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.storage.sqlite.database import Database, StoreSize

if TYPE_CHECKING:
    # The start needs none of it.
    from deepseek_cursor_proxy.exchange.services import Services

_FRESH_SECONDS = 60.0
_PROBE_VALID_SECONDS = 10.0


class ReadinessProbe:
    """Called by connection threads. The lock protects the last probe, and lets one thread probe at a time."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._probed_at = float("-inf")
        self._probe_failure: str | None = None

    def reasons(self, services: "Services") -> list[str]:
        """Why the proxy is not ready; nothing if it is."""
        found = []
        if (fault := services.reasoning_store.database.fault) is not None:
            found.append(f"the store cannot be used: {fault}")
        if (failure := self._upstream_failure(services)) is not None:
            found.append(failure)
        return found

    def _upstream_failure(self, services: "Services") -> str | None:
        if self._now() - services.upstream.reached_at < _FRESH_SECONDS:
            return None
        with self._lock:
            if self._now() - self._probed_at >= _PROBE_VALID_SECONDS:
                self._probe_failure = _probe(services)
                self._probed_at = self._now()
            return self._probe_failure


def _probe(services: "Services") -> str | None:
    """Why no upstream can be reached; None if one can."""
    failures = []
    for upstream in services.upstreams.all:
        try:
            services.upstream.probe(upstream.destination(""))
        except ProxyError as error:
            failures.append(error.message)
        else:
            return None
    return " ".join(failures)


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

_COUNT_VALID_SECONDS = 60.0


class StoreState(NamedTuple):
    path: str
    # As of the last count that worked.
    size: StoreSize
    # Why it cannot be used; None if it can.
    fault: str | None
    fault_count: int


class StoreStates:
    """Called by the threads of the listener. The lock protects the last count, and lets one thread count."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._counted_at = float("-inf")
        self._size = StoreSize({}, 0)

    def read(self, database: Database) -> StoreState:
        with self._lock:
            if database.fault is None and self._now() - self._counted_at >= _COUNT_VALID_SECONDS:
                self._counted_at = self._now()
                # If it cannot be counted now, `fault` says why; the next count comes in a minute.
                with suppress(Unusable):
                    self._size = database.size()
            size = self._size
        fault = database.fault
        return StoreState(database.path, size, str(fault) if fault is not None else None, database.fault_count)
