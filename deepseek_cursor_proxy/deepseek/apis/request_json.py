"""Encodes the body of a chat completions call as JSON bytes.

The result is that of `encode_json(chat_api.payload(request))`. Messages that the chat memory knows, and a list of tools
that was encoded before, are not encoded again: a chat sends the same prefix with every request.
"""

import marshal

from deepseek_cursor_proxy.chat_memory import MIN_ITEMS, NO_MEMORY, ChatMemory, Stage
from deepseek_cursor_proxy.conversation import ChatRequest, Message
from deepseek_cursor_proxy.conversation.memo import Memo
from deepseek_cursor_proxy.deepseek.apis import chat_api
from deepseek_cursor_proxy.deepseek.hosts import DEEPSEEK, Host
from deepseek_cursor_proxy.deepseek.model_names import can_see_images
from deepseek_cursor_proxy.json_codec import encode_json

# Lists of 40 tools of 1 kB: twenty of them.
MAX_BYTES_OF_TOOLS = 2 * 1024 * 1024
# In version 2 of the marshal format equal values have equal bytes, and values that differ in JSON do not.
_MARSHAL_VERSION = 2

_ENCODE: Stage[Message, list[bytes]] = Stage("encode", lambda message: message.byte_size)
_tools: Memo[bytes, bytes] = Memo(MAX_BYTES_OF_TOOLS, lambda key, text: len(key) + len(text))


def encode(request: ChatRequest, memory: ChatMemory = NO_MEMORY, host: Host = DEEPSEEK) -> bytes:
    """The JSON of the body for this request."""
    has_tools = bool(request.tools or request.server_tools)
    is_short = len(request.messages) < MIN_ITEMS and not has_tools
    if is_short or chat_api.adds_messages(request):
        return encode_json(chat_api.payload(request, host))
    frame = chat_api.frame(request, messages=[], tools=0, host=host)
    # The first match is the placeholder: only strings and the words for thinking precede it, and JSON escapes quotes
    # inside strings.
    before, name, after = encode_json(frame).partition(b'"messages":[')
    if has_tools:
        between, tools, after = after.partition(b'"tools":0')
        after = between + tools[:-1] + _encode_tools(request) + after
    messages = _encode_messages(request, memory, host)
    # One join: every copy of a megabyte counts.
    messages[0] = before + name + messages[0]
    messages[-1] += after
    return b",".join(messages)


def _encode_messages(request: ChatRequest, memory: ChatMemory, host: Host) -> list[bytes]:
    # The host by what makes its messages: its options are not part of one.
    names = tuple(request.sent_names.items())
    with_items = bool(request.server_tools)
    of_host = (host.name, host.form, host.requires_reasoning)
    conditions = (request.thinking, can_see_images(request.model), names, with_items, of_host)
    lookup = memory.look_up(_ENCODE, request.messages, conditions)
    new = [encode_json(chat_api.message_fields(each, request, host)) for each in request.messages[lookup.count :]]
    size = (lookup.entry.result_size if lookup.entry is not None else 0) + sum(map(len, new))
    result = [*(lookup.result or ()), *new]
    lookup.store(result, size)
    return result.copy()


def tools_key(request: ChatRequest) -> bytes:
    """The same for requests whose tools are sent alike, and for no others."""
    return marshal.dumps([*request.tools, *request.sent_names.items(), *request.server_tools], _MARSHAL_VERSION)


def _encode_tools(request: ChatRequest) -> bytes:
    key = tools_key(request)
    text = _tools.get(key)
    if text is None:
        text = encode_json(chat_api.all_tools(request))
        _tools.keep(key, text)
    return text
