"""OpenAI chat completions, the request half: a JSON body, checked field by field, as a ChatRequest.

This is the door: beyond it types are true. A field of the wrong type is a BadRequest that names it; null counts as
absent, as OpenAI's clients mean it. Content arrays of text are joined by line breaks, because DeepSeek takes plain
strings; pictures stay parts. Message text is otherwise not touched here: our own display is undone where its
reasoning is known.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from deepseek_cursor_proxy import deepseek
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import ChatRequest, Message, Parts, ToolCall
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.wire import encode_json

Json = Mapping[str, Any]

_ROLES = {"developer": "system", "function": "tool"}
_KNOWN_ROLES = frozenset({"system", "user", "assistant", "tool"})

# Each is a call to pay for; more is rather a mistake than a wish.
_MOST_CHOICES = 8

# The characters DeepSeek is sure to take in a user_id; OpenAI's `user` may hold anything.
_USER_ID = re.compile(r"[a-zA-Z0-9_-]{1,512}")


def parse(body: Json, config: ProxyConfig) -> ChatRequest:
    """The canonical request for a chat-completions body."""
    asked = _optional(body, "model", str, "a string") or config.upstream_model
    tools = _tools(body)
    choice = _tool_choice(body)
    effort = _effort(body, config)
    thinking = config.thinking == "enabled" and effort is not None and not deepseek.is_forced(choice)
    return ChatRequest(
        asked_model=asked,
        model=deepseek.upstream_model(asked, config.upstream_model),
        messages=_messages(body),
        tools=tools,
        tool_choice=choice,
        stream=_optional(body, "stream", bool, "true or false") or False,
        choices=_choices(body),
        thinking=thinking,
        effort=effort or deepseek.EFFORTS[config.reasoning_effort],
        params=_params(body),
        dropped=_dropped(body),
    )


# Plain fields: name, what it must be, and the words for that …


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_stop(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))


_Check = tuple[Callable[[Any], bool], str]
_NUMBER: _Check = (_is_number, "a number")
_COUNT: _Check = (_is_count, "a whole number")
_OBJECT: _Check = (lambda value: isinstance(value, dict), "an object")
_STRING: _Check = (lambda value: isinstance(value, str), "a string")

_FORWARDED: dict[str, _Check] = {
    "max_tokens": _COUNT,
    "response_format": _OBJECT,
    "stop": (_is_stop, "a string or a list of strings"),
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "logprobs": (lambda value: isinstance(value, bool), "true or false"),
    "top_logprobs": _COUNT,
    "seed": (lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"),
    "logit_bias": _OBJECT,
    "user_id": _STRING,
}
_TRANSLATED = (
    "model messages stream stream_options tools tool_choice functions function_call max_completion_tokens user "
    "reasoning reasoning_effort n"
)
_UNDERSTOOD = frozenset({*_FORWARDED, *_TRANSLATED.split()})


def _params(body: Json) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for name, (is_right, expected) in _FORWARDED.items():
        value = body.get(name)
        if value is not None:
            if not is_right(value):
                raise _wrong(name, expected)
            params[name] = value
    _optional(body, "stream_options", dict, "an object")
    # DeepSeek ignores OpenAI's newer name for the limit, silently.
    limit = _optional(body, "max_completion_tokens", int, "a whole number")
    if limit is not None:
        params.setdefault("max_tokens", limit)
    user = _optional(body, "user", str, "a string")
    if user is not None and _USER_ID.fullmatch(user):
        params.setdefault("user_id", user)
    return params


def _dropped(body: Json) -> tuple[str, ...]:
    """What of the body DeepSeek will not see: fields it has no word for, and values that mean nothing to it."""
    dropped = [name for name in body if name not in _UNDERSTOOD]
    if body.get("user") and not _USER_ID.fullmatch(body["user"]):
        dropped.append("user")
    effort = _asked_effort(body)
    if effort is not None and effort != "none" and effort not in deepseek.EFFORTS:
        dropped.append(f"reasoning_effort {effort}")
    return tuple(sorted(dropped))


def _choices(body: Json) -> int:
    count = _optional(body, "n", int, "a whole number")
    if count is not None and not 1 <= count <= _MOST_CHOICES:
        raise BadRequest(f"n = {str(count)[:20]}: ask for 1 to {_MOST_CHOICES} choices.", param="n")
    return count or 1


def _asked_effort(body: Json) -> str | None:
    asked: str | None = _optional(body, "reasoning_effort", str, "a string")
    nested = _optional(body, "reasoning", dict, "an object")
    if asked is None and nested is not None:
        asked = _optional(nested, "effort", str, "a string", "reasoning.effort")
    return asked


def _effort(body: Json, config: ProxyConfig) -> str | None:
    """The effort in DeepSeek's words; None when the request turns thinking off."""
    asked = _asked_effort(body)
    if asked == "none":
        return None
    # A word of a newer client is no reason to refuse the chat: it gets the configured effort.
    return deepseek.EFFORTS.get(asked or "", deepseek.EFFORTS[config.reasoning_effort])


# Tools …


def _tools(body: Json) -> tuple[Json, ...]:
    functions = _optional(body, "functions", list, "a list") or []
    tools = _optional(body, "tools", list, "a list") or []
    found = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    return (*found, *(_nested(each, f"functions[{index}]") for index, each in enumerate(functions)))


def _tool(tool: Any, param: str) -> Json:
    if not isinstance(tool, dict):
        raise _wrong(param, "an object")
    kind = tool.get("type", "function")
    if kind != "function":
        raise BadRequest(
            f"{param}.type is {str(kind)[:40]!r}; DeepSeek runs only function tools.", param=f"{param}.type"
        )
    if "function" not in tool and "name" in tool:
        # The flat form of the Responses API.
        return _nested({key: value for key, value in tool.items() if key != "type"}, param)
    _nested(tool.get("function"), f"{param}.function")
    return tool


def _nested(function: Any, param: str) -> Json:
    if not isinstance(function, dict):
        raise _wrong(param, "an object")
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise _wrong(f"{param}.name", "a non-empty string")
    return {"type": "function", "function": function}


def _tool_choice(body: Json) -> str | Json | None:
    choice = body.get("tool_choice")
    if choice is None:
        choice = body.get("function_call")
        if isinstance(choice, dict):
            choice = {"type": "function", "function": choice}
    if choice is not None and not isinstance(choice, (str, dict)):
        raise _wrong("tool_choice", "a string or an object")
    return choice


# Messages …


def _messages(body: Json) -> tuple[Message, ...]:
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise _wrong("messages", "a list")
    if not messages:
        raise BadRequest("messages is empty; send at least one message.", param="messages")
    legacy = _LegacyCalls()
    return tuple(_message(message, f"messages[{index}]", legacy) for index, message in enumerate(messages))


def _message(message: Any, param: str, legacy: "_LegacyCalls") -> Message:
    if not isinstance(message, dict):
        raise _wrong(param, "an object")
    asked = message.get("role")
    if not isinstance(asked, str):
        raise _wrong(f"{param}.role", "a string")
    role = _ROLES.get(asked, asked if asked in _KNOWN_ROLES else "user")
    content = _content(message.get("content"), f"{param}.content")
    name = _optional(message, "name", str, "a string", f"{param}.name")
    if role == "tool":
        answered = _optional(message, "tool_call_id", str, "a string", f"{param}.tool_call_id")
        return Message(role, content, tool_call_id=answered or legacy.answer(name))
    if role != "assistant":
        return Message(role, content, name=name)
    return Message(
        role,
        content,
        reasoning=_optional(message, "reasoning_content", str, "a string", f"{param}.reasoning_content"),
        tool_calls=(*_calls(message, param), *legacy.call(message, param)),
        name=name,
        prefix=_optional(message, "prefix", bool, "true or false", f"{param}.prefix") or False,
    )


def _calls(message: Json, param: str) -> list[ToolCall]:
    calls = _optional(message, "tool_calls", list, "a list", f"{param}.tool_calls") or []
    return [_call(call, f"{param}.tool_calls[{index}]") for index, call in enumerate(calls)]


def _call(call: Any, param: str) -> ToolCall:
    if not isinstance(call, dict):
        raise _wrong(param, "an object")
    function = call.get("function")
    if not isinstance(function, dict):
        raise _wrong(f"{param}.function", "an object")
    return ToolCall(_optional(call, "id", str, "a string", f"{param}.id") or "", *_function(function, param))


def _function(function: Json, param: str) -> tuple[str, str]:
    name = _optional(function, "name", str, "a string", f"{param}.function.name")
    arguments = function.get("arguments")
    if arguments is None:
        arguments = ""
    elif not isinstance(arguments, str):
        arguments = encode_json(arguments).decode()
    return name or "", arguments


class _LegacyCalls:
    """The one call per message of the old functions API, which had no ids: both sides get the same one by counting."""

    def __init__(self) -> None:
        self._count = 0

    def call(self, message: Json, param: str) -> list[ToolCall]:
        function = _optional(message, "function_call", dict, "an object", f"{param}.function_call")
        if function is None:
            return []
        self._count += 1
        return [ToolCall(f"call_function_{self._count}", *_function(function, param))]

    def answer(self, name: str | None) -> str:
        return f"call_function_{self._count}" if name is not None and self._count else ""


def _content(content: Any, param: str) -> str | Parts:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(param, "a string or a list of parts")
    parts = [_part(part, f"{param}[{index}]") for index, part in enumerate(content)]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return tuple(parts)


def _part(part: Any, param: str) -> Json:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        raise _wrong(param, "an object")
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text") or (kind is None and "text" in part):
        return {"type": "text", "text": _optional(part, "text", str, "a string", f"{param}.text") or ""}
    if kind in ("image_url", "file"):
        return part
    # Nothing a client says is dropped: a part of a kind we do not know is passed on as the JSON it is.
    return {"type": "text", "text": encode_json(part).decode()}


def _optional(source: Json, name: str, kind: type, expected: str, param: str | None = None) -> Any:
    """A field of the given type; absent and null are None, anything else a BadRequest."""
    value = source.get(name)
    if value is None:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _wrong(param or name, expected)
    return value


def _wrong(param: str, expected: str) -> BadRequest:
    return BadRequest(f"{param} must be {expected}.", param=param)
