"""ResponseCache: the kept answers of a running proxy."""

from collections.abc import Mapping
from typing import Any

from deepseek_cursor_proxy.exchange.client_request import ClientRequest
from deepseek_cursor_proxy.exchange.feature import Feature
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.features.response_cache.cache import use_cache
from deepseek_cursor_proxy.features.response_cache.store import CachedAnswers
from deepseek_cursor_proxy.storage.faults import Unusable


class ResponseCache(Feature):
    name = "response_cache"

    def __init__(self, answers: CachedAnswers, setting: str) -> None:
        self.answers = answers
        self._setting = setting

    def use(self, client: ClientRequest) -> ClientRequest:
        return client if self._setting == "off" else use_cache(self.answers, self._setting, client)

    def reconfigure(self, services: Services) -> None:
        self._setting = services.config.response_cache

    def facts(self, services: Services) -> Mapping[str, Any]:
        """The cache since its store was made; null when that cannot be read."""
        try:
            found = self.answers.stats(services.prices.currency)
        except Unusable:
            return {"cache": None}
        return {
            "cache": {
                "hits": found.totals.hits,
                "misses": found.totals.misses,
                "entries": found.entries,
                "bytes": found.bytes,
                "saved_tokens": found.totals.tokens,
                "saved": round(found.totals.money, 6),
            }
        }

    def close(self) -> None:
        self.answers.close()


def open(services: Services) -> Services:
    cache = ResponseCache(CachedAnswers(services.reasoning_store.database), services.config.response_cache)
    return services.add(cache, use_cache=cache.use)
