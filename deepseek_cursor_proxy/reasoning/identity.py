"""Who a message is.

A message is identified by its own canonical content and the identity of everything before it, so equal histories
share keys and nothing else does. Each link is SHA-256 over the parent's digest and the message's fields, each field
preceded by its length: no two different messages have the same bytes. Reasoning never takes part: it is what we look
up. Our own display and notice are read away first, so a history is the same with or without them.

Rule: recording and looking up call the same function, `_keys`. This file knows no store.

What is folded, because clients do it and it changes nothing for the model: outer white space of an assistant's text,
absent / null / empty content, the spacing and key order of call arguments. Nothing else is; no Unicode is normalised.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from deepseek_cursor_proxy.conversation import Message, ToolCall
from deepseek_cursor_proxy.reasoning import display, recovery

# Part of every digest: a change of the canonical form must change it, so that old rows are missed and not mistaken.
_VERSION = b"deepseek-cursor-proxy identity 1"

_canonical_json = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class History:
    """Everybody in a history: the keys each assistant may be found under, strongest first, and where it ends."""

    keys: tuple[tuple[bytes, ...], ...]
    tail: bytes

    def all_keys(self) -> list[bytes]:
        return [key for keys in self.keys for key in keys]


def namespace(base_url: str, credential: str) -> bytes:
    """The root of all identities of one caller: nobody with another key or upstream can share a digest with it."""
    return _digest(_VERSION, base_url.encode(), credential.encode())


def identify(namespace: bytes, messages: Sequence[Message]) -> History:
    """Identify every message of a history, in one pass over its bytes."""
    keys: list[tuple[bytes, ...]] = []
    parent = namespace
    for message in messages:
        link = _link(parent, message)
        keys.append(_keys(link) if message.role == "assistant" else ())
        parent = link
    return History(tuple(keys), parent)


def answer_keys(tail: bytes, answer: Message) -> tuple[bytes, ...]:
    """The keys to record an answer under that follows the history ending in `tail`."""
    return _keys(_link(tail, answer))


def _keys(link: bytes) -> tuple[bytes, ...]:
    # One key so far, and the strongest there can be: this very message after exactly this history.
    return (link,)


def _link(parent: bytes, message: Message) -> bytes:
    return _digest(parent, *_fields(message))


def _fields(message: Message) -> list[bytes]:
    fields = [message.role.encode(errors="surrogatepass"), *_content(message)]
    for call in message.tool_calls:
        fields += (b"call", _text(call.id), _text(call.name), _arguments(call))
    if message.tool_call_id is not None:
        fields += (b"answers", _text(message.tool_call_id))
    if message.name is not None:
        fields += (b"name", _text(message.name))
    return fields


def _content(message: Message) -> tuple[bytes, bytes]:
    if not isinstance(message.content, str):
        # Images and files as they were sent: two pictures are two histories.
        return b"parts", _canonical_json(message.content).encode()
    text = message.content
    if message.role == "assistant":
        text = _spoken(text).strip()
    return b"text", _text(text)


def _spoken(text: str) -> str:
    """An assistant's text without the blocks and the notice that we may have put in front of it."""
    start = 0
    while block := display.leading_block(text, start):
        start = block.end
    return text[recovery.notice_end(text, start) :]


def _arguments(call: ToolCall) -> bytes:
    # Half of the measured clients parse the arguments and serialise them again in their own way.
    try:
        return _canonical_json(json.loads(call.arguments)).encode()
    except (ValueError, RecursionError):
        return _text(call.arguments)


def _text(text: str) -> bytes:
    # A lone surrogate is legal in JSON and has no UTF-8 form; it still has to be told apart from its neighbours.
    return text.encode("utf-8", "surrogatepass")


def _digest(*fields: bytes) -> bytes:
    parts: list[bytes] = []
    for each in fields:
        parts += (len(each).to_bytes(8, "big"), each)
    return hashlib.sha256(b"".join(parts)).digest()
