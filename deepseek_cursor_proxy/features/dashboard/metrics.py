"""What requests add up to, as metrics in Prometheus' text format (0.0.4), and by the minute for the dashboard.

`Statistics` counts on the thread of each request. Names of models come from clients: beyond fifty of them all others
count as `other`. A request that was not understood, or whose caller `access` does not know, makes no label: it counts
as one without a model. Limits of keys are in /api/keys alone.
"""

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from deepseek_cursor_proxy.exchange.failover import RETRY_REASONS
from deepseek_cursor_proxy.features.request_log.feature import RequestRecord
from deepseek_cursor_proxy.observers.events import Result, is_name
from deepseek_cursor_proxy.reasoning.chats import CAUSES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_MOST_MODELS = 50
_MOST_CLIENTS = 12
OTHER = "other"
_NONE = "none"
# Where the reasoning of a turn came from, in the order of TurnCounts.
_SOURCES = ("store", "client", "empty", "missing")
_MINUTES = 60
_COST_NAMES = {"USD": "dcp_cost_usd_total", "CNY": "dcp_cost_cny_total"}
# Short answers take seconds, long ones with much thinking half an hour.
_REQUEST_BOUNDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
_FIRST_TOKEN_BOUNDS = (0.1, 0.25, 0.5, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120, 300)
# A call waits for `queue_timeout` at most, by default 30 seconds.
_QUEUE_BOUNDS = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 20, 30, 60)

Labels = tuple[str, ...]
# What follows the name of the metric, the labels with their names, the value.
Sample = tuple[str, dict[str, str], float]


# The format …


class Metric:
    """A counter or a gauge: sums by the values of its labels. Without labels it begins at 0. Its owner has a lock."""

    def __init__(self, name: str, type: str, help: str, *label_names: str) -> None:
        self.name = name
        self.type = type
        self.help = help
        self._label_names = label_names
        self._values: dict[Labels, float] = {} if label_names else {(): 0}

    def add(self, amount: float, *labels: str) -> None:
        self._values[labels] = self._values.get(labels, 0) + amount

    def samples(self) -> Iterator[Sample]:
        for labels, value in self._values.items():
            yield "", self._named(labels), value

    def _named(self, labels: Labels) -> dict[str, str]:
        return dict(zip(self._label_names, labels, strict=True))


class Histogram(Metric):
    """Counts of values up to each bound, by the values of its labels. Without labels it begins at 0."""

    def __init__(self, name: str, help: str, bounds: Sequence[float], *label_names: str) -> None:
        super().__init__(name, "histogram", help, *label_names)
        self._bounds = tuple(bounds)
        # Counts for each bound and for what is beyond the last, then the sum of the values.
        self._nothing = [0.0] * (len(bounds) + 2)
        self._observed: dict[Labels, list[float]] = {} if label_names else {(): self._nothing.copy()}

    def observe(self, value: float | None, *labels: str) -> None:
        """Count a value; None is one that the request never had."""
        if value is None:
            return
        observed = self._observed.get(labels)
        if observed is None:
            observed = self._observed[labels] = self._nothing.copy()
        observed[bisect_left(self._bounds, value)] += 1
        observed[-1] += value

    def samples(self) -> Iterator[Sample]:
        for labels, (*counts, value_sum) in self._observed.items():
            names, totals = self._named(labels), list(accumulate(counts))
            for bound, total in zip((*map(_format_number, self._bounds), "+Inf"), totals, strict=True):
                yield "_bucket", {**names, "le": bound}, total
            yield "_sum", names, value_sum
            yield "_count", names, totals[-1]


def render(metrics: Iterable[Metric]) -> bytes:
    """The text that Prometheus scrapes; metrics without a sample are left out."""
    return "".join(line for metric in metrics for line in _lines(metric)).encode()


def _lines(metric: Metric) -> Iterator[str]:
    samples = list(metric.samples())
    if samples:
        yield f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.type}\n"
    for suffix, labels, value in samples:
        # Label values come from requests.
        pairs = ",".join([f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels.items()])
        yield f"{metric.name}{suffix}{f'{{{pairs}}}' if pairs else ''} {_format_number(value)}\n"


def metric(name: str, help: str, value: float, type: str = "gauge") -> Metric:
    metric = Metric(name, type, help)
    metric.add(value)
    return metric


def gauge_by(name: str, help: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    metric = Metric(name, "gauge", help, label)
    for labelled, value in values:
        metric.add(value, labelled)
    return metric


def _format_number(value: float) -> str:
    """A whole number without a point, any other with all its digits."""
    return str(int(value)) if value == int(value) else repr(value)


# What is counted …


@dataclass
class Minute:
    """What ended within one minute, and how busy it was, as /api/stats shows it."""

    # Its beginning, in Unix seconds.
    minute: int
    requests: int = 0
    failed: int = 0
    # What requests took of it together: sixty are one request in flight all the time.
    busy_seconds: float = 0.0
    output_tokens: int = 0
    # None as long as nothing with a known price has ended.
    cost: float | None = None
    # Of the requests that did not fail, by the client that sent them.
    clients: dict[str, int] = field(default_factory=dict)

    def copy(self) -> "Minute":
        return replace(self, clients=dict(self.clients))

    def add(self, record: RequestRecord) -> None:
        self.requests += 1
        if record.result.is_failure:
            self.failed += 1
        else:
            # Callers choose the names.
            name = record.facts.client
            name = name if name in self.clients or (name and len(self.clients) < _MOST_CLIENTS) else OTHER
            self.clients[name] = self.clients.get(name, 0) + 1
        if record.cost is not None:
            self.cost = (self.cost or 0.0) + record.cost.amount
        if record.tokens is not None:
            self.output_tokens += record.tokens.output


class Statistics:
    """Called by the threads of requests; read by those of the listener, under `lock`, which protects all fields."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.lock = threading.Lock()
        self._now = now
        # Those that have a label.
        self.models: set[str] = set()
        # API and model of requests that were counted.
        self._known: set[tuple[str, str]] = set()
        # Each at the place of its number in the hour.
        self._minutes = [Minute(0)] * _MINUTES
        self.requests = _counter("dcp_requests_total", "Requests that ended.", "api", "model", "outcome")
        self.tokens = _counter("dcp_tokens_total", "Tokens; output is without thinking.", "model", "kind")
        # By the currency that the settings had then.
        self.costs: dict[str, Metric] = {}
        self.key_requests = _counter("dcp_key_requests_total", "Requests of named keys that ended.", "key", "outcome")
        self.key_costs = _counter("dcp_key_cost_total", "What they cost; an estimate.", "key", "currency")
        self.request_seconds = Histogram("dcp_request_seconds", "Until the last byte.", _REQUEST_BOUNDS, "model")
        help = "Until the first token, thinking included."
        self.first_token_seconds = Histogram("dcp_first_token_seconds", help, _FIRST_TOKEN_BOUNDS, "model")
        self.queue_seconds = Histogram("dcp_upstream_queue_seconds", "Waits for a slot.", _QUEUE_BOUNDS)
        self.reroutes = _counter("dcp_reroutes_total", "Calls that another upstream got.", "upstream")
        # Present from the start: Prometheus computes no increase from a series that begins with its first event.
        self.retries = _counter("dcp_retries_total", "Calls made again.", "reason", at_0=RETRY_REASONS)
        help = "Assistant turns sent, by where their reasoning came from."
        self.turns = _counter("dcp_reasoning_turns_total", help, "source", at_0=_SOURCES)
        self.recoveries = _counter("dcp_recoveries_total", "Requests sent with turns as a transcript.")
        help = "Requests that changed what the chat had sent before."
        self.divergences = _counter("dcp_divergences_total", help, "where", at_0=CAUSES)
        self.repairs = _counter("dcp_repaired_turns_total", "Broken turns repaired.", "kind", at_0=("calls", "empty"))

    def metrics(self) -> list[Metric]:
        return [*self.costs.values(), *(each for each in vars(self).values() if isinstance(each, Metric))]

    def add(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        total, first_delta, queue, _ = record.timing
        with self.lock:
            now = self._now()
            minute = self._minute(now)
            minute.add(record)
            if now - total >= minute.minute:
                minute.busy_seconds += total
            else:
                for start, seconds in _seconds_by_minute(now, total):
                    self._minute(start).busy_seconds += seconds
            model = self._label(record)
            self._count_request(record.facts.api, model, record.result)
            if record.cost is not None:
                self._costs_in(record.cost.currency).add(record.cost.amount, model)
            if is_name(record.facts.key):
                self._count_key(record)
            self.request_seconds.observe(total, model)
            self.first_token_seconds.observe(first_delta, model)
            self.queue_seconds.observe(queue)
            if record.tokens is not None:
                hit, miss, output, thinking, _ = record.tokens
                kinds = (("hit", hit), ("miss", miss), ("output", output - thinking), ("thinking", thinking))
                for kind, number in kinds:
                    self.tokens.add(number, model, kind)
            self._count_troubles(record)

    def _count_request(self, api: str, model: str, outcome: str) -> None:
        if (api, model) not in self._known:
            self._known.add((api, model))
            for each in Result:
                self.requests.add(0, api, model, each)
        self.requests.add(1, api, model, outcome)

    def _count_key(self, record: RequestRecord) -> None:
        """Count a request of a named key; names are those of the settings."""
        self.key_requests.add(1, record.facts.key, record.result)
        if record.cost is not None:
            self.key_costs.add(record.cost.amount, record.facts.key, record.cost.currency)

    def _costs_in(self, currency: str) -> Metric:
        if currency not in self.costs:
            help = f"What requests cost, in {currency}; an estimate. Those of unknown price are not in it."
            self.costs[currency] = _counter(_COST_NAMES[currency], help, "model")
        return self.costs[currency]

    def _count_troubles(self, record: RequestRecord) -> None:
        """Count what the history lacked, and what failed on the way."""
        if any(record.turns):
            for source, number in zip(_SOURCES, record.turns, strict=False):
                self.turns.add(number, source)
            self.recoveries.add(record.turns.recovered > 0)
        if record.divergence is not None:
            # The text begins with the first part that differs.
            self.divergences.add(1, record.divergence.partition(" ")[0].rstrip(","))
        for reason in record.retry_reasons:
            self.retries.add(1, reason)
        for upstream in record.rerouted:
            self.reroutes.add(1, upstream)
        if (repair := record.repair) is not None:
            self.repairs.add(bool(repair.calls), "calls")
            self.repairs.add(repair.is_repeated, "empty")

    def _label(self, record: RequestRecord) -> str:
        """The model as the value of a label; `none` if the caller is not known, or the request was not understood."""
        facts = record.facts
        # A request that was passed through has no other name.
        model = facts.model or (facts.requested_model if record.upstream else "")
        model = model if model and facts.key else _NONE
        if model not in self.models:
            if len(self.models) >= _MOST_MODELS:
                return OTHER
            self.models.add(model)
        return model

    def _minute(self, at: float) -> Minute:
        start = int(at // 60) * 60
        place = start // 60 % _MINUTES
        if self._minutes[place].minute != start:
            self._minutes[place] = Minute(start)
        return self._minutes[place]

    def minutes(self, ages: Iterable[float] = ()) -> list[Minute]:
        """Copies of the last sixty minutes, the oldest first; `ages` are those of requests in flight, in seconds."""
        now = self._now()
        starts = [int(now // 60) * 60 - 60 * place for place in reversed(range(_MINUTES))]
        minutes = {start: self._minute(start).copy() for start in starts}
        for age in ages:
            for start, seconds in _seconds_by_minute(now, age):
                minutes[start].busy_seconds += seconds
        return list(minutes.values())


def _seconds_by_minute(end: float, total: float) -> Iterator[tuple[int, float]]:
    """The minutes of the last hour that a request ran in until `end`, and how much of each."""
    begin = end - total
    last = int(end // 60) * 60
    for start in range(max(int(begin // 60) * 60, last - 60 * (_MINUTES - 1)), last + 1, 60):
        yield start, min(end, start + 60) - max(begin, start)


def _counter(name: str, help: str, *labels: str, at_0: Iterable[str] = ()) -> Metric:
    metric = Metric(name, "counter", help, *labels)
    for value in at_0:
        metric.add(0, value)
    return metric
