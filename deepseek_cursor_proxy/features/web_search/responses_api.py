"""DeepSeek's own Responses API: canonical request -> items, response or its events -> canonical deltas.

The API stores nothing, so every call brings the whole history. No item has an id: DeepSeek's prefix cache hits only on
equal text. `features/responses/writer` makes the ids and the state that clients see, from the same deltas as for a
chat. Custom tools are functions here. DeepSeek would accept a custom tool named apply_patch, but no other, so that
would only be a second way to do the same. A turn for which DeepSeek ran tools itself goes back with their items in
their places, and with their ids: by these DeepSeek finds the results again.

Answers are read as tolerantly as in chat_api. Items of tools that DeepSeek runs itself stay as they are: a ServerPiece
when one begins, while it searches, and with the whole item. Sources of a text stay as they are, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deepseek_cursor_proxy.chat_memory import NO_CHAT, Chat, Stage
from deepseek_cursor_proxy.conversation import CallPiece, ChatRequest, Delta, Message, unpack_items
from deepseek_cursor_proxy.deepseek import chat_api, server_tools
from deepseek_cursor_proxy.deepseek.api import UpstreamApi
from deepseek_cursor_proxy.deepseek.chat_api import new_call_id
from deepseek_cursor_proxy.deepseek.chat_stream import EventReader, ParsedEvents
from deepseek_cursor_proxy.deepseek.images import placeholder
from deepseek_cursor_proxy.deepseek.model_names import can_see_images
from deepseek_cursor_proxy.deepseek.usage import count_of
from deepseek_cursor_proxy.errors import UpstreamFailed
from deepseek_cursor_proxy.json_codec import as_list, as_object, as_text, encode_json

# Names of plain fields in chat completions -> in this API. A field that is not here is left out.
_PARAMS = {
    "max_tokens": "max_output_tokens",
    "temperature": "temperature",
    "top_logprobs": "top_logprobs",
    "top_p": "top_p",
    "user_id": "user",
}

_ENCODE: Stage[Message, list[bytes]] = Stage("encode items")


def payload(request: ChatRequest) -> dict[str, Any]:
    # Messages that we add are never assistant messages.
    turns = (message for message in request.messages if message.role == "assistant")
    items: list[dict[str, Any]] = []
    for fields in chat_api.messages(request):
        items += _items(fields, next(turns) if fields["role"] == "assistant" else None)
    return _frame(request, items)


def _frame(request: ChatRequest, items: list[dict[str, Any]]) -> dict[str, Any]:
    """The body around these items."""
    body: dict[str, Any] = {
        "model": request.model,
        "input": items,
        "reasoning": {"effort": request.effort if request.thinking else "none"},
    }
    if request.tools or request.server_tools:
        functions = [{"type": "function", **tool["function"]} for tool in chat_api.tools(request)]
        body["tools"] = [*functions, *request.server_tools]
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


def _flatten(value: Mapping[str, Any], inside: str) -> dict[str, Any]:
    """A value of chat completions without the nesting that this API does not have."""
    return {**{name: inner for name, inner in value.items() if name != inside}, **(value.get(inside) or {})}


def _items(fields: Mapping[str, Any], turn: Message | None) -> list[dict[str, Any]]:
    """The items of a message, which has these fields in chat completions; `turn` is the message if it is a turn."""
    content = fields["content"]
    if fields["role"] == "tool":
        return [{"type": "function_call_output", "call_id": fields["tool_call_id"], "output": content}]
    if turn is None:
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        return [{"type": "message", "role": fields["role"], "content": [_part(part) for part in parts]}]
    # In the order that DeepSeek requires: reasoning, text and calls. What DeepSeek's own tools made stays in its place,
    # and text without a place goes first or last.
    made = unpack_items(turn, server_tools.RESPONSES) or ()
    places: list[Mapping[str, Any]] = [{"type": "thinking", "length": 0}, *made, {"type": "text", "length": 0}]
    texts: dict[str, Iterator[str]] = {}
    for kind, whole, whole_at in (("thinking", fields.get("reasoning_content"), 0), ("text", content, -1)):
        lengths = [place["length"] for place in places if place["type"] == kind]
        texts[kind] = iter(server_tools.split_text(whole or "", lengths, whole_at=whole_at))
    items: list[dict[str, Any]] = []
    for place in places:
        if place["type"] not in texts:
            items.append(dict(place))
        # DeepSeek refuses empty reasoning like missing reasoning.
        elif text := next(texts[place["type"]]):
            items.append(_reasoning_item(text) if place["type"] == "thinking" else _text_item(text))
    calls = fields.get("tool_calls", ())
    if not (made or content or calls):
        items.append(_text_item(""))
    return [*items, *({"type": "function_call", "call_id": call["id"], **call["function"]} for call in calls)]


def _reasoning_item(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def _text_item(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "image_url":
        # Chat completions nest the URL and the detail in an object; this API does not.
        image = dict(part["image_url"])
        return {"type": "input_image", "image_url": image.pop("url"), **image}
    if part["type"] == "file" and part["file"].get("file_id"):
        return {"type": "input_image", "file_id": part["file"]["file_id"]}
    # The API accepts uploaded files only.
    return {"type": "input_text", "text": part["text"] if part["type"] == "text" else placeholder(part)}


def _encode(request: ChatRequest, memory: Chat) -> bytes:
    """The JSON of the payload; messages that the chat memory knows are not encoded again."""
    if memory is NO_CHAT or chat_api.adds_messages(request):
        return encode_json(payload(request))

    def encode_one(message: Message) -> bytes:
        """The items without the brackets around them; no message is without items."""
        turn = message if message.role == "assistant" else None
        return encode_json(_items(chat_api.message_fields(message, request), turn))[1:-1]

    # The first match is the placeholder: only the name of the model precedes it, and JSON escapes quotes in strings.
    before, name, after = encode_json(_frame(request, [])).partition(b'"input":[')
    conditions = (request.thinking, can_see_images(request.model), *request.sent_names.items())
    items = chat_api.encode_each(_ENCODE, request, memory, conditions, encode_one)
    items[0] = before + name + items[0]
    items[-1] += after
    return b",".join(items)


_FINISHES = {"max_output_tokens": "length", "content_filter": "content_filter", None: "length"}
# For a reason that is not in the table.
_UNKNOWN_END = "aborted"


def response_deltas(body: Mapping[str, Any]) -> list[Delta]:
    """A whole response as deltas: one per item, and one with the finish_reason."""
    return ResponseReader().finish(body)


class ResponseReader(EventReader):
    """Reads one response. An item, known by its index in the output, may come in pieces, whole, or both."""

    def __init__(self) -> None:
        super().__init__()
        # The items of which something was returned, and the index of each item that is a call.
        self._read_keys: set[int] = set()
        self._calls: dict[int, int] = {}
        # Items of tools that DeepSeek runs itself: as they began, and when they are complete.
        self._server_items: dict[int, Mapping[str, Any]] = {}
        self._whole: set[int] = set()
        # How many sources of each text were returned.
        self._cited: dict[int, int] = {}
        # How many searches succeeded; pages read do not count.
        self._searches = 0

    def _read_event(self, events: ParsedEvents, data: str) -> list[Delta]:
        deltas = super()._read_event(events, data)
        events.is_done = events.is_done or any(delta.finish_reason for delta in deltas)
        return deltas

    def _deltas(self, chunk: Mapping[str, Any]) -> list[Delta]:
        key, piece, item = count_of(chunk, "output_index"), chunk.get("delta"), as_object(chunk.get("item"))
        match chunk.get("type"):
            case "response.reasoning_text.delta":
                return self._read_reasoning(key, piece)
            case "response.output_text.delta":
                return _with_logprobs(self._read_text(key, piece), chunk.get("logprobs"))
            case "response.output_item.added":
                # A call or an item of a tool; all others begin with their first piece.
                if key in self._server_items or not _is_server_item(item):
                    return self._begin_call(key, item)
                self._server_items[key] = item
                return [server_tools.item_delta(key, item, "in_progress")]
            case "response.web_search_call.searching" if key in self._server_items and key not in self._whole:
                return [server_tools.item_delta(key, self._server_items[key], "searching")]
            case "response.output_text.annotation.added":
                return self._cite(key, [chunk.get("annotation")])
            case "response.function_call_arguments.delta":
                return self._read_arguments(key, piece)
            case "response.output_item.done":
                return self._read_item(key, item)
            case "response.completed" | "response.incomplete" | "response.failed" as kind:
                response = as_object(chunk.get("response"))
                return self.finish({**response, "status": kind.removeprefix("response.")})
            case kind if kind == "error" or chunk.get("error"):
                # Gateways send an error object without a type.
                raise chat_api.failure(chunk)
        return []

    def finish(self, response: Mapping[str, Any]) -> list[Delta]:
        """The deltas of the response object at the end: items that did not come before, and the finish_reason."""
        status, output = response.get("status"), response.get("output")
        if response.get("error") or status in ("failed", "cancelled"):
            raise chat_api.failure(response)
        if status in ("queued", "in_progress"):
            raise UpstreamFailed("DeepSeek's answer is not finished, and DeepSeek stores none to retrieve later.")
        # Items that began and did not end: as the response has them, or as far as they came.
        known = {as_text(item.get("id")): item for item in map(as_object, as_list(output))}
        deltas: list[Delta] = []
        for key, item in self._server_items.items():
            if key not in self._whole:
                item_id = as_text(item.get("id"))
                whole = known.get(item_id) if item_id else None
                deltas += self._read_server_item(key, whole or {**item, "status": "failed"})
        if not (self._read_keys or self._calls or self._server_items):
            # Only then: some gateways leave items out of the object, which changes the indexes of the others.
            if not isinstance(output, list):
                # The client would get an empty success.
                raise UpstreamFailed("DeepSeek's answer has no output.")
            deltas = [delta for key, item in enumerate(output) for delta in self._read_item(key, as_object(item))]
        finish_reason = "tool_calls" if self._calls else "stop"
        if status == "incomplete":
            reason = as_object(response.get("incomplete_details")).get("reason")
            finish_reason = _FINISHES.get(reason if isinstance(reason, str) else None, _UNKNOWN_END)
        return [*deltas, Delta(finish_reason=finish_reason, usage=usage(response.get("usage"), self._searches))]

    def _read_item(self, key: int, item: Mapping[str, Any]) -> list[Delta]:
        """The deltas of a whole item, without what came in pieces before."""
        match item.get("type"):
            case "reasoning":
                return self._read_reasoning(key, _text(item, "reasoning_text"), is_whole=True)
            case "message":
                text = self._read_text(key, _text(item, "output_text"), is_whole=True)
                sources = self._cite(key, _parts(item, "annotations")[self._cited.get(key, 0) :])
                return _with_logprobs(text, _parts(item, "logprobs")) + sources
            case "function_call":
                return self._begin_call(key, item) + self._read_arguments(key, item.get("arguments"), is_whole=True)
            case _:
                return self._read_server_item(key, item)

    def _cite(self, key: int, annotations: Sequence[object]) -> list[Delta]:
        self._cited[key] = self._cited.get(key, 0) + len(annotations)
        return server_tools.citation_deltas(annotations)

    def _read_reasoning(self, key: int, text: object, *, is_whole: bool = False) -> list[Delta]:
        return [Delta(reasoning=new)] if (new := self._unread(key, text, is_whole)) else []

    def _read_text(self, key: int, text: object, *, is_whole: bool = False) -> list[Delta]:
        return [Delta(text=new)] if (new := self._unread(key, text, is_whole)) else []

    def _begin_call(self, key: int, item: Mapping[str, Any]) -> list[Delta]:
        """A call begins; its arguments follow."""
        if key in self._calls or item.get("type") != "function_call":
            return []
        index = self._calls[key] = len(self._calls)
        call_id = as_text(item.get("call_id")) or new_call_id()
        return [Delta(calls=(CallPiece(index, call_id, as_text(item.get("name"))),))]

    def _read_arguments(self, key: int, text: object, *, is_whole: bool = False) -> list[Delta]:
        # Arguments of a call without a name come again with the name.
        if key not in self._calls or not (new := self._unread(key, text, is_whole)):
            return []
        return [Delta(calls=(CallPiece(self._calls[key], arguments=new),))]

    def _unread(self, key: int, text: object, is_whole: bool) -> str:
        if is_whole and key in self._read_keys:
            return ""
        if new := as_text(text):
            self._read_keys.add(key)
        return new

    def _read_server_item(self, key: int, item: Mapping[str, Any]) -> list[Delta]:
        if key in self._whole or not _is_server_item(item):
            return []
        self._server_items[key] = item
        self._whole.add(key)
        action = as_object(item.get("action")).get("type", "search")
        is_search = item["type"].endswith("web_search_call") and action == "search"
        self._searches += bool(is_search and item.get("status", "completed") == "completed")
        return [server_tools.item_delta(key, item)]


def _is_server_item(item: Mapping[str, Any]) -> bool:
    kind = item.get("type")
    return isinstance(kind, str) and server_tools.is_server_item(kind)


def _with_logprobs(deltas: list[Delta], entries: object) -> list[Delta]:
    """Deltas of a text with its log probabilities in `chunk`, where chat completions have them."""
    if not (isinstance(entries, list) and entries):
        return deltas
    return [delta._replace(chunk={"choices": [{"logprobs": {"content": entries}}]}) for delta in deltas]


def usage(figures: object, searches: int = 0) -> dict[str, Any] | None:
    """Usage under its names in chat completions; with the searches, as Messages have them, if there were any."""
    if not isinstance(figures, dict):
        return None
    details = as_object(figures.get("input_tokens_details"))
    prompt, cached = figures.get("input_tokens"), details.get("cached_tokens")
    missed = max(0, count_of(figures, "input_tokens") - count_of(details, "cached_tokens"))
    counted = {
        "prompt_tokens": prompt,
        "completion_tokens": figures.get("output_tokens"),
        "total_tokens": figures.get("total_tokens"),
        "prompt_tokens_details": {"cached_tokens": cached} if isinstance(cached, int) else None,
        "completion_tokens_details": as_object(figures.get("output_tokens_details")) or None,
        "prompt_cache_hit_tokens": cached,
        "prompt_cache_miss_tokens": missed if isinstance(prompt, int) and isinstance(cached, int) else None,
        "server_tool_use": figures.get("server_tool_use") or ({"web_search_requests": searches} if searches else None),
    }
    return {name: value for name, value in counted.items() if isinstance(value, (int, dict))}


def _text(item: Mapping[str, Any], kind: str) -> str:
    parts = map(as_object, as_list(item.get("content")))
    return "".join(as_text(part.get("text")) for part in parts if part.get("type") == kind)


def _parts(item: Mapping[str, Any], name: str) -> list[Any]:
    """The entries of a list that each part of a text has."""
    parts = map(as_object, as_list(item.get("content")))
    return [entry for part in parts for entry in as_list(part.get(name))]


RESPONSES = UpstreamApi("/responses", payload, _encode, ResponseReader, response_deltas, runs_server_tools=True)
