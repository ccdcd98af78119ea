"""A tool that had to be called, and was answered in words: the call that those words stand for.

A request may force a tool. DeepSeek then sometimes writes down the call as plain JSON in place of making it, fenced or
not, with the tool's name or without. Such an answer becomes the call; every other stays as it is. So the words of an
answer to a forced request are held back until it is known what they are.

    {"name": "look_up", "input": {…}}      arguments under input, arguments or parameters
    {"function": {"name": …, "arguments": …}}
    {"path": …}                            nothing but the arguments, where one tool is meant
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
from deepseek_cursor_proxy.json_codec import decode_foreign_json

# In time that grows with the text and no faster, whatever the model writes.
_FENCED = re.compile(r"\s*```[a-zA-Z]*[^\S\n]*\n(.*)```\s*\Z", re.DOTALL)
_ARGUMENTS = ("input", "arguments", "parameters")
_NAMES = ("name", "tool", "tool_name", "function")


def convert_stream(batches: Batches, request: ChatRequest, call_id: str) -> Batches:
    """The same answer, with the call in place of the words for it."""
    return _convert_stream(batches, request, call_id) if is_forced(request.tool_choice) else batches


def convert_message(message: Message, request: ChatRequest, call_id: str) -> Message | None:
    """The answer as it is with the call in place of the words for it; None when they are not the words for one."""
    if not is_forced(request.tool_choice) or message.tool_calls or not isinstance(message.content, str):
        return None
    call = find_call(message.content, request)
    return None if call is None else message._replace(content="", tool_calls=(ToolCall(call_id, *call),))


def _convert_stream(batches: Batches, request: ChatRequest, call_id: str) -> Batches:
    held: list[Delta] = []
    reply = Reply()
    with closing(batches):
        for batch in batches:
            passed: Batch = []
            for item in batch:
                if isinstance(item, Heartbeat):
                    passed.append(item)
                    continue
                reply.add(item)
                held.append(item)
                if item.calls or item.finish_reason:
                    passed += _resolve(held, reply, request, call_id)
                    held.clear()
                elif not item.text:
                    # Only words may stand for something else.
                    passed.append(held.pop())
            # What says nothing here is a lull only if it was one.
            if passed or not batch:
                yield passed
        if held:
            yield list(held)


def _resolve(held: list[Delta], reply: Reply, request: ChatRequest, call_id: str) -> list[Delta]:
    """What was held back, or the call it stands for."""
    message = convert_message(reply.message(), request, call_id) if reply.finish_reason() == "stop" else None
    return list(held) if message is None else [_with_call(held[-1], message.tool_calls[0])]


def _with_call(last: Delta, call: ToolCall) -> Delta:
    return last._replace(
        text=None,
        run=None,
        calls=(CallPiece(0, *call),),
        finish_reason="tool_calls",
        source=_source(last.source, call),
    )


def _source(source: Mapping[str, Any] | None, call: ToolCall) -> Mapping[str, Any] | None:
    """The chunk (or completion) as it would have been with the call in it."""
    if source is None or not source.get("choices"):
        return source
    choice = source["choices"][0]
    function = {"name": call.name, "arguments": call.arguments}
    made = {"id": call.id, "type": "function", "function": function}
    part, calls = ("message", [made]) if "message" in choice else ("delta", [{"index": 0, **made}])
    said = {**(choice.get(part) or {}), "content": None, "tool_calls": calls}
    return {**source, "choices": [{**choice, part: said, "finish_reason": "tool_calls"}]}


def find_call(text: str, request: ChatRequest) -> tuple[str, str] | None:
    """The name and the arguments of the call that a text stands for; None when it stands for none."""
    fenced = _FENCED.match(text)
    try:
        value = decode_foreign_json(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, dict):
        return None
    nested = value.get("function")
    if isinstance(nested, dict):
        value = nested
    tools, meant = {tool["function"]["name"]: tool["function"] for tool in request.tools}, _meant(request)
    named_by = next((name for name in _NAMES if isinstance(value.get(name), str) and value[name] in tools), None)
    name = meant if named_by is None else value[named_by]
    if name is None or meant not in (None, name):
        return None
    arguments = _arguments(value, tools.get(name, {}), named_by)
    return None if arguments is None else (name, arguments)


def _meant(request: ChatRequest) -> str | None:
    """The one tool that can be meant, if it is one."""
    if isinstance(request.tool_choice, Mapping):
        return str(request.tool_choice["function"]["name"])
    return str(request.tools[0]["function"]["name"]) if len(request.tools) == 1 else None


def _arguments(value: dict[str, Any], function: Mapping[str, Any], named_by: str | None) -> str | None:
    """The arguments in an object: under a field of it, or all but the name; None for what is no call of this tool."""
    rest = {key: inner for key, inner in value.items() if key != named_by}
    declared = _schema(function, "properties", dict) or {}
    fields = [name for name in _ARGUMENTS if name in value and _is_call_around(name, value, declared, named_by)]
    under = next(filter(None, (_under(value[field]) for field in fields)), None)
    is_of_another = under is not None and named_by is None and any(isinstance(value.get(name), str) for name in _NAMES)
    # The tool itself may have parameters of these names.
    for arguments in (None if is_of_another else under, _written(rest), _written(value)):
        if arguments is not None and _fits(decode_foreign_json(arguments), function):
            return arguments
    if under is None and any(_is_broken(value, field, declared, named_by) for field in fields):
        return None
    is_something_else = named_by is None and declared and rest and declared.keys().isdisjoint(rest)
    if is_of_another or (under is None and is_something_else):
        return None
    return under or _written(rest)


def _is_call_around(field: str, value: dict[str, Any], declared: Mapping[str, Any], named_by: str | None) -> bool:
    """Whether nothing stands beside a field but what belongs to a call, or remarks that are no argument of the tool."""
    others = value.keys() - {field, *_NAMES, "type", "id"}
    return not others or (named_by is not None and bool(declared) and declared.keys().isdisjoint({field, *others}))


def _under(written: Any) -> str | None:
    """The arguments that a field holds; nothing in it means no arguments."""
    return "{}" if written in (None, "") else _object(written)


def _is_broken(value: dict[str, Any], field: str, declared: Mapping[str, Any], named_by: str | None) -> bool:
    """Whether a field holds arguments that cannot be read: made into a call they would be one that nobody wrote."""
    written = value[field]
    is_half = isinstance(written, str) and written.lstrip()[:1] in ("{", "[")
    # The field may be an argument itself where the tool does not say what it takes.
    is_field_of_a_call = bool(declared) or is_half or (named_by is not None and field != "input")
    return field not in declared and is_field_of_a_call


def _fits(arguments: dict[str, Any], function: Mapping[str, Any]) -> bool:
    """Whether a tool declares all of these arguments, and all that it requires is among them."""
    declared, required = _schema(function, "properties", dict) or {}, _schema(function, "required", list) or []
    wanted = {name for name in required if isinstance(name, str)}
    return bool(arguments) and wanted <= arguments.keys() <= declared.keys()


def _schema(function: Mapping[str, Any], name: str, kind: type) -> Any:
    """A part of a tool's schema, which is the client's own affair, if it is what it should be."""
    schema = function.get("parameters")
    part = schema.get(name) if isinstance(schema, dict) else None
    return part if isinstance(part, kind) else None


def _object(arguments: Any) -> str | None:
    """Arguments as they are written down in a call, if they are an object or the JSON of one."""
    if isinstance(arguments, dict):
        return _written(arguments)
    try:
        value = decode_foreign_json(arguments) if isinstance(arguments, str) else None
    except (ValueError, RecursionError):
        return None
    return str(arguments) if isinstance(value, dict) else None


def _written(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
