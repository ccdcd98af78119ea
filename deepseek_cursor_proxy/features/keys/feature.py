"""Keys: the limits of named keys in a running proxy. Most name no key, and import the rest of the folder late."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from deepseek_cursor_proxy.config.named_keys import NamedKey
from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.deepseek.prices import USD, PriceList
from deepseek_cursor_proxy.exchange.feature import Feature
from deepseek_cursor_proxy.exchange.services import Services

if TYPE_CHECKING:
    from deepseek_cursor_proxy.features.keys.admission import KeyLimits
    from deepseek_cursor_proxy.features.keys.limits import Admission, Limiter
    from deepseek_cursor_proxy.features.keys.store import LimitStore


class Keys(Feature):
    name = "keys"

    def __init__(self) -> None:
        # None as long as no key has a name; then it stays.
        self.limiter: Limiter | None = None
        # On the engine, if several proxies share one.
        self._shared_store: LimitStore | None = None

    def share(self, shared: Any) -> None:
        from deepseek_cursor_proxy.features.keys.shared import SharedLimits

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

    def admit_chat(self, services: Services, named: NamedKey, request: ChatRequest) -> "Admission | None":
        from deepseek_cursor_proxy.features.keys import admission

        return admission.admit_chat(named, request, services, self._limits())

    def admit_passthrough(
        self, services: Services, named: NamedKey, body: Mapping[str, Any], size: int
    ) -> "Admission | None":
        from deepseek_cursor_proxy.features.keys import admission

        return admission.admit_passthrough(named, body, size, services, self._limits())

    def _limits(self) -> "KeyLimits":
        from deepseek_cursor_proxy.features.keys.admission import KeyLimits

        # There is a limiter as soon as a key has a name.
        assert self.limiter is not None
        return KeyLimits(self.limiter, self._prices)

    def facts(self, services: Services) -> Mapping[str, Any]:
        return {"named_keys": len(services.config.keys) + len(services.config.groups)}

    def close(self) -> None:
        if self.limiter is not None:
            self.limiter.close()


def open(services: Services) -> Services:
    keys = Keys()
    return services.add(keys, admit_chat=keys.admit_chat, admit_passthrough=keys.admit_passthrough)
