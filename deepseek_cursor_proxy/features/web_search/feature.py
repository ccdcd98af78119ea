"""Web search in a running proxy: the APIs of DeepSeek that run searches, by the API of the client."""

from dataclasses import replace

from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.features.web_search.messages_api import MESSAGES
from deepseek_cursor_proxy.features.web_search.responses_api import RESPONSES


def open(services: Services) -> Services:
    return replace(services, search_apis={"responses": RESPONSES, "messages": MESSAGES})
