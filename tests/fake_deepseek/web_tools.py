"""Tools that DeepSeek runs itself on chat completions: which it takes, and the fields they add to a message.

    takes deepseek_web_search and deepseek_read_url                 guide web_tools, news261113, read 2026-11-17
    for deepseek-flash                                              the same: "use the deepseek-flash model"
    refuses them for any other model                                assumed
    refuses every other type: `unknown variant`                     as for all enums of this API; words assumed
    {"type": …, "name": …}: the form of a declaration               guide, of the Messages API; for this one assumed
    tool_choice {"type": …} forces one, without thinking            assumed, as on Responses
    returns blocks to show and to send back unchanged               guide build_a_chatbot, of all APIs, 2026-11-17
    the fields of message and delta that have them                  NOT FOUND: scripted (`Answer.fields`); see ASSUMED
    refuses an unknown field in a history without such a tool       assumed
    accepts that they are left out of a history                     assumed

Nothing here was called. `read` moves the tools to `server_tools` and the fields of a message to its `server_fields`, so
that `contract` judges the rest. This file knows no socket or script.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tests.fake_deepseek import contract
from tests.fake_deepseek.contract import DESERIALIZE, FORCED_TOOL, Refusal
from tests.fake_deepseek.prompt import is_thinking

TYPES = ("deepseek_web_search", "deepseek_read_url")
# A made-up form for tests that need any: names and JSON of `Answer.fields`.
_URL = "https://a.example/?q=1&b"
ASSUMED = (
    ("server_tool_calls", f'[{{"id":"ws_1","query":"日本 weather","results":[{{"url":"{_URL}","score":0.70}}]}}]'),
    ("citations", f'[{{"start":0,"end":5,"url":"{_URL}"}}]'),
)
# The same inside the content, as blocks.
ASSUMED_BLOCKS = (
    (
        "content",
        '[{"type":"server_tool_use","id":"ws_1","input":{"query":"weather"}},'
        '{"type":"web_search_tool_result","tool_use_id":"ws_1","content":[]},'
        '{"type":"text","text":"It is "},{"type":"text","text":"sunny."}]',
    ),
)
MESSAGE_FIELDS = frozenset({"role", "content", "name", "reasoning_content", "tool_calls", "tool_call_id", "prefix"})


def read(body: bytes) -> dict[str, Any] | Refusal:
    """The chat in a body, or the refusal it earns for tools or fields of this kind."""
    payload = contract.read(body)
    if isinstance(payload, Refusal):
        return payload
    tools, messages = payload.get("tools"), payload.get("messages")
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        return payload
    found = [tool for tool in tools or () if isinstance(tool, dict) and tool.get("type") in TYPES]
    if not found:
        return next(
            (_unknown_field(at, each) for at, each in enumerate(messages) if each.keys() - MESSAGE_FIELDS), payload
        )
    if "flash" not in str(payload.get("model")):
        return Refusal(f"tools: {found[0]['type']} is not available for this model")
    payload["server_tools"] = found
    payload["tools"] = [tool for tool in tools or () if tool not in found]
    payload["messages"] = [fold(each) for each in messages]
    return _read_choice(payload)


def _read_choice(payload: dict[str, Any]) -> dict[str, Any] | Refusal:
    choice = payload.get("tool_choice")
    if not isinstance(choice, dict) or choice.get("type") not in TYPES:
        return payload
    if is_thinking(payload):
        return Refusal(FORCED_TOOL)
    del payload["tool_choice"]
    if choice["type"] not in [tool["type"] for tool in payload["server_tools"]]:
        return Refusal(f"tool_choice: no tool of type {choice['type']}")
    return {**payload, "server_choice": choice}


def _unknown_field(index: int, message: Mapping[str, Any]) -> Refusal:
    return Refusal(f"{DESERIALIZE}messages[{index}]: unknown field `{min(message.keys() - MESSAGE_FIELDS)}`")


def fold(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with the fields of such tools in `server_fields`, and text in place of blocks."""
    content = message.get("content")
    fields = {name: value for name, value in message.items() if name not in MESSAGE_FIELDS}
    if message.get("role") == "assistant" and isinstance(content, list):
        fields["content"] = content
        texts = (part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text")
        content = "".join(text for text in texts if isinstance(text, str))
    kept = {name: value for name, value in message.items() if name in MESSAGE_FIELDS}
    return {**kept, "content": content, "server_fields": fields} if fields else dict(message)


def fields(script: Iterable[tuple[str, str]], payload: Mapping[str, Any]) -> dict[str, Any]:
    """The scripted fields that an answer to this request has because of such a tool."""
    return {name: json.loads(text) for name, text in script} if payload.get("server_tools") else {}
