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

from deepseek_cursor_proxy.conversation import Aside, Batch, Batches, CallPiece, ChatRequest, Delta, Reply
from deepseek_cursor_proxy.deepseek import is_forced

_FENCED = re.compile(r"\s*```[a-zA-Z]*\s*\n(.*?)\n?```\s*\Z", re.DOTALL)
_ARGUMENTS = ("input", "arguments", "parameters")
_NAMES = ("name", "tool", "tool_name")


def raised(batches: Batches, request: ChatRequest, call_id: str) -> Batches:
    """The same answer, with the call in place of the words for it."""
    is_wanted = is_forced(request.tool_choice) and request.choices == 1
    return _raised(batches, request, call_id) if is_wanted else batches


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
            # What says nothing here is a lull only if it was one.
            if passed or not batch:
                yield passed
        if held:
            yield list(held)


def _decided(held: list[Delta], reply: Reply, request: ChatRequest, call_id: str) -> list[Delta]:
    """What was held back, or the call it stands for."""
    message = reply.message()
    if message.tool_calls or reply.finish_reason() != "stop" or not isinstance(message.content, str):
        return list(held)
    call = found(message.content, request)
    return list(held) if call is None else [_called(held, call, call_id)]


def _called(held: list[Delta], call: tuple[str, str], call_id: str) -> Delta:
    last = held[-1]
    name, arguments = call
    piece = CallPiece(0, call_id, name, arguments)
    return last._replace(
        text=None, run=None, calls=(piece,), finish_reason="tool_calls", source=_source(last.source, piece)
    )


def _source(source: Mapping[str, Any] | None, piece: CallPiece) -> Mapping[str, Any] | None:
    """The chunk (or completion) as it would have been with the call in it."""
    if source is None or not source.get("choices"):
        return source
    choice = source["choices"][0]
    function = {"name": piece.name, "arguments": piece.arguments}
    call = {"index": 0, "id": piece.id, "type": "function", "function": function}
    part = "message" if "message" in choice else "delta"
    said = {**(choice.get(part) or {}), "content": None, "tool_calls": [call]}
    return {**source, "choices": [{**choice, part: said, "finish_reason": "tool_calls"}]}


def found(text: str, request: ChatRequest) -> tuple[str, str] | None:
    """The name and the arguments of the call that a text stands for; None when it stands for none."""
    fenced = _FENCED.match(text)
    try:
        value = json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, dict):
        return None
    nested = value.get("function")
    if isinstance(nested, dict):
        value = nested
    tools, meant = {tool["function"]["name"] for tool in request.tools}, _meant(request)
    named = next((value[name] for name in _NAMES if isinstance(value.get(name), str) and value[name] in tools), None)
    if named is not None and meant not in (None, named):
        return None
    name = named or meant
    return None if name is None else _call(name, value, is_named=named is not None)


def _meant(request: ChatRequest) -> str | None:
    """The one tool that can be meant, if it is one."""
    if isinstance(request.tool_choice, Mapping):
        return str(request.tool_choice["function"]["name"])
    return str(request.tools[0]["function"]["name"]) if len(request.tools) == 1 else None


def _call(name: str, value: dict[str, Any], *, is_named: bool) -> tuple[str, str] | None:
    for field in _ARGUMENTS:
        arguments = value.get(field)
        others = value.keys() - {field, *_NAMES, "type", "id"}
        if isinstance(arguments, (dict, str)) and not others and (is_named or isinstance(arguments, dict)):
            return (name, arguments if isinstance(arguments, str) else _written(arguments))
    rest = {key: inner for key, inner in value.items() if not (is_named and key in _NAMES)}
    return name, _written(rest)


def _written(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
