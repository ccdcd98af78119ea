"""DeepSeek's rules: which turns need reasoning, what counts as a whole call, how large a body may be."""

import json
from enum import Enum

from deepseek_cursor_proxy.conversation import ChatRequest, ToolCall

_TEXT_ONLY_MODELS = frozenset({"deepseek-v4-pro"})

# DeepSeek's own table from the effort asked for to the effort done; "none" turns thinking off for the request.
EFFORTS = {
    "minimal": "low",
    "low": "low",
    "medium": "high",
    "high": "high",
    "xhigh": "high",
    "max": "max",
    "ultra": "max",
}

# Where reasoning must be present and there is none. V4-Pro has refused ""; a single space passes everywhere.
FILLER = " "

# The largest request body that DeepSeek takes.
MAX_BODY_BYTES = 48 * 1024 * 1024

# Beyond this a call counts as whole only when the answer says that it has finished.
_LONG_ARGUMENTS = 16_384

# What chat completions and Responses call reasoning that has to be sent back.
_REASONING_NAMES = ("reasoning_content", "reasoning_text")


class ReasoningNeed(Enum):
    """Whether DeepSeek insists on an assistant's reasoning."""

    NONE = "none"
    # Refused without any reasoning, content with a filler: a plain answer in a request that carries tools.
    SOFT = "soft"
    # Part of a tool loop: a filler harms the answer, so the real reasoning is worth a recovery.
    HARD = "hard"


def can_see_images(model: str) -> bool:
    return model not in _TEXT_ONLY_MODELS


def reasoning_needs(request: ChatRequest) -> list[ReasoningNeed]:
    """For every message, whether its reasoning must be sent."""
    if not request.thinking:
        return [ReasoningNeed.NONE] * len(request.messages)
    otherwise = ReasoningNeed.SOFT if request.tools else ReasoningNeed.NONE
    found: list[ReasoningNeed] = []
    in_tool_loop = False
    for message in request.messages:
        if message.role == "assistant":
            found.append(ReasoningNeed.HARD if message.tool_calls or in_tool_loop else otherwise)
            continue
        found.append(ReasoningNeed.NONE)
        in_tool_loop = message.role == "tool"
    return found


def is_forced(tool_choice: object) -> bool:
    """Whether a tool choice leaves the model no choice; DeepSeek refuses that while thinking."""
    return tool_choice is not None and tool_choice not in ("auto", "none")


def is_whole_call(call: ToolCall) -> bool:
    """Whether nothing of a call is still to come. Long arguments are not looked into again with every piece of them."""
    if not (call.id and call.name) or len(call.arguments) > _LONG_ARGUMENTS:
        return False
    try:
        return isinstance(json.loads(call.arguments), dict)
    except (ValueError, RecursionError):
        return False


def is_reasoning_refusal(status: int, message: str) -> bool:
    """Whether an error says that reasoning of earlier turns is missing; each of DeepSeek's APIs has a name for it."""
    return status == 400 and "passed back" in message and any(name in message for name in _REASONING_NAMES)
