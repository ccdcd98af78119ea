"""Statistics: what requests add up to, since the start for metrics and by the minute for the dashboard.

It listens to the request log on the thread of each request, which only adds its record to a list. Records are counted
many at a time, or when the figures are read. Names of models come from clients: beyond fifty of them all others count
as `other`. A request that was not understood, or whose caller `access` does not know, makes no label: it counts as one
without a model.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from deepseek_cursor_proxy.admin.prometheus import Histogram, Metric
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.exchange.retries import REASONS
from deepseek_cursor_proxy.observers.events import Result, Timing, is_name
from deepseek_cursor_proxy.observers.request_log import RequestRecord
from deepseek_cursor_proxy.reasoning.chats.divergence import CAUSES

_MOST_MODELS = 50
_MOST_CLIENTS = 12
OTHER = "other"
_NONE = "none"
# Where the reasoning of a turn came from, in the order of TurnCounts.
_SOURCES = ("store", "client", "empty", "missing")
_OUTCOMES = tuple(result.value for result in Result)
_MINUTES = 60
_COST_NAMES = {"USD": "dcp_cost_usd_total", "CNY": "dcp_cost_cny_total"}
# Short answers take seconds, long ones with much thinking half an hour.
_REQUEST_BOUNDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
_FIRST_TOKEN_BOUNDS = (0.1, 0.25, 0.5, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120, 300)
# Less than half a millisecond for the request that comes last.
_MOST_PENDING = 64
# A call waits for `queue_timeout` at most, by default 30 seconds.
_QUEUE_BOUNDS = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 20, 30, 60)


@dataclass
class Minute:
    """What ended within one minute, as /api/stats shows it."""

    # Its beginning, in Unix seconds.
    minute: int
    requests: int = 0
    failed: int = 0
    output_tokens: int = 0
    hit_tokens: int = 0
    miss_tokens: int = 0
    # None as long as nothing with a known price has ended.
    cost: float | None = None
    # Of the requests that did not fail, by the client that sent them.
    clients: dict[str, int] = field(default_factory=dict)

    def add_client(self, name: str) -> None:
        # Callers choose the names.
        name = name if name in self.clients or len(self.clients) < _MOST_CLIENTS else OTHER
        self.clients[name or OTHER] = self.clients.get(name or OTHER, 0) + 1


class Statistics:
    """Called by the threads of requests; read by those of the listener, under `lock`, which protects all fields.

    Who reads them has called `catch_up` before.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.lock = threading.Lock()
        self._now = now
        # Requests that are not counted yet, and when each ended.
        self._pending: list[tuple[float, RequestRecord]] = []
        # Those that have a label.
        self.models: set[str] = set()
        # API and model of requests that were counted.
        self._known: set[tuple[str, str]] = set()
        self._minutes: deque[Minute] = deque(maxlen=_MINUTES)
        self.requests = _counter(
            "dcp_requests_total", "Requests that ended, by API, model and outcome.", "api", "model", "outcome"
        )
        help = "Tokens by kind: hit and miss of the prefix cache, thinking, and output without thinking."
        self.tokens = _counter("dcp_tokens_total", help, "model", "kind")
        self.key_requests = _counter("dcp_key_requests_total", "Requests of named keys that ended.", "key", "outcome")
        self.key_costs = _counter("dcp_key_cost_total", "What they cost; an estimate.", "key", "currency")
        # By the currency that the settings had then, and the model.
        self.costs: dict[str, Metric] = {}
        help = "Time from request to last byte."
        self.request_seconds = Histogram("dcp_request_seconds", help, _REQUEST_BOUNDS, "model")
        help = "Time from request to first token, thinking included."
        self.first_token_seconds = Histogram("dcp_first_token_seconds", help, _FIRST_TOKEN_BOUNDS, "model")
        help = "Time that calls waited for a slot."
        self.queue_seconds = Histogram("dcp_upstream_queue_seconds", help, _QUEUE_BOUNDS)
        help = "Calls that another upstream got because this one failed."
        self.reroutes = _counter("dcp_reroutes_total", help, "upstream")
        self.retries = _counter("dcp_retries_total", "Calls made again, by what had failed.", "reason")
        help = "Assistant turns sent, by where their reasoning came from."
        self.turns = _counter("dcp_reasoning_turns_total", help, "source")
        help = "Requests sent with turns as a transcript, because reasoning was lost."
        self.recoveries = _counter("dcp_recoveries_total", help)
        help = "Requests that changed what the chat had sent before, by the first part that differs."
        self.divergences = _counter("dcp_divergences_total", help, "where")
        help = "Broken turns that were repaired: calls written as text, and empty turns asked for again."
        self.repairs = _counter("dcp_repaired_turns_total", help, "kind")
        # Present from the start: Prometheus computes no increase from a series that begins with its first event.
        for counter, values in (
            (self.retries, REASONS),
            (self.turns, _SOURCES),
            (self.divergences, CAUSES),
            (self.repairs, ("calls", "empty")),
        ):
            for value in values:
                counter.add(0, value)

    def metrics(self) -> list[Metric]:
        first, times = [self.requests, self.tokens], [self.request_seconds, self.first_token_seconds]
        more = [
            self.queue_seconds,
            self.reroutes,
            self.retries,
            self.turns,
            self.recoveries,
            self.divergences,
            self.repairs,
        ]
        return [*first, *self.costs.values(), self.key_requests, self.key_costs, *times, *more]

    def add(self, record: RequestRecord) -> None:
        """Have a request counted, soon."""
        with self.lock:
            self._pending.append((self._now(), record))
            if len(self._pending) >= _MOST_PENDING:
                self._count_pending()

    def catch_up(self) -> None:
        """Count all requests that have ended."""
        with self.lock:
            self._count_pending()

    def _count_pending(self) -> None:
        groups: dict[tuple[int, str], list[RequestRecord]] = {}
        for ended_at, record in self._pending:
            model = self._label(_model(record))
            groups.setdefault((int(ended_at // 60) * 60, model), []).append(record)
        self._pending.clear()
        for (start, model), records in groups.items():
            self._count(self._minute(start), model, records)

    def _count(self, minute: Minute, model: str, records: Sequence[RequestRecord]) -> None:
        """Count requests of one model that ended within one minute."""
        minute.requests += len(records)
        for record in records:
            self._count_request(record.facts.api, model, record.result.value)
            if is_name(record.facts.key):
                self._count_key(record)
            if record.result is Result.FAILED:
                minute.failed += 1
            else:
                minute.add_client(record.facts.client)
            if (cost := record.cost) is not None:
                self._costs_in(cost.currency).add(cost.amount, model)
                minute.cost = (minute.cost or 0.0) + cost.amount
            for reason in record.retry_reasons:
                self.retries.add(1, reason)
            for upstream in record.rerouted:
                self.reroutes.add(1, upstream)
            if (repair := record.repair) is not None:
                self.repairs.add(bool(repair.calls), "calls")
                self.repairs.add(repair.is_repeated, "empty")
            if any(record.turns) or record.divergence is not None:
                self._add_history(record)
        self._add_times([record.timing for record in records], model)
        self._add_tokens(minute, model, [record.tokens for record in records if record.tokens is not None])

    def _count_request(self, api: str, model: str, outcome: str) -> None:
        if (api, model) not in self._known:
            self._known.add((api, model))
            for each in _OUTCOMES:
                self.requests.add(0, api, model, each)
        self.requests.add(1, api, model, outcome)

    def _count_key(self, record: RequestRecord) -> None:
        """Count a request of a named key; names are those of the settings."""
        self.key_requests.add(1, record.facts.key, record.result.value)
        if record.cost is not None:
            self.key_costs.add(record.cost.amount, record.facts.key, record.cost.currency)

    def _costs_in(self, currency: str) -> Metric:
        if currency not in self.costs:
            help = f"What requests cost, in {currency}; an estimate. Those of unknown price are not in it."
            self.costs[currency] = _counter(_COST_NAMES[currency], help, "model")
        return self.costs[currency]

    def minutes(self) -> list[Minute]:
        """The last sixty minutes, the oldest first, those without a request too."""
        now = int(self._now() // 60) * 60
        known = {each.minute: each for each in self._minutes}
        starts = range(now - 60 * (_MINUTES - 1), now + 1, 60)
        return [known.get(start) or Minute(start) for start in starts]

    def _label(self, model: str) -> str:
        """The model as the value of a label. Requests that were refused early have none."""
        model = model or _NONE
        if model not in self.models:
            if len(self.models) >= _MOST_MODELS:
                return OTHER
            self.models.add(model)
        return model

    def _add_tokens(self, minute: Minute, model: str, tokens: Sequence[Tokens]) -> None:
        if not tokens:
            return
        hit, miss, output, thinking, _ = map(sum, zip(*tokens, strict=True))
        minute.hit_tokens += hit
        minute.miss_tokens += miss
        minute.output_tokens += output
        for kind, number in (("hit", hit), ("miss", miss), ("output", output - thinking), ("thinking", thinking)):
            self.tokens.add(number, model, kind)

    def _add_times(self, timings: Sequence[Timing], model: str) -> None:
        self.request_seconds.observe([each.total for each in timings], model)
        self.first_token_seconds.observe([each.first_delta for each in timings if each.first_delta is not None], model)
        self.queue_seconds.observe([each.queue for each in timings if each.queue is not None])

    def _add_history(self, record: RequestRecord) -> None:
        filled, kept, empty, missing, recovered = record.turns
        for source, number in zip(_SOURCES, (filled, kept, empty, missing), strict=True):
            self.turns.add(number, source)
        if recovered:
            self.recoveries.add(1)
        if record.divergence is not None:
            # The words begin with the first part that differs.
            self.divergences.add(1, record.divergence.partition(" ")[0].rstrip(","))

    def _minute(self, start: int) -> Minute:
        if not self._minutes or self._minutes[-1].minute != start:
            self._minutes.append(Minute(start))
        return self._minutes[-1]


def _counter(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, "counter", help, *labels)


def _model(record: RequestRecord) -> str:
    """The model that a request was for; "" if its caller is not known, or the request was not understood."""
    facts = record.facts
    if not facts.key:
        return ""
    # One that was passed on has no other name.
    return facts.model or (facts.requested_model if record.upstream else "")
