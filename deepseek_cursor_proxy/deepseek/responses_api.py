"""DeepSeek's own Responses API: canonical request -> items, response or events -> canonical deltas.

The API stores nothing, so every call brings the whole history. No item has an id: DeepSeek's prefix cache hits only on
equal text. `protocols.responses` makes the ids and the state that clients see, from the same deltas as for a chat.
Custom tools are functions here. DeepSeek would accept a custom tool named apply_patch, but no other, so that would only
be a second way to do the same. Reading is as tolerant as in chat_api.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from deepseek_cursor_proxy.chat_memory import ChatMemory
from deepseek_cursor_proxy.conversation import CallPiece, ChatRequest, Delta
from deepseek_cursor_proxy.deepseek import chat_api, request_json
from deepseek_cursor_proxy.deepseek.api import UpstreamApi
from deepseek_cursor_proxy.deepseek.chat_stream import EventReader, ParsedEvents
from deepseek_cursor_proxy.deepseek.images import placeholder
from deepseek_cursor_proxy.errors import UpstreamFailed
from deepseek_cursor_proxy.json_codec import as_list, as_object, encode_json
from deepseek_cursor_proxy.memo import Memo

# Names of plain fields in chat completions -> in this API. A field that is not here is left out.
_PARAMS = {
    "max_tokens": "max_output_tokens",
    "temperature": "temperature",
    "top_logprobs": "top_logprobs",
    "top_p": "top_p",
    "user_id": "user",
}
_FINISHES = {"max_output_tokens": "length", "content_filter": "content_filter", None: "length"}
# For a reason that is not in the table.
_UNKNOWN_END = "aborted"
# The objects of a value take about five times the bytes of its key.
_known_tools: Memo[bytes, list[dict[str, Any]]] = Memo(request_json.MAX_BYTES_OF_TOOLS, lambda key, tools: 6 * len(key))
# An item of the output: its index, or a made-up name if the event has no index.
ItemKey = int | str


def payload(request: ChatRequest) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": request.model,
        "input": [item for message in chat_api.messages(request) for item in _items(message)],
        "reasoning": {"effort": request.effort if request.thinking else "none"},
    }
    if request.tools:
        body["tools"] = _tools(request)
    choice = chat_api.tool_choice(request)
    if choice is not None:
        body["tool_choice"] = choice if isinstance(choice, str) else _flatten(choice, "function")
    if request.stream:
        body["stream"] = True
    body |= {theirs: request.params[name] for name, theirs in _PARAMS.items() if name in request.params}
    form = request.params.get("response_format")
    if form is not None:
        body["text"] = {"format": _flatten(form, "json_schema")}
    return body


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
        yield {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": reasoning}]}
    calls = message.get("tool_calls", ())
    if message["content"] or not calls:
        yield _message_item("assistant", [{"type": "output_text", "text": message["content"]}])
    for call in calls:
        yield {"type": "function_call", "call_id": call["id"], **call["function"]}


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


def response_deltas(body: Mapping[str, Any]) -> list[Delta]:
    """A whole response as deltas: one per item, and one with the finish_reason."""
    return ItemReader().finish(body)


class ItemReader:
    """Turns the items of one response into deltas. An item may come in pieces, whole, or both; it is returned once."""

    def __init__(self) -> None:
        # The items of which something was returned, and the index of each item that is a call.
        self._read_keys: set[ItemKey] = set()
        self._calls: dict[ItemKey, int] = {}

    def finish(self, response: object) -> list[Delta]:
        """The deltas of the response object at the end: items that did not come before, and the finish_reason."""
        response = as_object(response)
        if response.get("error") or response.get("status") in ("failed", "cancelled"):
            raise failure(response)
        if response.get("status") in ("queued", "in_progress"):
            raise UpstreamFailed("DeepSeek's answer is not finished, and it keeps none to be asked for again.")
        deltas: list[Delta] = []
        if not (self._read_keys or self._calls):
            # Only then: some gateways leave items out of the object, which changes the indexes of the others.
            output = response.get("output")
            if not isinstance(output, list):
                # The client would get an empty success.
                raise UpstreamFailed("DeepSeek's answer has no output.")
            deltas = [delta for key, item in enumerate(output) for delta in self.read_item(key, item)]
        return [*deltas, Delta(finish_reason=self._finish_reason(response), usage=usage(response.get("usage")))]

    def _finish_reason(self, response: Mapping[str, Any]) -> str:
        if response.get("status") == "incomplete":
            reason = as_object(response.get("incomplete_details")).get("reason")
            return _FINISHES.get(reason if isinstance(reason, str) else None, _UNKNOWN_END)
        return "tool_calls" if self._calls else "stop"

    def read_item(self, key: ItemKey, item: object) -> list[Delta]:
        """The deltas of a whole item, without what came in pieces before."""
        if not isinstance(item, dict):
            return []
        match item.get("type"):
            case "reasoning":
                return self.reasoning(key, _text(item, "reasoning_text"), is_whole=True)
            case "message":
                return with_logprobs(self.text(key, _text(item, "output_text"), is_whole=True), _logprobs(item))
            case "function_call":
                return self.call(key, item) + self.arguments(key, item.get("arguments"), is_whole=True)
            case _:
                return []

    def reasoning(self, key: ItemKey, text: object, *, is_whole: bool = False) -> list[Delta]:
        return [Delta(reasoning=new)] if (new := self._unread(key, text, is_whole)) else []

    def text(self, key: ItemKey, text: object, *, is_whole: bool = False) -> list[Delta]:
        return [Delta(text=new)] if (new := self._unread(key, text, is_whole)) else []

    def call(self, key: ItemKey, item: object) -> list[Delta]:
        """A call begins; its arguments follow."""
        if key in self._calls or not isinstance(item, dict) or item.get("type") != "function_call":
            return []
        index = self._calls[key] = len(self._calls)
        return [Delta(calls=(CallPiece(index, _string(item.get("call_id")), _string(item.get("name"))),))]

    def arguments(self, key: ItemKey, text: object, *, is_whole: bool = False) -> list[Delta]:
        # Arguments of a call without a name come again with the name.
        if key not in self._calls or not (new := self._unread(key, text, is_whole)):
            return []
        return [Delta(calls=(CallPiece(self._calls[key], arguments=new),))]

    def _unread(self, key: ItemKey, text: object, is_whole: bool) -> str:
        if is_whole and key in self._read_keys:
            return ""
        if new := _string(text):
            self._read_keys.add(key)
        return new


def with_logprobs(deltas: list[Delta], found: object) -> list[Delta]:
    """Deltas of a text with its log probabilities in `chunk`, where chat completions have them."""
    if not (isinstance(found, list) and found):
        return deltas
    return [delta._replace(chunk={"choices": [{"logprobs": {"content": found}}]}) for delta in deltas]


def failure(body: Mapping[str, Any]) -> UpstreamFailed:
    """The failure that an error body or error event means."""
    message = chat_api.error_message(body) or _string(body.get("message")) or "no reason given"
    return UpstreamFailed(f"DeepSeek broke the answer off: {message}")


def usage(found: object) -> dict[str, Any] | None:
    """Usage under its names in chat completions."""
    if not isinstance(found, dict):
        return None
    prompt, cached = found.get("input_tokens"), as_object(found.get("input_tokens_details")).get("cached_tokens")
    counted = {
        "prompt_tokens": prompt,
        "completion_tokens": found.get("output_tokens"),
        "total_tokens": found.get("total_tokens"),
        "prompt_tokens_details": {"cached_tokens": cached} if isinstance(cached, int) else None,
        "completion_tokens_details": as_object(found.get("output_tokens_details")) or None,
        "prompt_cache_hit_tokens": cached,
        "prompt_cache_miss_tokens": prompt - cached if isinstance(prompt, int) and isinstance(cached, int) else None,
    }
    return {name: value for name, value in counted.items() if isinstance(value, (int, dict))}


def _text(item: Mapping[str, Any], kind: str) -> str:
    parts = map(as_object, as_list(item.get("content")))
    return "".join(_string(part.get("text")) for part in parts if part.get("type") == kind)


def _logprobs(item: Mapping[str, Any]) -> list[Any]:
    parts = map(as_object, as_list(item.get("content")))
    return [entry for part in parts for entry in as_list(part.get("logprobs"))]


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


class ResponseReader(EventReader):
    def __init__(self) -> None:
        super().__init__()
        self._items = ItemReader()
        self._keys = _ItemKeys()

    def _read_event(self, events: ParsedEvents, data: str) -> list[Delta]:
        deltas = super()._read_event(events, data)
        events.is_done = events.is_done or any(delta.finish_reason for delta in deltas)
        return deltas

    def _deltas(self, chunk: Mapping[str, Any]) -> list[Delta]:
        items, key = self._items, self._keys.key_of(chunk)
        match chunk.get("type"):
            case "response.reasoning_text.delta":
                return items.reasoning(key, chunk.get("delta"))
            case "response.output_text.delta":
                return with_logprobs(items.text(key, chunk.get("delta")), chunk.get("logprobs"))
            case "response.output_item.added":
                return items.call(key, chunk.get("item"))
            case "response.function_call_arguments.delta":
                return items.arguments(key, chunk.get("delta"))
            case "response.output_item.done":
                return items.read_item(key, chunk.get("item"))
            case "response.completed" | "response.incomplete" | "response.failed" as kind:
                return items.finish(_response(chunk, kind))
            case "error":
                raise failure(chunk)
            case _ if chunk.get("error"):
                # An error object of a gateway, without a type.
                raise failure(chunk)
            case _:
                return []


class _ItemKeys:
    """Finds the item of an event: by its output_index, else by the item's id, else by the order of events.

    Some gateways leave out the index, some the id; without both, the pieces of two calls would become one call.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, ItemKey] = {}
        # How many items with neither have begun, and whether the last one has ended.
        self._unnamed = 0
        self._has_ended = True

    def key_of(self, chunk: Mapping[str, Any]) -> ItemKey:
        index = chunk.get("output_index")
        name = _string(chunk.get("item_id") or as_object(chunk.get("item")).get("id"))
        if isinstance(index, int):
            if name:
                self._by_id[name] = index
            return index
        return self._by_id.setdefault(name, f"id {name}") if name else self._next(str(chunk.get("type")))

    def _next(self, kind: str) -> ItemKey:
        if kind == "response.output_item.added" or (self._has_ended and kind != "response.output_item.done"):
            self._unnamed += 1
            self._has_ended = False
        elif kind == "response.output_item.done":
            # A done event without an added event is an item of its own.
            self._unnamed += self._has_ended
            self._has_ended = True
        return f"unnamed {self._unnamed}"


def _response(chunk: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The response object of a last event, with the status of the event's type."""
    return {**as_object(chunk.get("response")), "status": kind.removeprefix("response.")}


def _encode(request: ChatRequest, memory: ChatMemory) -> bytes:
    return encode_json(payload(request))


RESPONSES = UpstreamApi("/responses", payload, _encode, response_deltas, ResponseReader)
