"""Turns the text of an answer into the tool call that it means, if the request forced a tool.

DeepSeek sometimes writes a forced call as JSON text, fenced or not, with the tool's name or without. Such an answer
becomes the call; every other answer stays. The text of an answer to a forced request is held back until its end,
because only then it is known what it is.

    {"name": "look_up", "input": {…}}      arguments under input, arguments or parameters
    {"function": {"name": …, "arguments": …}}
    {"path": …}                            the arguments alone, if only one tool is possible
    {"input": {…}, "result": …}            any of these with a result that the model made up, which is left out
"""

import json
import re
from collections.abc import Mapping
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
from deepseek_cursor_proxy.http1.lull import Lull
from deepseek_cursor_proxy.json_codec import decode_upstream_json

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
        # The tool that had to be called was one that DeepSeek runs itself.
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
            if isinstance(batch, Lull):
                yield batch
                continue
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
    message = convert_message(reply.message(), request, call_id) if reply.finish_reason() == "stop" else None
    if message is None:
        return list(pending)
    last, call = pending[-1], message.tool_calls[0]
    chunk, pieces = _chunk(last.chunk, call), (CallPiece(0, *call),)
    return [last._replace(text=None, run=None, calls=pieces, finish_reason="tool_calls", chunk=chunk)]


def _chunk(chunk: Mapping[str, Any] | None, call: ToolCall) -> Mapping[str, Any] | None:
    """The chunk (or completion) with the call in place of its text."""
    if chunk is None or not chunk.get("choices"):
        return chunk
    choice = chunk["choices"][0]
    function = {"name": call.name, "arguments": call.arguments}
    entry = {"id": call.id, "type": "function", "function": function}
    part, calls = ("message", [entry]) if "message" in choice else ("delta", [{"index": 0, **entry}])
    message = {**(choice.get(part) or {}), "content": None, "tool_calls": calls}
    return {**chunk, "choices": [{**choice, part: message, "finish_reason": "tool_calls"}]}


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
    only = _only_tool(request)
    named_by = next((name for name in _NAMES if isinstance(value.get(name), str) and value[name] in own_names), None)
    name = only if named_by is None else own_names[value[named_by]]
    if name is None or only not in (None, name):
        return None
    arguments = _arguments(value, tools.get(name, {}), named_by)
    return None if arguments is None else (name, arguments)


def _only_tool(request: ChatRequest) -> str | None:
    """The tool that the request forces or, if it forces any, the only one it has."""
    if isinstance(request.tool_choice, Mapping):
        return str(request.tool_choice["function"]["name"])
    return str(request.tools[0]["function"]["name"]) if len(request.tools) == 1 else None


def _arguments(value: dict[str, Any], function: Mapping[str, Any], named_by: str | None) -> str | None:
    """The arguments in an object: in one of its fields, or all but the name; None if it is no call of this tool."""
    declared = _schema(function, "properties", dict) or {}
    value = _without_results(value, declared)
    rest = {key: inner for key, inner in value.items() if key != named_by}
    fields = [name for name in _ARGUMENTS if name in value and _is_call_around(name, value, declared, named_by)]
    # An empty field means no arguments.
    contents = ("{}" if value[field] in (None, "") else _object(value[field]) for field in fields)
    nested = next(filter(None, contents), None)
    is_of_another = nested is not None and named_by is None and any(isinstance(value.get(name), str) for name in _NAMES)
    # The tool itself may have parameters with these names.
    for arguments in (None if is_of_another else nested, _to_json(rest), _to_json(value)):
        if arguments is not None and _fits(decode_upstream_json(arguments), function):
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


def _fits(arguments: dict[str, Any], function: Mapping[str, Any]) -> bool:
    """Whether a tool declares all of these arguments, and none that it requires is missing."""
    declared, required = _schema(function, "properties", dict) or {}, _schema(function, "required", list) or []
    names = {name for name in required if isinstance(name, str)}
    return bool(arguments) and names <= arguments.keys() <= declared.keys()


def _schema(function: Mapping[str, Any], name: str, kind: type) -> Any:
    """A part of a tool's schema if it has the right type; the client wrote it and nothing has checked it."""
    schema = function.get("parameters")
    part = schema.get(name) if isinstance(schema, dict) else None
    return part if isinstance(part, kind) else None


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
