"""The body of the upstream call, as bytes.

What `deepseek.payload` says, written as `encode_json` would write it; only that a message, or a list of tools, which
went out before is not written again. DeepSeek finds its cache by the same prefix for which this saves the time.
"""

import marshal
from collections.abc import Mapping, Sequence
from typing import Any

from deepseek_cursor_proxy.conversation import ChatRequest, Message
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.memo import Memo

# Some eight chats of 200 tool turns, at a megabyte each as text and another as JSON.
_MOST_BYTES_OF_MESSAGES = 16 * 1024 * 1024
# Lists of 40 tools of 1 kB: twenty of them.
_MOST_BYTES_OF_TOOLS = 2 * 1024 * 1024
_FEWEST_MESSAGES = 4
# As in drift: with this form of marshal's the same value has the same bytes, and values that JSON tells apart have not.
_EXACT = 2

# A message, with whether the request thinks, which decides about its reasoning. Writing 3 kB of code with a few quotes
# takes 15 µs, finding it again 4.
_messages: Memo[tuple[Message, bool], bytes] = Memo(
    _MOST_BYTES_OF_MESSAGES, lambda key, text: key[0].memory + len(text)
)
_tools: Memo[bytes, bytes] = Memo(_MOST_BYTES_OF_TOOLS, lambda key, text: len(key) + len(text))


def encode(request: ChatRequest, payload: Mapping[str, Any]) -> bytes:
    """The JSON of the payload that was made of this request."""
    if len(request.messages) < _FEWEST_MESSAGES and not request.tools:
        # The first words of a chat: written in one go before they would be found piece by piece.
        return encode_json(payload)
    if len(payload["messages"]) != len(request.messages):
        # Something was said in between: the pictures that tools returned, or a schema in words.
        return encode_json(payload)
    # All else in one go. The first zeros are those put here: only strings and `thinking` stand in front of them, and
    # JSON leaves no quote inside a string bare.
    shell = {**payload, "messages": 0, "tools": 0} if "tools" in payload else {**payload, "messages": 0}
    before, name, after = encode_json(shell).partition(b'"messages":0')
    written = [before, name[:-1], _written_messages(request, payload["messages"])]
    if "tools" in payload:
        before, name, after = after.partition(b'"tools":0')
        written += before, name[:-1], _written_tools(payload["tools"])
    return b"".join([*written, after])


def _written_messages(request: ChatRequest, sent: Sequence[Mapping[str, Any]]) -> bytes:
    thinking = request.thinking
    return b"[%b]" % b",".join(
        [_written_message((message, thinking), fields) for message, fields in zip(request.messages, sent, strict=True)]
    )


def _written_message(key: tuple[Message, bool], fields: Mapping[str, Any]) -> bytes:
    if not isinstance(key[0].content, str):
        # Parts have no hash, and how they are sent depends on what the model sees.
        return encode_json(fields)
    text = _messages.get(key)
    if text is None:
        text = encode_json(fields)
        _messages.keep(key, text)
    return text


def _written_tools(tools: list[Any]) -> bytes:
    key = marshal.dumps(tools, _EXACT)
    text = _tools.get(key)
    if text is None:
        text = encode_json(tools)
        _tools.keep(key, text)
    return text
