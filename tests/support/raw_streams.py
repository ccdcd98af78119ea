"""Whole streams of DeepSeek in one write, as steps of the fake."""

import json
from typing import Any

from tests.fake_deepseek import Raw

EVENT_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def raw_stream(*choices: dict[str, Any]) -> Raw:
    """A whole stream in one write, a chunk for each of these choices."""
    chunks = [json.dumps({"choices": [{"index": 0, **each}]}).encode() for each in choices]
    return Raw(EVENT_STREAM + b"".join(b"data: %b\n\n" % each for each in [*chunks, b"[DONE]"]))


def streamed(*deltas: dict[str, Any], finish: str = "stop") -> Raw:
    """A whole stream of these deltas in one write."""
    return raw_stream(*({"delta": each} for each in deltas), {"delta": {}, "finish_reason": finish})
