"""One private JSON file per request: what came in, what was put back, what went out, how it ended.

For finding out why a chat behaved as it did. Files are 0600 in a directory of 0700 and hold prompts and answers in
full; the caller appears only as a digest, headers not at all.
"""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, assert_never

from deepseek_cursor_proxy import deepseek, private_files
from deepseek_cursor_proxy.observers import Event, Finished, Received, Restored, Sent
from deepseek_cursor_proxy.wire import encode_json

_FORMAT = 1


class Trace:
    """Called by handler threads; the lock protects `_open`, the traces that have not finished."""

    def __init__(self, directory: Path, now: Callable[[], float] = time.time) -> None:
        self._directory = directory.expanduser()
        self._now = now
        self._lock = threading.Lock()
        self._open: dict[int, dict[str, Any]] = {}

    def notice(self, event: Event) -> None:
        match event:
            case Received():
                with self._lock:
                    self._open[event.number] = self._begun(event)
            case Restored():
                # A second one follows a refusal; both are worth seeing, also when DeepSeek is never reached.
                self._trace_of(event).setdefault("restored", []).append(_restored(event))
                self._trace_of(event)["upstream_request"] = deepseek.payload(event.prepared.request)
            case Sent():
                self._trace_of(event)["timing"]["accepted_seconds"] = event.seconds
            case Finished():
                with self._lock:
                    trace = self._open.pop(event.number, None)
                if trace is not None:
                    self._write({**trace, **_finished(event), "timing": {**trace["timing"], **_timing(event)}})
            case _:
                assert_never(event)

    def _trace_of(self, event: Event) -> dict[str, Any]:
        with self._lock:
            return self._open[event.number]

    def _begun(self, event: Received) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "number": event.number,
            "received_at": datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds"),
            "caller": event.caller,
            "client_request": event.body,
            "dropped_fields": event.request.dropped,
            "timing": {},
        }

    def _write(self, trace: dict[str, Any]) -> None:
        stamp = trace["received_at"].replace(":", "").replace("-", "").partition("+")[0]
        private_files.make_directory(self._directory)
        path = self._directory / f"{stamp}-{trace['number']:06d}.json"
        private_files.write(path, encode_json(trace))


def _restored(event: Restored) -> dict[str, Any]:
    prepared = event.prepared
    return {
        "is_retry": event.is_retry,
        "filled": prepared.filled,
        "missing": prepared.missing,
        "transcribed": prepared.transcribed,
        "notice": bool(prepared.notice),
        "turns": [
            {"message": turn.index, "need": turn.need.value, "source": turn.source.value} for turn in prepared.turns
        ],
    }


def _finished(event: Finished) -> dict[str, Any]:
    message = event.message
    said = None
    if message is not None:
        calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls]
        said = {"reasoning": message.reasoning, "content": message.content, "tool_calls": calls}
    return {
        "reply": said,
        "finish_reason": event.finish_reason,
        "usage": event.usage,
        "outcome": event.outcome,
        "status": event.status,
        "retries": event.retries,
    }


def _timing(event: Finished) -> dict[str, Any]:
    return {"first_delta_seconds": event.first_delta_seconds, "total_seconds": event.seconds}
