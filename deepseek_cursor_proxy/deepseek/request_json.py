"""Encodes the body of a chat completions call as JSON bytes.

The result is that of `encode_json(payload)`. A message, or a list of tools, that was encoded before is taken from a
cache: a chat sends the same prefix with every request.
"""

import marshal
from collections.abc import Mapping, Sequence
from typing import Any

from deepseek_cursor_proxy.conversation import ChatRequest, Message
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.memo import Memo

# Some eight chats of 200 tool turns: a megabyte of text and another of JSON each.
_MAX_BYTES_OF_MESSAGES = 16 * 1024 * 1024
# Lists of 40 tools of 1 kB: twenty of them.
_MAX_BYTES_OF_TOOLS = 2 * 1024 * 1024
_MIN_MESSAGES = 4
# In version 2 of the marshal format equal values have equal bytes, and values that differ in JSON do not.
_MARSHAL_VERSION = 2

# Keyed by the message and by `thinking`, which decides whether its reasoning is sent. Encoding 3 kB of code takes
# 15 µs, the lookup 4.
_messages: Memo[tuple[Message, bool], bytes] = Memo(_MAX_BYTES_OF_MESSAGES, lambda key, text: key[0].memory + len(text))
_tools: Memo[bytes, bytes] = Memo(_MAX_BYTES_OF_TOOLS, lambda key, text: len(key) + len(text))


def encode(request: ChatRequest, payload: Mapping[str, Any]) -> bytes:
    """The JSON of `payload`, which was built from `request`."""
    if len(request.messages) < _MIN_MESSAGES and not request.tools:
        # A short chat is encoded faster than looked up.
        return encode_json(payload)
    if len(payload["messages"]) != len(request.messages):
        # The payload has messages of ours: images that tools returned, or a JSON schema.
        return encode_json(payload)
    # Everything else is encoded with zeros as placeholders. The first match is the placeholder: only strings and
    # `thinking` precede it, and JSON escapes quotes inside strings.
    shell = {**payload, "messages": 0, "tools": 0} if "tools" in payload else {**payload, "messages": 0}
    before, name, after = encode_json(shell).partition(b'"messages":0')
    pieces = [before, name[:-1], _encode_messages(request, payload["messages"])]
    if "tools" in payload:
        before, name, after = after.partition(b'"tools":0')
        pieces += before, name[:-1], _encode_tools(payload["tools"])
    return b"".join([*pieces, after])


def _encode_messages(request: ChatRequest, sent: Sequence[Mapping[str, Any]]) -> bytes:
    thinking = request.thinking
    return b"[%b]" % b",".join(
        [_encode_message((message, thinking), fields) for message, fields in zip(request.messages, sent, strict=True)]
    )


def _encode_message(key: tuple[Message, bool], fields: Mapping[str, Any]) -> bytes:
    if not isinstance(key[0].content, str):
        # Parts are not hashable, and their encoding depends on whether the model sees images.
        return encode_json(fields)
    text = _messages.get(key)
    if text is None:
        text = encode_json(fields)
        _messages.keep(key, text)
    return text


def _encode_tools(tools: list[Any]) -> bytes:
    key = marshal.dumps(tools, _MARSHAL_VERSION)
    text = _tools.get(key)
    if text is None:
        text = encode_json(tools)
        _tools.keep(key, text)
    return text
