"""The keys that identify an assistant turn, so that its reasoning is found when the client sends the turn again.

A turn is identified by its content and all before it. Clients change histories, though (system prompts, tools, older
messages), so a turn has fallback keys, each still specific enough to identify this turn of this caller:

    exact     the message and the whole history before it
    call      one of its calls: a random id, the name and the arguments
    result    the message, and the random id of a tool result that it answers
    near      the message and what came since the answer before the last question, without system prompts: in
              A1 U2 A2 T A3, the key of A3 is made of A1 U2 A2 T A3, whatever came before A1
    squeezed  the reasoning, text and calls without white space, however the client divides them (see echoes)

Rule: recording and looking up call the same function, `_HashChains.answer_keys`. No key is made of a tool's name, of
"the same question", or of an id like call_0 alone: all of these recur. This file knows no store.

The digest of a message is SHA-256 over fields preceded by their lengths: no two different messages have the same bytes.
Reasoning never takes part: it is what we look up. Notices and every thinking block are stripped first (by functions of
`thinking_blocks`), while `restore` later strips only blocks that show the turn's reasoning. Three differences are
ignored, because clients make them and they change nothing for the model: outer white space of an assistant's text,
absent / null / empty content, the spacing and key order of call arguments. Unicode stays as it is.
"""

import functools
import json
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from deepseek_cursor_proxy.chat_memory import NO_CHAT, Chat, Lookup, Stage
from deepseek_cursor_proxy.conversation import UNNAMED, ChatName, Memo, Message, ToolCall, count_prompts
from deepseek_cursor_proxy.deepseek import server_tools
from deepseek_cursor_proxy.json_codec import LONG_TEXT, canonical_json
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
    # The id, the name and the arguments of each call, as digests have them.
    calls: tuple[tuple[bytes, ...], ...]
    outline: "MessageOutline"


@dataclass(eq=False)
class TurnKeys:
    """The keys of one assistant turn; those of calls and results are computed when they are first needed."""

    exact: bytes
    near: bytes
    _namespace: bytes
    # The message, its calls, and the ids of the tool results before it.
    _own: MessageDigest
    _calls: tuple[ToolCall, ...]
    _result_ids: tuple[str, ...]

    @functools.cached_property
    def call(self) -> tuple[bytes, ...]:
        return tuple(
            [
                digest(self._namespace, b"call", *fields)
                for call, fields in zip(self._calls, self._own.calls, strict=True)
                if is_unique_id(call.id)
            ]
        )

    @functools.cached_property
    def result(self) -> tuple[bytes, ...]:
        unique_ids = [result_id for result_id in self._result_ids if is_unique_id(result_id)]
        own = self._own.digest
        return tuple([digest(self._namespace, b"result", text_bytes(result_id), own) for result_id in unique_ids])

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
        calls = [field for fields in self._own.calls for field in fields]
        return digest(self._namespace, b"words", text_bytes(squeezed), text_bytes(lead), *calls)


# The kinds of key, strongest first, as traces name them.
PROOFS = ("exact", "call", "result", "near")


class MessageOutline(NamedTuple):
    """A message as it is compared with that of another request of its chat."""

    role: str
    digest: bytes


_Blocks = list[thinking_blocks.Block]


class History:
    """The keys of every assistant in a history (None for other messages), and the chains that an answer continues.

    No key depends on the messages after the last assistant: they are digested when they are first needed, which is
    after the call. Used by one thread at a time; complete, it never changes.
    """

    def __init__(
        self, namespace: bytes, messages: Sequence[Message], name: ChatName = UNNAMED, memory: Chat = NO_CHAT
    ) -> None:
        """Digest the messages after those of a known history. The name tells chats apart; no key depends on it."""
        lookup = memory.look_up(_IDENTIFY, messages, namespace)
        known, start, end = lookup.result, lookup.count, len(messages)
        while end > start and messages[end - 1].role != "assistant":
            end -= 1
        self._chains: _HashChains = _HashChains(namespace) if known is None else known._chains.copy()
        if end == start and not self._chains.opening:
            # Up to the first question, which names the chat.
            end += count_prompts(messages[end:]) + 1
        # Until it is complete.
        self._lookup: Lookup[Message, History] | None = lookup
        self._rest = rest = messages[end:]
        self._size = lookup.size
        self._outlines: list[MessageOutline] = [] if known is None else [*known.outlines]
        keys, blocks = self._add(messages[start:end])
        if known is not None:
            keys, blocks = [*known.keys, *keys], [*known.blocks, *blocks]
        # One per message, as `outlines` is.
        self.keys: tuple[TurnKeys | None, ...] = (*keys, *[None] * len(rest))
        # The thinking blocks in each message; they take no part in its digest.
        self.blocks: tuple[_Blocks, ...] = (*blocks, *[[]] * len(rest))
        # The digest of the chat: chats that begin with the same question share it, unless the client sends their ids.
        self.conversation = _chat_digest(namespace, name, b"" if name.id else self._chains.opening)

    @property
    def outlines(self) -> Sequence[MessageOutline]:
        """One per message, independent of the messages before it."""
        return self._completed()._outlines

    def answer_keys(self, answer: Message) -> TurnKeys:
        """The keys to record the answer to this history under."""
        return self._completed()._chains.answer_keys(answer, digest_message(answer))

    def _completed(self) -> "History":
        lookup, self._lookup = self._lookup, None
        if lookup is not None:
            self._add(self._rest)
            self._rest = ()
            # Last: another choice of the same request may find it from now on.
            lookup.store(self, self._size)
        return self

    def _add(self, messages: Sequence[Message]) -> tuple[list[TurnKeys | None], list[_Blocks]]:
        keys, blocks, size = [], [], 0
        for message in messages:
            own = digest_message(message)
            # The keys hold the arguments of the calls.
            size += _BYTES_PER_MESSAGE + (sum([len(field) for each in own.calls for field in each]) if own.calls else 0)
            self._outlines.append(own.outline)
            blocks.append(own.blocks)
            keys.append(self._chains.add(message, own))
        self._size += size
        return keys, blocks


_IDENTIFY: Stage[Message, History] = Stage("identify")


@functools.lru_cache(64)
def namespace(base_url: str, credential: str) -> bytes:
    """The namespace of one caller, part of all its digests: another API key or upstream has another one."""
    return digest(_VERSION, base_url.encode(), credential.encode())


def details_key(namespace: bytes, reasoning: str) -> bytes:
    """The key of the details that came with a reasoning."""
    return digest(namespace, b"details", text_bytes(reasoning))


@functools.lru_cache(256)
def _chat_digest(namespace: bytes, name: ChatName, opening: bytes) -> bytes:
    return digest(namespace, b"chat", *map(text_bytes, name), opening)


class _HashChains:
    """The hash chains over the messages of a history so far."""

    def __init__(self, namespace: bytes) -> None:
        self._namespace = self.exact = namespace
        self._near = self._near_root = _near_root(namespace)
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
        if role == "system":
            # Clients rewrite and insert prompts.
            self.exact = sha256(self.exact + own.digest).digest()
            return None
        self.opening = self.opening or own.digest
        if role == "assistant":
            keys = self.answer_keys(message, own)
            self.exact, self._near, self._last_answer = keys.exact, keys.near, own
            self._result_ids, self._is_after_user = [], False
            return keys
        if role == "user" and not self._is_after_user and answer is not None and answer.size >= _FEWEST_NEAR_BYTES:
            self._near = sha256(self._near_root + answer.digest).digest()
        self.exact = sha256(self.exact + own.digest).digest()
        self._near = sha256(self._near + own.digest).digest()
        self._is_after_user = role == "user"
        if role == "tool":
            self._result_ids.append(message.tool_call_id or "")
        else:
            self._result_ids = []
        return None

    def answer_keys(self, answer: Message, own: MessageDigest) -> TurnKeys:
        """The keys of the answer that comes next."""
        # Each link is made of two digests of fixed length: nothing to delimit.
        exact, near = sha256(self.exact + own.digest).digest(), sha256(self._near + own.digest).digest()
        return TurnKeys(exact, near, self._namespace, own, answer.tool_calls, tuple(self._result_ids))


@functools.lru_cache(64)
def _near_root(namespace: bytes) -> bytes:
    return digest(namespace, b"near")


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
    parts = [len(block.reasoning) for block in own.blocks] + [sum(map(len, fields)) for fields in own.calls]
    return message.byte_size + _BYTES_PER_DIGEST * (1 + len(parts)) + sum(parts)


# Hashing a message costs a tenth of digesting it: at 200 tool turns 0.9 instead of 7 ms a request.
_known: Memo[Message, MessageDigest] = Memo(_MOST_BYTES_KNOWN, _memory)


def digest_message(message: Message) -> MessageDigest:
    """The digest of a message; memoized, because most of a chat was there a request ago."""
    if not isinstance(message.content, str) or len(message.content) > LONG_TEXT:
        # Parts have no hash. That of a long text holds the interpreter, and kept, the text would stay after its chat.
        return _compute(message)
    if message.reasoning is not None:
        # An answer is recorded with its reasoning, and comes back without.
        message = Message(message.role, message.content, None, *message[3:])
    own = _known.get(message)
    if own is None:
        own = _compute(message)
        _known.put(message, own)
    return own


def _compute(message: Message) -> MessageDigest:
    text = message.content
    blocks: list[thinking_blocks.Block] = []
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
            text = thinking_blocks.strip_display(text, blocks or None)
        content = text_bytes(text)
        fields = [text_bytes(message.role), b"text", content]
    size = len(content)
    calls = tuple([(text_bytes(call.id), text_bytes(call.name), arguments(call)) for call in message.tool_calls])
    for call_fields in calls:
        fields += (b"call", *call_fields)
        size += len(call_fields[-1])
    if message.tool_call_id is not None:
        fields += (b"answers", text_bytes(message.tool_call_id))
    if message.name is not None:
        fields += (b"name", text_bytes(message.name))
    if message.server_items is not None and (kinds := server_tools.item_kinds(message.server_items)):
        # Their kinds alone: some clients drop ids and parts of a search when they send it back.
        fields += (b"server", *map(text_bytes, kinds))
    own = digest(*fields)
    return MessageDigest(own, size, blocks, calls, MessageOutline(message.role, own[:_SHORT]))


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
    return sha256(b"".join((lengths, *fields))).digest()


@lru_cache(64)
def _pack_numbers(count: int) -> Callable[..., bytes]:
    return struct.Struct(f">{count}Q").pack
