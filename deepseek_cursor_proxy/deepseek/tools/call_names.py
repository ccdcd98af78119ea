"""Gives the calls of an answer the names that the client knows, for a request with tools under other names.

The other direction is in tool_names and chat_api. Most requests have no such tool, and nothing of this runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from deepseek_cursor_proxy.conversation import Delta
from deepseek_cursor_proxy.deepseek.apis.chat_stream import EventReader, ParsedEvents
from deepseek_cursor_proxy.json_codec import as_list, as_object


class OwnNameReader(EventReader):
    """Reads one stream with another reader. Used by one thread."""

    def __init__(self, reader: EventReader, sent_names: Mapping[str, str]) -> None:
        super().__init__()
        self._reader = reader
        self._own_names = _invert(sent_names)

    def read(self, data: bytes) -> ParsedEvents:
        events = self._reader.read(data)
        own_names = self._own_names
        events.batch = [_restore(each, own_names) if isinstance(each, Delta) else each for each in events.batch]
        return events


def restore_names(deltas: Sequence[Delta], sent_names: Mapping[str, str]) -> list[Delta]:
    """The deltas of an answer with the client's names."""
    own_names = _invert(sent_names)
    return [_restore(delta, own_names) for delta in deltas]


def _invert(sent_names: Mapping[str, str]) -> Mapping[str, str]:
    return {sent: name for name, sent in sent_names.items()}


def _restore(delta: Delta, own_names: Mapping[str, str]) -> Delta:
    if not delta.calls:
        return delta
    calls = tuple(replace(each, name=own_names.get(each.name, each.name)) for each in delta.calls)
    return delta if calls == delta.calls else delta._replace(calls=calls, chunk=_restore_chunk(delta.chunk, own_names))


def _restore_chunk(chunk: Mapping[str, Any] | None, own_names: Mapping[str, str]) -> Mapping[str, Any] | None:
    """The chunk (or completion), which has one choice."""
    if chunk is None or not chunk.get("choices"):
        return chunk
    choice = chunk["choices"][0]
    part = "message" if "message" in choice else "delta"
    message = as_object(choice.get(part))
    calls = [_restore_call(call, own_names) for call in as_list(message.get("tool_calls"))]
    return {**chunk, "choices": [{**choice, part: {**message, "tool_calls": calls}}]}


def _restore_call(call: object, own_names: Mapping[str, str]) -> object:
    function = as_object(as_object(call).get("function"))
    name = function.get("name")
    if not isinstance(call, dict) or not isinstance(name, str) or name not in own_names:
        return call
    return {**call, "function": {**function, "name": own_names[name]}}
