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
    Aside,
    Batch,
    Batches,
    CallPiece,
    ChatRequest,
    Delta,
    Message,
    Reply,
    ToolCall,
)
from deepseek_cursor_proxy.deepseek import is_forced
from deepseek_cursor_proxy.wire import decode_foreign_json

# In time that grows with the text and no faster, whatever the model writes.
_FENCED = re.compile(r"\s*```[a-zA-Z]*[^\S\n]*\n(.*)```\s*\Z", re.DOTALL)
_ARGUMENTS = ("input", "arguments", "parameters")
_NAMES = ("name", "tool", "tool_name")


def raised(batches: Batches, request: ChatRequest, call_id: str) -> Batches:
    """The same answer, with the call in place of the words for it."""
    return _raised(batches, request, call_id) if is_forced(request.tool_choice) else batches


def called(message: Message, request: ChatRequest, call_id: str) -> Message | None:
    """The answer as it is with the call in place of the words for it; None when they are not the words for one."""
    if not is_forced(request.tool_choice) or message.tool_calls or not isinstance(message.content, str):
        return None
    call = found(message.content, request)
    return None if call is None else message._replace(content="", tool_calls=(ToolCall(call_id, *call),))


def _raised(batches: Batches, request: ChatRequest, call_id: str) -> Batches:
    held: list[Delta] = []
    reply = Reply()
    with closing(batches):
        for batch in batches:
            passed: Batch = []
            for item in batch:
                if isinstance(item, Aside):
                    passed.append(item)
                    continue
                reply.add(item)
                held.append(item)
                if item.calls or item.finish_reason:
                    passed += _decided(held, reply, request, call_id)
                    held.clear()
                elif not item.text:
                    # Only words may stand for something else.
                    passed.append(held.pop())
            # What says nothing here is a lull only if it was one.
            if passed or not batch:
                yield passed
        if held:
            yield list(held)


def _decided(held: list[Delta], reply: Reply, request: ChatRequest, call_id: str) -> list[Delta]:
    """What was held back, or the call it stands for."""
    message = called(reply.message(), request, call_id) if reply.finish_reason() == "stop" else None
    return list(held) if message is None else [_called(held[-1], message.tool_calls[0])]


def _called(last: Delta, call: ToolCall) -> Delta:
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


def found(text: str, request: ChatRequest) -> tuple[str, str] | None:
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
    named = next((value[name] for name in _NAMES if isinstance(value.get(name), str) and value[name] in tools), None)
    if named is not None and meant not in (None, named):
        return None
    name = named or meant
    arguments = _arguments(value, tools.get(name, {}), is_named=named is not None) if name is not None else None
    return None if name is None or arguments is None else (name, arguments)


def _meant(request: ChatRequest) -> str | None:
    """The one tool that can be meant, if it is one."""
    if isinstance(request.tool_choice, Mapping):
        return str(request.tool_choice["function"]["name"])
    return str(request.tools[0]["function"]["name"]) if len(request.tools) == 1 else None


def _arguments(value: dict[str, Any], function: Mapping[str, Any], *, is_named: bool) -> str | None:
    """The arguments in an object: those under a field of it, or what else is in it; None for a call of another tool."""
    rest = {key: inner for key, inner in value.items() if not (is_named and key in _NAMES)}
    for field in _ARGUMENTS:
        arguments = _object(value.get(field))
        if arguments is None or value.keys() - {field, *_NAMES, "type", "id"}:
            continue
        if _fits(rest, function) and not _fits(decode_foreign_json(arguments), function):
            # The tool itself has a parameter of that name.
            continue
        is_of_another = not is_named and any(isinstance(value.get(name), str) for name in _NAMES)
        return None if is_of_another else arguments
    return _written(rest)


def _fits(arguments: dict[str, Any], function: Mapping[str, Any]) -> bool:
    """Whether a tool declares all of these arguments and wants no others."""
    schema = function.get("parameters")
    declared = schema.get("properties") if isinstance(schema, Mapping) else None
    required = schema.get("required") if isinstance(schema, Mapping) else None
    if not isinstance(declared, Mapping):
        return False
    wanted = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    return arguments.keys() <= declared.keys() and arguments.keys() >= set(wanted)


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
