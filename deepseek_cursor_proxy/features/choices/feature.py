"""Choices in a running proxy. Most clients want one answer, so the rest of the folder is imported late."""

from dataclasses import replace

from deepseek_cursor_proxy.exchange.client_request import ClientRequest, OpenExchange
from deepseek_cursor_proxy.exchange.services import Services


def open_choices(client: ClientRequest, services: Services) -> OpenExchange:
    from deepseek_cursor_proxy.features.choices.exchanges import ChoicesExchange

    return ChoicesExchange.open(client, services)


def open(services: Services) -> Services:
    return replace(services, open_choices=open_choices)
