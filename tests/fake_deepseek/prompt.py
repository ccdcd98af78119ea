"""A request as the model reads it, by the rules that DeepSeek publishes with the weights of V4 (Pro) and V4.1 (Flash).

Roles, headers, reasoning and calls are as published; the sentences around the tools are left out, because they are the
same in every prompt. `parts` of one request begin like those of another as far as their prompts do, which is what the
context cache goes by. In the order of a prompt:

    effort     V4 has a sentence for `max` alone, V4.1 a number for each
    tools      with the system messages that begin the chat, whatever the tool_choice
    user       a message, and the results of tools, which have no role of their own: in the order of their calls
    header     of an answer: at the end, and between a user and an assistant
    assistant  reasoning, text, calls; without tools the reasoning before the last question is left out

V4 writes the header after a user message only. So a system message right before an answer leaves that answer without
one: the model goes on with the user's text, and a past reasoning stands in it. V4.1 has a header after both.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from deepseek_cursor_proxy.json_codec import object_in

HEADER = "<｜Assistant｜>"
MISSING_HEADER = "The prompt of this history lacks an assistant header"
_BEGIN, _END, _USER, _SYSTEM = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜System｜>"
V4_PRO = "deepseek-v4-pro"
# What chat completions have no field for, as the fake's other files name it.
_OWN_FIELDS = ("steps", "blocks", "server_fields")
_QUESTIONS = ("user", "tool", "latest_reminder")
_NUMBERS = {"minimal": 25, "low": 25, "medium": 50, "high": 50, "xhigh": 50, "max": 100, "ultra": 100}

Json = Mapping[str, Any]


class Part(NamedTuple):
    """A piece of a prompt; its role is that of a message, or `header`, or `begin` where nothing precedes the chat."""

    role: str
    text: str


def problems(payload: Json, *, is_v4: bool = False) -> Iterator[str]:
    """A sentence if a system message stands where the header of an answer belongs, the next answer included.

    One right after another has no header either, but belongs to the same turn.
    """
    roles = [part.role for part in parts(payload, is_v4=is_v4)]
    if ("system", "assistant") in pairwise([*roles, "assistant"]):
        yield MISSING_HEADER


def parts(payload: Json, *, is_v4: bool = False) -> Iterator[Part]:
    """The prompt in pieces: effort, tools and system prompt, then each message, and each header."""
    is_v4, thinking = is_v4 or payload["model"] == V4_PRO, is_thinking(payload)
    messages = _in_call_order(payload["messages"])
    tools = [*(payload.get("tools") or ()), *(payload.get("server_tools") or ())]
    leading = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
    system = "\n\n".join([*(_text(message["content"]) for message in messages[:leading]), *map(_json, tools)])
    begin = f"{_BEGIN}{_effort(payload, is_v4) if thinking else ''}{'' if is_v4 else _SYSTEM}{system}"
    yield Part("system" if leading else "begin", begin)
    last_question = max((at for at, message in enumerate(messages) if message["role"] in _QUESTIONS), default=-1)
    before = "system"
    for at, message in enumerate([*messages[leading:], {"role": "assistant"}], leading):
        role = message["role"]
        if role == "assistant" and before in (_QUESTIONS if is_v4 else (*_QUESTIONS, "system")):
            yield Part("header", HEADER + ("<think>" if thinking and (tools or at > last_question) else "</think>"))
        if at < len(messages):
            is_turn = role == "assistant"
            has_reasoning = thinking and (bool(tools) or at > last_question)
            yield Part(role, turn(message, has_reasoning) if is_turn else _question(message, before, is_v4))
        before = role


def turn(message: Json, has_reasoning: bool) -> str:
    """An answer, up to its end, in a history."""
    reasoning = f"{message.get('reasoning_content') or ''}</think>" if has_reasoning else ""
    made = [call["function"] for call in message.get("tool_calls") or ()]
    calls = "".join(f"\n\n<call {call['name']}>{_arguments(call['arguments'])}" for call in made)
    own = {name: value for name, value in message.items() if name in _OWN_FIELDS and value}
    return f"{reasoning}{_text(message['content'])}{calls}{_json(own) if own else ''}{_END}"


def is_thinking(payload: Json) -> bool:
    """Whether a well-typed body asks for reasoning; leaving the fields out does not turn it off."""
    thinking = payload.get("thinking") or {}
    return thinking.get("type") != "disabled" and payload.get("reasoning_effort") != "none"


def _effort(payload: Json, is_v4: bool) -> str:
    effort = payload.get("reasoning_effort") or "high"
    if is_v4:
        return "Reasoning Effort: Absolute maximum" if effort == "max" else ""
    return f"{_SYSTEM}Reasoning Effort: {_NUMBERS[effort]}"


def _question(message: Json, before: str, is_v4: bool) -> str:
    """What the model is told: a message of the user or the system, or a result."""
    text = _text(message["content"], sees=not is_v4)
    if message["role"] == "system":
        return text if is_v4 else _SYSTEM + text
    if message["role"] == "tool":
        text = f"<tool_result>{text}</tool_result>"
    return ("\n\n" if before in _QUESTIONS else _USER) + text


def _in_call_order(messages: Sequence[Json]) -> list[Json]:
    ordered, order = list(messages), dict[str, int]()
    at = 0
    while at < len(ordered):
        if ordered[at]["role"] == "assistant":
            order = {call["id"]: place for place, call in enumerate(ordered[at].get("tool_calls") or ())}
        end = at
        while end < len(ordered) and ordered[end]["role"] == "tool":
            end += 1
        ordered[at:end] = sorted(ordered[at:end], key=lambda result: order.get(result["tool_call_id"], 0))
        at = max(end, at + 1)
    return ordered


def _arguments(arguments: str) -> str:
    values = object_in(arguments)
    if values is None:
        return arguments
    return "".join(f"\n<{name}>{value if isinstance(value, str) else _json(value)}" for name, value in values.items())


def _text(content: Any, *, sees: bool = True) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    others = (_json(part) if sees else "[Unsupported Image]" for part in content)
    return "\n\n".join(
        part["text"] if part["type"] == "text" else other for part, other in zip(content, others, strict=True)
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
