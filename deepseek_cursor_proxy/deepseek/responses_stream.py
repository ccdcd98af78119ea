"""The event stream of DeepSeek's own Responses API as canonical deltas, and that API as a dialect.

Items are told three times: in pieces, whole when they are done, and whole once more at the end. Pieces are taken where
there are any, because they come first; see deepseek_responses.Heard. The last event is the one that brings the finish
reason: no [DONE] follows. What only tells that DeepSeek is at work (created, in_progress) brings no answer on.
"""

from collections.abc import Mapping
from typing import Any

from deepseek_cursor_proxy.conversation import ChatRequest, Delta
from deepseek_cursor_proxy.deepseek import responses_api
from deepseek_cursor_proxy.deepseek.api import Dialect
from deepseek_cursor_proxy.deepseek.chat_stream import EventReader, Said
from deepseek_cursor_proxy.deepseek.responses_api import Heard, Place
from deepseek_cursor_proxy.wire import encode_json


class ResponseReader(EventReader):
    """Reads one stream of response events."""

    def __init__(self) -> None:
        super().__init__()
        self._heard = Heard()
        self._places = _Places()

    def _read_event(self, said: Said, data: str) -> list[Delta]:
        deltas = super()._read_event(said, data)
        said.is_done = said.is_done or any(delta.finish_reason for delta in deltas)
        return deltas

    def _deltas(self, chunk: Mapping[str, Any]) -> list[Delta]:
        heard, place = self._heard, self._places.of(chunk)
        match chunk.get("type"):
            case "response.reasoning_text.delta":
                return heard.reasoning(place, chunk.get("delta"))
            case "response.output_text.delta":
                return responses_api.with_logprobs(heard.text(place, chunk.get("delta")), chunk.get("logprobs"))
            case "response.output_item.added":
                return heard.call(place, chunk.get("item"))
            case "response.function_call_arguments.delta":
                return heard.arguments(place, chunk.get("delta"))
            case "response.output_item.done":
                return heard.item(place, chunk.get("item"))
            case "response.completed" | "response.incomplete" | "response.failed" as kind:
                return heard.whole(_response(chunk, kind))
            case "error":
                raise responses_api.failure(chunk)
            case _ if chunk.get("error"):
                # A gateway's word, which knows of no events.
                raise responses_api.failure(chunk)
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


RESPONSES = Dialect("/responses", responses_api.payload, _encode, responses_api.answer, ResponseReader)
