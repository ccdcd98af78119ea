"""A delta as the client of chat completions gets it."""

import json
from typing import Any

from deepseek_cursor_proxy.conversation import ChatRequest, Delta
from deepseek_cursor_proxy.protocols.chat_writer import ChunkWriter, CompletionWriter


def written_chunk(delta: Delta, model: str = "m") -> dict[str, Any]:
    event = ChunkWriter(ChatRequest(model, model, (), include_usage=False), 0).write([delta])
    found: dict[str, Any] = json.loads(event.removeprefix(b"data: "))
    return found


def written_completion(delta: Delta, model: str = "m") -> dict[str, Any]:
    writer = CompletionWriter(ChatRequest(model, model, ()))
    writer.write([delta])
    found: dict[str, Any] = json.loads(writer.end())
    return found
