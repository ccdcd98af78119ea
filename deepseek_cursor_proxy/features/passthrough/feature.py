"""Passthrough in a running proxy: requests whose model has another upstream are relayed."""

from dataclasses import replace

from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.features.passthrough.endpoint import relay_if_named


def open(services: Services) -> Services:
    return replace(services, relay=relay_if_named)
