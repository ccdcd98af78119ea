"""Traces: the observer of a running proxy, and the bodies that its files have. Most proxies write none."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.config.values import expand_home
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.exchange.feature import Feature
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.features.request_log.feature import RequestLog
from deepseek_cursor_proxy.observers.events import Handlers
from deepseek_cursor_proxy.storage import private_files

_TRACING_HINT = "Bodies are kept only while tracing is on: set trace_dir to a directory and send SIGHUP, or restart."
_MISSING_HINT = "There is no trace of this request: it began before tracing was on, or its file was deleted."
_LARGE_HINT = "The trace of this request is too large to be shown here; read it in the directory of trace_dir."
# What a browser can still show.
_MOST_TRACE_BYTES = 16 * 1024 * 1024


class Traces(Feature):
    name = "traces"

    def __init__(self, directory: Path | None, run: str) -> None:
        """`run` is that of the request log."""
        self._directory = directory
        self._run = run

    def reconfigure(self, services: Services) -> None:
        self._directory = services.config.trace_dir

    def handlers(self) -> Handlers:
        if self._directory is None:
            return {}
        from deepseek_cursor_proxy.features.traces.trace import Trace

        return Trace(self._directory, self._run).handlers

    def details(self, services: Services, number: int) -> Mapping[str, Any]:
        if self._directory is None:
            return {"bodies_hint": _TRACING_HINT}
        from deepseek_cursor_proxy.features.traces.trace import file_end

        try:
            path = next(self._directory.expanduser().glob(f"*-{file_end(self._run, number)}"))
            if path.stat().st_size > _MOST_TRACE_BYTES:
                return {"bodies_hint": _LARGE_HINT}
            trace = json.loads(path.read_bytes())
        except (StopIteration, OSError, ValueError):
            return {"bodies_hint": _MISSING_HINT}
        names = {"client": "client_request", "upstream": "upstream_request", "answer": "reply"}
        return {"bodies": {name: trace.get(key) for name, key in names.items()}}


def check_directory(directory: Path) -> None:
    """Raise StartupError now, not at the first request, if traces cannot be written."""
    probe = expand_home(directory) / ".can-write"
    try:
        private_files.write(probe, b"")
        probe.unlink()
    except OSError as error:
        remedy = "choose another directory with --trace-dir"
        raise StartupError(f"cannot write into {directory}: {error.strerror}; {remedy}") from None


def open(services: Services) -> Services:
    return services.add(Traces(services.config.trace_dir, services.get(RequestLog).run))
