"""Traces: one private JSON file per request, written by the Trace observer, and `explain`, which reads it.

A file has the client's body, the restored reasoning, the upstream body and the reply: prompts and answers in full,
except what looks like an API key. The caller is a digest, headers are absent; mode 0600 in a directory of 0700. A
caller that `access` does not know leaves no file. A file's name contains the run of the proxy, because several
proxies, one after the other or at once, write here.

`explain` prints a trace as a report on each assistant message's reasoning and the repairs of the request. Any other
file is a StartupError of one line.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.config.values import expand_home
from deepseek_cursor_proxy.conversation import ChatRequest, Message
from deepseek_cursor_proxy.deepseek.usage import read_usage
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.features.request_log.feature import PROOFS
from deepseek_cursor_proxy.json_codec import decode_upstream_json, encode_json
from deepseek_cursor_proxy.observers import events
from deepseek_cursor_proxy.observers.console import format_repairs, format_tokens
from deepseek_cursor_proxy.reasoning import thinking_blocks
from deepseek_cursor_proxy.reasoning.restore import Turn
from deepseek_cursor_proxy.redaction import redact_keys, safe_text
from deepseek_cursor_proxy.storage import private_files

# The beginning of an assistant's text, so that a person recognises the turn.
_FIRST_WORDS = 120


class Trace:
    """Called by any thread. Operations of its dict are atomic; events of one request come in order."""

    def __init__(self, directory: Path, run: str, now: Callable[[], float] = time.time) -> None:
        """`run` is that of the request log."""
        self._directory = directory.expanduser()
        self._run = run
        self._now = now
        # By number, the unfinished traces with the requests of their clients.
        self._open: dict[int, tuple[dict[str, Any], ChatRequest]] = {}
        self.handlers: events.Handlers = {
            events.Received: self._begin,
            events.Restored: self._add_attempt,
            events.Sent: self._add_time,
            events.Rerouted: self._add_reroute,
            events.Finished: self._finish,
        }

    def _begin(self, event: events.Received) -> None:
        trace = {
            "number": event.number,
            "received_at": datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds"),
            "caller": "",
            "client_request": event.body,
            "dropped_fields": event.request.dropped,
            "timing": {},
        }
        self._open[event.number] = trace, event.request

    def _add_attempt(self, event: events.Restored) -> None:
        """A second one follows a refusal. Both are kept, also when DeepSeek is never reached."""
        trace, request = self._open[event.number]
        trace.setdefault("restored", []).append(_restored_fields(event, request))
        trace["upstream_request"] = event.upstream_api.payload(event.prepared.request)

    def _add_time(self, event: events.Sent) -> None:
        self._open[event.number][0]["timing"]["accepted_seconds"] = event.seconds

    def _add_reroute(self, event: events.Rerouted) -> None:
        trace, _ = self._open[event.number]
        reroute = {"failed": event.failed, "reason": event.reason, "upstream": event.upstream}
        # How many times it had been restored by then.
        trace.setdefault("rerouted", []).append({**reroute, "after": len(trace.get("restored", ()))})

    def _finish(self, event: events.Finished) -> None:
        opened = self._open.pop(event.facts.number, None)
        if opened is not None and event.facts.key:
            self._write({**opened[0], **_finished_fields(event, opened[0]["timing"])})

    def _write(self, trace: dict[str, Any]) -> None:
        stamp = trace["received_at"].replace(":", "").replace("-", "").partition("+")[0]
        path = self._directory / f"{stamp}-{file_end(self._run, trace['number'])}"
        private_files.write(path, redact_keys(encode_json(trace).decode()).encode())


def file_end(run: str, number: int) -> str:
    """How the name of a request's file ends; it begins with the time."""
    return f"{number:06d}-{run}.json"


def _restored_fields(event: events.Restored, request: ChatRequest) -> dict[str, Any]:
    prepared = event.prepared
    return {
        "is_retry": event.is_second_attempt,
        "repairs": prepared.repairs,
        "transcribed": prepared.counts.recovered,
        "refused_tools": event.refused_tools,
        "notice": bool(prepared.notice),
        "divergence": event.divergence,
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


def _finished_fields(event: events.Finished, timing: Mapping[str, float]) -> dict[str, Any]:
    repair = event.repair
    return {
        # Unknown until an upstream has accepted its key.
        "caller": event.facts.key,
        "reply": _reply_fields(event.message) if event.message is not None else None,
        "other_replies": [*map(_reply_fields, event.other_messages)],
        "finish_reason": event.finish_reason,
        "usage": event.usage,
        "outcome": event.end.message,
        "status": event.end.status,
        "retries": event.retries,
        "is_cached": event.is_cached,
        "timing": {
            **timing,
            "queue_seconds": event.timing.queue,
            "connect_seconds": event.timing.connect,
            "first_delta_seconds": event.timing.first_delta,
            "total_seconds": event.timing.total,
        },
        "repair": {"summary": repair.summary(), **repair._asdict()} if repair is not None else None,
    }


def _reply_fields(message: Message) -> dict[str, Any]:
    calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return {"reasoning": message.reasoning, "content": message.content, "tool_calls": calls}


# A trace as a report …

_MOST_SHOWN = 48

_NEEDS = {"hard": "required", "soft": "wanted", "none": "not needed"}
_SOURCES = {"client": "the client sent it", "display": "from its thinking block", "missing": "no source has it"}


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=Path, metavar="TRACE.json", help="a file in the --trace-dir folder")


def print_explanation(options: dict[str, Any]) -> None:
    print(explain(expand_home(options["trace"])))


def explain(path: Path) -> str:
    name = safe_text(path, 300)
    try:
        # What it says comes from strangers, so no control character reaches the terminal.
        return "\n".join([safe_text(line, 300) for line in _report(decode_upstream_json(path.read_bytes()))])
    except OSError as error:
        raise StartupError(f"cannot read {name}: {error.strerror}; name a file of your --trace-dir") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise StartupError(f"{name} is not a trace; name a file that the proxy wrote with --trace-dir") from None


def _report(trace: Any) -> Iterator[str]:
    outcome = f"{trace['outcome']} ({trace['status']})"
    parts = (f"#{trace['number']}", trace.get("received_at"), trace["client_request"].get("model"), outcome)
    yield " · ".join(str(part)[:120] for part in parts if part)
    if usage := trace.get("usage"):
        yield f"tokens      {format_tokens(read_usage(usage))}"
    if repair := trace.get("repair"):
        yield f"answer      repaired: {repair['summary']}"
    tries = trace.get("restored", ())
    if not tries:
        yield "The request was not prepared: it failed before that."
    for number, entry in enumerate(tries):
        if number:
            yield ""
            yield from _reason_for(number, trace.get("rerouted", ()))
        yield from _attempt(entry)


def _reason_for(number: int, moves: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Why the request was prepared once more, after `number` attempts."""
    reasons = [move for move in moves if move["after"] == number]
    for move in reasons:
        yield f"{move['failed']}: {move['reason'][:120]}; {move['upstream']} was asked:"
    if not reasons:
        yield "DeepSeek refused this for missing reasoning; once more, with fewer turns sent natively:"


def _attempt(restored: Mapping[str, Any]) -> Iterator[str]:
    repairs, replayed = restored.get("repairs"), restored.get("transcribed")
    yield f"prefix lost {restored.get('divergence') or 'no'}"
    yield f"repaired    {format_repairs(repairs) if repairs else 'nothing'}"
    notice = ", and the client was told" if restored.get("notice") else ""
    yield f"recovered   {f'{replayed} messages replayed as text{notice}' if replayed else 'nothing'}"
    turns = restored["turns"]
    yield f"assistants  {len(turns)}" + (", by message:" if turns else "")
    for turn in turns:
        yield f"  {turn['message']:>5}  {_describe_message(turn)}"
        yield f"         {_describe_reasoning(turn)}"


def _describe_message(turn: Mapping[str, Any]) -> str:
    says = " ".join(turn["says"].split())
    says = says if len(says) <= _MOST_SHOWN else f"{says[:_MOST_SHOWN]}…"
    calls = " ".join([f"{name}(…)" for name in turn["calls"]])
    return " ".join(filter(None, (says and f"“{says}”", calls[:80]))) or "(nothing)"


def _describe_reasoning(turn: Mapping[str, Any]) -> str:
    """Whether the reasoning was needed, and its source or the reason why there is none."""
    source, proof = turn["source"], turn["proof"]
    why = f"{proof}: {PROOFS[proof]}" if proof in PROOFS else proof[:40]
    if source == "store":
        origin = f"found by {why}"
    else:
        origin = _SOURCES[source] + (f" ({why})" if why and source != "client" else "")
    empty = "; the model had thought nothing" if turn["is_empty"] and source != "missing" else ""
    return f"reasoning {_NEEDS[turn['need']]}, {origin}{empty}"
