"""Calls of custom tools: free text to the client, a JSON object with one field to DeepSeek.

CustomCallUnwrapper takes the text out of the object for the client, and `wrap_text` puts it back for DeepSeek. A call
comes back as its tool was declared: OpenAI's chat completions have {type: custom, custom: {name, input}}; Cursor
(3.14), whose tools are flat, takes and sends `type: function` with the raw text as its arguments. The round trip may
change the bytes (the model may have spaced its JSON, or been stopped), so a turn is stored as `echoed_message`: as the
client will send it back.
"""

import json
import re
from collections.abc import Collection, Container, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from deepseek_cursor_proxy.conversation import CallPiece, ChatRequest, Delta, Message, join_pieces
from deepseek_cursor_proxy.json_codec import is_json, json_text, object_in

FIELD = "input"

_HEAD = re.compile(rf'\s*{{\s*"{FIELD}"\s*:\s*"')
_SQUEEZED_HEAD = f'{{"{FIELD}":"'
# Up to the end of the string, or to an escape that has not come as a whole.
_INSIDE = re.compile(r'(?:[^"\\]++|\\(?!u[0-9a-fA-F]{0,3}\Z).)*+', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", '"': '"'}


def wrap_text(arguments: str) -> str:
    """Raw text as the arguments of the function that DeepSeek has; arguments in this form stay."""
    read = object_in(arguments) if arguments.lstrip()[:1] == "{" else None
    if read is not None and read.keys() == {FIELD} and isinstance(read[FIELD], str):
        return arguments
    return json_text({FIELD: arguments})


class ToolNames(NamedTuple):
    """The names of a request's tools, by which calls in its history are read."""

    custom: Container[str] = frozenset()
    # All of them.
    known: Container[str] = frozenset()
    # The upstream names of tools inside namespaces, by namespace and name.
    upstream: Mapping[tuple[str, str], str] = MappingProxyType({})

    def wrap_custom_calls(self, message: Message) -> Message:
        """A message with its custom calls wrapped.

        A custom tool may be gone from the request (Cursor's modes differ in their tools). Its calls are then recognized
        by their arguments: text that cannot begin an object or, for a tool that is not known, anything that is no
        object. Incomplete arguments of a known function stay.
        """
        for call in message.tool_calls:
            # Nearly every call is one of a known function with an object: the fast path for all of a history.
            if call.arguments[:1] != "{" or call.name in self.custom or call.name not in self.known:
                break
        else:
            return message
        calls = []
        for call in message.tool_calls:
            text = call.arguments.strip()
            is_custom = call.name in self.custom or (bool(text) and text[0] != "{" and not is_json(text))
            if is_custom or (call.name not in self.known and not _is_object(call.arguments)):
                call = call._replace(arguments=wrap_text(call.arguments))
            calls.append(call)
        return message._replace(tool_calls=tuple(calls))


NO_TOOLS = ToolNames()


def echoed_message(answer: Message, names: Collection[str], known: Container[str] = ()) -> Message:
    """An answer of DeepSeek with its custom calls as the client will send them back."""
    if names:
        calls = [
            call._replace(arguments=read_free_text(call.arguments)) if call.name in names else call
            for call in answer.tool_calls
        ]
        answer = answer._replace(tool_calls=tuple(calls))
    return ToolNames(names, known).wrap_custom_calls(answer)


class CustomCallUnwrapper:
    """Takes the text out of the custom calls of one answer, fragment by fragment."""

    def __init__(self, names: Container[str], nested: Container[str] = ()) -> None:
        """`names` are all custom tools, `nested` those whose calls come back in OpenAI's shape."""
        self._names = names
        self._nested = nested
        # By choice and call; None for a call of an ordinary function.
        self._readers: dict[tuple[int, int], FreeTextReader | None] = {}
        self._nested_calls: set[tuple[int, int]] = set()

    @classmethod
    def of(cls, request: ChatRequest) -> "CustomCallUnwrapper | None":
        return cls(request.custom_tools, request.nested_tools) if request.custom_tools else None

    def unwrap(self, delta: Delta, *, is_whole: bool = False) -> Delta:
        """The delta with raw text in place of arguments; the last delta brings the text that was held back."""
        is_last = is_whole or delta.finish_reason is not None
        calls = [self._unwrap(delta.choice, piece, is_last) for piece in delta.calls]
        if is_last:
            for (choice, index), reader in self._readers.items():
                if choice == delta.choice and reader is not None and (rest := reader.end()):
                    calls.append(CallPiece(index, arguments=rest))
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


def _is_object(arguments: str) -> bool:
    """Whether arguments are a JSON object, or a client's way of writing none: blank, null or []."""
    if not arguments.strip():
        return True
    try:
        read = json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    return isinstance(read, dict) or read in (None, [])


class FreeTextReader:
    r"""Reads the free text in the arguments of one call; `feed` and `end` return the next text for the client.

    Fragments may end anywhere: in the key, inside an escape, inside `\uXXXX`, between the halves of a surrogate pair.

        head     `{"input":"` with white space wherever JSON allows it; no text yet
        inside   the text, unescaped; an incomplete escape or character waits for its rest
        after    the closing quote was read; the rest of the object is not part of the text
        other    not the declared arguments: held until the end, then parsed as a whole or returned unchanged

    Arguments that break off give the text up to there. Escapes that JSON does not have are taken literally.
    """

    def __init__(self) -> None:
        self._state = "head"
        # What has come and is not read: of other arguments all of it.
        self._unread = ""

    def feed(self, fragment: str) -> str:
        if self._state == "after":
            return ""
        self._unread += fragment
        if self._state == "head":
            self._read_head()
        return self._read_inside() if self._state == "inside" else ""

    def end(self) -> str:
        """The rest of the text, when no more fragments come."""
        state, self._state = self._state, "after"
        if state != "other":
            return ""
        # Other fields may precede the text.
        text = (object_in(self._unread) or {}).get(FIELD)
        return text if isinstance(text, str) else self._unread

    def _read_head(self) -> None:
        if (head := _HEAD.match(self._unread)) is not None:
            self._state, self._unread = "inside", self._unread[head.end() :]
            return
        squeezed = "".join(self._unread.split())
        if squeezed == _SQUEEZED_HEAD or not _SQUEEZED_HEAD.startswith(squeezed):
            self._state = "other"

    def _read_inside(self) -> str:
        whole = _INSIDE.match(self._unread)
        assert whole is not None
        text, rest = join_pieces([_ESCAPE.sub(_unescape, whole[0])]), self._unread[whole.end() :]
        if rest[:1] == '"':
            self._state = "after"
        elif "\ud800" <= text[-1:] <= "\udbff":
            # The first half of a pair of surrogates.
            text, rest = text[:-1], text[-1] + rest
        self._unread = rest
        return text


def read_free_text(arguments: str) -> str:
    reader = FreeTextReader()
    return reader.feed(arguments) + reader.end()


def _unescape(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else _ESCAPES.get(escape[2], escape[0])
