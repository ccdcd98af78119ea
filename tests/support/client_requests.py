"""Requests of a caller for tests that open an exchange without an endpoint."""

from typing import Any

from deepseek_cursor_proxy.access import Caller
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.access_keys import AccessKey
from deepseek_cursor_proxy.exchange.client_request import ClientRequest, RequestReport
from deepseek_cursor_proxy.http1.messages import HttpRequest
from deepseek_cursor_proxy.protocols.request import parse

ME = b"m" * 32
KEY = "sk-0123456789"


def client_request(
    report: RequestReport, body: dict[str, Any], config: ProxyConfig, credential: str = KEY, **fields: Any
) -> ClientRequest:
    http = HttpRequest("POST", "/v1/chat/completions")
    client = ClientRequest(http, Caller(credential, AccessKey.of(credential), http), report, ME)
    client.body, client.chat = body, parse(body, config)
    for name, value in fields.items():
        setattr(client, name, value)
    return client
