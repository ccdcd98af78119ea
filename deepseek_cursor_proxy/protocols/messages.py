"""Reads chat messages, with the content of any API in them, as canonical messages.

Roles that DeepSeek does not know are translated, arguments become strings, calls of the old functions API get ids.
Text stays as it is: `reasoning.restore` takes our thinking blocks out of it.
"""

import copy
from typing import Any, NamedTuple

from deepseek_cursor_proxy.chat_memory import NO_CHAT, Chat, Stage
from deepseek_cursor_proxy.conversation import Message, ToolCall, is_blank
from deepseek_cursor_proxy.deepseek.tools import server_tools
from deepseek_cursor_proxy.deepseek.tools.server_tools import CHAT, MESSAGES
from deepseek_cursor_proxy.json_codec import Json, bad_field, json_text, object_at, optional, optional_string
from deepseek_cursor_proxy.protocols.content import has_server_blocks, read_blocks
from deepseek_cursor_proxy.protocols.custom_tools import NO_TOOLS, ToolNames, wrap_text

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


_PARSE: Stage[Any, _ParsedMessages] = Stage("parse messages")


def read(
    messages: list[Any], memory: Chat = NO_CHAT, server_api: str | None = None, tools: ToolNames = NO_TOOLS
) -> ParsedHistory:
    """The canonical messages; results of DeepSeek's own tools stay in the messages, in the form of `server_api`."""
    lookup = memory.look_up(_PARSE, messages, (server_api, tools))
    known = lookup.result
    history, reader = ([], MessageReader(server_api)) if known is None else ([*known.messages], known.reader.copy())
    for index, message in enumerate(messages[lookup.count :], lookup.count):
        plain = read_plain(message)
        for each in (plain,) if plain is not None else reader.read(message, f"messages[{index}]"):
            history.append(tools.wrap_custom_calls(each) if each.tool_calls else each)
    parsed = ParsedHistory(tuple(history), tuple(reader.dropped))
    lookup.store(_ParsedMessages(parsed.messages, reader))
    return parsed


def count_known(messages: list[Any], memory: Chat) -> int:
    """How many messages at the beginning of a list were read before, so that each of them has a role."""
    known = memory.entry(_PARSE)
    return known.count_same(messages) if known is not None else 0


def read_plain(message: Any) -> Message | None:
    """Parse a message that has only the usual fields and types, in a fifth of the time; None for any other."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, str):
        return None
    role = message.get("role")
    if role == "tool":
        call_id = message.get("tool_call_id")
        is_usual = len(message) == 3 and isinstance(call_id, str) and call_id
        return Message(role, content, tool_call_id=call_id) if is_usual else None
    if role != "assistant":
        return Message(role, content) if len(message) == 2 and role in ("user", "system") else None
    calls, reasoning = message.get("tool_calls"), message.get("reasoning_content")
    if len(message) != 2 + (calls is not None) + (reasoning is not None):
        return None
    if not (calls is None or isinstance(calls, list)) or not (reasoning is None or isinstance(reasoning, str)):
        return None
    plain: list[ToolCall] = []
    for call in calls or ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            return None
        call_id, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
        if not (isinstance(call_id, str) and isinstance(name, str) and isinstance(arguments, str)):
            return None
        plain.append(ToolCall(call_id, name, arguments))
    return Message("assistant", content, reasoning, tuple(plain))


class MessageReader:
    """Reads the messages of one history, in order; `dropped` names what was left out."""

    def __init__(self, server_api: str | None = None) -> None:
        self._server_api = server_api
        # The calls of the old functions API, which has no ids: a call and its result get the same one.
        self._legacy_calls = 0
        self.dropped: list[str] = []

    def copy(self) -> "MessageReader":
        twin = copy.copy(self)
        twin.dropped = self.dropped.copy()
        return twin

    def read(self, message: Any, param: str) -> list[Message]:
        """One message of the client, which may be several canonical ones."""
        message = object_at(message, param)
        role = message.get("role")
        if not isinstance(role, str):
            raise bad_field(f"{param}.role", "a string")
        role = _ROLES.get(role, role if role in _KNOWN_ROLES else "user")
        if role == "assistant":
            return [self._assistant(message, param)]
        blocks = read_blocks(message.get("content"), role, f"{param}.content")
        name = optional_string(message, "name", param)
        call_id = optional_string(message, "tool_call_id", param) if role == "tool" else None
        if blocks.results and not blocks.content:
            return list(blocks.results)
        if role != "tool":
            return [*blocks.results, Message(role, blocks.content, name=name)]
        if not call_id:
            call_id = f"call_function_{self._legacy_calls}" if name is not None and self._legacy_calls else ""
        return [*blocks.results, Message(role, blocks.content, tool_call_id=call_id)]

    def _assistant(self, message: Json, param: str) -> Message:
        content: Any = message.get("content")
        items = server_tools.read_fields(message) if self._server_api == CHAT else None
        if items is not None and server_tools.has_blocks(content):
            content = server_tools.plain_blocks(content)
        is_server_turn = self._server_api == MESSAGES and has_server_blocks(content)
        blocks = read_blocks(content, "assistant", f"{param}.content", is_server_turn=is_server_turn)
        self.dropped += blocks.dropped
        reasoning = optional_string(message, "reasoning_content", param)
        if is_blank(reasoning) and blocks.reasoning is not None:
            reasoning = blocks.reasoning
        entries = optional(message, "tool_calls", list, "a list", f"{param}.tool_calls") or []
        calls = [*blocks.calls, *(_call(call, f"{param}.tool_calls[{at}]") for at, call in enumerate(entries))]
        legacy = optional(message, "function_call", dict, "an object", f"{param}.function_call")
        if legacy is not None:
            self._legacy_calls += 1
            calls.append(_function_call(f"call_function_{self._legacy_calls}", legacy, f"{param}.function_call"))
        return Message(
            "assistant",
            blocks.content,
            reasoning=reasoning,
            tool_calls=tuple(calls),
            name=optional_string(message, "name", param),
            prefix=optional(message, "prefix", bool, "true or false", f"{param}.prefix") or False,
            server_items=blocks.server_items if items is None else items,
        )


def arguments_text(arguments: Any) -> str:
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else json_text(arguments)


def _call(call: Any, param: str) -> ToolCall:
    call = object_at(call, param)
    call_id = optional_string(call, "id", param) or ""
    if call.get("type") == "custom" and call.get("function") is None:
        custom = object_at(call.get("custom"), f"{param}.custom")
        name = optional_string(custom, "name", f"{param}.custom") or ""
        return ToolCall(call_id, name, wrap_text(optional_string(custom, "input", f"{param}.custom") or ""))
    return _function_call(call_id, object_at(call.get("function"), f"{param}.function"), f"{param}.function")


def _function_call(call_id: str, function: Json, param: str) -> ToolCall:
    return ToolCall(call_id, optional_string(function, "name", param) or "", arguments_text(function.get("arguments")))
