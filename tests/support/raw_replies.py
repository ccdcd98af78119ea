"""Good responses of upstream as bytes, and the parts of which damaged ones are made."""

import json
from dataclasses import dataclass
from typing import Any

TEXT = "Grüße, 漢字 😀."


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def delta(finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": fields, "finish_reason": finish_reason}
    return {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def head(*fields: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *fields, "", ""]).encode("latin-1")


ANSWER = json.dumps(
    {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
    },
    ensure_ascii=False,
).encode()

EVENTS = (
    event(delta(role="assistant", content="")),
    b": keep-alive\n\n",
    *(event(delta(content=char)) for char in TEXT),
    event(delta("stop", content="")),
    event({**delta(), "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}),
    b"data: [DONE]\n\n",
)

JSON, SSE, CHUNKED = "Content-Type: application/json", "Content-Type: text/event-stream", "Transfer-Encoding: chunked"
STREAM_HEAD = head(SSE)


@dataclass(frozen=True)
class GoodResponse:
    """A response of upstream, whose answer is complete from byte `complete_at` on."""

    name: str
    data: bytes
    is_stream: bool
    complete_at: int

    @property
    def head_bytes(self) -> int:
        return self.data.index(b"\r\n\r\n") + 4


def _plain(name: str, data: bytes) -> GoodResponse:
    return GoodResponse(name, data, False, len(data))


def _streamed(name: str, data: bytes) -> GoodResponse:
    # The answer is complete with its finish_reason; usage and [DONE] are not needed.
    return GoodResponse(name, data, True, data.index(b"\n\n", data.index(b'"stop"')) + 2)


_HALVES = (ANSWER[:70], ANSWER[70:])
GOOD = (
    _plain("plain", head(JSON, f"Content-Length: {len(ANSWER)}") + ANSWER),
    _plain("plain, chunked", head(JSON, CHUNKED) + b"".join(map(chunk, (*_HALVES, b"")))),
    GoodResponse("plain, until the end", head(JSON) + ANSWER, False, len(head(JSON) + ANSWER)),
    _streamed("stream, chunked", head(SSE, CHUNKED) + b"".join(map(chunk, (*EVENTS, b"")))),
    _streamed("stream, until the end", STREAM_HEAD + b"".join(EVENTS)),
)
