"""RequestLog: the requests in flight, and the last thousand that ended, for the dashboard and the ledger.

A RequestRecord has everything that a terminal event has except texts: no prompt, no answer, no key. Its names and
messages are short and free of control characters, and all records together take less than 5 MB. Nothing is computed per
chunk: the progress of a running answer is read when the dashboard asks for it.

Of callers that `access` does not know, which are those without a `key`, the last few requests are kept: however many
there are, they push no others out.
"""

import logging
import secrets
import threading
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from deepseek_cursor_proxy.deepseek.prices import Cost
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.exchange.feature import Feature
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.observers import events
from deepseek_cursor_proxy.reasoning.restore import OUTCOMES, Turn
from deepseek_cursor_proxy.reasoning.restore import TurnCounts as TurnCounts
from deepseek_cursor_proxy.redaction import safe_name, safe_text

_log = logging.getLogger(__name__)

_MOST_RECORDS = 1000
# Enough to find a wrong key by; fewer than the dashboard shows at first.
_MOST_OF_UNKNOWN = 20
# Four bytes each; the oldest turns of a longer chat are left out.
_MOST_TURNS = 600
_MESSAGE_LENGTH = 200
_MOST_NAMES = 20
_REPAIR_LENGTH = 1000


class Percentiles(NamedTuple):
    p50: float
    p95: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Percentiles | None":
        ordered = sorted(values)
        last = len(ordered) - 1
        return cls(ordered[round(last * 0.5)], ordered[round(last * 0.95)]) if ordered else None


class TurnMark(NamedTuple):
    """Where the reasoning of one assistant message came from: store, client, display, empty, missing or none."""

    # The index of the message in the request.
    message: int
    source: str
    proof: str


# By which key a reasoning was found, or why not.
PROOFS = {
    "exact": "this message after exactly this history",
    "call": "the id of one of its calls",
    "result": "the id of the result it answers",
    "near": "this message after the same last messages",
    "contradicted near": "another chat had the same last messages, and the thinking block shows another reasoning",
    "unknown": "never seen by this proxy, or forgotten",
}
_PROOFS = ("", "exact", "call", "result", "near", "contradicted near", "unknown")
_NO_TURNS = TurnCounts()
_NO_REPAIRS: Mapping[str, int] = MappingProxyType({})


class RequestRecord(NamedTuple):
    """A request that ended."""

    facts: events.RequestFacts
    result: events.Result
    status: int
    # Why it was not completed; None if it was.
    message: str | None
    timing: events.Timing
    # The upstream that was called; "" if none was.
    upstream: str = ""
    tokens: Tokens | None = None
    # None if nothing was used, or the price is not known.
    cost: Cost | None = None
    finish_reason: str | None = None
    retries: int = 0
    turns: TurnCounts = _NO_TURNS
    repairs: Mapping[str, int] = _NO_REPAIRS
    # Where the chat diverged from its last request, such as `message 12 changed (user content)`.
    divergence: str | None = None
    # Names of fields that DeepSeek does not take.
    dropped: tuple[str, ...] = ()
    packed_strip: bytes = b""
    # A word for each retry.
    retry_reasons: tuple[str, ...] = ()
    # The upstreams that failed, so that another was asked.
    rerouted: tuple[str, ...] = ()
    # Whether the response cache had the answer.
    is_cached: bool = False
    # Of a turn that was broken; the texts are short.
    repair: events.Repair | None = None

    @property
    def number(self) -> int:
        return self.facts.number

    @property
    def ended_at(self) -> float:
        """Unix time; counted from the start, so that no change of the clock makes it earlier."""
        return self.facts.started_at + self.timing.total

    @property
    def is_cost_unknown(self) -> bool:
        """Whether it cost something that is not known: there is no price, or the answer ended before its usage came."""
        if self.cost is not None or self.tokens is not None:
            return self.cost is None
        return self.timing.connect is not None or self.result is events.Result.PASSED_THROUGH

    @property
    def strip(self) -> list[TurnMark]:
        """The assistant turns of the history, oldest first."""
        codes = array("I", self.packed_strip)
        return [TurnMark(code >> 8, OUTCOMES[code >> 4 & 15], _PROOFS[code & 15]) for code in codes]


EndListener = Callable[[RequestRecord], None]


class RequestLog(Feature):
    """An observer, called by any thread and read by any. The lock protects all fields."""

    name = "request_log"

    def __init__(self, most_records: int = _MOST_RECORDS) -> None:
        # Numbers of requests begin anew with every start; this tells one run from all others.
        self.run = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._running: dict[int, Callable[[], events.Progress]] = {}
        # By number, in the order in which they ended; and the numbers of those whose callers are not known.
        self._ended: dict[int, RequestRecord] = {}
        self._unknown: dict[int, None] = {}
        self._most_records = most_records
        self._end_listeners: tuple[EndListener, ...] = ()

    def handlers(self) -> events.Handlers:
        ends = dict.fromkeys((events.Finished, events.Refused, events.PassedThrough), self.end)
        return {events.Received: self.begin, **ends}

    def begin(self, event: events.Received) -> None:
        with self._lock:
            self._running[event.number] = event.progress

    def end(self, event: events.Terminal) -> None:
        record = make_record(event)
        number = record.facts.number
        with self._lock:
            self._running.pop(number, None)
            self._ended[number] = record
            if not record.facts.key:
                self._unknown[number] = None
                if len(self._unknown) > _MOST_OF_UNKNOWN:
                    self._forget(next(iter(self._unknown)))
            # Older records are in the ledger, which has none of unknown callers.
            while len(self._ended) - len(self._unknown) > self._most_records:
                self._forget(next(iter(self._ended)))
        for listener in self._end_listeners:
            try:
                listener(record)
            except Exception as error:
                name = getattr(listener, "__qualname__", listener)
                _log.warning("%s failed: %s: %s", name, type(error).__name__, error)

    def _forget(self, number: int) -> None:
        del self._ended[number]
        self._unknown.pop(number, None)

    # Read …

    def running(self) -> list[events.Progress]:
        """The requests in flight, oldest first."""
        with self._lock:
            running = list(self._running.values())
        found = [progress() for progress in running]
        return [progress._replace(facts=_safe_facts(progress.facts)) for progress in found]

    def ended(self, before: int | None = None) -> list[RequestRecord]:
        """The last requests that ended, newest first; those that ended before request number `before`."""
        with self._lock:
            records = list(reversed(self._ended.values()))
        if before is not None:
            at = next((index for index, record in enumerate(records) if record.number == before), None)
            records = records[at + 1 :] if at is not None else [each for each in records if each.number < before]
        return records

    def find(self, number: int) -> RequestRecord | None:
        return self._ended.get(number)

    def subscribe(self, on_end: EndListener) -> None:
        """Call this on the thread of each request, which it must not block."""
        with self._lock:
            self._end_listeners += (on_end,)


# Records …


def make_record(event: events.Terminal) -> RequestRecord:
    result, status, text = event.end
    message = None if event.end is events.COMPLETED else safe_text(text, _MESSAGE_LENGTH)
    facts = _safe_facts(event.facts)
    if isinstance(event, events.Refused):
        return RequestRecord(facts, result, status, message, events.Timing(event.seconds))
    if isinstance(event, events.PassedThrough):
        return RequestRecord(facts, result, status, message, events.Timing(event.seconds), safe_name(event.host))
    turns, repairs, strip = _NO_TURNS, _NO_REPAIRS, b""
    dropped: tuple[str, ...] = ()
    if (prepared := event.prepared) is not None:
        turns, repairs = prepared.counts, prepared.repairs
        strip = _pack(prepared.turns[-_MOST_TURNS:]) if prepared.turns else b""
        dropped = tuple(map(safe_name, prepared.request.dropped[:_MOST_NAMES]))
    finish_reason = safe_name(event.finish_reason) if event.finish_reason is not None else None
    repair = _short_repair(event.repair) if event.repair is not None else None
    # Fields by position take half the time.
    return RequestRecord(
        facts, result, status, message, event.timing, event.upstream, event.tokens, event.cost, finish_reason,
        event.retries, turns, repairs, event.divergence, dropped, strip, event.retry_reasons, event.rerouted,
        event.is_cached, repair,
    )  # fmt: skip


def _short_repair(repair: events.Repair) -> events.Repair:
    """The repair with texts that the memory can hold for a thousand requests."""
    calls = [call._replace(arguments=call.arguments[:_REPAIR_LENGTH]) for call in repair.calls[:_MOST_NAMES]]
    markup = [text[:_REPAIR_LENGTH] for text in repair.markup[:_MOST_NAMES]]
    return repair._replace(calls=tuple(calls), markup=tuple(markup))


def _pack(turns: Sequence[Turn]) -> bytes:
    """Four bytes for each turn: a thousand records of long chats would take ten times that as objects."""
    codes = [turn.index << 8 | _OUTCOME_CODES[turn.outcome] | _PROOF_CODES.get(turn.proof, 0) for turn in turns]
    return array("I", codes).tobytes()


_OUTCOME_CODES = {outcome: code << 4 for code, outcome in enumerate(OUTCOMES)}
_PROOF_CODES = {proof: code for code, proof in enumerate(_PROOFS)}


def _safe_facts(facts: events.RequestFacts) -> events.RequestFacts:
    """The facts with short and printable names of models."""
    requested = safe_name(facts.requested_model)
    model = requested if facts.model == facts.requested_model else safe_name(facts.model)
    if requested == facts.requested_model and model == facts.model:
        return facts
    return facts._replace(requested_model=requested, model=model)


def open(services: Services) -> Services:
    return services.add(RequestLog())
