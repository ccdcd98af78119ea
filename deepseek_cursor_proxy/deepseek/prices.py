"""What requests cost: DeepSeek's prices, its peak hours, and the Cost of a request. Always an estimate.

A table [prices."name"] has, in the chosen currency, what a million tokens cost: `hit`, `miss`, `output`, each with a
`peak_` price where there is one. It replaces the built-in prices that it names, or describes a model that is not built
in; a name that ends in * stands for all that begin with it. For an upstream that is known to be another host than
DeepSeek, only these tables count: the same name costs something else there. An unknown price is None, never 0.
Pure: the moment and the settings are arguments.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, NamedTuple

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.deepseek.usage import Tokens

# The built-in prices are DeepSeek's own, per million tokens, by the moment they began: from its pricing pages, read in
# October 2026, in English for USD and in Chinese for CNY. Reasoning is part of the output. When prices change, add a
# line with the new moment and leave the old ones: a request is priced by the moment it ends. Before its first line a
# model's price is unknown.
USD, CNY = "USD", "CNY"


class Rates(NamedTuple):
    """The price of a million tokens: input that was cached, input that was not, output."""

    hit: float
    miss: float
    output: float


class RateStep(NamedTuple):
    """The rates of some models in one currency from a moment on."""

    models: tuple[str, ...]
    currency: str
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

# The oldest first; of each the off-peak and the peak rates: hit, miss, output.
STEPS = (
    RateStep(_FLASH, USD, _FLASH_SINCE, Rates(0.003, 0.15, 0.60), Rates(0.006, 0.30, 1.20)),
    RateStep(_FLASH, CNY, _FLASH_SINCE, Rates(0.02, 1.0, 4.0), Rates(0.04, 2.0, 8.0)),
    RateStep(_PRO, USD, _PRO_SINCE, Rates(0.022, 0.66, 1.98), Rates(0.044, 1.32, 3.96)),
    RateStep(_PRO, CNY, _PRO_SINCE, Rates(0.15, 4.5, 13.5), Rates(0.30, 9.0, 27.0)),
)

# A server-side search that succeeded. Those inside a generation are billed since the first of November, in Beijing.
SEARCH = {USD: 0.75 / 1000, CNY: 5.0 / 1000}
SEARCH_SINCE = datetime(2026, 10, 31, 16, tzinfo=UTC)


def find_step(model: str, currency: str, moment: datetime) -> RateStep | None:
    """The step that holds at that moment; None if the price is not known."""
    steps = [step for step in STEPS if model in step.models and step.currency == currency and step.since <= moment]
    return steps[-1] if steps else None


# Peak prices hold from 9 to 12 and from 14 to 18 o'clock in Beijing, Monday to Friday: 01:00-04:00 and 06:00-10:00 UTC.
# Weekends, even those on which China works to make up for a holiday, and the public holidays of China are off-peak all
# day. Beijing has no daylight saving time.
_BEIJING = timezone(timedelta(hours=8))
_PEAK_HOURS = frozenset((*range(9, 12), *range(14, 18)))

# Days of rest by notices of the State Council; [prices] holidays adds what a later notice names.
#   2026: the notice of November 4th, 2025.
#   2027: no notice is known yet. These are the days that the law itself makes holidays, on weekdays; which further days
#         are off around them is for the notice, usually of November, to say.
_PERIODS = (
    (date(2026, 1, 1), date(2026, 1, 3)),
    (date(2026, 2, 15), date(2026, 2, 23)),
    (date(2026, 4, 4), date(2026, 4, 6)),
    (date(2026, 5, 1), date(2026, 5, 5)),
    (date(2026, 6, 19), date(2026, 6, 21)),
    (date(2026, 9, 25), date(2026, 9, 27)),
    (date(2026, 10, 1), date(2026, 10, 7)),
    # New Year, Spring Festival with its eve, Qingming, Dragon Boat Festival, Mid-Autumn Festival, National Day.
    (date(2027, 1, 1), date(2027, 1, 1)),
    (date(2027, 2, 5), date(2027, 2, 8)),
    (date(2027, 4, 5), date(2027, 4, 5)),
    (date(2027, 6, 9), date(2027, 6, 9)),
    (date(2027, 9, 15), date(2027, 9, 15)),
    (date(2027, 10, 1), date(2027, 10, 3)),
)
HOLIDAYS = frozenset(
    first + timedelta(days=number) for first, last in _PERIODS for number in range((last - first).days + 1)
)


def is_peak(moment: datetime, more_holidays: Collection[date] = ()) -> bool:
    """Whether the peak price holds at that moment, which has a time zone."""
    there = moment.astimezone(_BEIJING)
    day = there.date()
    if there.hour not in _PEAK_HOURS or day.weekday() >= 5:
        return False
    return day not in HOLIDAYS and day not in more_holidays


_MILLION = 1_000_000
# The version of a price that the configuration names.
OWN_PRICE = "settings"
_SYMBOLS = {USD: "$", CNY: "¥"}


class Cost(NamedTuple):
    """What a request cost, in one currency; fixed when it ends. All amounts are estimates."""

    amount: float
    # How much more it would have cost without the prefix cache.
    saved: float
    # How much more it cost because the chat diverged from its last request.
    divergence: float
    currency: str
    # The date since which the price holds, or "settings".
    version: str


class Price(NamedTuple):
    """What a million tokens of a model, and one search, cost at a moment."""

    rates: Rates
    search: float
    version: str


class PriceList:
    """Called by any thread. Immutable but for its memo; a new configuration makes a new one."""

    def __init__(self, config: ProxyConfig, currency: str | None = None) -> None:
        """With another `currency` than that of the settings, prices of the settings do not count."""
        self.currency = currency or config.currency
        self._holidays = frozenset(map(date.fromisoformat, config.prices.get("holidays", ())))
        is_own = self.currency == config.currency
        own = {name: entry for name, entry in config.prices.items() if is_own and name != "holidays"}
        self._own: Mapping[str, Mapping[str, float]] = own
        # Longest first, so that the nearest name wins.
        self._prefixes = sorted((name[:-1] for name in own if name.endswith("*")), key=len, reverse=True)
        # Prices change on the hour only, and most requests are like the last one.
        self._price_of_hour = lru_cache(64)(self._find_price)

    def cost(
        self, model: str, tokens: Tokens, at: float, *, is_deepseek: bool = True, lost_tokens: int = 0
    ) -> Cost | None:
        """The cost of a request that ended at that Unix time; None if the price is not known.

        `lost_tokens` were in the last request of the chat, and would have been cached had the chat not diverged.
        """
        price = self._price_of_hour(model, at // 3600, is_deepseek)
        if price is None:
            return None
        (hit_rate, miss_rate, output_rate), search, version = price
        hit, miss, output, _, searches = tokens
        amount = (hit * hit_rate + miss * miss_rate + output * output_rate) / _MILLION + searches * search
        # What a token costs more if it is not cached.
        surcharge = miss_rate - hit_rate
        return Cost(amount, hit * surcharge / _MILLION, lost_tokens * surcharge / _MILLION, self.currency, version)

    def _find_price(self, model: str, hour: float, is_deepseek: bool) -> Price | None:
        """The price in an hour, counted since 1970."""
        moment = datetime.fromtimestamp(hour * 3600, UTC)
        is_at_peak = is_peak(moment, self._holidays)
        step = find_step(model, self.currency, moment) if is_deepseek else None
        built_in = None if step is None else step.peak if is_at_peak else step.off_peak
        search = SEARCH[self.currency] if is_deepseek and moment >= SEARCH_SINCE else 0.0
        own = self._find_own(model)
        if own is None:
            return Price(built_in, search, f"{step.since:%Y-%m-%d}") if step is not None and built_in else None
        found = _override(built_in, own, "peak_" if is_at_peak else "")
        return Price(found, own.get("search", search), OWN_PRICE) if found is not None else None

    def _find_own(self, model: str) -> Mapping[str, Any] | None:
        if not self._own or model in self._own:
            return self._own.get(model)
        prefix = next((prefix for prefix in self._prefixes if model.startswith(prefix)), None)
        return self._own[f"{prefix}*"] if prefix is not None else None


def _override(built_in: Rates | None, own: Mapping[str, float], peak: str) -> Rates | None:
    """The built-in rates with those that the configuration names; None if some are still not known."""

    def rate(name: str) -> float | None:
        default = getattr(built_in, name) if built_in is not None else None
        return own.get(peak + name, own.get(name, default))

    miss, output = rate("miss"), rate("output")
    if miss is None or output is None:
        return None
    hit = rate("hit")
    # Hosts without a price for cached input charge all of it alike.
    return Rates(miss if hit is None else hit, miss, output)


def add_costs(costs: Sequence[Cost | None]) -> Cost | None:
    """The cost of several calls together; None if there are none, or the cost of one is unknown."""
    known = [cost for cost in costs if cost is not None]
    if not known or len(known) < len(costs):
        return None
    amount, saved, divergence = (sum(parts) for parts in zip(*(cost[:3] for cost in known), strict=True))
    return known[0]._replace(amount=amount, saved=saved, divergence=divergence)


def format_amount(amount: float, currency: str, digits: int = 2) -> str:
    """An amount of money: `¥12.35`, `<$0.01`. A sum has 2 digits and one request 4, as in the dashboard."""
    symbol, least = _SYMBOLS.get(currency, f"{currency} "), 10**-digits
    return f"<{symbol}{least}" if 0 < amount < least / 2 else f"{symbol}{amount:,.{digits}f}"
