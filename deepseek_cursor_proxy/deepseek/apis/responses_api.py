"""DeepSeek's own Responses API: canonical request -> items. Its answers are read in responses_stream.

The API stores nothing, so every call brings the whole history. No item has an id: DeepSeek's prefix cache hits only on
equal text. `protocols.responses` makes the ids and the state that clients see, from the same deltas as for a chat.
Custom tools are functions here. DeepSeek would accept a custom tool named apply_patch, but no other, so that would only
be a second way to do the same. A turn for which DeepSeek ran tools itself goes back with their items in their places,
and with their ids: by these DeepSeek finds the results again.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deepseek_cursor_proxy.chat_memory import MIN_ITEMS, ChatMemory, Stage
from deepseek_cursor_proxy.conversation import ChatRequest, Message, unpack_items
from deepseek_cursor_proxy.conversation.memo import Memo
from deepseek_cursor_proxy.deepseek.apis import chat_api, request_json
from deepseek_cursor_proxy.deepseek.apis.api import UpstreamApi
from deepseek_cursor_proxy.deepseek.apis.responses_stream import ResponseReader, response_deltas
from deepseek_cursor_proxy.deepseek.images import placeholder
from deepseek_cursor_proxy.deepseek.model_names import can_see_images
from deepseek_cursor_proxy.deepseek.tools.server_tools import RESPONSES as RESPONSES_API
from deepseek_cursor_proxy.deepseek.tools.server_tools import split_words
from deepseek_cursor_proxy.json_codec import encode_json

# Names of plain fields in chat completions -> in this API. A field that is not here is left out.
_PARAMS = {
    "max_tokens": "max_output_tokens",
    "temperature": "temperature",
    "top_logprobs": "top_logprobs",
    "top_p": "top_p",
    "user_id": "user",
}
# The objects of a value take about five times the bytes of its key.
_known_tools: Memo[bytes, list[dict[str, Any]]] = Memo(request_json.MAX_BYTES_OF_TOOLS, lambda key, tools: 6 * len(key))


_ENCODE: Stage[Message, list[bytes]] = Stage("encode items", lambda message: message.byte_size)


def payload(request: ChatRequest) -> dict[str, Any]:
    return _frame(request, _input(request))


def _frame(request: ChatRequest, items: list[dict[str, Any]]) -> dict[str, Any]:
    """The body around these items."""
    body: dict[str, Any] = {
        "model": request.model,
        "input": items,
        "reasoning": {"effort": request.effort if request.thinking else "none"},
    }
    if request.tools or request.server_tools:
        body["tools"] = [*_tools(request), *request.server_tools]
    choice = request.server_choice or chat_api.tool_choice(request)
    if choice is not None:
        body["tool_choice"] = choice if isinstance(choice, str) else _flatten(choice, "function")
    if request.stream:
        body["stream"] = True
    body |= {theirs: request.params[name] for name, theirs in _PARAMS.items() if name in request.params}
    form = request.params.get("response_format")
    if form is not None:
        body["text"] = {"format": _flatten(form, "json_schema")}
    return body


def _input(request: ChatRequest) -> list[dict[str, Any]]:
    # Messages of ours are no assistants.
    assistants = (message for message in request.messages if message.role == "assistant")
    items: list[dict[str, Any]] = []
    for fields in chat_api.messages(request):
        items += _turn_items(fields, next(assistants)) if fields["role"] == "assistant" else _items(fields)
    return items


def _turn_items(fields: Mapping[str, Any], message: Message) -> Iterator[dict[str, Any]]:
    """The items of a message; `fields` are those it has in chat completions."""
    made = unpack_items(message, RESPONSES_API)
    return _searched_items(fields, made) if made else _items(fields)


def _tools(request: ChatRequest) -> list[dict[str, Any]]:
    key = request_json.tools_key(request)
    tools = _known_tools.get(key)
    if tools is None:
        tools = [{"type": "function", **tool["function"]} for tool in chat_api.tools(request)]
        _known_tools.keep(key, tools)
    return tools


def _flatten(value: Mapping[str, Any], inside: str) -> dict[str, Any]:
    """A value of chat completions without the nesting that this API does not have."""
    return {**{name: inner for name, inner in value.items() if name != inside}, **(value.get(inside) or {})}


def _items(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if message["role"] == "tool":
        yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
    elif message["role"] == "assistant":
        yield from _assistant_items(message)
    else:
        content = message["content"]
        texts_and_images = [{"type": "text", "text": content}] if isinstance(content, str) else content
        yield _message_item(message["role"], [_part(part) for part in texts_and_images])


def _assistant_items(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Reasoning, text and calls of a turn, in the order that DeepSeek requires."""
    # DeepSeek refuses empty reasoning like missing reasoning.
    if reasoning := message.get("reasoning_content"):
        yield _reasoning_item(reasoning)
    if message["content"] or not message.get("tool_calls"):
        yield _text_item(message["content"])
    yield from _call_items(message)


def _searched_items(message: Mapping[str, Any], made: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The items of a turn for which DeepSeek ran tools, in their places; words without a place are first and last."""
    places = [{"type": "thinking", "length": 0}, *made, {"type": "text", "length": 0}]
    words: dict[str, Iterator[str]] = {}
    for kind, all_words, whole_at in (
        ("thinking", message.get("reasoning_content"), 0),
        ("text", message["content"], -1),
    ):
        lengths = [place["length"] for place in places if place["type"] == kind]
        words[kind] = iter(split_words(all_words or "", lengths, whole_at=whole_at))
    for place in places:
        if place["type"] not in words:
            yield dict(place)
        elif text := next(words[place["type"]]):
            yield _reasoning_item(text) if place["type"] == "thinking" else _text_item(text)
    yield from _call_items(message)


def _call_items(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for call in message.get("tool_calls", ()):
        yield {"type": "function_call", "call_id": call["id"], **call["function"]}


def _reasoning_item(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def _text_item(text: str) -> dict[str, Any]:
    return _message_item("assistant", [{"type": "output_text", "text": text}])


def _message_item(role: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": parts}


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "image_url":
        # Chat completions nest the URL and the detail in an object; this API does not.
        image = dict(part["image_url"])
        return {"type": "input_image", "image_url": image.pop("url"), **image}
    if part["type"] == "file" and part["file"].get("file_id"):
        return {"type": "input_image", "file_id": part["file"]["file_id"]}
    # The API accepts uploaded files only.
    return {"type": "input_text", "text": part["text"] if part["type"] == "text" else placeholder(part)}


def _encode(request: ChatRequest, memory: ChatMemory) -> bytes:
    """The JSON of the payload; messages that the chat memory knows are not encoded again."""
    if len(request.messages) < MIN_ITEMS or chat_api.adds_messages(request):
        return encode_json(payload(request))
    # The first match is the placeholder: only the name of the model precedes it, and JSON escapes quotes in strings.
    before, name, after = encode_json(_frame(request, [])).partition(b'"input":[')
    items = _encode_items(request, memory)
    items[0] = before + name + items[0]
    items[-1] += after
    return b",".join(items)


def _encode_items(request: ChatRequest, memory: ChatMemory) -> list[bytes]:
    """The items of each message, without the brackets around them; no message is without items."""
    conditions = (request.thinking, can_see_images(request.model), *request.sent_names.items())
    lookup = memory.look_up(_ENCODE, request.messages, conditions)
    new = [
        encode_json(list(_turn_items(chat_api.message_fields(each, request), each)))[1:-1]
        for each in request.messages[lookup.count :]
    ]
    size = (lookup.entry.result_size if lookup.entry is not None else 0) + sum(map(len, new))
    result = [*(lookup.result or ()), *new]
    lookup.store(result, size)
    return result.copy()


RESPONSES = UpstreamApi("/responses", payload, _encode, response_deltas, ResponseReader, runs_server_tools=True)
