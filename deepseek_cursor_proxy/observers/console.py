"""Console: four log lines per request.

    ┌ #12 deepseek-v4-pro · stream · 34 messages · 18 tools · 212 kB
    ├ #12 reasoning  16 filled · 0 missing
    ├ #12 sent       231 kB · accepted after 0.42 s
    └ #12 completed  12,345 in (98 % cached) · 812 out (600 thinking) · tool_calls · 8.3 s · $0.0061

An upstream that fails is a line of its own after the second.
An answer of the response cache has no third line, and `cached answer` in the last.
The lines of a caller that `access` does not know yet are printed when an upstream accepts its key; else there is one.
The second line reports what was repaired or replayed as text. The last reports where a chat diverged from its previous
request, what share of it was cached then if that fell by more than half, and the cost, an estimate.
A new figure is a field of its event (see `events`), which `exchange` or `api` sets. Lines contain no prompt, answer or
key; `verbose` logs the bodies, never a key. All goes to the log: a program that embeds the proxy can keep it quiet.
"""

import logging
from collections.abc import Mapping
from typing import Any

from deepseek_cursor_proxy.deepseek.prices import format_amount
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.observers import events
from deepseek_cursor_proxy.observers.standard_streams import line_writer
from deepseek_cursor_proxy.redaction import readable_json, safe_name, safe_text

_log = logging.getLogger(__name__)

_GREEN, _YELLOW, _RED, _DIM, _PLAIN = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[2m", "\x1b[0m"

# Names come from the network, so that the number remembered is limited.
_MAX_REPORTED = 1000
# A chat with less of its prompt in the cache than this has little to lose.
_LEAST_SHARE = 0.2


class Console:
    """Called by any thread. Operations of its set and its dict are atomic; a name added twice does no harm."""

    def __init__(self, *, verbose: bool = False, colour: bool = False) -> None:
        self._verbose = verbose
        self._colour = colour
        # Past the log's records, which took a tenth of a request's time.
        self._write = line_writer(_log)
        self._reported: set[str] = set()
        # By number, the lines of requests in flight whose callers are not known yet.
        self._held: dict[int, list[str]] = {}
        self.handlers: events.Handlers = {
            events.Received: self._report_received,
            events.Restored: self._report_restored,
            events.Sent: self._report_sent,
            events.Finished: self._report_finished,
            events.Refused: self._report_refused,
            events.PassedThrough: self._report_passed,
            events.Rerouted: self._report_rerouted,
            events.UpstreamChanged: _report_upstream,
        }

    def _report_received(self, event: events.Received) -> None:
        request = event.request
        if not event.key and not self._verbose:
            self._held[event.number] = []
        # For a caller that is not known yet, they are reported with its next request.
        for name in request.dropped if event.key else ():
            if self._is_first(text := safe_name(name)):
                _log.info("not forwarded to DeepSeek: %s (said once)", text)
        name = safe_name(request.requested_model)
        if request.model != request.requested_model:
            name += f" → {safe_name(request.model)}"
        key = f"{event.key} · " if events.is_name(event.key) else ""
        messages, tools = len(request.messages), len(request.tools) + len(request.server_tools)
        counts = f"{_count(messages, 'message')} · {_count(tools, 'tool')} · {_size(event.body_bytes)}"
        self._print("┌", event.number, f"{name} · {key}{'stream' if request.stream else 'plain'} · {counts}")
        if self._verbose:
            _print_body("client sent", event.body)

    def _report_restored(self, event: events.Restored) -> None:
        prepared, counts = event.prepared, event.prepared.counts
        parts = [f"{counts.filled} filled"]
        if counts.kept:
            parts.append(f"{counts.kept} from the client")
        if counts.empty:
            parts.append(f"{counts.empty} empty")
        parts.append(f"{counts.missing} missing")
        if not prepared.request.thinking:
            parts = ["thinking is off for this request"]
        if prepared.repairs:
            parts.append(f"repaired: {format_repairs(prepared.repairs)}")
        if counts.recovered:
            parts.append(f"recovered: {_count(counts.recovered, 'message')} replayed as text")
        if event.is_second_attempt:
            parts.append("second try, DeepSeek refused the first")
        if event.refused_tools:
            names = safe_text(", ".join(event.refused_tools), 100)
            parts.append(f"without {names}, which the upstream refused")
        if event.has_old_tools:
            tools = len(prepared.request.tools) + len(prepared.request.server_tools)
            parts.append(f"{_count(tools, 'tool')} of the chat restored, for its cache")
        is_remarkable = counts.missing or counts.recovered or event.refused_tools
        self._print("├", event.number, f"reasoning  {' · '.join(parts)}", _YELLOW if is_remarkable else _PLAIN)

    def _report_sent(self, event: events.Sent) -> None:
        for line in self._held.pop(event.number, ()):
            self._write(line)
        by = f" by {event.upstream}" if event.upstream else ""
        parts = [_size(event.payload_bytes), f"accepted{by} after {event.seconds:.2f} s", *_retries(event.retries)]
        self._print("├", event.number, f"sent       {' · '.join(parts)}", _YELLOW if event.retries else _PLAIN)
        if self._verbose:
            _print_body("sent to DeepSeek", event.payload())

    def _report_rerouted(self, event: events.Rerouted) -> None:
        text = f"rerouted   {event.failed}: {safe_text(event.reason)} · asking {event.upstream}"
        self._print("├", event.number, text, _YELLOW)

    def _report_finished(self, event: events.Finished) -> None:
        number, edge = event.facts.number, "└"
        mixed = "reasoning_content and " + " and ".join(event.mixed_names)
        if event.mixed_names and self._is_first(mixed):
            _log.warning("the upstream sends reasoning as %s; it is read as one (said once)", mixed)
        text, colour = _format_finished(event)
        held = self._held.pop(number, None)
        if held is not None and not event.facts.key:
            # The only line: no upstream has accepted the caller.
            edge, text = "─", f"{safe_name(event.facts.requested_model)} {text}"
        elif held is not None:
            for line in held:
                self._write(line)
        self._print(edge, number, text, colour)
        for message in filter(None, (event.message, *event.other_messages)) if self._verbose else ():
            _print_body("DeepSeek said", {"reasoning": message.reasoning, "content": message.content})

    def _report_refused(self, event: events.Refused) -> None:
        self._held.pop(event.facts.number, None)
        if not event.is_logged_elsewhere:
            line = f"─ #{event.facts.number} {event.route} refused: {event.end.status} {event.end.message}"
            self._write(safe_text(line, 1000))

    def _report_passed(self, event: events.PassedThrough) -> None:
        model, outcome = safe_name(event.facts.requested_model), _format_end(event.end)
        caller = f" · {event.facts.key}" if events.is_name(event.facts.key) else ""
        line = f"─ #{event.facts.number} {model}{caller} passed on to {event.host} · {outcome} · {event.seconds:.1f} s"
        self._write(safe_text(line, 1000))

    def _is_first(self, name: str) -> bool:
        """Whether to report what is said once; names come from the network, so the number remembered is limited."""
        is_first = name not in self._reported and len(self._reported) < _MAX_REPORTED
        if is_first:
            self._reported.add(name)
        return is_first

    def _print(self, edge: str, number: int, text: str, colour: str = _PLAIN) -> None:
        line = f"{edge} #{number} {text}"
        if self._colour:
            line = f"{_DIM}{edge} #{number}{_PLAIN} {colour}{text}{_PLAIN}"
        held = self._held.get(number)
        if held is None:
            self._write(line)
        else:
            held.append(line)


def _print_body(what: str, body: Mapping[str, Any]) -> None:
    _log.info("│ %s: %s", what, readable_json(body))


def _report_upstream(event: events.UpstreamChanged) -> None:
    if event.is_ready:
        _log.info("upstream %s answers again", event.upstream)
        return
    effect = "others are asked" if event.model else "others are asked first"
    effect = f"its key {event.key} is not used" if event.key else effect
    effect = f"{effect} for {safe_name(event.model)}" if event.model else effect
    _log.warning("upstream %s: %s; %s for %.0f s", event.upstream, safe_text(event.reason), effect, event.seconds)


def _retries(count: int) -> list[str]:
    return [f"{count} {'retry' if count == 1 else 'retries'}"] if count else []


def _format_finished(event: events.Finished) -> tuple[str, str]:
    """The last line, and its colour."""
    last, tokens, cost, is_good = event.last_prompt, event.tokens, event.cost, event.end is events.COMPLETED
    before, has_lost_cache = "", False
    # A prompt that is shorter than the cached part of the last one is a different one.
    if last is not None and tokens is not None and last.share >= _LEAST_SHARE and tokens.prompt >= last.cached:
        # The cached share of the chat fell by more than half.
        has_lost_cache = tokens.hit < tokens.prompt * last.share / 2
        before = f", was {int(100 * last.share)} %" if has_lost_cache else ""
    parts = [] if is_good else [_format_end(event.end), *_retries(event.retries)]
    if event.is_cached:
        parts.append("cached answer")
    if tokens is not None:
        parts.append(format_tokens(tokens, before))
    if event.divergence is not None:
        price = f", about {format_amount(cost.divergence, cost.currency, 4)}" if cost and cost.divergence else ""
        parts.append(f"prefix lost: {event.divergence}{price}")
    elif has_lost_cache and last is not None:
        is_same_cache = last.model == event.facts.model and last.upstream == event.upstream
        forgot, other = "the chat is unchanged: DeepSeek forgot it", "another upstream has its own cache"
        parts.append(forgot if is_same_cache else other)
    if event.repair is not None and (repair := event.repair.summary()):
        parts.append(f"repaired: {repair}")
    if event.finish_reason:
        parts.append(safe_name(event.finish_reason))
    parts.append(f"{event.timing.total:.1f} s")
    if cost is not None:
        parts.append(format_amount(cost.amount, cost.currency, 4))
    elif tokens is not None:
        parts.append("cost unknown")
    text = f"{'completed' if is_good else 'ended':<10} {' · '.join(parts)}"
    return text, _RED if not is_good else _YELLOW if has_lost_cache else _GREEN


def _format_end(end: events.End) -> str:
    if end.result is events.Result.PASSED_THROUGH:
        return str(end.status)
    return f"{safe_text(end.message)} ({end.status})"


def format_repairs(counts: Mapping[str, int]) -> str:
    """The repairs of the tool history: `1 cancelled, 2 moved`."""
    return ", ".join(f"{count} {safe_text(name, 40)}" for name, count in counts.items())


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
