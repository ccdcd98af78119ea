"""The built-in prices: DeepSeek's own, per million tokens, in both of its currencies, by the moment they began.

From DeepSeek's pricing pages, in English for USD and in Chinese for CNY, as read in October 2026; reasoning is part of
the output. Add a line with a new moment when prices change, and leave the old ones: a request is priced by the moment
it ends. Before its first line a model's price is unknown.
"""

from datetime import UTC, datetime
from typing import NamedTuple

USD, CNY = "USD", "CNY"


class Rates(NamedTuple):
    """The price of a million tokens: input that was cached, input that was not, output."""

    hit: float
    miss: float
    output: float


class RateStep(NamedTuple):
    """The rates of a model in one currency from a moment on."""

    since: datetime
    off_peak: Rates
    peak: Rates


# DeepSeek serves and bills the older names as Flash.
_FLASH = ("deepseek-flash", "deepseek-v4-flash", "deepseek-v4-flash-vision-exp")
_PRO = ("deepseek-v4-pro",)

# Peak and off-peak prices began on August 16th, off-peak weekends on the 23rd.
_PRO_SINCE = datetime(2026, 8, 23, tzinfo=UTC)
# With V4.1.
_FLASH_SINCE = datetime(2026, 9, 10, 4, tzinfo=UTC)

# fmt: off
_TABLE = (
    #       currency  since           off-peak hit, miss, output   peak
    (_FLASH, USD,     _FLASH_SINCE,   Rates(0.003, 0.15, 0.60),    Rates(0.006, 0.30, 1.20)),
    (_FLASH, CNY,     _FLASH_SINCE,   Rates(0.02, 1.0, 4.0),       Rates(0.04, 2.0, 8.0)),
    (_PRO,   USD,     _PRO_SINCE,     Rates(0.022, 0.66, 1.98),    Rates(0.044, 1.32, 3.96)),
    (_PRO,   CNY,     _PRO_SINCE,     Rates(0.15, 4.5, 13.5),      Rates(0.30, 9.0, 27.0)),
)
# fmt: on

# By currency and model, oldest first.
STEPS: dict[tuple[str, str], list[RateStep]] = {}
for _models, _currency, _since, _off_peak, _peak in _TABLE:
    for _model in _models:
        STEPS.setdefault((_currency, _model), []).append(RateStep(_since, _off_peak, _peak))

# A server-side search that succeeded. Those inside a generation are billed since the first of November, in Beijing.
SEARCH = {USD: 0.75 / 1000, CNY: 5.0 / 1000}
SEARCH_SINCE = datetime(2026, 10, 31, 16, tzinfo=UTC)


def find_step(model: str, currency: str, moment: datetime) -> RateStep | None:
    """The step that holds at that moment; None if the price is not known."""
    steps = [step for step in STEPS.get((currency, model), ()) if step.since <= moment]
    return steps[-1] if steps else None
