"""The fields that DeepSeek adds to a chat completions message for tools that it runs itself.

Their names are not known here (see the fake's `web_tools`): in an answer to a request with such a tool, every field of
a message or delta that the API does not have otherwise is one of them, and so is content of blocks that are not text.
They reach the client as they are, and come back from it inside the assistant's message. `Message.server_items` has
them as one item, {"type": "fields", "fields": {…}}; for the identity of a turn only that it has some counts, because a
stream may bring them in pieces.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from deepseek_cursor_proxy.conversation import Delta, Message, ServerDelta, ServerPiece, pack_items, unpack_items
from deepseek_cursor_proxy.deepseek.tools.server_tools import CHAT
from deepseek_cursor_proxy.json_codec import as_list, as_object

# What the API has for every message, what other hosts call reasoning, and what clients add by themselves.
_OTHERS = frozenset(
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
    """The text of content that has such blocks."""
    return "".join(block["text"] for block in blocks if _is_text(block))


def _is_text(part: Any) -> bool:
    return as_object(part).get("type") == "text" and isinstance(part.get("text"), str)


def plain_blocks(blocks: Sequence[object]) -> list[object]:
    """Content without such blocks: its text as one block, then the others."""
    others = [block for block in blocks if not _is_block(block) and not _is_text(block)]
    return [{"type": "text", "text": text_of(blocks)}, *others]


def read(message: Mapping[str, Any]) -> str | None:
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


class FieldFinder:
    """Marks the deltas of one answer that have such fields. Used by one thread."""

    def __init__(self, part: str) -> None:
        # `delta` in a chunk, `message` in a completion.
        self._part = part
        self._found: set[int] = set()

    def mark(self, deltas: Sequence[Delta], body: Mapping[str, Any]) -> list[Delta]:
        """The deltas that were read from a chunk or completion."""
        choices = [entry for entry in as_list(body.get("choices")) if isinstance(entry, dict)]
        if len(choices) != len(deltas):
            return list(deltas)
        messages = [as_object(choice.get(self._part)) for choice in choices]
        return [self._mark(delta, message) for delta, message in zip(deltas, messages, strict=True)]

    def _mark(self, delta: Delta, message: Mapping[str, Any]) -> Delta:
        if _fields(message):
            # One item for all of them: see above.
            step = "in_progress" if delta.choice in self._found else "completed"
            self._found.add(delta.choice)
            delta = delta._replace(server=ServerDelta((ServerPiece("fields", {"type": "fields"}, step),)))
        content = message.get("content")
        if not isinstance(content, list) or delta.chunk is None:
            return delta
        # Read as text alone, it would reach the client without its blocks.
        choice = delta.chunk["choices"][0]
        choice = {**choice, self._part: {**choice[self._part], "content": content}}
        chunk = {**delta.chunk, "choices": [choice]}
        return delta._replace(server=delta.server or ServerDelta(), chunk=chunk)


def _fields(message: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in message.items() if name not in _OTHERS and value not in _NOTHING}
    if has_blocks(message.get("content")):
        fields["content"] = message["content"]
    return fields


_NOTHING: tuple[Any, ...] = (None, "", [], {})


def _without_display(blocks: list[Any], content: object) -> list[Any] | None:
    """The blocks without the text of ours before that of the answer; None if the client changed that text."""
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
