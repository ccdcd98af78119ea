"""Answers as DeepSeek writes them: one JSON object, a stream of events, and the usage.

An Answer is what the model says, a step of a script like the faults that take its place; a Completion is the same in
bytes, for one request. The usage counts tokens as a
quarter of the UTF-8 bytes and knows the context cache: DeepSeek keeps the prefix at the end of every prompt and at the
end of every answer, and a later prompt pays less for the longest kept prefix it begins with.
Pure: ids and clock are parameters, and this file knows neither the script nor the socket.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from deepseek_cursor_proxy.json_codec import encode_json
from tests.fake_deepseek import prompt, web_tools
from tests.fake_deepseek.contract import VISION_MODELS
from tests.fake_deepseek.prompt import is_thinking
from tests.fake_deepseek.searches import Citation, Search
from tests.support.cursor import Call


@dataclass(frozen=True)
class Answer:
    """What the model says, and the faults of its delivery.

    `piece` is the characters per streamed delta, `pause` the seconds after each event, `comments` the keep-alives
    before anything else. The connection is dropped after `cut_after` and stalls after `stall_after` events, or bytes of
    the body when nothing is streamed.
    """

    reasoning: str | None = None
    content: str | None = None
    calls: tuple[Call, ...] = ()
    finish_reason: str | None = None
    piece: int = 16
    pause: float = 0.0
    comments: int = 0
    cut_after: int | None = None
    stall_after: int | None = None
    # Played before the rest of the answer, if the request has a tool for them; and the sources of `content`.
    searches: tuple[Search, ...] = ()
    citations: tuple[Citation, ...] = ()
    # Names and JSON of fields that a search adds to a message of chat completions, likewise; see web_tools.
    fields: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Failure:
    """An error in DeepSeek's envelope, or with `body` any other bytes."""

    status: int
    message: str = "The server is overloaded, please try again later."
    type: str = "server_error"
    code: str = "server_error"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None


@dataclass(frozen=True)
class Raw:
    """Bytes for the socket in place of an HTTP response; after them the connection may stall or stay open."""

    data: bytes
    then_close: bool = True
    then_stall: bool = False


Step = Answer | Failure | Raw


@dataclass(frozen=True)
class ReceivedRequest:
    """One POST and its response; the status of a Raw is 0. The payload is that of a chat on every path."""

    path: str
    headers: dict[str, str]
    payload: dict[str, Any]
    status: int
    refusal: str | None
    body: bytes


@dataclass(frozen=True)
class Prompt:
    digest: bytes
    tokens: int
    hit: int


class PrefixCache:
    """The context cache. Handler threads call it; a set's own operations are atomic, so it needs no lock."""

    def __init__(self) -> None:
        self._prefixes: set[bytes] = set()

    def read(self, payload: Mapping[str, Any]) -> Prompt:
        """The tokens of this prompt; from now on it is a cached prefix itself, with its last header and without."""
        # Another model or user is another cache.
        digest = hashlib.sha256(encode_json([payload["model"], payload.get("user_id")])).digest()
        tokens = hit = 0
        digests = []
        for part in prompt.parts(payload):
            data = part.text.encode("utf-8", "surrogatepass")
            digest = hashlib.sha256(digest + data).digest()
            digests.append(digest)
            tokens += _tokens(data)
            if digest in self._prefixes:
                hit = tokens
        self._prefixes.update(digests[-2:])
        return Prompt(digest, tokens, hit)

    def keep(self, prompted: Prompt, message: Mapping[str, Any], thinking: bool) -> None:
        answer = prompt.turn(message, thinking).encode("utf-8", "surrogatepass")
        self._prefixes.add(hashlib.sha256(prompted.digest + answer).digest())


class Completion:
    """One answer to one accepted request. Used by the one thread that answers it."""

    def __init__(self, answer: Answer, payload: Mapping[str, Any], cache: PrefixCache, id: str, created: int) -> None:
        self._answer = answer
        self._thinking = is_thinking(payload)
        self._fields = web_tools.fields(answer.fields, payload) if answer.fields else {}
        self._cache = cache
        self._prompt = cache.read(payload)
        self._header = {"id": id, "created": created, "model": payload["model"], "system_fingerprint": "fp_lab"}
        self._counts_usage = bool((payload.get("stream_options") or {}).get("include_usage"))
        self._finish = answer.finish_reason or ("tool_calls" if answer.calls else "stop")

    def body(self) -> bytes:
        message = self._message()
        self._cache.keep(self._prompt, web_tools.fold(message), self._thinking)
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish}
        whole = {"object": "chat.completion", **self._header, "choices": [choice], "usage": self._usage()}
        return encode_json(whole)

    def events(self) -> Iterator[bytes]:
        """The answer as server-sent events; it is kept in the cache just before the event that finishes it."""
        header = encode_json({"object": "chat.completion.chunk", **self._header})
        head = b"data: " + header[:-1] + b',"choices":[{"index":0,"delta":'
        tail = b',"logprobs":null,"finish_reason":null}]' + (b',"usage":null' if self._counts_usage else b"") + b"}\n\n"
        *deltas, last = _deltas(self._answer, self._thinking)
        for delta in self._with_fields(deltas) if self._fields else deltas:
            yield head + delta + tail
        self._cache.keep(self._prompt, web_tools.fold(self._message()), self._thinking)
        finish, usage = encode_json(self._finish), encode_json(self._usage())
        yield head + last + b',"logprobs":null,"finish_reason":' + finish + b'}],"usage":' + usage + b"}\n\n"
        yield b"data: [DONE]\n\n"

    def _message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self._answer.content}
        if self._thinking and self._answer.reasoning is not None:
            message["reasoning_content"] = self._answer.reasoning
        if self._answer.calls:
            message["tool_calls"] = [_call(call, call.arguments) for call in self._answer.calls]
        return {**message, **self._fields}

    def _with_fields(self, deltas: list[bytes]) -> Iterator[bytes]:
        """The deltas and, after the reasoning, one for each field and for each block of the content."""
        at = 1 + len(list(pieces(self._answer.reasoning if self._thinking else None, self._answer.piece)))
        yield from deltas[:at]
        for name, value in self._fields.items():
            for each in [[block] for block in value] if name == "content" else [value]:
                yield encode_json({name: each})
        yield from deltas[at:]

    def _usage(self) -> dict[str, Any]:
        message, prompt = self._message(), self._prompt
        reasoning = _tokens(message.get("reasoning_content", "").encode("utf-8", "replace"))
        content = _tokens(str(message["content"] or "").encode("utf-8", "replace"))
        calls = _tokens(encode_json(message["tool_calls"])) if "tool_calls" in message else 0
        completion = reasoning + content + calls
        return {
            "prompt_tokens": prompt.tokens, "completion_tokens": completion,
            "total_tokens": prompt.tokens + completion, "prompt_tokens_details": {"cached_tokens": prompt.hit},
            "completion_tokens_details": {"reasoning_tokens": reasoning}, "prompt_cache_hit_tokens": prompt.hit,
            "prompt_cache_miss_tokens": prompt.tokens - prompt.hit,
        }  # fmt: skip


def model_entry(name: str) -> dict[str, Any]:
    modalities = ["text", "image"] if name in VISION_MODELS else ["text"]
    return {
        "id": name,
        "object": "model",
        "owned_by": "deepseek",
        "name": name,
        "context_window": 1048576,
        "max_output_tokens": 393216,
        "input_modalities": modalities,
        "output_modalities": ["text"],
        "effort": {"supported_levels": ["low", "high", "max"], "default_level": "high"},
        # V4.1 alone is known to take system messages in the middle of a chat.
        "api_capabilities": {"anthropic_messages": {"system_prompt_update": "in-history"}} if modalities[1:] else {},
    }


# The benchmark plays the same few answers thousands of times and must measure the proxy, not this.
@lru_cache(maxsize=16)
def _deltas(answer: Answer, thinking: bool) -> tuple[bytes, ...]:
    # Without thinking, every delta but the last has the role (reference of September 2026).
    silent = {"reasoning_content": None} if thinking else {"role": "assistant"}
    first = {"content": None, "reasoning_content": ""} if thinking else {"content": ""}
    deltas: list[dict[str, Any]] = [{"role": "assistant", **first}]
    for piece in pieces(answer.reasoning if thinking else None, answer.piece):
        deltas.append({"content": None, "reasoning_content": piece})
    for piece in pieces(answer.content, answer.piece):
        deltas.append({"content": piece, **silent})
    for index, call in enumerate(answer.calls):
        deltas.append({"tool_calls": [{"index": index, **_call(call, "")}]})
        for piece in pieces(call.arguments, answer.piece):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    deltas.append({"content": "", **(silent if thinking else {"role": None})})
    return tuple(encode_json(delta) for delta in deltas)


def pieces(text: str | None, size: int) -> Iterator[str]:
    text = text or ""
    return (text[at : at + size] for at in range(0, len(text), size))


def _call(call: Call, arguments: str) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _tokens(data: bytes) -> int:
    return -(-len(data) // 4)
