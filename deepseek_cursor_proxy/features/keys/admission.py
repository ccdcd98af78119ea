"""Admission of a named key's request: whether it may use the model, and whether its limits have room.

What a request may use is an estimate: the prompt by its characters, none of it cached; for the answer `max_tokens`,
else the model's usual answer according to the ledger, else 4,096 tokens; all of it for each of n choices. The price is
the highest of the upstreams that serve the model. `limits` reserves and settles; callers without a name never
come here.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from deepseek_cursor_proxy.config.named_keys import NamedKey
from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.deepseek.prices import PriceList
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.errors import ModelNotAllowed
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.features.keys.limits import BILLION, Admission, Estimate, Limiter
from deepseek_cursor_proxy.features.tokens.estimate import estimate_roughly
from deepseek_cursor_proxy.redaction import safe_text

# Less than the longest answer of any model of DeepSeek's, and more than most answers.
_UNKNOWN_ANSWER = 4096
# More than any model writes; a client may ask another upstream for any number.
_LONGEST_ANSWER = 10**6
# Of JSON; the body of another upstream is not read.
_BYTES_PER_TOKEN = 4
# Of one request; OpenAI allows 128.
_MOST_CHOICES = 1000
_LENGTH_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


class KeyLimits(NamedTuple):
    """What admission needs: the limits, and prices in dollars, which budgets count."""

    limiter: Limiter
    prices: PriceList


def admit_chat(named: NamedKey, request: ChatRequest, services: Services, keys: KeyLimits) -> Admission | None:
    """Reserve what a generation may use; None if nothing limits it. Raises a ProxyError."""
    _check_model(named, request.model)

    def estimate() -> Estimate:
        output = _answer(request.params.get("max_tokens", 0), request.model, services)
        targets = services.upstreams.serving(request.model)
        models = [(target.model, target.upstream.may_be_deepseek) for target in targets]
        calls = request.choices
        return Estimate(calls * estimate_roughly(request), calls * output, _price(models, keys))

    return keys.limiter.admit(named, services.config.groups.get(named.group), estimate)


def admit_passthrough(
    named: NamedKey, body: Mapping[str, Any], size: int, services: Services, keys: KeyLimits
) -> Admission | None:
    """The same for a request that another upstream gets as it came."""
    model = str(body.get("model"))
    _check_model(named, model)

    def estimate() -> Estimate:
        # Which of several lengths counts is the upstream's choice.
        output = _answer(max(_number(body.get(name)) for name in _LENGTH_FIELDS), model, services)
        choices = max(1, min(_number(body.get("n")), _MOST_CHOICES))
        return Estimate(size // _BYTES_PER_TOKEN + 1, choices * output, _price([(model, False)], keys))

    return keys.limiter.admit(named, services.config.groups.get(named.group), estimate)


def _check_model(named: NamedKey, model: str) -> None:
    if not named.may_use(model):
        allowed = ", ".join(named.models)
        raise ModelNotAllowed(
            f"The key {named.name} may not use {safe_text(model, 60)}; it may use {allowed}. Choose one of these, or "
            "ask the owner of the proxy.",
            param="model",
        )


def _answer(max_tokens: int, model: str, services: Services) -> int:
    if max_tokens > 0:
        return min(max_tokens, _LONGEST_ANSWER)
    if not services.has("usage"):
        return _UNKNOWN_ANSWER
    from deepseek_cursor_proxy.features.usage.feature import Usage

    return services.get(Usage).ledger.mean_output_tokens(model) or _UNKNOWN_ANSWER


def _number(value: object) -> int:
    """A number as any upstream may read it, also one with a fraction or written as text; 0 for anything else."""
    try:
        return math.ceil(float(value)) if isinstance(value, (int, float, str)) else 0
    except OverflowError:
        return _LONGEST_ANSWER
    except ValueError:
        return 0


def _price(models: Sequence[tuple[str, bool]], keys: KeyLimits) -> Callable[[Tokens], int | None]:
    """What tokens cost where it costs most; each model with whether its upstream may be DeepSeek."""

    def price(tokens: Tokens) -> int | None:
        found = [keys.prices.cost(model, tokens, time.time(), is_deepseek=is_deepseek) for model, is_deepseek in models]
        amounts = [cost.amount for cost in found if cost is not None]
        return round(max(amounts) * BILLION) if amounts else None

    return price
