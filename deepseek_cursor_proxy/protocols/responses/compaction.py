"""Compaction in the Responses API: the user's messages and a summary of the rest replace a history.

    POST /v1/responses/compact, or `compaction_trigger` as the last input item     request a summary from the model
    {"type": "compaction", "encrypted_content": …}                                 the summary, sealed for its caller
    the same item as input                                                         a system message with the summary

The client keeps the item with the summary; the proxy stores nothing of it.
"""

from collections.abc import Sequence
from typing import Any

from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.protocols.request.field_checks import Json

KIND = "compaction"
TRIGGER = "compaction_trigger"

_QUESTION = (
    "Summarize this conversation so that it can be continued without its earlier messages. State the goal and the "
    "instructions that still hold, the decisions and their reasons, what was done and found (files, commands, results "
    "that matter), where things stand now, and what comes next. Repeat names, paths, ids, numbers and code that are "
    "still needed word for word. The user's own messages are kept, so do not repeat them. Write nothing but the "
    "summary, in the language of the conversation, and call no tools."
)
_PREFACE = "The conversation up to here was replaced by this summary of it:\n\n"
# Fields of the body for the summary request; `tools` because DeepSeek's prefix cache begins with them.
_FIELDS = ("model", "instructions", "tools", "stream", "prompt_cache_key", "user")


def summary_request(body: Json, items: Sequence[Json]) -> dict[str, Any]:
    """The body of the request for a summary of `items`."""
    if not items:
        raise BadRequest("There is nothing to compact: input is empty.", param="input")
    fields = {name: body[name] for name in _FIELDS if body.get(name) is not None}
    if fields.get("tools"):
        fields["tool_choice"] = "none"
    return {**fields, "reasoning": {"effort": "none"}, "input": [*items, user_item(_QUESTION)]}


def user_item(text: str) -> Json:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def compact_request(body: Json) -> dict[str, Any]:
    """A body of POST /v1/responses/compact as that of POST /v1/responses with a trigger."""
    given = body.get("input")
    if isinstance(given, str):
        given = [user_item(given)]
    items = [*given, {"type": TRIGGER}] if isinstance(given, list) else given or [{"type": TRIGGER}]
    return {**body, "input": items, "store": False, "stream": False, "background": False}


def compacted_items(items: Sequence[Json], summary: Sequence[Json]) -> list[Json]:
    """The items of a compacted history: the user's messages and the summary."""
    return [*(item for item in items if item.get("role") == "user"), *summary]


def summary_message(summary: str) -> Json:
    """The message in place of a compaction item of ours."""
    return {"type": "message", "role": "system", "content": _PREFACE + summary}
