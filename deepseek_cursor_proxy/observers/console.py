"""Console: four log lines per request.

    ┌ #12 deepseek-v4-pro · stream · 34 messages · 18 tools · 212 kB
    ├ #12 reasoning  16 filled · 0 missing
    ├ #12 sent       231 kB · accepted after 0.42 s
    └ #12 completed  12,345 in (98 % cached) · 812 out (600 thinking) · tool_calls · 8.3 s · $0.0061

A picture that another model describes is a line of its own before them, an upstream that fails one after the second.
An answer of the response cache has no third line, and `cached answer` in the last.
The lines of a caller that `access` does not know yet are printed when an upstream accepts its key; else there is one.
The second line reports what was repaired or replayed as text. The last reports where a chat diverged from its previous
request, what share of it was cached then if that fell by more than half, and the cost, an estimate.
A new figure is a field of its event (see `events`), which `exchange` or `api` sets. Lines contain no prompt, answer or
key; `verbose` logs the bodies, never a key. All goes to the log: a program that embeds the proxy can keep it quiet.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from deepseek_cursor_proxy.deepseek.usage import Tokens, read_usage
from deepseek_cursor_proxy.observers.events import (
    COMPLETED,
    End,
    Event,
    Finished,
    PassedThrough,
    PictureDescribed,
    Received,
    Refused,
    Rerouted,
    Restored,
    Result,
    Sent,
    UpstreamChanged,
)
from deepseek_cursor_proxy.observers.standard_streams import line_writer
from deepseek_cursor_proxy.reasoning.restore import TurnCounts
from deepseek_cursor_proxy.redaction import readable_json, safe_text
from deepseek_cursor_proxy.usage.prices import format_amount

_log = logging.getLogger(__name__)

_GREEN, _YELLOW, _RED, _DIM, _PLAIN = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[2m", "\x1b[0m"

# Names come from the network, so that the number remembered is limited.
_MAX_REPORTED = 1000
# A chat with less of its prompt in the cache than this has little to lose.
_LEAST_SHARE = 0.2


class Console:
    """Called by handler threads. Operations of its set and its dict are atomic; a name added twice does no harm."""

    def __init__(self, *, verbose: bool = False, colour: bool = False) -> None:
        self._verbose = verbose
        self._colour = colour
        # Past the log's records, which took a tenth of a request's time.
        self._write = line_writer(_log)
        self._reported_fields: set[str] = set()
        # By number, the lines of requests in flight whose callers are not known yet.
        self._held: dict[int, list[str]] = {}
        # By type: a match statement tries one class after the other.
        self._reports: dict[type[Event], Callable[[Any], None]] = {
            Received: self._report_received,
            Restored: self._report_restored,
            Sent: self._report_sent,
            Finished: self._report_finished,
            PictureDescribed: self._report_picture,
            Refused: self._report_refused,
            PassedThrough: self._report_passed,
            Rerouted: self._report_rerouted,
            UpstreamChanged: _report_upstream,
        }

    def emit(self, event: Event) -> None:
        self._reports[type(event)](event)

    def _report_received(self, event: Received) -> None:
        is_known = bool(event.key)
        if not is_known and not self._verbose:
            self._held[event.number] = []
        # For a caller that is not known yet, they are reported with its next request.
        if is_known and event.request.dropped:
            self._report_dropped(event.request.dropped)
        self._print("┌", event.number, _format_received(event), _PLAIN)
        if self._verbose:
            self._print_body("client sent", event.body)

    def _report_restored(self, event: Restored) -> None:
        counts = event.prepared.count_turns()
        is_remarkable = counts.missing or event.prepared.has_transcript or event.refused_tools
        text = f"reasoning  {_format_restored(event, counts)}"
        self._print("├", event.number, text, _YELLOW if is_remarkable else _PLAIN)

    def _report_sent(self, event: Sent) -> None:
        self._release(event.number)
        by = f" by {event.upstream}" if event.upstream else ""
        accepted = f"accepted{by} after {event.seconds:.2f} s"
        parts = [_size(event.payload_bytes), accepted, *_retries(event.retries)]
        text = f"sent       {' · '.join(parts)}"
        self._print("├", event.number, text, _YELLOW if event.retries else _PLAIN)
        if self._verbose:
            self._print_body("sent to DeepSeek", event.payload())

    def _report_finished(self, event: Finished) -> None:
        is_good = event.end is COMPLETED
        has_lost = _has_lost_cache(event)
        if event.mixed_names:
            self._report_mixed(event.mixed_names)
        text = _format_finished(event, has_lost_cache=has_lost)
        edge = "└"
        if event.facts.key:
            self._release(event.number)
        elif self._held.pop(event.number, None) is not None:
            edge, text = "─", f"{safe_text(event.facts.requested_model, 60)} {text}"
        self._print(edge, event.number, text, _RED if not is_good else _YELLOW if has_lost else _GREEN)
        if self._verbose:
            self._print_answers(event)

    def _report_refused(self, event: Refused) -> None:
        self._held.pop(event.number, None)
        if not event.is_quiet:
            line = f"─ #{event.number} {event.route} refused: {event.end.status} {event.end.message}"
            self._write(safe_text(line, 1000))

    def _report_passed(self, event: PassedThrough) -> None:
        model, outcome = safe_text(event.facts.requested_model, 60), _format_end(event.end)
        line = f"─ #{event.number} {model} passed on to {event.host} · {outcome} · {event.seconds:.1f} s"
        self._write(safe_text(line, 1000))

    def _report_rerouted(self, event: Rerouted) -> None:
        text = f"rerouted   {event.failed}: {safe_text(event.reason)} · asking {event.upstream}"
        self._print("├", event.number, text, _YELLOW)

    def _print(self, edge: str, number: int, text: str, colour: str) -> None:
        line = f"{edge} #{number} {text}"
        if self._colour:
            line = f"{_DIM}{edge} #{number}{_PLAIN} {colour}{text}{_PLAIN}"
        held = self._held.get(number)
        if held is None:
            self._write(line)
        else:
            held.append(line)

    def _release(self, number: int) -> None:
        """Print the lines of a request whose caller is known now."""
        for line in self._held.pop(number, ()):
            self._write(line)

    def _print_body(self, what: str, body: Mapping[str, Any]) -> None:
        _log.info("│ %s: %s", what, readable_json(body))

    def _print_answers(self, event: Finished) -> None:
        for message in filter(None, (event.message, *event.other_messages)):
            self._print_body("DeepSeek said", {"reasoning": message.reasoning, "content": message.content})

    def _report_picture(self, event: PictureDescribed) -> None:
        if event.status == 200:
            tokens = [format_tokens(read_usage(event.usage))] if event.usage else []
            parts = [f"picture described by {safe_text(event.model, 60)}", *tokens, f"{event.seconds:.1f} s"]
            self._write(safe_text(f"─ {' · '.join(parts)}", 1000))
            return
        # Unknown callers share one line; otherwise they would use up the names.
        name = f"picture {event.caller} {event.picture if event.caller else ''}"
        if name not in self._reported_fields and len(self._reported_fields) < _MAX_REPORTED:
            self._reported_fields.add(name)
            why = f"{safe_text(event.model, 60)}: {safe_text(event.outcome)} ({event.status})"
            then = "named in the request, and tried again with the next one (said once)"
            self._write(safe_text(f"─ picture not described by {why} · {then}", 1000))

    def _report_mixed(self, names: tuple[str, ...]) -> None:
        mixed = "reasoning_content and " + " and ".join(names)
        if mixed not in self._reported_fields:
            self._reported_fields.add(mixed)
            _log.warning("the upstream sends reasoning as %s; it is read as one (said once)", mixed)

    def _report_dropped(self, names: tuple[str, ...]) -> None:
        for name in names:
            # Names come from the network, so their length is limited.
            text = safe_text(name, 60)
            if text not in self._reported_fields and len(self._reported_fields) < _MAX_REPORTED:
                self._reported_fields.add(text)
                _log.info("not forwarded to DeepSeek: %s (said once)", text)


def _report_upstream(event: UpstreamChanged) -> None:
    if event.is_ready:
        _log.info("upstream %s answers again", event.upstream)
        return
    effect = "others are asked" if event.model else "others are asked first"
    effect = f"its key {event.key} is not used" if event.key else effect
    effect = f"{effect} for {safe_text(event.model, 60)}" if event.model else effect
    _log.warning("upstream %s: %s; %s for %.0f s", event.upstream, safe_text(event.reason), effect, event.seconds)


def _format_received(event: Received) -> str:
    request = event.request
    model = safe_text(request.requested_model, 60)
    parts = [
        model if request.requested_model == request.model else f"{model} → {safe_text(request.model, 60)}",
        "stream" if request.stream else "plain",
        _count(len(request.messages), "message"),
        _count(len(request.tools) + len(request.server_tools), "tool"),
        _size(event.body_bytes),
    ]
    return " · ".join(parts)


def _format_restored(event: Restored, counts: TurnCounts) -> str:
    prepared = event.prepared
    parts = [f"{counts.filled} filled"]
    if counts.kept:
        parts.append(f"{counts.kept} kept")
    if counts.empty:
        parts.append(f"{counts.empty} empty")
    parts.append(f"{counts.missing} missing")
    if not prepared.request.thinking:
        parts = ["thinking is off for this request"]
    if prepared.repairs:
        parts.append(f"repaired: {format_repairs(prepared.repairs)}")
    if prepared.has_transcript:
        parts.append(f"recovered: {_count(prepared.transcript_count, 'message')} replayed as text")
    if event.is_second_attempt:
        parts.append("second try, DeepSeek refused the first")
    if event.refused_tools:
        names = safe_text(", ".join(event.refused_tools), 100)
        parts.append(f"without {names}, which the upstream refused")
    return " · ".join(parts)


def _retries(count: int) -> list[str]:
    return [f"{count} {'retry' if count == 1 else 'retries'}"] if count else []


def _format_finished(event: Finished, *, has_lost_cache: bool) -> str:
    last = event.last_prompt
    before = f", was {int(100 * last.share)} %" if has_lost_cache and last is not None else ""
    parts = [format_tokens(event.tokens, before)] if event.tokens is not None else []
    if event.divergence is not None:
        parts.append(f"diverged at {event.divergence.words()}")
    elif has_lost_cache and last is not None:
        is_same = (last.upstream, last.model) == (event.upstream, event.facts.model)
        parts.append("the chat is unchanged: DeepSeek forgot it" if is_same else "another model has its own cache")
    if event.finish_reason:
        parts.append(safe_text(event.finish_reason, 40))
    if event.is_cached:
        parts.insert(0, "cached answer")
    if event.end is not COMPLETED:
        parts[:0] = [_format_end(event.end), *_retries(event.retries)]
    parts.append(f"{event.timing.total:.1f} s")
    if event.cost is not None:
        parts.append(format_amount(event.cost.amount, event.cost.currency))
    elif event.tokens is not None:
        parts.append("cost unknown")
    return f"{'completed' if event.end is COMPLETED else 'ended':<10} " + " · ".join(parts)


def _format_end(end: End) -> str:
    if end.result is Result.PASSED_THROUGH:
        return str(end.status)
    return f"{safe_text(end.message)} ({end.status})"


def format_repairs(counts: Mapping[str, int]) -> str:
    """The repairs of the tool history: `1 cancelled, 2 moved`."""
    return ", ".join(f"{count} {safe_text(name, 40)}" for name, count in counts.items())


def _has_lost_cache(event: Finished) -> bool:
    """Whether the cached share of the chat fell by more than half."""
    last, tokens = event.last_prompt, event.tokens
    if last is None or tokens is None:
        return False
    share, prompt = last.share, tokens.prompt
    # A prompt that is shorter than the cached part is a different one.
    return share >= _LEAST_SHARE and prompt >= last.cached and tokens.hit < prompt * share / 2


def format_tokens(tokens: Tokens, before: str = "") -> str:
    """The tokens of an answer: `12,345 in (98 % cached) · 812 out (600 thinking)`."""
    prompt = tokens.prompt
    share = f" ({100 * tokens.hit // prompt} % cached{before})" if prompt else ""
    thinking = f" ({tokens.thinking:,} thinking)" if tokens.thinking else ""
    return f"{prompt:,} in{share} · {tokens.output:,} out{thinking}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _size(count: int) -> str:
    if count < 1000:
        return f"{count} B"
    return f"{count / 1000:.0f} kB" if count < 1_000_000 else f"{count / 1_000_000:.1f} MB"
