"""Metrics in Prometheus' text format (0.0.4): counters, gauges and histograms.

Label values come from requests, so they are escaped here and bounded by the caller. Pure: nothing here knows what is
counted or when. A metric is guarded by the lock of its owner.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]
# What follows the name of the metric, the labels with their names, the value.
Sample = tuple[str, dict[str, str], float]
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Metric:
    """A counter or a gauge: sums by the values of its labels. Without labels it begins at 0."""

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
        # `_values` are sums.
        self._counts: dict[Labels, list[int]] = {}
        if not label_names:
            self._counts[()] = [0] * (len(bounds) + 1)

    def observe(self, values: Sequence[float], *labels: str) -> None:
        if not values:
            return
        counts = self._counts.setdefault(labels, [0] * (len(self._bounds) + 1))
        for value in values:
            counts[bisect_left(self._bounds, value)] += 1
        self.add(sum(values), *labels)

    def samples(self) -> Iterator[Sample]:
        for labels, counts in self._counts.items():
            names, totals = self._named(labels), list(accumulate(counts))
            for bound, total in zip((*map(_format_number, self._bounds), "+Inf"), totals, strict=True):
                yield "_bucket", {**names, "le": bound}, total
            yield "_sum", names, self._values[labels]
            yield "_count", names, totals[-1]


def render(metrics: Iterable[Metric]) -> bytes:
    """The text that Prometheus scrapes; metrics without a sample are left out."""
    return "".join(line for metric in metrics for line in _lines(metric)).encode()


def _lines(metric: Metric) -> Iterator[str]:
    samples = list(metric.samples())
    if samples:
        yield f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.type}\n"
    for suffix, labels, value in samples:
        pairs = ",".join([f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels.items()])
        yield f"{metric.name}{suffix}{f'{{{pairs}}}' if pairs else ''} {_format_number(value)}\n"


def _format_number(value: float) -> str:
    """A whole number without a point, any other with all its digits."""
    return str(int(value)) if value == int(value) else repr(value)
