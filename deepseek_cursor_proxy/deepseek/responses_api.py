"""DeepSeek's own Responses API: canonical request -> items. Its answers are read in responses_stream.

The API stores nothing, so every call brings the whole history. No item has an id: DeepSeek's prefix cache hits only on
equal text. `protocols.responses` makes the ids and the state that clients see, from the same deltas as for a chat.
Custom tools are functions here. DeepSeek would accept a custom tool named apply_patch, but no other, so that would only
be a second way to do the same. A turn for which DeepSeek ran tools itself goes back with their items in their places,
and with their ids: by these DeepSeek finds the results again.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deepseek_cursor_proxy.chat_memory import ChatMemory
from deepseek_cursor_proxy.conversation import ChatRequest, unpack_items
from deepseek_cursor_proxy.deepseek import chat_api, request_json
from deepseek_cursor_proxy.deepseek.api import UpstreamApi
from deepseek_cursor_proxy.deepseek.images import placeholder
from deepseek_cursor_proxy.deepseek.responses_stream import ResponseReader, response_deltas
from deepseek_cursor_proxy.deepseek.tools.server_tools import RESPONSES as RESPONSES_API
from deepseek_cursor_proxy.deepseek.tools.server_tools import split_words
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.memo import Memo

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


def payload(request: ChatRequest) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": request.model,
        "input": _input(request),
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
        if fields["role"] == "assistant" and (made := unpack_items(next(assistants), RESPONSES_API)):
            items += _searched_items(fields, made)
        else:
            items += _items(fields)
    return items


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
    return encode_json(payload(request))


RESPONSES = UpstreamApi("/responses", payload, _encode, response_deltas, ResponseReader, runs_server_tools=True)
