"""Statistics: what requests add up to, since the start for metrics and by the minute for the dashboard.

It listens to the request log on the thread of each request, so it only adds numbers. Names of models come from clients:
beyond fifty of them all others count as `other`.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

from deepseek_cursor_proxy.admin.prometheus import Counter, Histogram
from deepseek_cursor_proxy.observers.events import Result
from deepseek_cursor_proxy.observers.request_log import RequestRecord

MOST_MODELS = 50
OTHER = "other"
_NONE = "none"
_MINUTES = 60
# Short answers take seconds, long ones with much thinking half an hour.
_REQUEST_BOUNDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
_FIRST_TOKEN_BOUNDS = (0.1, 0.25, 0.5, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120, 300)
# A call waits for `queue_timeout` at most, by default 30 seconds.
_QUEUE_BOUNDS = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 20, 30, 60)


class Minute:
    """What ended within one minute."""

    __slots__ = ("cost", "failed", "hit_tokens", "minute", "miss_tokens", "output_tokens", "requests")

    def __init__(self, minute: int) -> None:
        # Its beginning, in Unix seconds.
        self.minute = minute
        self.requests = self.failed = 0
        self.hit_tokens = self.miss_tokens = self.output_tokens = 0
        # None as long as nothing with a known price has ended.
        self.cost: float | None = None


class Statistics:
    """Called by the threads of requests; read by those of the listener, under `lock`, which protects all fields."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.lock = threading.Lock()
        self._now = now
        self._models: set[str] = set()
        self._minutes: deque[Minute] = deque(maxlen=_MINUTES)
        self.requests = Counter("api", "model", "outcome")
        self.tokens = Counter("model", "kind")
        # By the currency that the settings had then, and the model.
        self.costs: dict[str, Counter] = {}
        self.retries = Counter("reason")
        self.reroutes = Counter("upstream")
        self.turns = Counter("source")
        self.recoveries = Counter()
        self.divergences = Counter("where")
        self.request_seconds = Histogram(_REQUEST_BOUNDS, "model")
        self.first_token_seconds = Histogram(_FIRST_TOKEN_BOUNDS, "model")
        self.queue_seconds = Histogram(_QUEUE_BOUNDS)
        # Present from the start, so that a rate can be computed from the first one on.
        self.recoveries.add(0)

    def add(self, record: RequestRecord) -> None:
        with self.lock:
            model = self._label(record.facts.model or record.facts.requested_model)
            self.requests.add(1, record.facts.api, model, record.result.value)
            self._add_times(record, model)
            self._add_history(record)
            for reason in record.retry_reasons:
                self.retries.add(1, reason)
            for upstream in record.rerouted:
                self.reroutes.add(1, upstream)
            minute = self._minute_of(self._now())
            minute.requests += 1
            minute.failed += record.result is Result.FAILED
            if record.cost is not None:
                amount, currency = record.cost.amount, record.cost.currency
                self.costs.setdefault(currency, Counter("model")).add(amount, model)
                minute.cost = (minute.cost or 0.0) + amount
            if (tokens := record.tokens) is not None:
                minute.hit_tokens += tokens.hit
                minute.miss_tokens += tokens.miss
                minute.output_tokens += tokens.output
                kinds = (("hit", tokens.hit), ("miss", tokens.miss), ("output", tokens.output - tokens.thinking))
                for kind, number in (*kinds, ("thinking", tokens.thinking)):
                    self.tokens.add(number, model, kind)

    def minutes(self) -> list[Minute]:
        """The last sixty minutes, the oldest first, those without a request too."""
        now = int(self._now() // 60) * 60
        known = {each.minute: each for each in self._minutes}
        starts = range(now - 60 * (_MINUTES - 1), now + 1, 60)
        return [known.get(start) or Minute(start) for start in starts]

    def _label(self, model: str) -> str:
        """The model as the value of a label. Requests that were refused early have none."""
        model = model or _NONE
        if model not in self._models:
            if len(self._models) >= MOST_MODELS:
                return OTHER
            self._models.add(model)
        return model

    def _add_times(self, record: RequestRecord, model: str) -> None:
        timing = record.timing
        self.request_seconds.add(timing.total, model)
        if timing.first_delta is not None:
            self.first_token_seconds.add(timing.first_delta, model)
        if timing.queue is not None:
            self.queue_seconds.add(timing.queue)

    def _add_history(self, record: RequestRecord) -> None:
        filled, kept, empty, missing, recovered = record.turns
        for source, number in (("store", filled), ("client", kept), ("empty", empty), ("missing", missing)):
            if number:
                self.turns.add(number, source)
        if recovered:
            self.recoveries.add(1)
        if record.divergence is not None:
            # The words begin with the first part that differs: system, tools or message.
            self.divergences.add(1, record.divergence.partition(" ")[0].rstrip(","))

    def _minute_of(self, now: float) -> Minute:
        start = int(now // 60) * 60
        if not self._minutes or self._minutes[-1].minute != start:
            self._minutes.append(Minute(start))
        return self._minutes[-1]
