"""Families of samples in Prometheus' text format (0.0.4) and in OpenMetrics (1.0.0); the kinds Counter and Histogram.

Label values come from requests, so they are escaped and bounded by the caller. Pure: nothing here knows what is counted
or when. A Counter or Histogram is guarded by the lock of its owner.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
OPENMETRICS_END = b"# EOF\n"

Labels = tuple[str, ...]
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Family(NamedTuple):
    """A metric: its name, type (counter, gauge or histogram), help, the names of its labels, and its samples."""

    name: str
    type: str
    help: str
    samples: Iterable["Sample"]


class Sample(NamedTuple):
    """One value; `labels` are names with values, `suffix` is one of _bucket, _sum and _count."""

    value: float
    labels: Mapping[str, str] = {}
    suffix: str = ""


class Counter:
    """Sums by the values of its labels; one without labels begins at 0."""

    def __init__(self, *label_names: str) -> None:
        self._label_names = label_names
        self._values: dict[Labels, float] = {} if label_names else {(): 0}

    def add(self, amount: float, *labels: str) -> None:
        self._values[labels] = self._values.get(labels, 0) + amount

    def samples(self) -> list[Sample]:
        return [Sample(value, self._names(labels)) for labels, value in self._values.items()]

    def _names(self, labels: Labels) -> dict[str, str]:
        return dict(zip(self._label_names, labels, strict=True))


class Histogram:
    """Counts of values up to each bound, by the values of its labels; one without labels begins at 0."""

    def __init__(self, bounds: Sequence[float], *label_names: str) -> None:
        self._bounds = tuple(bounds)
        self._label_names = label_names
        self._cells: dict[Labels, _Cell] = {}

        if not label_names:
            self._begin()

    def _begin(self, *labels: str) -> "_Cell":
        cell = self._cells[labels] = _Cell(len(self._bounds) + 1)
        return cell

    def add(self, values: Sequence[float], *labels: str) -> None:
        if not values:
            return
        cell = self._cells.get(labels) or self._begin(*labels)
        for value in values:
            cell.counts[bisect_left(self._bounds, value)] += 1
            cell.sum += value

    def samples(self) -> list[Sample]:
        return [sample for labels, cell in self._cells.items() for sample in self._samples_of(labels, cell)]

    def _samples_of(self, labels: Labels, cell: "_Cell") -> Iterator[Sample]:
        names = dict(zip(self._label_names, labels, strict=True))
        totals = list(accumulate(cell.counts))
        for bound, total in zip((*map(format_number, self._bounds), "+Inf"), totals, strict=True):
            yield Sample(total, {**names, "le": bound}, "_bucket")
        yield Sample(cell.sum, names, "_sum")
        yield Sample(totals[-1], names, "_count")


class _Cell:
    __slots__ = ("counts", "sum")

    def __init__(self, size: int) -> None:
        self.counts = [0] * size
        self.sum = 0.0


def wants_openmetrics(accept: str) -> bool:
    """Whether an Accept header prefers OpenMetrics, of the version that there is, to plain text."""
    weights = {"openmetrics": 0.0, "text": 0.0}
    for each in accept.lower().split(","):
        kind, *parameters = [part.strip() for part in each.split(";")]
        given = dict(parameter.partition("=")[::2] for parameter in parameters)
        try:
            weight = float(given.get("q", 1))
        except ValueError:
            continue
        if kind == "application/openmetrics-text" and given.get("version", "1.0.0") == "1.0.0":
            weights["openmetrics"] = max(weights["openmetrics"], weight)
        elif kind == "text/plain":
            weights["text"] = max(weights["text"], weight)
    return 0 < weights["openmetrics"] >= weights["text"]


def render(families: Iterable[Family], *, openmetrics: bool = False) -> bytes:
    """The text that Prometheus scrapes; families without a sample are left out. OPENMETRICS_END follows the last."""
    return "".join(line for family in families for line in _lines(family, openmetrics)).encode()


def _lines(family: Family, openmetrics: bool) -> Iterator[str]:
    samples = list(family.samples)
    if samples:
        # In OpenMetrics a counter has the suffix in its samples alone.
        name = family.name.removesuffix("_total") if openmetrics and family.type == "counter" else family.name
        yield f"# HELP {name} {family.help}\n# TYPE {name} {family.type}\n"
    for each in samples:
        found = each.labels
        if openmetrics and "le" in found:
            # And a bound is a number with a point.
            found = {**found, "le": str(float(found["le"])) if found["le"] != "+Inf" else "+Inf"}
        pairs = ",".join([f'{name}="{value.translate(_ESCAPES)}"' for name, value in found.items()])
        labels = f"{{{pairs}}}" if pairs else ""
        yield f"{family.name}{each.suffix}{labels} {format_number(each.value)}\n"


def format_number(value: float) -> str:
    """A whole number without a point, any other with all its digits."""
    return str(int(value)) if value == int(value) else repr(value)
