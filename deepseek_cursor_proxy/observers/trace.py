"""Trace: one private JSON file per request: the client's body, the restored reasoning, the upstream body, the reply.

Files have mode 0600 in a directory of 0700 and contain prompts and answers in full, except what looks like an API key;
the caller is a digest, headers are absent. A caller that `access` does not know leaves no file. `explain_trace` reads
them. FORMAT is the version of the file's format. The name of a file has the run of the proxy in it, because several
proxies, one after the other or at once, write here.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, assert_never

from deepseek_cursor_proxy.conversation import ChatRequest, Message
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.observers.events import (
    Event,
    Finished,
    PassedThrough,
    PictureDescribed,
    Received,
    Refused,
    Rerouted,
    Restored,
    Sent,
    UpstreamChanged,
)
from deepseek_cursor_proxy.reasoning import thinking_blocks
from deepseek_cursor_proxy.reasoning.restore import Turn
from deepseek_cursor_proxy.redaction import redact_keys
from deepseek_cursor_proxy.storage import private_files

FORMAT = 2
# The beginning of an assistant's text, so that a person recognises the turn.
_FIRST_WORDS = 120


class Trace:
    """Called by handler threads; the lock protects the unfinished traces and their requests."""

    def __init__(self, directory: Path, run: str, now: Callable[[], float] = time.time) -> None:
        """`run` is that of the request log."""
        self._directory = directory.expanduser()
        self._run = run
        self._now = now
        self._lock = threading.Lock()
        self._open: dict[int, dict[str, Any]] = {}
        self._requests: dict[int, ChatRequest] = {}

    def emit(self, event: Event) -> None:
        match event:
            case Received():
                with self._lock:
                    self._open[event.number] = self._new_trace(event)
                    self._requests[event.number] = event.request
            case Restored():
                # A second one follows a refusal. Both are kept, also when DeepSeek is never reached.
                with self._lock:
                    request = self._requests[event.number]
                self._trace_of(event).setdefault("restored", []).append(_restored_fields(event, request))
                self._trace_of(event)["upstream_request"] = event.upstream_api.payload(event.prepared.request)
            case Sent():
                self._trace_of(event)["timing"]["accepted_seconds"] = event.seconds
            case Finished():
                with self._lock:
                    trace = self._open.pop(event.number, None)
                    self._requests.pop(event.number, None)
                if trace is not None and event.facts.key:
                    timing = {
                        "queue_seconds": event.timing.queue,
                        "connect_seconds": event.timing.connect,
                        "first_delta_seconds": event.timing.first_delta,
                        "total_seconds": event.timing.total,
                    }
                    # The caller is unknown until an upstream has accepted its key.
                    fields = {"caller": event.facts.key, **_finished_fields(event)}
                    self._write({**trace, **fields, "timing": {**trace["timing"], **timing}})
            case Rerouted():
                trace = self._trace_of(event)
                words = {"failed": event.failed, "reason": event.reason, "upstream": event.upstream}
                # How many times it had been restored by then.
                count = len(trace.get("restored", ()))
                trace.setdefault("rerouted", []).append({**words, "after": count})
            case PictureDescribed() | Refused() | PassedThrough() | UpstreamChanged():
                # No exchange, so nothing was restored.
                pass
            case _:
                assert_never(event)

    def _trace_of(self, event: Restored | Sent | Rerouted) -> dict[str, Any]:
        with self._lock:
            return self._open[event.number]

    def _new_trace(self, event: Received) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "number": event.number,
            "received_at": datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds"),
            "caller": "",
            "client_request": event.body,
            "dropped_fields": event.request.dropped,
            "timing": {},
        }

    def _write(self, trace: dict[str, Any]) -> None:
        stamp = trace["received_at"].replace(":", "").replace("-", "").partition("+")[0]
        private_files.make_directory(self._directory)
        path = self._directory / f"{stamp}-{file_end(self._run, trace['number'])}"
        private_files.write(path, redact_keys(encode_json(trace).decode()).encode(), is_new_name=True)


def file_end(run: str, number: int) -> str:
    """How the name of a request's file ends; it begins with the time."""
    return f"{number:06d}-{run}.json"


def _restored_fields(event: Restored, request: ChatRequest) -> dict[str, Any]:
    prepared, divergence = event.prepared, event.divergence
    counts = prepared.count_turns()
    return {
        "is_retry": event.is_second_attempt,
        "filled": counts.filled,
        "kept": counts.kept,
        "missing": counts.missing,
        "repairs": prepared.repairs,
        "transcribed": prepared.transcript_count,
        "refused_tools": event.refused_tools,
        "notice": bool(prepared.notice),
        "drift": {"words": divergence.words(), **asdict(divergence)} if divergence is not None else None,
        "turns": [_turn_fields(turn, request.messages[turn.index]) for turn in prepared.turns],
    }


def _turn_fields(turn: Turn, message: Message) -> dict[str, Any]:
    text = message.content if isinstance(message.content, str) else ""
    return {
        "message": turn.index,
        "says": thinking_blocks.strip_display(text).strip()[:_FIRST_WORDS],
        "calls": [call.name for call in message.tool_calls],
        "need": turn.need.value,
        "source": turn.source.value,
        "proof": turn.proof,
        "is_empty": turn.is_empty,
    }


def _finished_fields(event: Finished) -> dict[str, Any]:
    others = {"other_replies": [*map(_reply_fields, event.other_messages)]} if event.other_messages else {}
    return {
        "reply": _reply_fields(event.message) if event.message is not None else None,
        **others,
        "finish_reason": event.finish_reason,
        "usage": event.usage,
        "outcome": event.end.message,
        "status": event.end.status,
        "retries": event.retries,
        **({"is_cached": True} if event.is_cached else {}),
    }


def _reply_fields(message: Message) -> dict[str, Any]:
    calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return {"reasoning": message.reasoning, "content": message.content, "tool_calls": calls}
