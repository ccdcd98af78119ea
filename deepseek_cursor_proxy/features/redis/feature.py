"""Shared: the state that several proxies share on an engine, if the setting `store` names one."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from deepseek_cursor_proxy.exchange.feature import Feature, Gauge
from deepseek_cursor_proxy.exchange.services import Services

if TYPE_CHECKING:
    from deepseek_cursor_proxy.features.redis.state import SharedState


class Shared(Feature):
    name = "redis"

    def __init__(self, state: "SharedState") -> None:
        self.state = state

    def start(self, services: Services) -> None:
        for feature in services.features:
            feature.share(self.state)
        self.state.open()

    def readiness(self) -> Mapping[str, str]:
        # Without its engine the proxy works alone: a balancer that took it away would help no client.
        return {"engine": self.state.fault or "shared"}

    def gauges(self) -> Iterable[Gauge]:
        help = "1 if this proxy shares its state on the engine, 0 while it works alone."
        yield Gauge("dcp_engine_up", help, int(not self.state.fault))

    def close(self) -> None:
        self.state.close()


def open(services: Services) -> Services:
    config, reasonings = services.config, services.reasoning_store
    if config.store is None:
        return services
    # Imported late: most proxies share nothing.
    from deepseek_cursor_proxy.features.redis.state import SharedReasonings, SharedState

    state = SharedState(config.store, services.secret.read(), reasonings.database)
    reasonings.share(SharedReasonings(state, config.reasoning_cache_max_age_seconds))
    services.key_namespaces.set_if_absent = state.set_if_absent
    return services.add(Shared(state))
