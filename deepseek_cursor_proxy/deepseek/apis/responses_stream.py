"""Reads answers of DeepSeek's Responses API: a response or its events -> canonical deltas.

Reading is as tolerant as in chat_api. Items of tools that DeepSeek runs itself stay as they are: a ServerPiece when one
begins, while it searches, and with the whole item. Sources of a text come as they are, too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from deepseek_cursor_proxy.conversation import CallPiece, Delta, ServerDelta, ServerPiece
from deepseek_cursor_proxy.deepseek.apis import chat_api
from deepseek_cursor_proxy.deepseek.apis.chat_stream import EventReader, ParsedEvents
from deepseek_cursor_proxy.deepseek.tools.answer_calls import new_call_id
from deepseek_cursor_proxy.deepseek.tools.server_tools import is_server_item
from deepseek_cursor_proxy.deepseek.usage import count_of
from deepseek_cursor_proxy.errors import UpstreamFailed
from deepseek_cursor_proxy.json_codec import as_list, as_object

_FINISHES = {"max_output_tokens": "length", "content_filter": "content_filter", None: "length"}
# For a reason that is not in the table.
_UNKNOWN_END = "aborted"
# An item of the output: its index, or a made-up name if the event has no index.
ItemKey = int | str


def response_deltas(body: Mapping[str, Any]) -> list[Delta]:
    """A whole response as deltas: one per item, and one with the finish_reason."""
    return ItemReader().finish(body)


class ItemReader:
    """Turns the items of one response into deltas. An item may come in pieces, whole, or both; it is returned once."""

    def __init__(self) -> None:
        # The items of which something was returned, and the index of each item that is a call.
        self._read_keys: set[ItemKey] = set()
        self._calls: dict[ItemKey, int] = {}
        self._tools = ServerItemReader()

    def finish(self, response: object) -> list[Delta]:
        """The deltas of the response object at the end: items that did not come before, and the finish_reason."""
        response = as_object(response)
        if response.get("error") or response.get("status") in ("failed", "cancelled"):
            raise failure(response)
        if response.get("status") in ("queued", "in_progress"):
            raise UpstreamFailed("DeepSeek's answer is not finished, and it keeps none to be asked for again.")
        output = response.get("output")
        deltas = self._tools.finish(as_list(output))
        if not (self._read_keys or self._calls or self._tools.has_items):
            # Only then: some gateways leave items out of the object, which changes the indexes of the others.
            if not isinstance(output, list):
                # The client would get an empty success.
                raise UpstreamFailed("DeepSeek's answer has no output.")
            deltas = [delta for key, item in enumerate(output) for delta in self.read_item(key, item)]
        counted = usage(response.get("usage"), self._tools.searches)
        return [*deltas, Delta(finish_reason=self._finish_reason(response), usage=counted)]

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
                text = with_logprobs(
                    self.text(key, _text(item, "output_text"), is_whole=True), _parts(item, "logprobs")
                )
                return text + self._tools.cite(key, _parts(item, "annotations"), is_whole=True)
            case "function_call":
                return self.call(key, item) + self.arguments(key, item.get("arguments"), is_whole=True)
            case _:
                return self._tools.read(key, item)

    def begin(self, key: ItemKey, item: object) -> list[Delta]:
        """A call or an item of a tool begins; all others begin with their first piece."""
        return self.call(key, item) or self._tools.begin(key, item)

    def step(self, key: ItemKey, step: str) -> list[Delta]:
        return self._tools.step(key, step)

    def cite(self, key: ItemKey, annotation: object) -> list[Delta]:
        return self._tools.cite(key, [annotation])

    def reasoning(self, key: ItemKey, text: object, *, is_whole: bool = False) -> list[Delta]:
        return [Delta(reasoning=new)] if (new := self._unread(key, text, is_whole)) else []

    def text(self, key: ItemKey, text: object, *, is_whole: bool = False) -> list[Delta]:
        return [Delta(text=new)] if (new := self._unread(key, text, is_whole)) else []

    def call(self, key: ItemKey, item: object) -> list[Delta]:
        """A call begins; its arguments follow."""
        if key in self._calls or not isinstance(item, dict) or item.get("type") != "function_call":
            return []
        index = self._calls[key] = len(self._calls)
        call_id = _string(item.get("call_id")) or new_call_id()
        return [Delta(calls=(CallPiece(index, call_id, _string(item.get("name"))),))]

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


class ServerItemReader:
    """Turns items of tools that DeepSeek runs itself into deltas, and the sources of texts; each is returned once."""

    def __init__(self) -> None:
        # As they began, and those of them that are whole.
        self._begun: dict[ItemKey, Mapping[str, Any]] = {}
        self._whole: set[ItemKey] = set()
        # How many sources of each text were returned.
        self._cited: dict[ItemKey, int] = {}
        # How many searches succeeded; pages that were read are none.
        self.searches = 0

    @property
    def has_items(self) -> bool:
        return bool(self._begun)

    def begin(self, key: ItemKey, item: object) -> list[Delta]:
        if key in self._begun or not _is_server_item(item):
            return []
        self._begun[key] = as_object(item)
        return _piece(key, self._begun[key], "in_progress")

    def step(self, key: ItemKey, step: str) -> list[Delta]:
        return _piece(key, self._begun[key], step) if key in self._begun and key not in self._whole else []

    def read(self, key: ItemKey, item: Mapping[str, Any]) -> list[Delta]:
        if key in self._whole or not _is_server_item(item):
            return []
        self._begun[key] = item
        self._whole.add(key)
        self.searches += _is_good_search(item)
        return _piece(key, item, "completed")

    def finish(self, output: Sequence[object]) -> list[Delta]:
        """The items that began and did not end: as the response has them, or as far as they came."""
        known = {_string(item.get("id")): item for item in map(as_object, output)}
        deltas: list[Delta] = []
        for key, item in self._begun.items():
            if key not in self._whole:
                name = _string(item.get("id"))
                found = known.get(name) if name else None
                deltas += self.read(key, found or {**item, "status": "failed"})
        return deltas

    def cite(self, key: ItemKey, annotations: Sequence[object], *, is_whole: bool = False) -> list[Delta]:
        if is_whole:
            annotations = annotations[self._cited.get(key, 0) :]
        found = tuple(each for each in annotations if isinstance(each, dict))
        self._cited[key] = self._cited.get(key, 0) + len(annotations)
        return [Delta(server=ServerDelta(citations=found))] if found else []


def _is_server_item(item: object) -> bool:
    kind = as_object(item).get("type")
    return isinstance(kind, str) and is_server_item(kind)


def _is_good_search(item: Mapping[str, Any]) -> bool:
    action = as_object(item.get("action")).get("type", "search")
    is_search = item["type"].endswith("web_search_call") and action == "search"
    return bool(is_search and item.get("status", "completed") == "completed")


def _piece(key: ItemKey, item: Mapping[str, Any], step: str) -> list[Delta]:
    return [Delta(server=ServerDelta((ServerPiece(key, item, step),)))]


def with_logprobs(deltas: list[Delta], found: object) -> list[Delta]:
    """Deltas of a text with its log probabilities in `chunk`, where chat completions have them."""
    if not (isinstance(found, list) and found):
        return deltas
    return [delta._replace(chunk={"choices": [{"logprobs": {"content": found}}]}) for delta in deltas]


def failure(body: Mapping[str, Any]) -> UpstreamFailed:
    """The failure that an error body or error event means."""
    message = chat_api.error_message(body) or _string(body.get("message")) or "no reason given"
    return UpstreamFailed(f"DeepSeek broke the answer off: {message}")


def usage(found: object, searches: int = 0) -> dict[str, Any] | None:
    """Usage under its names in chat completions; with the searches, as Messages have them, if there were any."""
    if not isinstance(found, dict):
        return None
    details = as_object(found.get("input_tokens_details"))
    prompt, cached = found.get("input_tokens"), details.get("cached_tokens")
    missed = max(0, count_of(found, "input_tokens") - count_of(details, "cached_tokens"))
    counted = {
        "prompt_tokens": prompt,
        "completion_tokens": found.get("output_tokens"),
        "total_tokens": found.get("total_tokens"),
        "prompt_tokens_details": {"cached_tokens": cached} if isinstance(cached, int) else None,
        "completion_tokens_details": as_object(found.get("output_tokens_details")) or None,
        "prompt_cache_hit_tokens": cached,
        "prompt_cache_miss_tokens": missed if isinstance(prompt, int) and isinstance(cached, int) else None,
        "server_tool_use": found.get("server_tool_use") or ({"web_search_requests": searches} if searches else None),
    }
    return {name: value for name, value in counted.items() if isinstance(value, (int, dict))}


def _text(item: Mapping[str, Any], kind: str) -> str:
    parts = map(as_object, as_list(item.get("content")))
    return "".join(_string(part.get("text")) for part in parts if part.get("type") == kind)


def _parts(item: Mapping[str, Any], name: str) -> list[Any]:
    """The entries of a list that each part of a text has."""
    parts = map(as_object, as_list(item.get("content")))
    return [entry for part in parts for entry in as_list(part.get(name))]


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
                return items.begin(key, chunk.get("item"))
            case "response.web_search_call.searching":
                return items.step(key, "searching")
            case "response.output_text.annotation.added":
                return items.cite(key, chunk.get("annotation"))
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
