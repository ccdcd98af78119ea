"""Written calls in a running proxy: which answers are searched for calls that the model wrote as text."""

from dataclasses import replace

from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.deepseek import chat_api, rules
from deepseek_cursor_proxy.exchange.client_request import ClientRequest, WrittenCalls
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.exchange.upstreams import Upstream


def open_written_calls(
    services: Services, client: ClientRequest, request: ChatRequest, upstream: Upstream
) -> WrittenCalls | None:
    """The converter of the answer to a request as it is sent; None if this answer is not searched for any call."""
    if not request.tools or request.tool_choice == "none":
        return None
    wants_hermes = client.reads_written_calls
    with_markup = wants_hermes or services.config.repair_turns != "off"
    if not with_markup and not rules.is_forced(request.tool_choice):
        return None
    # Imported late: most chats of people have no tools.
    from deepseek_cursor_proxy.features.written_calls.converter import WrittenCalls as Converter

    return Converter(
        request,
        chat_api.new_call_id,
        upstream.record_structured_call,
        with_markup=with_markup,
        with_hermes=wants_hermes or (with_markup and upstream.may_write_calls),
    )


def open(services: Services) -> Services:
    return replace(services, open_written_calls=open_written_calls)
