"""Reads Anthropic's content blocks, which Cursor also writes inside chat messages for models named "claude".

One message of blocks may be several canonical ones: tool results first, because DeepSeek requires them right after
their calls, then the text of the user.

    tool_use            a tool call of the assistant
    thinking            its reasoning; empty if it was hidden from the client: `reasoning.restore` looks it up
    redacted_thinking   readable by Anthropic alone: left out, in `dropped`
    tool_result         a tool message; an error is marked in its first line, because DeepSeek has no field for it
    server_tool_use     and the results of it: tools that DeepSeek ran itself, in `server_items` with all of their turn,
    and others          if the caller wants them so

Every other block is ordinary content (see content). `cache_control` is ignored.
"""

import re
from typing import Any, NamedTuple

from deepseek_cursor_proxy.conversation import Message, Parts, ToolCall, pack_items
from deepseek_cursor_proxy.deepseek.images import placeholder
from deepseek_cursor_proxy.deepseek.tools.server_tools import MESSAGES
from deepseek_cursor_proxy.protocols.request import content
from deepseek_cursor_proxy.protocols.request.field_checks import Json, call_id, json_text, optional, optional_string
from deepseek_cursor_proxy.reasoning import thinking_blocks

ERROR_LINE = "[the tool reported an error]"

# Tools that DeepSeek does not run, and whose blocks it does not take back (guide of 2026-08-27).
_FOREIGN_TOOL = re.compile(r"(?:\w+_)?code_execution|tool_search_tool\w*")
_FOREIGN_RESULT = re.compile(r"(?:\w+_)?code_execution_tool_result|(?:mcp|tool_search)_tool_result")


class Blocks(NamedTuple):
    content: str | Parts
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    results: tuple[Message, ...] = ()
    dropped: tuple[str, ...] = ()
    server_items: str | None = None


def has_server_blocks(blocks: Any) -> bool:
    """Whether the blocks of an assistant have those of tools that DeepSeek runs itself, of today or of tomorrow."""
    return isinstance(blocks, list) and any(map(_is_server_block, blocks))


def _is_server_block(block: Any) -> bool:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind in ("text", "thinking", "tool_use", None):
        # Nearly all are one of these.
        return False
    if kind == "server_tool_use":
        is_whole = isinstance(block.get("id"), str) and isinstance(block.get("input"), dict)
        return is_whole and not _FOREIGN_TOOL.fullmatch(str(block.get("name")))
    if not isinstance(kind, str) or not kind.endswith("_tool_result") or _FOREIGN_RESULT.fullmatch(kind):
        return False
    return isinstance(block.get("tool_use_id"), str)


def read_turn(blocks: list[Any], param: str) -> Blocks:
    """An assistant's turn with blocks of tools that DeepSeek ran itself; its text and reasoning are joined as they are.

    See conversation.pack_items for the items.
    """
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    dropped: list[str] = []
    items: list[Json] = []
    for index, block in enumerate(blocks):
        at = f"{param}[{index}]"
        match block.get("type") if isinstance(block, dict) else None:
            case "tool_use":
                calls.append(_call(block, at))
                items.append({"type": "tool_use"})
            case "thinking":
                thoughts.append(optional_string(block, "thinking", at) or "")
                items += [{"type": "thinking", "length": len(thoughts[-1])}] if thoughts[-1] else []
            case "redacted_thinking":
                dropped.append("redacted_thinking")
            case _ if _is_server_block(block):
                items.append(_server_item(block))
            case _:
                items += _text_items(block, at)
    text = "".join([item["text"] for item in items if item["type"] == "text"])
    packed = pack_items(MESSAGES, items)
    return Blocks(text, "".join(thoughts) or None, tuple(calls), (), tuple(dropped), packed)


def _server_item(block: Json) -> Json:
    # The mark of the cache moves with every turn of a chat.
    return {name: value for name, value in block.items() if name != "cache_control"}


def _text_items(block: Any, param: str) -> list[Json]:
    part = content.read_part(block, param)
    text = part["text"] if part["type"] == "text" else placeholder(part)
    cited = block.get("citations") if isinstance(block, dict) else None
    citations = {"citations": cited} if cited and isinstance(cited, list) else {}
    return [{"type": "text", "text": text, **citations}] if text else []


def read(value: Any, role: str, param: str) -> Blocks:
    """The content of a message with the given canonical role."""
    if not isinstance(value, list):
        return Blocks(content.read(value, param))
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    results: list[Message] = []
    dropped: list[str] = []
    parts: list[Json] = []
    for index, block in enumerate(value):
        at = f"{param}[{index}]"
        match block.get("type") if isinstance(block, dict) else None, role:
            case "tool_use", "assistant":
                calls.append(_call(block, at))
            case "thinking", "assistant":
                thoughts.append(optional_string(block, "thinking", at) or "")
            case "redacted_thinking", "assistant":
                dropped.append("redacted_thinking")
            case "tool_result", "user" | "tool":
                results.append(_result(block, at))
            case _:
                parts.append(content.read_part(block, at))
    reasoning = "\n\n".join(filter(None, thoughts)) or None
    text = None
    if role == "assistant" and all(part["type"] == "text" for part in parts):
        # The client may have split a thinking block of ours into parts.
        text = thinking_blocks.join_split_text([part["text"] for part in parts])
    rest = content.join_parts(parts) if text is None else text
    return Blocks(rest, reasoning, tuple(calls), tuple(results), tuple(dropped))


def _call(block: Json, param: str) -> ToolCall:
    arguments = {} if block.get("input") is None else block["input"]
    return ToolCall(
        call_id(block, "id", param),
        optional_string(block, "name", param) or "",
        arguments if isinstance(arguments, str) else json_text(arguments),
    )


def _result(block: Json, param: str) -> Message:
    output = content.read(block.get("content"), f"{param}.content")
    if optional(block, "is_error", bool, "true or false", f"{param}.is_error"):
        output = f"{ERROR_LINE}\n{output}" if isinstance(output, str) else (content.text_part(ERROR_LINE), *output)
    return Message("tool", output, tool_call_id=call_id(block, "tool_use_id", param))
