"""The tools that DeepSeek runs itself: which of its APIs runs which, and how their items take part in a history.

    chat        deepseek_web_search, deepseek_read_url
    responses   these, web_search and web_search_preview (with or without a date)
    messages    these, and web_search_20250305 or a later version

A request with one of these tools goes to DeepSeek's endpoint of the client's own API. Other hosted tools (file search,
code interpreter, computer use, image generation, remote MCP servers) are left out.

The fields that they add to a chat completions message have no documented names: in an answer to a request with such a
tool, every field of a message or delta that the API does not have otherwise is one of them, and so is content of blocks
that are not text. They reach the client as they are, and come back from it inside the assistant's message.
`Message.server_items` has them as one item, {"type": "fields", "fields": {…}}; for the identity of a turn only that it
has some counts, because a stream may bring them in pieces.
"""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from deepseek_cursor_proxy.conversation import (
    ChatRequest,
    Delta,
    Message,
    ServerDelta,
    ServerPiece,
    pack_items,
    unpack_items,
)
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.json_codec import as_list, as_object
from deepseek_cursor_proxy.redaction import safe_text

CHAT, RESPONSES, MESSAGES = "chat", "responses", "messages"

_DEEPSEEK = "deepseek_web_search|deepseek_read_url"
_KINDS = {
    CHAT: re.compile(_DEEPSEEK),
    RESPONSES: re.compile(rf"{_DEEPSEEK}|web_search(?:_preview)?(?:_\d{{4}}_\d{{2}}_\d{{2}})?"),
    MESSAGES: re.compile(rf"{_DEEPSEEK}|web_search_\d{{8}}"),
}
# Items of a Responses history that no tool of DeepSeek's own has made: calls of the client's tools, and what other
# servers ran. Images in base64 may be in the latter.
_OTHER_CALLS = frozenset(
    {
        *("function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "computer_call"),
        *("file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call", "tool_search_call"),
    }
)
# Errors of the key, the balance, the size or the moment.
_OTHER_REASONS = frozenset({401, 402, 403, 408, 413, 429, 503, 504})
_NO_SUCH_PATH = frozenset({404, 405, 501})
_BAD_REQUEST = frozenset({400, 422})
# Parts of an answer that other fields of a message have as well.
_PLAIN_ITEMS = frozenset({"text", "thinking", "tool_use", "message", "reasoning"})


def is_run_by_deepseek(kind: str, api: str) -> bool:
    """Whether DeepSeek runs a tool of this type at its endpoint of this API."""
    return _KINDS[api].fullmatch(kind) is not None


def has_any(request: ChatRequest) -> bool:
    """Whether a request has tools that DeepSeek runs itself, or a turn in which it ran one."""
    return bool(request.server_tools) or any(message.server_items is not None for message in request.messages)


def cannot_force() -> BadRequest:
    return BadRequest(
        "tool_choice forces a tool that DeepSeek runs itself, and this upstream does not run it. Leave the choice out, "
        "or force a function.",
        param="tool_choice",
    )


def leave_out(request: ChatRequest) -> ChatRequest:
    """The request without server tools, for an upstream that runs none. Raises BadRequest if it forces one."""
    if is_forced(request):
        raise cannot_force()
    kinds = {f"tool {safe_text(tool['type'], 60)}" for tool in request.server_tools}
    choice = request.tool_choice if request.tools else None
    return request._replace(server_tools=(), tool_choice=choice, dropped=tuple(sorted({*request.dropped, *kinds})))


def is_server_item(kind: str) -> bool:
    """Whether a tool that DeepSeek runs may have made an item of this type, in its Responses API; also a future one."""
    return kind.endswith("_call") and kind not in _OTHER_CALLS


def is_forced(request: ChatRequest) -> bool:
    """Whether a request forces a server tool."""
    return request.server_choice is not None or (request.tool_choice == "required" and not request.tools)


def is_refusal(request: ChatRequest, status: int, message: str, *, is_unknown: bool) -> bool:
    """Whether to send a request again without server tools and their items, after this answer.

    An upstream of unknown kind may refuse them, or the path they go to, with any message (200: the body was not a
    stream). A forced tool stays, and its refusal reaches the client, unless there is no path: then `leave_out` raises.
    """
    if status in _NO_SUCH_PATH:
        return True
    if is_forced(request) or status in _OTHER_REASONS:
        return False
    if is_unknown:
        return True
    return status in _BAD_REQUEST and mentions_tools(message, request)


def mentions_tools(message: str, request: ChatRequest) -> bool:
    """Whether an error message is about tools."""
    return "tool" in message.lower() or any(tool["type"] in message for tool in request.server_tools)


def item_kinds(server_items: str) -> list[str]:
    """The types of a message's items that its other fields do not have; see conversation.pack_items."""
    items = (item for group in json.loads(server_items).values() for item in group)
    return [str(item.get("type")) for item in items if is_made_by_tool(item)]


def is_made_by_tool(item: Mapping[str, Any]) -> bool:
    """Whether a tool of DeepSeek's own made an item of an answer; the others are its reasoning and its text."""
    return item.get("type") not in _PLAIN_ITEMS


def split_text(text: str, lengths: Sequence[int], *, whole_at: int) -> list[str]:
    """The reasoning or the text of a turn, in its places; all of it in one place if the lengths do not fit it."""
    if sum(lengths) != len(text):
        return [text if place == whole_at % len(lengths) else "" for place in range(len(lengths))]
    ends = list(accumulate(lengths, initial=0))
    return [text[start:end] for start, end in pairwise(ends)]


# What the API has for every message, what other hosts call reasoning, and what clients add by themselves.
_KNOWN_FIELDS = frozenset(
    (
        *("role", "content", "name", "reasoning_content", "reasoning", "reasoning_details", "tool_calls"),
        *("tool_call_id", "function_call", "prefix", "refusal", "audio", "id", "type", "status", "index"),
        *("cache_control", "thinking_blocks", "provider_specific_fields"),
    )
)
# Kinds of content that are read without this, in a message of any API.
_PLAIN_PARTS = frozenset(
    (
        *("text", "input_text", "output_text", "refusal", "image_url", "input_image", "image", "document", "file"),
        *("input_file", "tool_use", "thinking", "redacted_thinking"),
    )
)


def has_blocks(content: object) -> bool:
    """Whether content is a list with blocks of a tool that DeepSeek ran."""
    return any(map(_is_block, as_list(content)))


def _is_block(part: object) -> bool:
    kind = as_object(part).get("type")
    return isinstance(kind, str) and kind not in _PLAIN_PARTS


def text_of(blocks: Sequence[Any]) -> str:
    """The text of content that has blocks of server tools."""
    return "".join(block["text"] for block in blocks if _is_text(block))


def _is_text(part: Any) -> bool:
    return as_object(part).get("type") == "text" and isinstance(part.get("text"), str)


def plain_blocks(blocks: Sequence[object]) -> list[object]:
    """Content without the blocks of server tools: its text as one block, then the others."""
    others = [block for block in blocks if not _is_block(block) and not _is_text(block)]
    return [{"type": "text", "text": text_of(blocks)}, *others]


def read_fields(message: Mapping[str, Any]) -> str | None:
    """The `server_items` of an assistant's message that a client sends back."""
    fields = _fields(message)
    return pack_items(CHAT, [{"type": "fields", "fields": fields}]) if fields else None


def fields_to_send(message: Message) -> dict[str, Any]:
    """The fields of a message of the history, as they came."""
    items = unpack_items(message, CHAT)
    fields: dict[str, Any] = dict(items[0]["fields"]) if items else {}
    if "content" in fields:
        blocks = _without_display(fields.pop("content"), message.content)
        if blocks is not None:
            fields["content"] = blocks
    return fields


# The text that follows is a block of its own.
BEGINS_TEXT = Delta(server=ServerDelta(begins_text=True))


def item_delta(key: int | str, item: Mapping[str, Any], step: str = "completed") -> Delta:
    """A step of an item."""
    return Delta(server=ServerDelta((ServerPiece(key, item, step),)))


def citation_deltas(values: Sequence[object]) -> list[Delta]:
    """Sources of the text that is open."""
    citations = tuple(value for value in values if isinstance(value, dict) and value)
    return [Delta(server=ServerDelta(citations=citations))] if citations else []


class FieldFinder:
    """Marks the deltas of one answer that have fields of server tools. Used by one thread."""

    def __init__(self, part: str) -> None:
        # `delta` in a chunk, `message` in a completion.
        self._part = part
        self._has_found = False

    def mark(self, delta: Delta) -> Delta:
        choices = (delta.chunk or {}).get("choices")
        message = as_object(choices[0].get(self._part)) if choices else {}
        if _fields(message):
            # One item for all of them: see above.
            step = "in_progress" if self._has_found else "completed"
            self._has_found = True
            delta = delta._replace(server=ServerDelta((ServerPiece("fields", {"type": "fields"}, step),)))
        if not isinstance(message.get("content"), list):
            return delta
        # Marked, it reaches the client with its blocks.
        return delta._replace(server=delta.server or ServerDelta())


def _fields(message: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in message.items() if name not in _KNOWN_FIELDS and value not in _EMPTY}
    if has_blocks(message.get("content")):
        fields["content"] = message["content"]
    return fields


_EMPTY: tuple[Any, ...] = (None, "", [], {})


def _without_display(blocks: list[Any], content: object) -> list[Any] | None:
    """The blocks without the text that we added before the answer; None if the client changed the answer."""
    text, own = text_of(blocks), str(content).strip()
    begin = len(text.rstrip()) - len(own)
    if begin < 0 or not text.startswith(own, begin):
        return None
    kept, at = [], 0
    for block in blocks:
        length = len(text_of([block]))
        if not length or at + length > begin:
            if length and text[at:begin].strip():
                # Our text and theirs in one block.
                return None
            kept.append(block)
        at += length
    return kept
