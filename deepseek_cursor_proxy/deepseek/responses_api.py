"""DeepSeek's own Responses API, the other of its dialects: what it is sent, and what its answers say.

    payload             the canonical request as items
    answer, Heard       a whole answer, or one that is still being told, as canonical deltas

It keeps nothing between two calls, so every call brings the whole history; no item has an id, because a prefix cache
hits only on what was sent in the same words before. Ids, state and everything else that clients see are made on our
side of it (see protocols/responses), from the same deltas as those of a chat.
Custom tools are functions by the time they come here. DeepSeek would take one called apply_patch as it is, but no
other, so that would only be a second way to do the same. What comes back is read as tolerantly as in deepseek.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from deepseek_cursor_proxy.conversation import CallPiece, ChatRequest, Delta
from deepseek_cursor_proxy.deepseek import chat_api
from deepseek_cursor_proxy.deepseek.api import UpstreamApi
from deepseek_cursor_proxy.deepseek.chat_stream import EventReader, ParsedEvents
from deepseek_cursor_proxy.deepseek.images import placeholder
from deepseek_cursor_proxy.errors import UpstreamFailed
from deepseek_cursor_proxy.json_codec import encode_json

# What this API calls the plain fields of a request; those it has no word for are left out.
_PARAMS = {
    "max_tokens": "max_output_tokens",
    "temperature": "temperature",
    "top_logprobs": "top_logprobs",
    "top_p": "top_p",
    "user_id": "user",
}


_FINISHED: dict[str | None, str] = {"max_output_tokens": "length", "content_filter": "content_filter", None: "length"}


# For whatever reason it may name one day: nothing that the client asked for ended the answer.
_CUT_SHORT = "aborted"


# Which item of the output is meant: its index, or a name for one whose index is not told.
Place = int | str


# Out: the canonical request as items …


def payload(request: ChatRequest) -> dict[str, Any]:
    """The body of the upstream call."""
    body: dict[str, Any] = {
        "model": request.model,
        "input": [item for message in chat_api.messages(request) for item in _items(message)],
        "reasoning": {"effort": request.effort if request.thinking else "none"},
    }
    if request.tools:
        body["tools"] = [{"type": "function", **tool["function"]} for tool in request.tools]
    if request.tool_choice is not None:
        body["tool_choice"] = _choice(request.tool_choice)
    if request.stream:
        body["stream"] = True
    body |= {ours: request.params[name] for name, ours in _PARAMS.items() if name in request.params}
    form = request.params.get("response_format")
    if form is not None:
        body["text"] = {"format": _flat(form, "json_schema")}
    return body


def _choice(choice: str | Mapping[str, Any]) -> str | dict[str, Any]:
    return choice if isinstance(choice, str) else _flat(choice, "function")


def _flat(value: Mapping[str, Any], inside: str) -> dict[str, Any]:
    """A value of chat completions without the nesting that this API does without."""
    return {**{name: inner for name, inner in value.items() if name != inside}, **(value.get(inside) or {})}


def _items(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if message["role"] == "tool":
        yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
    elif message["role"] == "assistant":
        yield from _turn(message)
    else:
        yield _said(message["role"], _parts(message["content"]))


def _turn(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Reasoning, text and calls of a turn, in this order and with nothing between them, as DeepSeek insists."""
    # An empty one is refused like a missing one.
    if reasoning := message.get("reasoning_content"):
        yield {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": reasoning}]}
    calls = message.get("tool_calls", ())
    if message["content"] or not calls:
        yield _said("assistant", [{"type": "output_text", "text": message["content"]}])
    for call in calls:
        yield {"type": "function_call", "call_id": call["id"], **call["function"]}


def _said(role: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": parts}


def _parts(content: str | list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "input_text", "text": content}]
    return [_part(part) for part in content]


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "image_url":
        # The URL stands where chat completions have an object around it, and the detail beside it.
        image = dict(part["image_url"])
        return {"type": "input_image", "image_url": image.pop("url"), **image}
    if part["type"] == "file" and part["file"].get("file_id"):
        return {"type": "input_image", "file_id": part["file"]["file_id"]}
    # Of files it knows only those that were uploaded before.
    return {"type": "input_text", "text": part["text"] if part["type"] == "text" else placeholder(part)}


# … and back: whole answers …


def answer(body: Mapping[str, Any]) -> list[Delta]:
    """A whole response as deltas: one for each of its items, and one that says how it ended."""
    return Heard().whole(body)


class Heard:
    """What was heard of one answer. An item is told piece by piece, as a whole, or both; it is said once."""

    def __init__(self) -> None:
        # By their place in the output: the items of which something was said, and the numbers of those that are calls.
        self._told: set[Place] = set()
        self._calls: dict[Place, int] = {}

    def whole(self, response: object) -> list[Delta]:
        """What the object at the end says that was not said before, up to how it ended."""
        response = response if isinstance(response, dict) else {}
        _raise_if_failed(response)
        said: list[Delta] = []
        if not (self._told or self._calls):
            # Only then: some gateways leave items out of the object, and then places in it mean nothing.
            output = response.get("output")
            if not isinstance(output, list):
                # It would be a success that says nothing.
                raise UpstreamFailed("DeepSeek's answer has no output.")
            said = [delta for place, item in enumerate(output) for delta in self.item(place, item)]
        return [*said, Delta(finish_reason=self._ending(response), usage=usage(response.get("usage")))]

    def _ending(self, response: Mapping[str, Any]) -> str:
        if response.get("status") == "incomplete":
            details = response.get("incomplete_details")
            reason = details.get("reason") if isinstance(details, dict) else None
            return _FINISHED.get(reason if isinstance(reason, str) else None, _CUT_SHORT)
        return "tool_calls" if self._calls else "stop"

    def item(self, place: Place, item: object) -> list[Delta]:
        """What a whole item says that was not said before."""
        if not isinstance(item, dict):
            return []
        match item.get("type"):
            case "reasoning":
                return self.reasoning(place, _text(item, "reasoning_text"), is_whole=True)
            case "message":
                return with_logprobs(self.text(place, _text(item, "output_text"), is_whole=True), _logprobs(item))
            case "function_call":
                return self.call(place, item) + self.arguments(place, item.get("arguments"), is_whole=True)
            case _:
                return []

    # … and their pieces …

    def reasoning(self, place: Place, text: object, *, is_whole: bool = False) -> list[Delta]:
        return [Delta(reasoning=said)] if (said := self._news(place, text, is_whole)) else []

    def text(self, place: Place, text: object, *, is_whole: bool = False) -> list[Delta]:
        return [Delta(text=said)] if (said := self._news(place, text, is_whole)) else []

    def call(self, place: Place, item: object) -> list[Delta]:
        """A call begins; its arguments follow."""
        if place in self._calls or not isinstance(item, dict) or item.get("type") != "function_call":
            return []
        index = self._calls[place] = len(self._calls)
        return [Delta(calls=(CallPiece(index, _string(item.get("call_id")), _string(item.get("name"))),))]

    def arguments(self, place: Place, text: object, *, is_whole: bool = False) -> list[Delta]:
        # Those of a call that has no name yet come once more with it.
        if place not in self._calls or not (said := self._news(place, text, is_whole)):
            return []
        return [Delta(calls=(CallPiece(self._calls[place], arguments=said),))]

    def _news(self, place: Place, text: object, is_whole: bool) -> str:
        if is_whole and place in self._told:
            return ""
        if said := _string(text):
            self._told.add(place)
        return said


def with_logprobs(deltas: list[Delta], found: object) -> list[Delta]:
    """Deltas of a text with the log probabilities that were told with it, where chat completions have them."""
    if not (isinstance(found, list) and found):
        return deltas
    return [delta._replace(source={"choices": [{"logprobs": {"content": found}}]}) for delta in deltas]


def failure(body: Mapping[str, Any]) -> UpstreamFailed:
    """Why an answer ends that will not be completed, in whichever of the usual shapes it is said."""
    message = chat_api.error_message(body) or _string(body.get("message")) or "no reason given"
    return UpstreamFailed(f"DeepSeek broke the answer off: {message}")


def _raise_if_failed(response: Mapping[str, Any]) -> None:
    if response.get("error") or response.get("status") in ("failed", "cancelled"):
        raise failure(response)
    if response.get("status") in ("queued", "in_progress"):
        raise UpstreamFailed("DeepSeek's answer is not finished, and it keeps none to be asked for again.")


def usage(found: object) -> dict[str, Any] | None:
    """Usage by the names that it has in chat completions."""
    if not isinstance(found, dict):
        return None
    asked, said = found.get("input_tokens"), found.get("output_tokens")
    cached = _inside(found, "input_tokens_details").get("cached_tokens")
    counted = {
        "prompt_tokens": asked,
        "completion_tokens": said,
        "total_tokens": found.get("total_tokens"),
        "prompt_tokens_details": {"cached_tokens": cached} if isinstance(cached, int) else None,
        "completion_tokens_details": _inside(found, "output_tokens_details") or None,
        "prompt_cache_hit_tokens": cached,
        "prompt_cache_miss_tokens": asked - cached if isinstance(asked, int) and isinstance(cached, int) else None,
    }
    return {name: value for name, value in counted.items() if isinstance(value, (int, dict))}


def _inside(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def _text(item: Mapping[str, Any], kind: str) -> str:
    parts = item.get("content")
    parts = parts if isinstance(parts, list) else []
    return "".join(_string(part.get("text")) for part in parts if isinstance(part, dict) and part.get("type") == kind)


def _logprobs(item: Mapping[str, Any]) -> list[Any]:
    parts = item.get("content")
    lists = [part.get("logprobs") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return [entry for each in lists if isinstance(each, list) for entry in each]


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


class ResponseReader(EventReader):
    """Reads one stream of response events."""

    def __init__(self) -> None:
        super().__init__()
        self._heard = Heard()
        self._places = _Places()

    def _read_event(self, said: ParsedEvents, data: str) -> list[Delta]:
        deltas = super()._read_event(said, data)
        said.is_done = said.is_done or any(delta.finish_reason for delta in deltas)
        return deltas

    def _deltas(self, chunk: Mapping[str, Any]) -> list[Delta]:
        heard, place = self._heard, self._places.of(chunk)
        match chunk.get("type"):
            case "response.reasoning_text.delta":
                return heard.reasoning(place, chunk.get("delta"))
            case "response.output_text.delta":
                return with_logprobs(heard.text(place, chunk.get("delta")), chunk.get("logprobs"))
            case "response.output_item.added":
                return heard.call(place, chunk.get("item"))
            case "response.function_call_arguments.delta":
                return heard.arguments(place, chunk.get("delta"))
            case "response.output_item.done":
                return heard.item(place, chunk.get("item"))
            case "response.completed" | "response.incomplete" | "response.failed" as kind:
                return heard.whole(_response(chunk, kind))
            case "error":
                raise failure(chunk)
            case _ if chunk.get("error"):
                # A gateway's word, which knows of no events.
                raise failure(chunk)
            case _:
                return []


class _Places:
    """Tells which item an event is about: by its output_index, else by the item's id, else by the order of events.

    Gateways leave out one or the other; without it two calls would be one.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, Place] = {}
        # Of items with neither: how many have begun, and whether the last of them has ended.
        self._unnamed = 0
        self._has_ended = True

    def of(self, chunk: Mapping[str, Any]) -> Place:
        index, name = chunk.get("output_index"), _item_id(chunk)
        if isinstance(index, int):
            if name:
                self._by_id[name] = index
            return index
        return self._by_id.setdefault(name, f"id {name}") if name else self._next(str(chunk.get("type")))

    def _next(self, kind: str) -> Place:
        if kind == "response.output_item.added" or (self._has_ended and kind != "response.output_item.done"):
            self._unnamed += 1
            self._has_ended = False
        elif kind == "response.output_item.done":
            # One that comes without anything before it is told as a whole.
            self._unnamed += self._has_ended
            self._has_ended = True
        return f"unnamed {self._unnamed}"


def _item_id(chunk: Mapping[str, Any]) -> str:
    item = chunk.get("item")
    found = chunk.get("item_id") or (item.get("id") if isinstance(item, dict) else None)
    return found if isinstance(found, str) else ""


def _response(chunk: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The object of a last event, with the status that its kind stands for."""
    response = chunk.get("response")
    return {**(response if isinstance(response, dict) else {}), "status": kind.removeprefix("response.")}


def _encode(request: ChatRequest, payload: Mapping[str, Any]) -> bytes:
    return encode_json(payload)


RESPONSES = UpstreamApi("/responses", payload, _encode, answer, ResponseReader)
