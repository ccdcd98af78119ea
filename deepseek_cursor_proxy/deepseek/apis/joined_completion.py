"""Joins a streamed chat completion into a whole one, for a client that did not ask for a stream.

`conversation.Reply` adds up the fields of the API. In other fields of the delta, texts and lists are joined and the
last of other values is kept, so that unknown fields survive.
"""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from deepseek_cursor_proxy.conversation import Batches, Delta, Heartbeat, Reply
from deepseek_cursor_proxy.deepseek.apis.chat_api import completion_deltas
from deepseek_cursor_proxy.deepseek.tools.server_fields import FieldFinder
from deepseek_cursor_proxy.http1.lull import Lull
from deepseek_cursor_proxy.json_codec import as_list, as_object

_ADDED_UP = frozenset({"role", "content", "reasoning_content", "tool_calls"})


def join_stream(batches: Batches, *, has_server_tools: bool) -> Batches:
    """The same answer as one delta at its end; until then a heartbeat for every batch, for a client that waits."""
    joined = _Completion()
    with closing(batches):
        for batch in batches:
            if isinstance(batch, Lull):
                yield batch
                continue
            for item in batch:
                if isinstance(item, Delta):
                    joined.add(item)
            yield [Heartbeat()]
    body = joined.body()
    deltas = completion_deltas(body)
    yield [*(FieldFinder("message").mark(deltas, body) if has_server_tools else deltas)]


class _Completion:
    """Adds up the chunks of one answer with one choice. Used by one thread."""

    def __init__(self) -> None:
        self._reply = Reply()
        self._fields: dict[str, Any] = {}
        self._choice: dict[str, Any] = {}
        self._message: dict[str, Any] = {}
        self._content: list[str | list[Any]] = []
        self._has_reasoning = False

    def add(self, delta: Delta) -> None:
        self._reply.add(delta)
        self._has_reasoning |= delta.reasoning is not None
        chunk = delta.chunk or {}
        self._fields |= {name: value for name, value in chunk.items() if name not in ("choices", "usage", "object")}
        choice = as_object(next(iter(as_list(chunk.get("choices"))), None))
        fields = as_object(choice.get("delta"))
        content = fields.get("content")
        if isinstance(content, list) or delta.text:
            self._content.append(content if isinstance(content, list) else delta.text or "")
        for name, value in choice.items():
            if name == "logprobs" and isinstance(value, dict):
                self._choice[name] = _merge_all(as_object(self._choice.get(name)), value)
            elif name not in ("delta", "finish_reason"):
                self._choice.setdefault(name, value)
        self._message = _merge_all(
            self._message, {name: value for name, value in fields.items() if name not in _ADDED_UP}
        )

    def body(self) -> dict[str, Any]:
        """The completion."""
        whole = self._reply.message()
        message: dict[str, Any] = {"role": "assistant", "content": self._whole_content(whole.content)}
        if self._has_reasoning:
            message["reasoning_content"] = whole.reasoning
        if whole.tool_calls:
            message["tool_calls"] = [
                {"index": at, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
                for at, (id, name, arguments) in enumerate(whole.tool_calls)
            ]
        choice = {**self._choice, "message": {**message, **self._message}, "finish_reason": self._reply.finish_reason()}
        usage = {"usage": self._reply.usage} if self._reply.usage is not None else {}
        return {**self._fields, "object": "chat.completion", "choices": [choice], **usage}

    def _whole_content(self, text: Any) -> Any:
        """The text, or the blocks if there are some, with text between them in blocks of its own."""
        if all(isinstance(piece, str) for piece in self._content):
            return text
        blocks: list[Any] = []
        for piece in self._content:
            blocks += [{"type": "text", "text": piece}] if isinstance(piece, str) else piece
        return blocks


def _merge_all(known: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    return {**known, **{name: _merge(known.get(name), value) for name, value in more.items() if value is not None}}


def _merge(known: Any, value: Any) -> Any:
    if isinstance(known, str) and isinstance(value, str):
        return known + value
    return [*known, *value] if isinstance(known, list) and isinstance(value, list) else value
