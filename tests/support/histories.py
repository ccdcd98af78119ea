"""Short constructors for the messages of tests."""

from collections.abc import Iterable
from typing import Any

from deepseek_cursor_proxy.chat_memory import Chat, ChatMemory
from deepseek_cursor_proxy.conversation import Message, ToolCall
from deepseek_cursor_proxy.reasoning.markdown_escape import Escaper
from deepseek_cursor_proxy.reasoning.thinking_blocks import COLLAPSIBLE, Form, _TagWriter

TOOLS = [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object", "properties": {}}}}]


def tool_calls(calls: Iterable[Any]) -> list[dict[str, Any]]:
    functions = ((each.id, {"name": each.name, "arguments": each.arguments}) for each in calls)
    return [{"id": call_id, "type": "function", "function": function} for call_id, function in functions]


def user(text: str) -> Message:
    return Message("user", text)


def system(text: str) -> Message:
    return Message("system", text)


def assistant(text: str = "", *calls: tuple[str, str, str], reasoning: str | None = None) -> Message:
    return Message("assistant", text, reasoning, tuple(ToolCall(*call) for call in calls))


def result(call_id: str, text: str = "ok") -> Message:
    return Message("tool", text, tool_call_id=call_id)


def written_block(reasoning: str, form: Form = COLLAPSIBLE) -> str:
    """The block of a reasoning, as answers have it."""
    writer = Escaper() if form.is_markdown else _TagWriter(form)
    return form.opening + (writer.write(reasoning) + writer.end() if reasoning else "") + form.closing


def new_chat() -> Chat:
    """A memory for one chat whose requests are not made of bodies."""
    return ChatMemory().open_response("")


# An assistant's turn with a call, whose reasoning no proxy has seen.
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "call_9", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}],
}
