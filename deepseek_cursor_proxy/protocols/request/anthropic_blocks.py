"""Reads Anthropic's content blocks, which Cursor also writes inside chat messages for models named "claude".

One message of blocks may be several canonical ones: tool results first, because DeepSeek requires them right after
their calls, then the text of the user.

    tool_use            a tool call of the assistant
    thinking            its reasoning; empty if it was hidden from the client: `reasoning.restore` looks it up
    redacted_thinking   readable by Anthropic alone: left out, in `dropped`
    tool_result         a tool message; an error is marked in its first line, because DeepSeek has no field for it

Every other block is ordinary content (see content). `cache_control` is ignored.
"""

from typing import Any, NamedTuple

from deepseek_cursor_proxy.conversation import Message, Parts, ToolCall
from deepseek_cursor_proxy.protocols.request import content
from deepseek_cursor_proxy.protocols.request.field_checks import Json, json_text, optional, optional_string
from deepseek_cursor_proxy.reasoning import thinking_blocks

ERROR_LINE = "[the tool reported an error]"


class Blocks(NamedTuple):
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
    text = None
    if role == "assistant" and all(part["type"] == "text" for part in parts):
        # The client may have split a thinking block of ours into parts.
        text = thinking_blocks.join_split_text([part["text"] for part in parts])
    rest = content.join_parts(parts) if text is None else text
    return Blocks(rest, reasoning, tuple(calls), tuple(results), tuple(dropped))


def _call(block: Json, param: str) -> ToolCall:
    arguments = {} if block.get("input") is None else block["input"]
    return ToolCall(
        optional_string(block, "id", param) or "",
        optional_string(block, "name", param) or "",
        arguments if isinstance(arguments, str) else json_text(arguments),
    )


def _result(block: Json, param: str) -> Message:
    output = content.read(block.get("content"), f"{param}.content")
    if optional(block, "is_error", bool, "true or false", f"{param}.is_error"):
        output = f"{ERROR_LINE}\n{output}" if isinstance(output, str) else (content.text_part(ERROR_LINE), *output)
    return Message("tool", output, tool_call_id=optional_string(block, "tool_use_id", param) or "")
