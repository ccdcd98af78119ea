"""Keys: named keys in a running proxy: whether a request may use its model, and whether the limits have room for it.

What a request may use is an estimate: the prompt by its characters, none of it cached; for the answer `max_tokens`,
else the model's usual answer according to the ledger, else 4,096 tokens; all of it for each of n choices. The price is
the highest of the upstreams that serve the model. `limits` reserves and settles; callers without a name never
come here. Most proxies name no key, and import the rest of the folder late.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deepseek_cursor_proxy.config.named_keys import NamedKey
from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.deepseek.prices import USD, PriceList
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.errors import ModelNotAllowed
from deepseek_cursor_proxy.exchange.client_request import Admission
from deepseek_cursor_proxy.exchange.feature import Feature
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.redaction import safe_text

if TYPE_CHECKING:
    from deepseek_cursor_proxy.features.keys.limits import Limiter
    from deepseek_cursor_proxy.features.keys.redis_store import SharedLimits

# Less than the longest answer of any model of DeepSeek's, and more than most answers.
_UNKNOWN_ANSWER = 4096
# More than any model writes; a client may ask another upstream for any number.
_LONGEST_ANSWER = 10**6
# Of JSON; the body of another upstream is not read.
_BYTES_PER_TOKEN = 4
# Of one request; OpenAI allows 128.
_MOST_CHOICES = 1000
_LENGTH_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


# Tokens of the prompt and of the answer, and the models that may be asked, each with whether its upstream may be
# DeepSeek.
_Usage = tuple[int, int, Sequence[tuple[str, bool]]]


class Keys(Feature):
    name = "keys"
    views = ("keys",)

    def __init__(self) -> None:
        # None as long as no key has a name; then it stays.
        self.limiter: Limiter | None = None
        # On the engine, if several proxies share one.
        self._shared_store: SharedLimits | None = None

    def share(self, shared: Any) -> None:
        from deepseek_cursor_proxy.features.keys.redis_store import SharedLimits

        self._shared_store = SharedLimits(shared)

    def start(self, services: Services) -> None:
        self.reconfigure(services)

    def reconfigure(self, services: Services) -> None:
        # In USD, for the budgets.
        self._prices = PriceList(services.config, USD)
        if self.limiter is None and services.config.keys:
            from deepseek_cursor_proxy.features.keys.limits import Limiter
            from deepseek_cursor_proxy.features.keys.store import LimitTables

            self.limiter = Limiter(self._shared_store or LimitTables(services.reasoning_store.database))

    def admit_chat(self, services: Services, named: NamedKey, request: ChatRequest) -> Admission | None:
        from deepseek_cursor_proxy.features.tokens.estimate import estimate_roughly

        def usage() -> _Usage:
            output = _answer(request.params.get("max_tokens", 0), request.model, services)
            targets = services.upstreams.serving(request.model)
            models = [(target.model, target.upstream.may_be_deepseek) for target in targets]
            calls = request.choices
            return calls * estimate_roughly(request), calls * output, models

        return self._admit(services, named, request.model, usage)

    def admit_passthrough(
        self, services: Services, named: NamedKey, body: Mapping[str, Any], size: int
    ) -> Admission | None:
        model = str(body.get("model"))

        def usage() -> _Usage:
            # Which of several lengths counts is the upstream's choice.
            output = _answer(max(_number(body.get(name)) for name in _LENGTH_FIELDS), model, services)
            choices = max(1, min(_number(body.get("n")), _MOST_CHOICES))
            return size // _BYTES_PER_TOKEN + 1, choices * output, [(model, False)]

        return self._admit(services, named, model, usage)

    def _admit(self, services: Services, named: NamedKey, model: str, usage: Callable[[], _Usage]) -> Admission | None:
        """Reserve what a request may use; None if nothing limits it. Raises a ProxyError."""
        from deepseek_cursor_proxy.features.keys.limits import Estimate

        if not named.may_use(model):
            allowed = ", ".join(named.models)
            raise ModelNotAllowed(
                f"The key {named.name} may not use {safe_text(model, 60)}; it may use {allowed}. Choose one of these, "
                "or ask the owner of the proxy.",
                param="model",
            )

        def estimate() -> Estimate:
            prompt, output, models = usage()
            return Estimate(prompt, output, lambda tokens: self._price(models, tokens))

        # There is a limiter as soon as a key has a name.
        assert self.limiter is not None
        return self.limiter.admit(named, services.config.groups.get(named.group), estimate)

    def _price(self, models: Sequence[tuple[str, bool]], tokens: Tokens) -> int | None:
        """What tokens cost where it costs most, in billionths of a dollar; None if no price is known."""
        from deepseek_cursor_proxy.features.keys.limits import BILLION

        found = [self._prices.cost(model, tokens, time.time(), is_deepseek=is_own) for model, is_own in models]
        amounts = [cost.amount for cost in found if cost is not None]
        return round(max(amounts) * BILLION) if amounts else None

    def facts(self, services: Services) -> Mapping[str, Any]:
        return {"named_keys": len(services.config.keys) + len(services.config.groups)}

    def close(self) -> None:
        if self.limiter is not None:
            self.limiter.close()


def _answer(max_tokens: int, model: str, services: Services) -> int:
    """How many tokens the answer may have."""
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


def open(services: Services) -> Services:
    keys = Keys()
    return services.add(keys, admit_chat=keys.admit_chat, admit_passthrough=keys.admit_passthrough)
