"""Choices in a running proxy. Most clients want one answer, so the rest of the folder is imported late."""

from dataclasses import replace
from typing import TYPE_CHECKING

from deepseek_cursor_proxy.exchange.client_request import ClientRequest
from deepseek_cursor_proxy.exchange.services import Services

if TYPE_CHECKING:
    from deepseek_cursor_proxy.features.choices.exchanges import ChoicesExchange


def open_choices(client: ClientRequest, services: Services) -> "ChoicesExchange":
    from deepseek_cursor_proxy.features.choices.exchanges import ChoicesExchange

    return ChoicesExchange.open(client, services)


def open(services: Services) -> Services:
    return replace(services, open_choices=open_choices)
