"""The keys that identify an assistant turn, so that its reasoning is found when the client sends the turn again.

A turn is identified by its content and all before it. Clients change histories, though (system prompts, tools, older
messages), so a turn has fallback keys, each still specific enough to identify this turn of this caller:

    exact     the message and the whole history before it
    call      one of its calls: a random id, the name and the arguments
    result    the message, and the random id of a tool result that it answers
    near      the message and what came since the answer before the last question, without system prompts: in
              A1 U2 A2 T A3, the key of A3 is made of A1 U2 A2 T A3, whatever came before A1
    squeezed  the reasoning, text and calls without white space, however the client divides them (see echoes)

Rule: recording and looking up call the same function, `_HashChains.add`. No key is made of a tool's name, of "the same
question", or of an id like call_0 alone: all of these recur. This file knows no store.

The digest of a message is SHA-256 over fields preceded by their lengths: no two different messages have the same bytes.
Reasoning never takes part: it is what we look up. Notices and every thinking block are stripped first (by functions of
`thinking_blocks`), while `restore` later strips only blocks that show the turn's reasoning. Three differences are
ignored, because clients make them and they change nothing for the model: outer white space of an assistant's text,
absent / null / empty content, the spacing and key order of call arguments. Unicode stays as it is.
"""

import functools
import hashlib
import json
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from deepseek_cursor_proxy.chat_memory import NO_CHAT, Chat, Stage
from deepseek_cursor_proxy.conversation import UNNAMED, ChatName, Memo, Message, ToolCall
from deepseek_cursor_proxy.deepseek import server_tools
from deepseek_cursor_proxy.json_codec import canonical_json
from deepseek_cursor_proxy.reasoning import thinking_blocks

# Part of every digest: a change of the canonical form must change it, so that old rows are missed and not mistaken.
_VERSION = b"deepseek-cursor-proxy identity 2"

# DeepSeek's own ids, and the ids of others that are as long and as random; call_0 or toolu_17 prove nothing.
_DEEPSEEK_ID = re.compile(r"call_[0-9]{2}_[A-Za-z0-9]{20,}")
_RANDOM_PART = re.compile(r"(?:.*[_-])?([A-Za-z0-9]{20,})", re.DOTALL)
_UUID = re.compile(r"(?:.*[_-])?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.DOTALL)
_FEWEST_DIFFERENT_CHARACTERS = 8

# A near key begins at an answer only if that is this long: "Done." recurs. At a shorter one it begins at an earlier
# answer, or at the first question.
_FEWEST_NEAR_BYTES = 20

# Bytes of a digest in an outline: they are compared within one chat only, where eight do not collide.
_SHORT = 8

# The memory of a message's keys, digests and outline.
_BYTES_PER_MESSAGE = 600


# Ten chats of 200 tool turns, which are one megabyte each.
_MOST_BYTES_KNOWN = 16 * 1024 * 1024
_BYTES_PER_DIGEST = 200


class MessageDigest(NamedTuple):
    """The digest, the bytes of text and arguments in the message, and the thinking blocks that were stripped."""

    digest: bytes
    size: int
    # Shared between requests: never changed.
    blocks: list[thinking_blocks.Block]


@dataclass(eq=False)
class TurnKeys:
    """The keys of one assistant turn; those of calls and results are computed when they are first needed."""

    exact: bytes
    near: bytes
    _namespace: bytes
    # The digest of the message, its calls, and the ids of the tool results before it.
    _own: bytes
    _calls: tuple[ToolCall, ...]
    _result_ids: tuple[str, ...]

    @functools.cached_property
    def call(self) -> tuple[bytes, ...]:
        return tuple(
            [
                digest(self._namespace, b"call", text_bytes(call.id), text_bytes(call.name), arguments(call))
                for call in self._calls
                if is_unique_id(call.id)
            ]
        )

    @functools.cached_property
    def result(self) -> tuple[bytes, ...]:
        unique_ids = [result_id for result_id in self._result_ids if is_unique_id(result_id)]
        return tuple([digest(self._namespace, b"result", text_bytes(result_id), self._own) for result_id in unique_ids])

    def record_keys(self) -> tuple[bytes, ...]:
        """All keys under which to record the turn, except squeezed keys."""
        # Without empty properties: reading a cached property costs more than a digest.
        calls, results = self.call if self._calls else (), self.result if self._result_ids else ()
        return (self.exact, *calls, *results, self.near)

    def by_proof(self, proof: str) -> tuple[bytes, ...]:
        """The keys of one of PROOFS."""
        keys: bytes | tuple[bytes, ...] = getattr(self, proof)
        return (keys,) if isinstance(keys, bytes) else keys

    def squeezed_key(self, squeezed: str, lead: str = "") -> bytes:
        """The key of a turn by its reasoning and text without white space; `lead` is white space before the text."""
        # With their ids: another turn may have called the same after the same text.
        calls = [
            field for call in self._calls for field in (text_bytes(call.id), text_bytes(call.name), arguments(call))
        ]
        return digest(self._namespace, b"words", text_bytes(squeezed), text_bytes(lead), *calls)


# The kinds of key, strongest first, as traces name them.
PROOFS = ("exact", "call", "result", "near")


class MessageOutline(NamedTuple):
    """A message as it is compared with that of another request of its chat."""

    role: str
    digest: bytes


class History(NamedTuple):
    """The keys of every assistant in a history (None for other messages), and the chains that an answer continues."""

    keys: tuple[TurnKeys | None, ...]
    # One per message, independent of the messages before it.
    outlines: tuple[MessageOutline, ...]
    # The thinking blocks in each message; they take no part in its digest.
    blocks: tuple[list[thinking_blocks.Block], ...]
    # The digest of the chat; chats of a client that begin with the same question share it, unless it sends their ids.
    conversation: bytes
    chains: "_HashChains"

    def answer_keys(self, answer: Message) -> TurnKeys:
        """The keys to record the answer to this history under."""
        keys = self.chains.copy().add(answer, digest_message(answer))
        assert keys is not None
        return keys


_IDENTIFY: Stage[Message, History] = Stage("identify")


@functools.lru_cache(64)
def namespace(base_url: str, credential: str) -> bytes:
    """The namespace of one caller, part of all its digests: another API key or upstream has another one."""
    return digest(_VERSION, base_url.encode(), credential.encode())


def details_key(namespace: bytes, reasoning: str) -> bytes:
    """The key of the details that came with a reasoning."""
    return digest(namespace, b"details", text_bytes(reasoning))


def identify(
    namespace: bytes, messages: Sequence[Message], name: ChatName = UNNAMED, memory: Chat = NO_CHAT
) -> History:
    """Compute the keys of a history, in one pass over the messages after those of a known one.

    The name of the chat tells chats apart; no key depends on it.
    """
    lookup = memory.look_up(_IDENTIFY, messages, namespace)
    start = lookup.result or History((), (), (), b"", _HashChains(namespace))
    chains = start.chains.copy()
    keys, outlines, blocks = list(start.keys), list(start.outlines), list(start.blocks)
    for message in messages[lookup.count :]:
        own = digest_message(message)
        outlines.append(MessageOutline(message.role, own.digest[:_SHORT]))
        blocks.append(own.blocks)
        keys.append(chains.add(message, own))
    chat = _chat_digest(namespace, name, b"" if name.id else chains.opening)
    history = History(tuple(keys), tuple(outlines), tuple(blocks), chat, chains)
    lookup.store(history, _BYTES_PER_MESSAGE * len(messages))
    return history


@functools.lru_cache(256)
def _chat_digest(namespace: bytes, name: ChatName, opening: bytes) -> bytes:
    return digest(namespace, b"chat", *map(text_bytes, name), opening)


class _HashChains:
    """The hash chains over the messages of a history so far."""

    def __init__(self, namespace: bytes) -> None:
        self._namespace = namespace
        self.exact = namespace
        self._near = self._near_root = digest(namespace, b"near")
        # The digest of the first question: system prompts are rewritten in mid-chat, and this stays.
        self.opening = b""
        self._last_answer: MessageDigest | None = None
        # The ids of the tool results since the last other message.
        self._result_ids: list[str] = []
        self._is_after_user = False

    def copy(self) -> "_HashChains":
        other = object.__new__(_HashChains)
        other.__dict__.update(self.__dict__)
        other._result_ids = self._result_ids.copy()
        return other

    def add(self, message: Message, own: MessageDigest) -> TurnKeys | None:
        """Add one message to the chains. Returns its keys if it is an assistant's."""
        role, answer = message.role, self._last_answer
        # Each link is made of two digests of fixed length: nothing to delimit.
        self.exact = hashlib.sha256(self.exact + own.digest).digest()
        if role == "system":
            # Clients rewrite and insert prompts.
            return None
        self.opening = self.opening or own.digest
        if role == "user" and not self._is_after_user and answer is not None and answer.size >= _FEWEST_NEAR_BYTES:
            self._near = hashlib.sha256(self._near_root + answer.digest).digest()
        self._is_after_user = role == "user"
        self._near = hashlib.sha256(self._near + own.digest).digest()
        if role == "tool":
            self._result_ids.append(message.tool_call_id or "")
            return None
        result_ids, self._result_ids = tuple(self._result_ids), []
        if role != "assistant":
            return None
        self._last_answer = own
        return TurnKeys(self.exact, self._near, self._namespace, own.digest, message.tool_calls, result_ids)


def is_unique_id(call_id: str) -> bool:
    """Whether an id is random enough that no other call has it."""
    if _DEEPSEEK_ID.fullmatch(call_id) or _UUID.fullmatch(call_id):
        return True
    part = _RANDOM_PART.fullmatch(call_id)
    # Words in a row are long but not random, and so are numbers; letters and digits mixed are.
    if part is None or part[1].isdigit() or part[1].isalpha():
        return False
    return len(set(part[1])) >= _FEWEST_DIFFERENT_CHARACTERS


def _memory(message: Message, own: MessageDigest) -> int:
    return message.byte_size + _BYTES_PER_DIGEST + sum(_BYTES_PER_DIGEST + len(block.reasoning) for block in own.blocks)


# Hashing a message costs a tenth of digesting it: at 200 tool turns 0.9 instead of 7 ms a request.
_known: Memo[Message, MessageDigest] = Memo(_MOST_BYTES_KNOWN, _memory)


def digest_message(message: Message) -> MessageDigest:
    """The digest of a message; memoized, because most of a chat was there a request ago."""
    if not isinstance(message.content, str):
        # Parts have no hash.
        return _compute(message)
    if message.reasoning is not None:
        # An answer is recorded with its reasoning, and comes back without.
        message = message._replace(reasoning=None)
    own = _known.get(message)
    if own is None:
        own = _compute(message)
        _known.put(message, own)
    return own


def _compute(message: Message) -> MessageDigest:
    text, blocks = message.content, list[thinking_blocks.Block]()
    if not isinstance(text, str) and not all(part["type"] == "text" for part in text):
        # Images and files as the client sent them: two pictures are two histories.
        content = canonical_json(text).encode()
        fields = [text_bytes(message.role), b"parts", content]
    else:
        if not isinstance(text, str):
            # The other APIs send the same as one text.
            text = "\n".join(part["text"] for part in text)
        elif message.role == "assistant" and "<" in text:
            blocks = thinking_blocks.find_blocks(text)
        if message.role == "assistant":
            text = thinking_blocks.strip_display(text)
        content = text_bytes(text)
        fields = [text_bytes(message.role), b"text", content]
    size = len(content)
    for call in message.tool_calls:
        call_arguments = arguments(call)
        fields += (b"call", text_bytes(call.id), text_bytes(call.name), call_arguments)
        size += len(call_arguments)
    if message.tool_call_id is not None:
        fields += (b"answers", text_bytes(message.tool_call_id))
    if message.name is not None:
        fields += (b"name", text_bytes(message.name))
    if message.server_items is not None and (kinds := server_tools.item_kinds(message.server_items)):
        # Their kinds alone: some clients drop ids and parts of a search when they send it back.
        fields += (b"server", *map(text_bytes, kinds))
    return MessageDigest(digest(*fields), size, blocks)


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
