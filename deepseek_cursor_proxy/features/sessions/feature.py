"""Sessions: the recorder of a running proxy."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.exchange.feature import Feature
from deepseek_cursor_proxy.exchange.services import PathSession, Services
from deepseek_cursor_proxy.features.sessions.service import SessionService
from deepseek_cursor_proxy.observers.events import Finished, Handlers


class Sessions(Feature):
    name = "sessions"

    def __init__(self, service: SessionService) -> None:
        self.service = service

    def find(self, caller: bytes, session: str) -> PathSession | None:
        found = self.service.get(caller, session)
        return None if found is None else found.options

    def handlers(self) -> Handlers:
        return {Finished: self.service.emit}

    def reconfigure(self, services: Services) -> None:
        self.service.reconfigure(services.config)

    def accept(self, caller: bytes) -> None:
        self.service.accept(caller)

    def facts(self, services: Services) -> Mapping[str, Any]:
        return {"sessions": self.service.count()}

    def close(self) -> None:
        self.service.close()


def open(services: Services) -> Services:
    sessions = Sessions(SessionService(services.config, Path(services.reasoning_store.database.path)))
    return services.add(sessions, find_session=sessions.find)
