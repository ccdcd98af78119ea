"""The event stream of DeepSeek's own Responses API as canonical deltas, and that API as a dialect.

Items are told three times: in pieces, whole when they are done, and whole once more at the end. Pieces are taken where
there are any, because they come first; see deepseek_responses.Heard. The last event is the one that brings the finish
reason: no [DONE] follows. What only tells that DeepSeek is at work (created, in_progress) brings no answer on.
"""

from collections.abc import Mapping
from typing import Any

from deepseek_cursor_proxy import deepseek_responses
from deepseek_cursor_proxy.conversation import ChatRequest, Delta
from deepseek_cursor_proxy.deepseek_responses import Heard, Place
from deepseek_cursor_proxy.deepseek_stream import EventReader, Said
from deepseek_cursor_proxy.dialects import Dialect
from deepseek_cursor_proxy.wire import encode_json


class ResponseReader(EventReader):
    """Reads one stream of response events."""

    def __init__(self) -> None:
        super().__init__()
        self._heard = Heard()

    def _read_event(self, said: Said, data: str) -> list[Delta]:
        deltas = super()._read_event(said, data)
        said.is_done = said.is_done or any(delta.finish_reason for delta in deltas)
        return deltas

    def _deltas(self, chunk: Mapping[str, Any]) -> list[Delta]:
        heard, place = self._heard, _place(chunk)
        match chunk.get("type"):
            case "response.reasoning_text.delta":
                return heard.reasoning(place, chunk.get("delta"))
            case "response.output_text.delta":
                return heard.text(place, chunk.get("delta"))
            case "response.output_item.added":
                return heard.call(place, chunk.get("item"))
            case "response.function_call_arguments.delta":
                return heard.arguments(place, chunk.get("delta"))
            case "response.output_item.done":
                return heard.item(place, chunk.get("item"))
            case "response.completed" | "response.incomplete" | "response.failed" as kind:
                return heard.whole(_response(chunk, kind))
            case "error":
                raise deepseek_responses.failure(chunk)
            case _ if chunk.get("error"):
                # A gateway's word, which knows of no events.
                raise deepseek_responses.failure(chunk)
            case _:
                return []


def _place(chunk: Mapping[str, Any]) -> Place:
    index = chunk.get("output_index")
    return index if isinstance(index, int) else None


def _response(chunk: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The object of a last event, with the status that its kind stands for."""
    response = chunk.get("response")
    return {**(response if isinstance(response, dict) else {}), "status": kind.removeprefix("response.")}


def _encode(request: ChatRequest, payload: Mapping[str, Any]) -> bytes:
    return encode_json(payload)


RESPONSES = Dialect("/responses", deepseek_responses.payload, _encode, deepseek_responses.answer, ResponseReader)
