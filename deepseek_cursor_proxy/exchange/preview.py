"""What a request would send, without sending it: its history restored and repaired, its tools in order."""

from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.reasoning.chats.tracker import ChatTracker
from deepseek_cursor_proxy.reasoning.echoes import find_turns
from deepseek_cursor_proxy.reasoning.restore import prepare


def prepare_request(namespace: bytes, request: ChatRequest, services: Services) -> ChatRequest:
    config, memory = services.config, services.memory
    request, history, stored = find_turns(namespace, request, services.reasoning_store.find, memory)
    prepared = prepare(request, history, stored, config.missing_reasoning_strategy, memory)
    return ChatTracker(request, history, services.chats, config.tool_order).order_tools(prepared).request
