"""Responses: stored and background responses in a running proxy."""

import logging
from typing import Any

from deepseek_cursor_proxy.exchange.feature import Feature
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.features.responses.background_jobs import Jobs
from deepseek_cursor_proxy.features.responses.store import ResponseStore

_log = logging.getLogger(__name__)


class Responses(Feature):
    name = "responses"

    def __init__(self, store: ResponseStore, jobs: Jobs) -> None:
        self.store = store
        self.jobs = jobs

    def share(self, shared: Any) -> None:
        from deepseek_cursor_proxy.features.responses.shared import SharedResponses

        self.store.share(SharedResponses(shared, self.store))

    def start(self, services: Services) -> None:
        if count := self.store.fail_orphans():
            _log.warning("%d stored responses were not finished when the proxy last stopped and are failed now", count)

    def accept(self, caller: bytes) -> None:
        self.store.accept(caller)

    def drain(self, seconds: float) -> None:
        self.jobs.stop(seconds)

    def close(self) -> None:
        self.store.close()


def open(services: Services) -> Services:
    config = services.config
    store = ResponseStore(services.reasoning_store.database)
    return services.add(Responses(store, Jobs(config.background_workers, config.background_queue)))
