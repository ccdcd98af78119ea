"""Anthropic's content blocks as canonical messages, wherever they stand.

Cursor writes them inside chat messages for models with "claude" in their name. One message of blocks can be several of
ours: what tools answered comes first, as DeepSeek wants results right behind their calls, then what the user added.

    tool_use            a tool call of the assistant
    thinking            its reasoning; an empty one was hidden from the client, so the store is asked for it
    redacted_thinking   readable by Anthropic alone: left out, and named
    tool_result         a tool message; an error says so in its first line, because DeepSeek has no field for it

Every other block is content like any other. `cache_control` means nothing here and is ignored.
"""

from typing import Any, NamedTuple

from deepseek_cursor_proxy.conversation import Message, Parts, ToolCall
from deepseek_cursor_proxy.protocols.request import content
from deepseek_cursor_proxy.protocols.request.fields import Json, json_text, optional, optional_string
from deepseek_cursor_proxy.reasoning import thinking_blocks

ERROR_LINE = "[the tool reported an error]"


class Blocks(NamedTuple):
    """What the content of one message says; for content without blocks that is the content alone."""

    content: str | Parts
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    results: tuple[Message, ...] = ()
    dropped: tuple[str, ...] = ()


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
    shown = _shown(parts) if role == "assistant" else None
    said = content.join_parts(parts) if shown is None else shown
    return Blocks(said, reasoning, tuple(calls), tuple(results), tuple(dropped))


def _shown(parts: list[Json]) -> str | None:
    """The text of an answer that shows our thinking block, which a client split into parts."""
    return (
        thinking_blocks.join_split_text([part["text"] for part in parts])
        if all(part["type"] == "text" for part in parts)
        else None
    )


def _call(block: Json, param: str) -> ToolCall:
    arguments = block.get("input")
    if arguments is None:
        arguments = {}
    return ToolCall(
        optional_string(block, "id", param) or "",
        optional_string(block, "name", param) or "",
        arguments if isinstance(arguments, str) else json_text(arguments),
    )


def _result(block: Json, param: str) -> Message:
    said = content.read(block.get("content"), f"{param}.content")
    if optional(block, "is_error", bool, "true or false", f"{param}.is_error"):
        said = f"{ERROR_LINE}\n{said}" if isinstance(said, str) else (content.text_part(ERROR_LINE), *said)
    return Message("tool", said, tool_call_id=optional_string(block, "tool_use_id", param) or "")
