"""Reasoning details: what some hosts send beside the text of a reasoning, and want back with it.

The recorder stores the list under the text that it came with (see `identity.details_key`). No I/O.
"""

from deepseek_cursor_proxy.chat_memory import NO_CHAT, Chat, Stage
from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.reasoning.identity import details_key
from deepseek_cursor_proxy.reasoning.restore import FindTexts, PreparedRequest

_DETAILS: Stage[Message, tuple[Message, ...]] = Stage("details")


def add_details(
    prepared: PreparedRequest, namespace: bytes, find: FindTexts, memory: Chat = NO_CHAT
) -> PreparedRequest:
    """The request with the list of details beside each reasoning that came with one."""
    lookup = memory.look_up(_DETAILS, prepared.request.messages, namespace)
    new = prepared.request.messages[lookup.count :]
    keys = [details_key(namespace, message.reasoning) if message.reasoning else None for message in new]
    stored = find([key for key in keys if key is not None])
    # If several lists have the same text, take the oldest: it was sent before.
    pairs = zip(new, keys, strict=True)
    added = [message._replace(details=stored[key][0]) if key in stored else message for message, key in pairs]
    messages = (*(lookup.result or ()), *added)
    lookup.store(messages, lookup.size + sum([len(message.details or "") for message in added]))
    return prepared._replace(request=prepared.request._replace(messages=messages))
