"""Calls of custom tools: free text to the client, a JSON object with one field to DeepSeek.

CustomCallUnwrapper takes the text out of the object for the client, and `wrap_text` puts it back for DeepSeek. A call
comes back as its tool was declared: OpenAI's chat completions have {type: custom, custom: {name, input}}; Cursor
(3.14), whose tools are flat, takes and sends `type: function` with the raw text as its arguments. The round trip may
change the bytes (the model may have spaced its JSON, or been stopped), so a turn is stored as `echoed_message`: as the
client will send it back.
"""

import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import Any

from deepseek_cursor_proxy.conversation import CallPiece, Delta, Message, ToolCall
from deepseek_cursor_proxy.json_codec import is_json, object_in
from deepseek_cursor_proxy.protocols.request.field_checks import json_text
from deepseek_cursor_proxy.protocols.request.free_text import FIELD, FreeTextReader, read_free_text


def wrap_text(arguments: str) -> str:
    """Raw text as the arguments of the function that DeepSeek has; arguments in this form stay."""
    read = object_in(arguments) if arguments.lstrip()[:1] == "{" else None
    if read is not None and read.keys() == {FIELD} and isinstance(read[FIELD], str):
        return arguments
    return json_text({FIELD: arguments})


def wrap_custom_calls(message: Message, names: Container[str], known: Container[str] = ()) -> Message:
    """A message with its custom calls wrapped; `names` are the custom tools of the request, `known` all its tools.

    A custom tool may be gone from the request (Cursor's modes differ in their tools). Its calls are then recognized by
    their arguments: text that cannot begin an object or, for a tool that is not known, anything that is no object.
    Incomplete arguments of a known function stay.
    """
    for call in message.tool_calls:
        # Nearly every call is one of a known function with an object: the fast path for all of a history.
        if call.arguments[:1] != "{" or call.name in names or call.name not in known:
            break
    else:
        return message
    calls = [_wrap_call(call, names, known) for call in message.tool_calls]
    if all(one is other for one, other in zip(calls, message.tool_calls, strict=True)):
        return message
    return message._replace(tool_calls=tuple(calls))


def _wrap_call(call: ToolCall, names: Container[str], known: Container[str]) -> ToolCall:
    is_custom = call.name in names or _is_free_text(call.arguments)
    if is_custom or (call.name not in known and not _is_object(call.arguments)):
        return call._replace(arguments=wrap_text(call.arguments))
    return call


def echoed_message(answer: Message, names: Container[str], known: Container[str] = ()) -> Message:
    """An answer of DeepSeek with its custom calls as the client will send them back."""
    if not answer.tool_calls:
        return answer
    calls = [
        call._replace(arguments=read_free_text(call.arguments)) if call.name in names else call
        for call in answer.tool_calls
    ]
    return wrap_custom_calls(answer._replace(tool_calls=tuple(calls)), names, known)


class CustomCallUnwrapper:
    """Takes the text out of the custom calls of one answer, fragment by fragment."""

    def __init__(self, names: Container[str], nested: Container[str] = ()) -> None:
        """`names` are all custom tools, `nested` those whose calls come back in OpenAI's shape."""
        self._names = names
        self._nested = nested
        # By choice and call; None for a call of an ordinary function.
        self._readers: dict[tuple[int, int], FreeTextReader | None] = {}
        self._nested_calls: set[tuple[int, int]] = set()

    def unwrap(self, delta: Delta, *, is_whole: bool = False) -> Delta:
        """The delta with raw text in place of arguments; the last delta brings the text that was held back."""
        is_last = is_whole or delta.finish_reason is not None
        calls = [self._unwrap(delta.choice, piece, is_last) for piece in delta.calls]
        if is_last:
            calls += self._held_back(delta.choice)
        return delta._replace(calls=tuple(calls)) if calls else delta

    def _unwrap(self, choice: int, piece: CallPiece, is_last: bool) -> CallPiece:
        key = choice, piece.index
        if key not in self._readers and piece.name:
            self._readers[key] = FreeTextReader() if piece.name in self._names else None
            if piece.name in self._nested:
                self._nested_calls.add(key)
        reader = self._readers.get(key)
        if reader is None:
            return piece
        text = reader.feed(piece.arguments)
        return replace(piece, arguments=text + reader.end() if is_last else text)

    def nest(self, entry: Mapping[str, Any], choice: int, index: int) -> Mapping[str, Any]:
        """An entry of `tool_calls`, with raw text as its arguments, in the shape that the client knows."""
        if (choice, index) not in self._nested_calls:
            return entry
        nested = {name: value for name, value in entry.items() if name != "function"}
        function = entry.get("function") or {}
        name = {"name": function["name"]} if function.get("name") else {}
        kind = {"type": "custom"} if "type" in entry else {}
        return {**nested, **kind, "custom": {**name, "input": function.get("arguments") or ""}}

    def _held_back(self, choice: int) -> Iterable[CallPiece]:
        for (owner, index), reader in self._readers.items():
            if owner == choice and reader is not None and (rest := reader.end()):
                yield CallPiece(index, arguments=rest)


def _is_free_text(arguments: str) -> bool:
    text = arguments.strip()
    return bool(text) and text[0] != "{" and not is_json(text)


def _is_object(arguments: str) -> bool:
    """Whether arguments are a JSON object, or a client's way of writing none: blank, null or []."""
    if not arguments.strip():
        return True
    try:
        read = json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    return isinstance(read, dict) or read in (None, [])
