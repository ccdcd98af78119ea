"""The `explain` command: a trace as a report on each assistant message's reasoning and the repairs of the request.

It reads a file that `--trace-dir` wrote; any other file is a StartupError of one line. All text comes from strangers,
so it is printed without control characters. Missing or odd fields are tolerated, because people cut and edit a trace
before they send it in.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.deepseek.usage import read_usage
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.json_codec import as_list, as_object, decode_upstream_json
from deepseek_cursor_proxy.observers.console import format_repairs, format_tokens
from deepseek_cursor_proxy.observers.trace import FORMAT
from deepseek_cursor_proxy.redaction import safe_text

_FIRST_WORDS = 48

_NEEDS = {"hard": "required", "soft": "wanted", "none": "not needed"}
_SOURCES = {"client": "the client sent it", "display": "from the thinking block in its text", "nobody": "nobody has it"}
PROOFS = {
    "exact": "this message after exactly this history",
    "linked": "found here before, by a weaker proof",
    "sent": "sent in this chat before",
    "sent without": "nobody had it when this chat first sent it",
    "call": "the id of one of its calls",
    "result": "the id of the result it answers",
    "talk": "the same talk, other system messages",
    "place": "the same round of talk",
    "unknown": "never seen by this proxy, or forgotten",
}


def explain(path: Path) -> str:
    return "\n".join(_report(_read(path)))


def _read(path: Path) -> Mapping[str, Any]:
    name = safe_text(path, 300)
    try:
        trace = decode_upstream_json(path.read_bytes())
    except OSError as error:
        raise StartupError(f"cannot read {name}: {error.strerror}; name a file of your --trace-dir") from None
    except ValueError:
        trace = None
    if not isinstance(trace, dict) or not isinstance(trace.get("format"), int) or "client_request" not in trace:
        raise StartupError(f"{name} is not a trace; name a file that the proxy wrote with --trace-dir")
    if trace["format"] != FORMAT:
        age = "an older" if trace["format"] < FORMAT else "a newer"
        raise StartupError(
            f"{name} was written by {age} version (format {trace['format']}, not {FORMAT}); trace the chat again"
        )
    return trace


def _report(trace: Mapping[str, Any]) -> Iterator[str]:
    yield _title(trace)
    if usage := as_object(trace.get("usage")):
        yield f"tokens      {format_tokens(read_usage(usage))}"
    tries = [entry for entry in as_list(trace.get("restored")) if isinstance(entry, dict)]
    if not tries:
        yield "The request was not prepared: it failed before that."
    moves = [entry for entry in as_list(trace.get("rerouted")) if isinstance(entry, dict)]
    for number, entry in enumerate(tries):
        if number:
            yield ""
            yield from _reason_for(number, moves)
        yield from _attempt(entry)


def _reason_for(number: int, moves: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Why the request was prepared once more, after so many times."""
    reasons = [move for move in moves if move.get("after") == number]
    for move in reasons:
        failed, reason, upstream = (safe_text(move.get(name), 120) for name in ("failed", "reason", "upstream"))
        yield f"{failed}: {reason}; {upstream} was asked:"
    if not reasons:
        yield "DeepSeek refused this for missing reasoning; once more, with fewer turns sent natively:"


def _title(trace: Mapping[str, Any]) -> str:
    request = as_object(trace.get("client_request"))
    outcome = f"{trace.get('outcome', 'unfinished')} ({trace.get('status', '-')})"
    words = (f"#{trace.get('number', '?')}", trace.get("received_at", ""), request.get("model", ""), outcome)
    return " · ".join(safe_text(word, 120) for word in words if word)


def _attempt(restored: Mapping[str, Any]) -> Iterator[str]:
    divergence = as_object(restored.get("drift"))
    where = f"at {divergence.get('words', '?')}" if divergence else "nowhere that is known"
    yield f"diverged    {safe_text(where)}"
    counts = as_object(restored.get("repairs"))
    yield f"repaired    {safe_text(format_repairs(counts)) if counts else 'nothing'}"
    replayed = restored.get("transcribed")
    notice = ", and the client was told" if restored.get("notice") else ""
    yield f"recovered   {f'{safe_text(replayed, 20)} messages replayed as text{notice}' if replayed else 'nothing'}"
    turns = [turn for turn in as_list(restored.get("turns")) if isinstance(turn, dict)]
    yield f"assistants  {len(turns)}" + (", by message:" if turns else "")
    for turn in turns:
        yield f"  {safe_text(turn.get('message'), 8):>5}  {_describe_message(turn)}"
        yield f"         {_describe_reasoning(turn)}"


def _describe_message(turn: Mapping[str, Any]) -> str:
    calls = [f"{name}(…)" for name in as_list(turn.get("calls"))]
    words = " ".join(str(turn.get("says") or "").split())
    text = [safe_text(f"“{words}”" if len(words) <= _FIRST_WORDS else f"“{words[:_FIRST_WORDS]}…”")] if words else []
    return " ".join([*text, safe_text(" ".join(calls), 80)] if calls else text) or "(nothing)"


def _describe_reasoning(turn: Mapping[str, Any]) -> str:
    """Whether the reasoning was needed, and its source or the reason why there is none."""
    need = _NEEDS.get(str(turn.get("need")), "?")
    source, proof = str(turn.get("source")), str(turn.get("proof") or "")
    why = f"{safe_text(proof, 40)}: {PROOFS[proof]}" if proof in PROOFS else safe_text(_describe_doubt(proof), 120)
    if source == "store":
        origin = f"found by {why}"
    else:
        origin = _SOURCES.get(source, safe_text(source, 40)) + (f" ({why})" if why and source != "client" else "")
    empty = "; the model had thought nothing" if turn.get("is_empty") and source != "nobody" else ""
    return f"reasoning {need}, {origin}{empty}"


def _describe_doubt(proof: str) -> str:
    kind = proof.removeprefix("ambiguous ")
    return f"{proof}: two different turns fit {PROOFS.get(kind, kind)}" if kind != proof else proof
