"""The digest of one message, independent of the messages before it, and the thinking blocks found in its text.

The digest is SHA-256 over fields preceded by their lengths: no two different messages have the same bytes.
Reasoning never takes part: it is what we look up. Notices and every thinking block are stripped first (by functions of
`thinking_blocks`), while `restore` later strips only blocks that show the turn's reasoning.

Three differences are ignored, because clients make them and they change nothing for the model: outer white space of
an assistant's text, absent / null / empty content, the spacing and key order of call arguments. Unicode stays as it is.
"""

import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from deepseek_cursor_proxy.conversation import Message, ToolCall
from deepseek_cursor_proxy.conversation.memo import Memo
from deepseek_cursor_proxy.deepseek.tools import server_tools
from deepseek_cursor_proxy.json_codec import canonical_json
from deepseek_cursor_proxy.reasoning import notices, thinking_blocks

# Ten chats of 200 tool turns, which are one megabyte each.
_MOST_BYTES_KNOWN = 16 * 1024 * 1024
_BYTES_PER_DIGEST = 200


class MessageDigest(NamedTuple):
    """The digest, the bytes of text and arguments in the message, and the thinking blocks that were stripped."""

    digest: bytes
    size: int
    # Shared between requests: never changed.
    blocks: list[thinking_blocks.Block]


def _memory(message: Message, own: MessageDigest) -> int:
    return message.byte_size + _BYTES_PER_DIGEST + sum(_BYTES_PER_DIGEST + len(block.reasoning) for block in own.blocks)


# Hashing a message costs a tenth of digesting it: at 200 tool turns 0.9 instead of 7 ms a request.
_known: Memo[Message, MessageDigest] = Memo(_MOST_BYTES_KNOWN, _memory)


def digest_message(message: Message) -> MessageDigest:
    """The digest of a message; memoized, because most of a chat was there a request ago."""
    if not isinstance(message.content, str):
        # Parts have no hash.
        return _compute(message)
    own = _known.get(message)
    if own is None:
        own = _compute(message)
        _known.keep(message, own)
    return own


def _compute(message: Message) -> MessageDigest:
    blocks = _blocks(message)
    fields = _fields(message, blocks)
    # The text and the arguments of the calls: see _fields for their positions.
    return MessageDigest(digest(*fields), len(fields[2]) + sum(map(len, fields[6::4])), blocks)


def _blocks(message: Message) -> list[thinking_blocks.Block]:
    if message.role != "assistant" or not isinstance(message.content, str):
        return []
    if "<" not in message.content and "&lt;" not in message.content:
        return []
    return thinking_blocks.find_blocks(message.content)


def _fields(message: Message, blocks: Sequence[thinking_blocks.Block]) -> list[bytes]:
    fields = [message.role.encode(errors="surrogatepass"), *_content(message, blocks)]
    for call in message.tool_calls:
        fields += (b"call", text_bytes(call.id), text_bytes(call.name), arguments(call))
    if message.tool_call_id is not None:
        fields += (b"answers", text_bytes(message.tool_call_id))
    if message.name is not None:
        fields += (b"name", text_bytes(message.name))
    if message.server_items is not None and (kinds := server_tools.item_kinds(message.server_items)):
        # Their kinds alone: some clients drop ids and parts of a search when they send it back.
        fields += (b"server", *map(text_bytes, kinds))
    return fields


def _content(message: Message, blocks: Sequence[thinking_blocks.Block]) -> tuple[bytes, bytes]:
    text = message.content
    if not isinstance(text, str):
        if not all(part["type"] == "text" for part in text):
            # Images and files as the client sent them: two pictures are two histories.
            return b"parts", canonical_json(text).encode()
        # The other APIs send the same as one text.
        text = "\n".join(part["text"] for part in text)
    if message.role == "assistant":
        text = notices.strip(thinking_blocks.strip_blocks(text, blocks)).strip()
    return b"text", text_bytes(text)


def arguments(call: ToolCall) -> bytes:
    """The arguments of a call as canonical JSON: half of the measured clients parse and serialise them again."""
    try:
        value = _decode_arguments(call.arguments.strip() or "{}")
        if isinstance(value, dict):
            return canonical_json(value).encode()
    except (ValueError, OverflowError, RecursionError):
        pass
    # Free text of a custom tool, which is an object upstream; the request it comes back in may not declare the tool.
    return canonical_json({"input": call.arguments}).encode()


def _number(text: str) -> float | int:
    # JavaScript writes 1.0 as 1 and 1e3 as 1000; up to 2^53 these are the same numbers.
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _integer(text: str) -> float | int:
    # Beyond 2^53 JavaScript rounds.
    number = int(text)
    return number if abs(number) < 2**53 else float(number)


_decode_arguments = json.JSONDecoder(parse_float=_number, parse_int=_integer).decode


def text_bytes(text: str) -> bytes:
    # A lone surrogate is legal in JSON and has no UTF-8 form; "surrogatepass" keeps different ones different.
    return text.encode("utf-8", "surrogatepass")


def digest(*fields: bytes) -> bytes:
    # How many, how long each, then all of them: no two lists of fields have the same bytes.
    lengths = _pack_numbers(len(fields) + 1)(len(fields), *map(len, fields))
    return hashlib.sha256(lengths + b"".join(fields)).digest()


@lru_cache(64)
def _pack_numbers(count: int) -> Callable[..., bytes]:
    return struct.Struct(f">{count}Q").pack
