"""Answers generated from a seed, as the bytes of DeepSeek's stream: in any order and pieces, cut anywhere."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from deepseek_cursor_proxy.conversation import Batch, ChatRequest, Delta, Message, Reply
from deepseek_cursor_proxy.deepseek.chat_stream import StreamReader
from deepseek_cursor_proxy.features.encryption import Sealer
from deepseek_cursor_proxy.features.responses.fields import Frame, echoed_fields, parse_options
from deepseek_cursor_proxy.features.responses.writer import ResponseWriter

MARK = "0123456789abcdef" * 2
WORDS = (
    "think", " ", "\n", "\n\n", "\\", '"', "</details>", "é", "思", "\u2028", "\U0001f600", "data: x\n\n", "\x7f",
)  # fmt: skip
# The upstream names of each kind of tool.
FUNCTION, CUSTOM, INNER, INNER_CUSTOM = "read_file", "apply_patch", "agents__spawn", "agents__patch"
REQUEST = ChatRequest(
    "my-model", "deepseek-v4-pro", (), custom_tools=frozenset({CUSTOM, INNER_CUSTOM}),
    tool_namespaces={INNER: ("agents", "spawn"), INNER_CUSTOM: ("agents", "patch")},
)  # fmt: skip
UPSTREAM_NAMES = {inner: name for name, inner in REQUEST.tool_namespaces.items()}


@dataclass(frozen=True)
class Piece:
    """A run of thinking, text, or arguments of the call with this number."""

    kind: str
    text: str
    call: int = 0
    name: str = ""


def words(rng: random.Random, most: int) -> str:
    return "".join(rng.choice(WORDS) for _ in range(rng.randrange(1, most)))


def answer(rng: random.Random, *, is_orderly: bool = False) -> list[Piece]:
    pieces = [Piece("reasoning_content", words(rng, 8))] if rng.random() < 0.8 else []
    pieces += [Piece("content", words(rng, 8))] if rng.random() < 0.7 else []
    pieces += [call(rng, number) for number in range(rng.choice((0, 0, 1, 2, 3)))]
    for _ in range(0 if is_orderly else rng.choice((0, 1, 2))):
        more = Piece(rng.choice(("reasoning_content", "content")), words(rng, 5))
        pieces.insert(rng.randrange(len(pieces) + 1), more)
    return pieces or [Piece("content", "x")]


def call(rng: random.Random, number: int) -> Piece:
    name = rng.choice((FUNCTION, CUSTOM, INNER, INNER_CUSTOM))
    field = "input" if name in REQUEST.custom_tools else "path"
    arguments = json.dumps({field: words(rng, 6)}, ensure_ascii=rng.random() < 0.5)
    return Piece("call", arguments, number, name)


def stream(rng: random.Random, pieces: Sequence[Piece], finish_reason: str = "stop") -> bytes:
    """The events of an answer. Characters may be cut in two, as DeepSeek's are."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None, "reasoning_content": ""}]
    for piece in pieces:
        if piece.kind == "call":
            function = {"name": piece.name, "arguments": ""}
            deltas.append({"tool_calls": [{"index": piece.call, "id": f"call_{piece.call}", "function": function}]})
        for part in parts(rng, piece.text):
            if piece.kind == "call":
                deltas.append({"tool_calls": [{"index": piece.call, "function": {"arguments": part}}]})
            else:
                deltas.append({piece.kind: part} if rng.random() < 0.9 else {"content": "", piece.kind: part})
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}], "usage": usage})
    # With the escapes of our own encoder a ChunkTemplate can read them, with others it cannot.
    is_ascii = rng.random() < 0.3
    return b"".join(b"data: %b\n\n" % encoded(chunk, is_ascii) for chunk in chunks) + b"data: [DONE]\n\n"


def encoded(chunk: Any, is_ascii: bool) -> bytes:
    try:
        return json.dumps(chunk, ensure_ascii=is_ascii, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(chunk, separators=(",", ":")).encode()


def parts(rng: random.Random, text: str) -> Iterator[str]:
    units = text.encode("utf-16-le")
    at = 0
    while at < len(units):
        end = at + 2 * rng.choice((1, 1, 2, 3, 8))
        yield units[at:end].decode("utf-16-le", "surrogatepass")
        at = end


def batches(rng: random.Random, data: bytes) -> Iterator[Batch]:
    """The batches of a stream that arrives in pieces of any size."""
    reader, at = StreamReader(), 0
    while at < len(data):
        end = at + rng.choice((1, 7, 50, 400, 100_000))
        events = reader.read(data[at:end])
        assert events.problem is None, events.problem
        yield events.batch
        at = end


def message(found: Sequence[Batch]) -> Message:
    reply = Reply()
    for delta in (each for batch in found for each in batch if isinstance(each, Delta)):
        reply.add(delta)
    return reply.message()


def writer(now: float = 0.0, **fields: Any) -> ResponseWriter:
    body = {"input": "q", **fields}
    options, sealer = parse_options(body), Sealer(b"secret", b"caller")
    frame = Frame(MARK, 1, "my-model", options, echoed_fields(body), sealer)
    return ResponseWriter(frame, REQUEST, lambda: now, lambda response: None)
