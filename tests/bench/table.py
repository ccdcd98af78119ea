"""The benchmark's output: figures and rows, written as a table.

A row has one figure per column: the direct way, this proxy, and every other one it is compared with. A column without a
figure could not be measured, and shows a dash. Pure: this file measures nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

DIRECT = "direct"
OURS = "this proxy"

_NAME_WIDTH = 66
_COLUMN_WIDTH = 25


@dataclass(frozen=True)
class Figure:
    """The figure of one column: its value, and the samples behind it."""

    value: float
    samples: Sequence[float]
    has_spread: bool = True

    @classmethod
    def of(cls, samples: Sequence[float], share: float = 0.5) -> "Figure | None":
        """A quantile of samples, by default the median; None when there are none."""
        return cls(quantile(samples, share), samples, share == 0.5) if samples else None

    @classmethod
    def mean(cls, samples: Sequence[float]) -> "Figure | None":
        return cls(sum(samples) / len(samples), samples) if samples else None

    def __str__(self) -> str:
        text = format_value(self.value)
        if self.has_spread and len(self.samples) > 1:
            text += f" ({format_value(quantile(self.samples, 0.05))} - {format_value(quantile(self.samples, 0.95))})"
        return text


@dataclass(frozen=True)
class Row:
    measure: str
    unit: str
    figures: Mapping[str, Figure | None] = field(default_factory=dict)

    def ratio(self, other: str) -> float | None:
        ours, theirs = self.figures.get(OURS), self.figures.get(other)
        return ours.value / theirs.value if ours and theirs and theirs.value > 0 else None


@dataclass(frozen=True)
class Table:
    others: Sequence[str] = ()

    def heading(self) -> str:
        ratios = (f"ours / {other}" for other in self.others)
        return self._line("measure (median, p5 - p95)", self._columns, ratios_of=tuple(ratios))

    def line(self, row: Row) -> str:
        figures = (row.figures.get(column) for column in self._columns)
        ratios = (row.ratio(other) for other in self.others)
        return self._line(
            f"{row.measure}, {row.unit}" if row.unit else row.measure,
            tuple("-" if figure is None else str(figure) for figure in figures),
            tuple("-" if ratio is None else format_value(ratio) for ratio in ratios),
        )

    def _line(self, measure: str, columns: Sequence[str], ratios_of: Sequence[str]) -> str:
        ratio_width = max((len(f"ours / {other}") for other in self.others), default=0)
        widths = [max(_COLUMN_WIDTH, len(name)) for name in self._columns] + [ratio_width] * len(ratios_of)
        # With a gap in front, also where the text is wider than its column.
        cells = [f"  {text:>{width}}" for text, width in zip((*columns, *ratios_of), widths, strict=True)]
        return (f"{measure:<{_NAME_WIDTH}}" + "".join(cells)).rstrip()

    @property
    def _columns(self) -> tuple[str, ...]:
        return (DIRECT, OURS, *self.others)


def quantile(samples: Sequence[float], share: float) -> float:
    """The value that this share of the samples lies below, between two of them where it has to."""
    ordered = sorted(samples)
    position = share * (len(ordered) - 1)
    below, above = ordered[math.floor(position)], ordered[math.ceil(position)]
    return below + (above - below) * (position % 1)


def format_value(value: float) -> str:
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if not size:
        return "0"
    if size < 0.1:
        return f"{value:.2g}" if size >= 0.0001 else f"{value:.1e}"
    return f"{value:,.{0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3}f}"
