"""The calls of an answer as clients need them: AnswerCalls for every answer, `convert_stream` for forced calls.

Clients tell calls apart by the index, send the id back, and run the calls because of the finish_reason. DeepSeek's own
answers pass unchanged. Other hosts may

    send several calls under one index    a piece with a name begins a call if it has another id, or no id and another
                                          name, or if the arguments so far are whole; other pieces continue a call
    leave the index out                   the piece continues the call that has its id, else the last one
    leave the id out                      the call gets a random one with its name; an id that comes later is dropped
    end with `stop` in spite of calls     the finish_reason becomes `tool_calls`

A forced call as JSON text: if the request forces a call (`tool_choice`), DeepSeek sometimes writes it as JSON, fenced
or not, with the tool's name or without. Such an answer becomes the call; every other answer stays. The text of an
answer to such a request is held back until its end, because only then we know whether it is a call. Calls in the
model's own markup, which any answer may have, are another matter: `written_calls`.

    {"name": "look_up", "input": {…}}      arguments under input, arguments or parameters
    {"function": {"name": …, "arguments": …}}
    {"path": …}                            the arguments alone, if only one tool is possible
    {"input": {…}, "result": …}            any of these with a result that the model made up, which is left out
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from deepseek_cursor_proxy.conversation import (
    Batch,
    Batches,
    CallPiece,
    ChatRequest,
    Delta,
    Heartbeat,
    Message,
    Reply,
    ToolCall,
)
from deepseek_cursor_proxy.deepseek.rules import is_forced
from deepseek_cursor_proxy.json_codec import as_list, as_object, decode_upstream_json, object_in


def new_call_id() -> str:
    """A random id, for a call to which the upstream gave none."""
    return f"call_{secrets.token_hex(12)}"


class AnswerCalls:
    """The calls of one answer so far. Used by the thread that reads it."""

    def __init__(self) -> None:
        # By choice and index of the host: the call that began last there.
        self._calls: dict[tuple[int, int], _Call] = {}
        # By choice, in the order they began.
        self._begun: dict[int, list[_Call]] = {}

    def repair(self, delta: Delta, part: str) -> Delta:
        """The delta as clients need it; `part` is where its chunk has the calls."""
        if delta.calls:
            # Damaged entries are gone by now, so there is one for each piece.
            chunk = delta.chunk
            entries = chunk["choices"][0][part]["tool_calls"] if chunk is not None else [_COMPLETE] * len(delta.calls)
            if not self._continues(delta, entries):
                delta = self._repair_calls(delta, entries, part)
        begun = self._begun.get(delta.choice) if delta.finish_reason == "stop" else None
        if begun and any(call.name for call in begun):
            return delta._replace(
                finish_reason="tool_calls", chunk=edit_choice(delta.chunk, finish_reason="tool_calls")
            )
        return delta

    def _continues(self, delta: Delta, entries: Sequence[Mapping[str, Any]]) -> bool:
        """Whether every piece continues a call that lacks nothing, as nearly all do."""
        for piece, entry in zip(delta.calls, entries, strict=True):
            known = self._calls.get((delta.choice, piece.index))
            if known is None or known.id != known.host_id or known.index != piece.index:
                return False
            if piece.name or piece.id or entry.get("index") is None:
                return False
        return True

    def _repair_calls(self, delta: Delta, entries: Sequence[Mapping[str, Any]], part: str) -> Delta:
        pieces, chunk = delta.calls, delta.chunk
        repaired = []
        for piece, entry in zip(pieces, entries, strict=True):
            has_index = part == "message" or entry.get("index") is not None or len(pieces) > 1
            repaired.append(self._find(delta.choice, piece, has_index).add(piece))
        if tuple(repaired) == pieces and all(_is_complete(entry, part) for entry in entries):
            return delta
        edited = [_edit_entry(entry, piece, part) for entry, piece in zip(entries, repaired, strict=True)]
        fields = {**chunk["choices"][0][part], "tool_calls": edited} if chunk is not None else {}
        return delta._replace(calls=tuple(repaired), chunk=edit_choice(chunk, **{part: fields}))

    def _find(self, choice: int, piece: CallPiece, has_index: bool) -> "_Call":
        """The call that a piece belongs to, which may begin with it."""
        begun = self._begun.setdefault(choice, [])
        if has_index:
            known = self._calls.get((choice, piece.index))
        else:
            same = [call for call in begun if piece.id and piece.id == call.host_id]
            known = next(iter((same or begun)[-1:]), None)
        if known is None or not known.is_continued_by(piece):
            used = [call.index for call in begun]
            known = self._calls[choice, piece.index] = _Call(piece.index if piece.index not in used else max(used) + 1)
            begun.append(known)
        return known


class _Call:
    """One call so far. `id` is what the client gets, `host_id` what the host sent."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.id = self.host_id = self.name = ""
        # Kept only if we made the id: then they decide whether the next piece begins another call.
        self._arguments: list[str] = []

    def is_continued_by(self, piece: CallPiece) -> bool:
        """Whether a piece in the same place belongs to this call."""
        if not piece.name or not self.name:
            return True
        if piece.id and self.host_id:
            return piece.id == self.host_id
        return piece.name == self.name and object_in("".join(self._arguments)) is None

    def add(self, piece: CallPiece) -> CallPiece:
        """The piece as it is part of this call."""
        self.name = self.name or piece.name
        self.host_id = self.host_id or piece.id
        is_unknown = not self.id
        if is_unknown:
            self.id = piece.id or (new_call_id() if self.name else "")
        if self.id == self.host_id:
            return piece if self.index == piece.index else CallPiece(self.index, piece.id, piece.name, piece.arguments)
        self._arguments.append(piece.arguments)
        return CallPiece(self.index, self.id if is_unknown else "", piece.name, piece.arguments)


_COMPLETE: Mapping[str, Any] = {"index": 0, "type": "function"}


def _is_complete(entry: Mapping[str, Any], part: str) -> bool:
    """Whether an entry of `tool_calls` has its index, which only a stream needs, and a type if it begins a call."""
    has_index = part == "message" or entry.get("index") is not None
    return has_index and bool(entry.get("type") or not entry.get("id"))


def _edit_entry(entry: Mapping[str, Any], piece: CallPiece, part: str) -> dict[str, Any]:
    edited = {name: value for name, value in entry.items() if name != "id"}
    if part == "delta" or "index" in entry:
        edited["index"] = piece.index
    return {**edited, "id": piece.id, "type": entry.get("type") or "function"} if piece.id else edited


def edit_choice(chunk: Mapping[str, Any] | None, **fields: Any) -> Mapping[str, Any] | None:
    """The chunk (or completion), which has one choice, with these fields of the choice."""
    return None if chunk is None else {**chunk, "choices": [{**chunk["choices"][0], **fields}]}


# Matches in linear time, whatever the model writes.
_FENCED = re.compile(r"\s*```[a-zA-Z]*[^\S\n]*\n(.*)```\s*\Z", re.DOTALL)
_ARGUMENTS = ("input", "arguments", "parameters")
_NAMES = ("name", "tool", "tool_name", "function")
_RESULTS = ("result", "results", "output")


def convert_stream(batches: Batches, request: ChatRequest, call_id: str) -> Batches:
    """The same answer with the call in place of text that means it."""
    return _convert_stream(batches, request, call_id) if is_forced(request.tool_choice) else batches


def convert_message(message: Message, request: ChatRequest, call_id: str) -> Message | None:
    """The answer with the call in place of its text; None if the text does not mean a call."""
    if not is_forced(request.tool_choice) or message.tool_calls or not isinstance(message.content, str):
        return None
    if message.server_items is not None:
        # The forced tool was one that DeepSeek runs itself.
        return None
    call = find_call(message.content, request)
    return None if call is None else message._replace(content="", tool_calls=(ToolCall(call_id, *call),))


def _convert_stream(batches: Batches, request: ChatRequest, call_id: str) -> Batches:
    pending: list[Delta] = []
    reply = Reply()
    # DeepSeek has run a tool itself: no text means a call any more.
    has_run = False
    with closing(batches):
        for batch in batches:
            released: Batch = []
            for item in batch:
                if isinstance(item, Heartbeat):
                    released.append(item)
                    continue
                reply.add(item)
                pending.append(item)
                has_run = has_run or item.server is not None
                if item.calls or item.finish_reason or has_run:
                    released += _resolve(pending, reply, request, call_id)
                    pending.clear()
                elif not item.text:
                    # Only text may mean a call.
                    released.append(pending.pop())
            if released:
                yield released
        if pending:
            yield list(pending)


def _resolve(pending: list[Delta], reply: Reply, request: ChatRequest, call_id: str) -> list[Delta]:
    """The pending deltas, or the call that their text means."""
    message = convert_message(reply.message(), request, call_id) if reply.finish_reason == "stop" else None
    if message is None:
        return list(pending)
    last, call, chunk = pending[-1], message.tool_calls[0], pending[-1].chunk
    if chunk is not None and chunk.get("choices"):
        choice = chunk["choices"][0]
        entry = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        part, calls = ("message", [entry]) if "message" in choice else ("delta", [{"index": 0, **entry}])
        fields = {**(choice.get(part) or {}), "content": None, "tool_calls": calls}
        chunk = edit_choice(chunk, **{part: fields, "finish_reason": "tool_calls"})
    return [last._replace(text=None, run=None, calls=(CallPiece(0, *call),), finish_reason="tool_calls", chunk=chunk)]


def find_call(text: str, request: ChatRequest) -> tuple[str, str] | None:
    """The name and the arguments of the call that a text means; None if it means none."""
    fenced = _FENCED.match(text)
    try:
        value = decode_upstream_json(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, dict):
        return None
    nested = value.get("function")
    if isinstance(nested, dict):
        value = nested
    tools = {tool["function"]["name"]: tool["function"] for tool in request.tools}
    # The model knows some tools by other names.
    own_names = {name: name for name in tools} | {sent: name for name, sent in request.sent_names.items()}
    # The tool that the request forces or, if it forces any, the only one it has.
    only = next(iter(tools)) if len(request.tools) == 1 else None
    if isinstance(request.tool_choice, Mapping):
        only = str(request.tool_choice["function"]["name"])
    named_by = next((name for name in _NAMES if isinstance(value.get(name), str) and value[name] in own_names), None)
    name = only if named_by is None else own_names[value[named_by]]
    if name is None or only not in (None, name):
        return None
    arguments = _arguments(value, tools.get(name, {}), named_by)
    return None if arguments is None else (name, arguments)


def _arguments(value: dict[str, Any], function: Mapping[str, Any], named_by: str | None) -> str | None:
    """The arguments in an object: in one of its fields, or all but the name; None if it is no call of this tool."""
    # The client wrote the schema and nothing has checked it.
    schema = as_object(function.get("parameters"))
    declared = as_object(schema.get("properties"))
    required = {name for name in as_list(schema.get("required")) if isinstance(name, str)}
    value = _without_results(value, declared)
    rest = {key: inner for key, inner in value.items() if key != named_by}
    fields = [name for name in _ARGUMENTS if name in value and _is_call_around(name, value, declared, named_by)]
    # An empty field means no arguments.
    contents = ("{}" if value[field] in (None, "") else _object(value[field]) for field in fields)
    nested = next(filter(None, contents), None)
    is_of_another = nested is not None and named_by is None and any(isinstance(value.get(name), str) for name in _NAMES)
    # The tool itself may have parameters with these names.
    for arguments in (None if is_of_another else nested, _to_json(rest), _to_json(value)):
        given = None if arguments is None else decode_upstream_json(arguments)
        if given and required <= given.keys() <= declared.keys():
            return arguments
    if nested is None and any(_is_broken(value, field, declared, named_by) for field in fields):
        return None
    is_something_else = named_by is None and declared and rest and declared.keys().isdisjoint(rest)
    if is_of_another or (nested is None and is_something_else):
        return None
    return nested or _to_json(rest)


def _without_results(value: dict[str, Any], declared: Mapping[str, Any]) -> dict[str, Any]:
    """An object without a result beside a call or arguments; a tool without parameters may have any arguments."""
    left = {key: inner for key, inner in value.items() if key not in _RESULTS or key in declared}
    is_call = not left.keys().isdisjoint({*_ARGUMENTS, *declared})
    return left if is_call else value


def _is_call_around(field: str, value: dict[str, Any], declared: Mapping[str, Any], named_by: str | None) -> bool:
    """Whether the other fields belong to a call, or are no arguments of the tool."""
    others = value.keys() - {field, *_NAMES, "type", "id"}
    return not others or (named_by is not None and bool(declared) and declared.keys().isdisjoint({field, *others}))


def _is_broken(value: dict[str, Any], field: str, declared: Mapping[str, Any], named_by: str | None) -> bool:
    """Whether a field holds arguments that cannot be read; a call with other arguments would be made up."""
    content = value[field]
    is_half = isinstance(content, str) and content.lstrip()[:1] in ("{", "[")
    # The field may itself be an argument if the tool declares no parameters.
    is_field_of_a_call = bool(declared) or is_half or (named_by is not None and field != "input")
    return field not in declared and is_field_of_a_call


def _object(arguments: Any) -> str | None:
    """Arguments as JSON text, if they are an object or the JSON of one."""
    if isinstance(arguments, dict):
        return _to_json(arguments)
    try:
        value = decode_upstream_json(arguments) if isinstance(arguments, str) else None
    except (ValueError, RecursionError):
        return None
    return str(arguments) if isinstance(value, dict) else None


def _to_json(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
