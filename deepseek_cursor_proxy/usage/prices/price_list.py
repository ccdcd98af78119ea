"""PriceList: the price of every known model by the settings, and the Cost of a request.

A table [prices."name"] has, in the chosen currency, what a million tokens cost: `hit`, `miss`, `output`, each with a
`peak_` of its own where the price has one. It replaces those built-in prices that it names, or describes a model that
is not built in; a name that ends in * stands for all that begin so. Where the upstream is known to be another host than
DeepSeek, only these tables count: the same name costs something else there. What is not known costs "unknown", which
is None here and never 0.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.usage.prices import rates
from deepseek_cursor_proxy.usage.prices.peak_hours import is_peak
from deepseek_cursor_proxy.usage.prices.rates import Rates

_MILLION = 1_000_000
# The version of a price that the configuration names.
OWN_PRICE = "settings"
_SYMBOLS = {rates.USD: "$", rates.CNY: "¥"}


class Cost(NamedTuple):
    """What a request cost, in one currency; fixed when it ends. All amounts are estimates."""

    amount: float
    # What it would have cost more without the prefix cache.
    saved: float
    # What it cost more because the chat diverged from its last request.
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
    """Called by handler threads. Never changes but for what it remembers; a new configuration makes a new one."""

    def __init__(self, config: ProxyConfig) -> None:
        self.currency = config.currency
        self._holidays = frozenset(map(date.fromisoformat, config.prices.get("holidays", ())))
        own = {name: entry for name, entry in config.prices.items() if name != "holidays"}
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
        price = self.price(model, at, is_deepseek=is_deepseek)
        if price is None:
            return None
        (hit_rate, miss_rate, output_rate), search, version = price
        hit, miss, output, _, searches = tokens
        amount = (hit * hit_rate + miss * miss_rate + output * output_rate) / _MILLION + searches * search
        # What a token costs more if it is not cached.
        surcharge = miss_rate - hit_rate
        return Cost(amount, hit * surcharge / _MILLION, lost_tokens * surcharge / _MILLION, self.currency, version)

    def price(self, model: str, at: float, *, is_deepseek: bool = True) -> Price | None:
        return self._price_of_hour(model, at // 3600, is_deepseek)

    def _find_price(self, model: str, hour: float, is_deepseek: bool) -> Price | None:
        """The price in an hour, counted since 1970."""
        moment = _moment(hour * 3600)
        is_at_peak = is_peak(moment, self._holidays)
        step = rates.find_step(model, self.currency, moment) if is_deepseek else None
        built_in = None if step is None else step.peak if is_at_peak else step.off_peak
        search = rates.SEARCH[self.currency] if is_deepseek and moment >= rates.SEARCH_SINCE else 0.0
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
    """The cost of several calls together; None if that of one is not known, or there are none."""
    known = [cost for cost in costs if cost is not None]
    if not known or len(known) < len(costs):
        return None
    amount, saved, divergence = (sum(parts) for parts in zip(*(cost[:3] for cost in known), strict=True))
    return known[0]._replace(amount=amount, saved=saved, divergence=divergence)


def format_amount(amount: float, currency: str) -> str:
    """An amount of money with as many digits as tell something: `$0.0061`, `¥12.35`."""
    symbol = _SYMBOLS.get(currency, f"{currency} ")
    digits = 2 if amount >= 1 or amount == 0 else 3 if amount >= 0.1 else 4 if amount >= 0.0001 else 6
    return f"{symbol}{amount:,.{digits}f}"


def _moment(at: float) -> datetime:
    try:
        return datetime.fromtimestamp(at, UTC)
    except (OverflowError, ValueError, OSError):
        # A clock that is set to nonsense.
        return datetime.fromtimestamp(0, UTC)
