"""The sums of chats, by the client's id of the chat: its model, the share of its prompts that was cached, its cost.

A chat is its caller's: to another key it does not exist. The sub-agents of a chat count as part of it, but the model is
that of the chat itself.
"""

import threading
from typing import NamedTuple

from deepseek_cursor_proxy.api.endpoint import Endpoint
from deepseek_cursor_proxy.deepseek.model_names import DISPLAY_NAMES
from deepseek_cursor_proxy.deepseek.prices import format_amount
from deepseek_cursor_proxy.exchange.feature import Feature
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest
from deepseek_cursor_proxy.observers.events import Finished, Handlers

# As many as the request log has requests.
_MOST_CHATS = 1000


class _Sums(NamedTuple):
    model: str = ""
    hit: int = 0
    miss: int = 0
    cost: float = 0.0
    currency: str = ""

    def line(self) -> str:
        words = [DISPLAY_NAMES.get(self.model, self.model), f"{100 * self.hit // (self.hit + self.miss or 1)} % cached"]
        return " · ".join([*words, format_amount(self.cost, self.currency)] if self.currency else words)


class StatusLine(Feature):
    """The lock protects the sums."""

    name = "status_line"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chats: dict[tuple[str, str], _Sums] = {}

    def handlers(self) -> Handlers:
        return {Finished: self._add}

    def _add(self, event: Finished) -> None:
        facts, tokens, cost = event.facts, event.tokens, event.cost
        chat, _, agent = facts.chat.partition("/")
        if tokens is None or not (facts.key and chat):
            return
        with self._lock:
            model, hit, miss, sum, currency = self._chats.pop((facts.key, chat), _Sums())
            # Titles and other small jobs have no tools.
            if not model or (facts.tools and not agent):
                model = facts.model
            if cost is not None:
                sum, currency = sum + cost.amount, cost.currency
            self._chats[facts.key, chat] = _Sums(model, hit + tokens.hit, miss + tokens.miss, sum, currency)
            if len(self._chats) > _MOST_CHATS:
                del self._chats[next(iter(self._chats))]

    def line(self, key: str, chat: str) -> str:
        """ "" if nothing is known of the chat."""
        with self._lock:
            found = self._chats.get((key, chat))
        return found.line() if found is not None else ""


class StatusLineEndpoint(Endpoint):
    def show(self, request: HttpRequest, chat: str) -> HttpReply:
        self.admit(request)
        line = self._services.get(StatusLine).line(self.report.key, chat)
        return HttpReply(200, line.encode(), (("Content-Type", "text/plain; charset=utf-8"),))


def open(services: Services) -> Services:
    return services.add(StatusLine())
