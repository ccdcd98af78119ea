"""DeepSeek's rules: which turns need reasoning, what is a complete tool call, how large a body may be."""

from collections.abc import Sequence
from enum import Enum

from deepseek_cursor_proxy.conversation import ChatRequest, Message, ToolCall
from deepseek_cursor_proxy.json_codec import object_in

# DeepSeek's own table: requested effort -> effort it uses. "none" is not in it: that turns thinking off.
EFFORTS = {
    "minimal": "low",
    "low": "low",
    "medium": "high",
    "high": "high",
    "xhigh": "high",
    "max": "max",
    "ultra": "max",
}

# Sent where reasoning is required and unknown. V4-Pro has refused ""; a single space passes everywhere.
FILLER = " "

# The largest request body that DeepSeek accepts.
MAX_BODY_BYTES = 48 * 1024 * 1024

# A call with longer arguments counts as complete only when the answer has a finish_reason.
_LONG_ARGUMENTS = 16_384

# The names of required reasoning in errors of chat completions, Responses and Messages.
_REASONING_NAMES = ("reasoning_content", "reasoning_text", "content[].thinking")


class ReasoningNeed(Enum):
    """Whether DeepSeek requires the reasoning of an assistant message."""

    NONE = "none"
    # A plain answer in a request with tools: refused without reasoning, accepted with FILLER.
    SOFT = "soft"
    # Part of a tool loop: FILLER is accepted but harms the answer, so the real reasoning is worth a recovery.
    HARD = "hard"


def reasoning_needs(request: ChatRequest, start: int = 0) -> list[ReasoningNeed]:
    """How much DeepSeek needs the reasoning of each message from `start` on."""
    # Looked up once: Python 3.11 takes a tenth of a microsecond for each.
    none, hard = ReasoningNeed.NONE, ReasoningNeed.HARD
    if not request.thinking:
        return [none] * (len(request.messages) - start)
    otherwise = ReasoningNeed.SOFT if request.tools or request.server_tools else none
    needs: list[ReasoningNeed] = []
    in_tool_loop = is_in_tool_loop(request.messages[:start])
    for message in request.messages[start:]:
        if message.role == "assistant":
            needs.append(hard if message.tool_calls or in_tool_loop else otherwise)
            continue
        needs.append(none)
        in_tool_loop = message.role == "tool"
    return needs


def is_in_tool_loop(messages: Sequence[Message]) -> bool:
    """Whether an answer to these messages is part of a tool loop even without a call."""
    for message in reversed(messages):
        if message.role != "assistant":
            return message.role == "tool"
    return False


def needs_beta(request: ChatRequest) -> bool:
    """Whether a request uses what only DeepSeek's beta path has: a prefix to continue, or strict functions."""
    has_prefix = bool(request.messages) and request.messages[-1].prefix
    # All of them are strict, or none is.
    return has_prefix or (bool(request.tools) and bool(request.tools[0]["function"].get("strict")))


def without_beta(request: ChatRequest) -> ChatRequest:
    """The request for an upstream without the beta path."""
    *others, last = request.messages
    names = ["prefix"] if last.prefix else []
    tools = request.tools
    if tools and tools[0]["function"].get("strict"):
        names.append("tools strict")
        plain = [{name: value for name, value in tool["function"].items() if name != "strict"} for tool in tools]
        tools = tuple({**tool, "function": function} for tool, function in zip(tools, plain, strict=True))
    dropped = tuple(sorted({*request.dropped, *names}))
    return request._replace(messages=(*others, last._replace(prefix=False)), tools=tools, dropped=dropped)


def is_forced(tool_choice: object) -> bool:
    """Whether a tool choice forces a call; DeepSeek refuses that while thinking."""
    return tool_choice is not None and tool_choice not in ("auto", "none")


def is_whole_call(call: ToolCall) -> bool:
    """Whether a call is complete. Long arguments are not parsed, because this runs for every piece of them."""
    if not (call.id and call.name) or len(call.arguments) > _LONG_ARGUMENTS:
        return False
    return object_in(call.arguments) is not None


def is_reasoning_refusal(status: int, message: str) -> bool:
    """Whether an error says that reasoning of earlier turns is missing."""
    return status == 400 and "passed back" in message and any(name in message for name in _REASONING_NAMES)
