"""Reads chat messages, with the content of any API in them, as canonical messages.

Roles that DeepSeek does not know are translated, arguments become strings, calls of the old functions API get ids.
Text stays as it is: `reasoning.restore` takes our thinking blocks out of it.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from deepseek_cursor_proxy.chat_memory import NO_MEMORY, ChatMemory, Stage
from deepseek_cursor_proxy.conversation import Message, ToolCall, is_blank
from deepseek_cursor_proxy.conversation.memo import json_size
from deepseek_cursor_proxy.deepseek.tools import server_tools
from deepseek_cursor_proxy.deepseek.tools.server_tools import CHAT, MESSAGES
from deepseek_cursor_proxy.protocols.request import anthropic_blocks
from deepseek_cursor_proxy.protocols.request.custom_tools import wrap_text
from deepseek_cursor_proxy.protocols.request.field_checks import (
    Json,
    bad_field,
    json_text,
    object_at,
    optional,
    optional_string,
)

_ROLES = {"developer": "system", "function": "tool"}
_KNOWN_ROLES = frozenset({"system", "user", "assistant", "tool"})


class ParsedHistory(NamedTuple):
    """Canonical messages, and the names of what was left out."""

    messages: tuple[Message, ...]
    dropped: tuple[str, ...] = ()


class _ParsedMessages(NamedTuple):
    """The canonical messages for a list, and the state of the reader after the last one."""

    messages: tuple[Message, ...]
    reader: "MessageReader"


_PARSE: Stage[Any, _ParsedMessages] = Stage("parse messages", json_size)


def read(messages: list[Any], memory: ChatMemory = NO_MEMORY, server_api: str | None = None) -> ParsedHistory:
    """The canonical messages; with what tools that DeepSeek runs itself left in them, in the form of this API."""
    lookup = memory.look_up(_PARSE, messages, server_api)
    known = lookup.result
    new = MessageReader(server_api)
    found, reader = (list(known.messages), known.reader.copy()) if known is not None else ([], new)
    for index, message in enumerate(messages[lookup.count :], lookup.count):
        plain = read_plain(message)
        if plain is not None:
            found.append(plain)
        else:
            found += reader.read(message, f"messages[{index}]")
    history = tuple(found)
    lookup.store(_ParsedMessages(history, reader))
    return ParsedHistory(history, tuple(reader.dropped))


def read_plain(message: Any) -> Message | None:
    """A message of the usual fields and types, as nearly all are, in a fifth of the time; None for any other."""
    if not isinstance(message, dict):
        return None
    role, content = message.get("role"), message.get("content")
    if not isinstance(content, str):
        return None
    if role == "tool":
        call_id = message.get("tool_call_id")
        is_usual = len(message) == 3 and isinstance(call_id, str) and call_id
        return Message(role, content, tool_call_id=call_id) if is_usual else None
    if role == "assistant":
        return _plain_assistant(message, content)
    return Message(role, content) if len(message) == 2 and role in ("user", "system") else None


def _plain_assistant(message: Json, content: str) -> Message | None:
    calls, reasoning = message.get("tool_calls"), message.get("reasoning_content")
    if len(message) != 2 + (calls is not None) + (reasoning is not None):
        return None
    if not (calls is None or isinstance(calls, list)) or not (reasoning is None or isinstance(reasoning, str)):
        return None
    read = [_plain_call(call) for call in calls or ()]
    return None if None in read else Message("assistant", content, reasoning, tuple(filter(None, read)))


def _plain_call(call: Any) -> ToolCall | None:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return None
    call_id, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
    if isinstance(call_id, str) and isinstance(name, str) and isinstance(arguments, str):
        return ToolCall(call_id, name, arguments)
    return None


class MessageReader:
    """Reads the messages of one history, in order; `dropped` names what was left out."""

    def __init__(self, server_api: str | None = None) -> None:
        self._legacy = _LegacyCalls()
        self._server_api = server_api
        self.dropped: list[str] = []

    def copy(self) -> "MessageReader":
        twin = MessageReader(self._server_api)
        twin._legacy = replace(self._legacy)
        twin.dropped = self.dropped.copy()
        return twin

    def read(self, message: Any, param: str) -> list[Message]:
        """One message of the client, which may be several canonical ones."""
        message = object_at(message, param)
        role = message.get("role")
        if not isinstance(role, str):
            raise bad_field(f"{param}.role", "a string")
        role = _ROLES.get(role, role if role in _KNOWN_ROLES else "user")
        content = message.get("content")
        items = server_tools.read_fields(message) if self._server_api == CHAT and role == "assistant" else None
        if items is not None and server_tools.has_blocks(content):
            content = server_tools.plain_blocks(content)
        blocks = self._blocks(content, role, f"{param}.content")
        self.dropped += blocks.dropped
        if role == "assistant":
            own = self._assistant(message, blocks, param)
            return [own if items is None else own._replace(server_items=items)]
        name = optional_string(message, "name", param)
        call_id = optional_string(message, "tool_call_id", param) if role == "tool" else None
        if blocks.results and not blocks.content:
            return list(blocks.results)
        if role == "tool":
            own = Message(role, blocks.content, tool_call_id=call_id or self._legacy.result_id(name))
        else:
            own = Message(role, blocks.content, name=name)
        return [*blocks.results, own]

    def _blocks(self, content: Any, role: str, param: str) -> anthropic_blocks.Blocks:
        if role == "assistant" and self._server_api == MESSAGES and anthropic_blocks.has_server_blocks(content):
            return anthropic_blocks.read_turn(content, param)
        return anthropic_blocks.read(content, role, param)

    def _assistant(self, message: Json, blocks: anthropic_blocks.Blocks, param: str) -> Message:
        reasoning = optional_string(message, "reasoning_content", param)
        if is_blank(reasoning) and blocks.reasoning is not None:
            reasoning = blocks.reasoning
        return Message(
            "assistant",
            blocks.content,
            reasoning=reasoning,
            tool_calls=(*blocks.calls, *_calls(message, param), *self._legacy.call(message, param)),
            name=optional_string(message, "name", param),
            prefix=optional(message, "prefix", bool, "true or false", f"{param}.prefix") or False,
            server_items=blocks.server_items,
        )


def arguments_text(arguments: Any) -> str:
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else json_text(arguments)


def _calls(message: Json, param: str) -> list[ToolCall]:
    calls = optional(message, "tool_calls", list, "a list", f"{param}.tool_calls") or []
    return [_call(call, f"{param}.tool_calls[{index}]") for index, call in enumerate(calls)]


def _call(call: Any, param: str) -> ToolCall:
    call = object_at(call, param)
    call_id = optional_string(call, "id", param) or ""
    if call.get("type") == "custom" and call.get("function") is None:
        custom = object_at(call.get("custom"), f"{param}.custom")
        name = optional_string(custom, "name", f"{param}.custom") or ""
        return ToolCall(call_id, name, wrap_text(optional_string(custom, "input", f"{param}.custom") or ""))
    function = object_at(call.get("function"), f"{param}.function")
    return ToolCall(call_id, *_function(function, f"{param}.function"))


def _function(function: Json, param: str) -> tuple[str, str]:
    return optional_string(function, "name", param) or "", arguments_text(function.get("arguments"))


@dataclass
class _LegacyCalls:
    """Counts the calls of the old functions API, which has no ids: a call and its result get the same one."""

    _count: int = 0

    def call(self, message: Json, param: str) -> list[ToolCall]:
        at = f"{param}.function_call"
        function = optional(message, "function_call", dict, "an object", at)
        if function is None:
            return []
        self._count += 1
        return [ToolCall(f"call_function_{self._count}", *_function(function, at))]

    def result_id(self, name: str | None) -> str:
        return f"call_function_{self._count}" if name is not None and self._count else ""
