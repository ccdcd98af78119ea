"""Who a message is, and what proves it.

A message is identified by its own canonical content and the identity of everything before it, so equal histories
share keys and nothing else does. Clients change histories, though: system prompts, tool sets, older messages. So a
turn has weaker keys as well, each of which still proves that it is the same turn of the same caller:

    exact    this message after exactly this history
    linked   the same, of a turn that a weaker key below has found there before
    sent     the same, by what the chat went on with: under it stands what was sent there, and goes on being sent
    call     one of its calls: an id nobody could have reused, with the same name and arguments
    result   the answer to a result whose id nobody could have reused, with the same text
    talk     this message after the same conversation, whatever the system messages say (but as many in front)
    place    this message after the same round of talk: from the answer before the last question on

What a message says by itself, and what of it counts, is in said.

Rule: recording and looking up call the same function, `_Walk.step`. This file knows no store.

No key is made of a tool's name, of "the same question", or of an id like call_0 alone: all of these recur.
"""

import functools
import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from deepseek_cursor_proxy.conversation import Message, ToolCall
from deepseek_cursor_proxy.memo import Beginnings
from deepseek_cursor_proxy.reasoning import thinking_blocks
from deepseek_cursor_proxy.reasoning.message_digest import Said, arguments, digest, read, text_bytes

# Part of every digest: a change of the canonical form must change it, so that old rows are missed and not mistaken.
_VERSION = b"deepseek-cursor-proxy identity 1"

# DeepSeek's own ids, and the ids of others that are as long and as random; call_0 or toolu_17 prove nothing.
_DEEPSEEK_ID = re.compile(r"call_[0-9]{2}_[A-Za-z0-9]{20,}")
_RANDOM_PART = re.compile(r"(?:.*[_-])?([A-Za-z0-9]{20,})", re.DOTALL)
_UUID = re.compile(r"(?:.*[_-])?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.DOTALL)
_FEWEST_DIFFERENT_CHARACTERS = 8
# What base64url and nanoid make of randomness, behind words that providers put in front of it.
_URL_SAFE = re.compile(r"(?:(?:call|tool|toolu|fc|func|function|chatcmpl)[_-])*+([A-Za-z0-9_-]{20,})")
# Words, numbers and separators, as ids are made of that people or counters have written.
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_DIGIT_BEFORE_LETTER = re.compile(r"[0-9](?=[A-Za-z])")

# What the model said in a round before a turn must be this long before the round alone proves anything: "Done." recurs.
# The turn itself does not count: two agents that are told to go on read the same file with the same words.
_FEWEST_PLACE_BYTES = 20


# Of messages whose histories are remembered: some ten chats of 200 tool turns.
_MOST_BYTES_KNOWN = 16 * 1024 * 1024


class Keys:
    """What an assistant may be found under, strongest first; each counts only if it names one reasoning.

    The weaker ones are made when somebody asks for them: a chat that only grew is found by its exact keys alone.
    """

    KINDS = ("exact", "calls", "results", "talk", "place")

    def __init__(self, exact: bytes, evidence: "_Evidence") -> None:
        self.exact = exact
        self._evidence = evidence
        # Recorded under, never looked up by: the same without the name of the chat.
        self.also: tuple[bytes, ...] = ()

    @functools.cached_property
    def linked(self) -> tuple[bytes, ...]:
        # Never recorded under. Not the exact key itself: what is really said here one day is not to share it.
        return (digest(self.exact, b"linked"),)

    @functools.cached_property
    def calls(self) -> tuple[bytes, ...]:
        return self._evidence.call_keys()

    @functools.cached_property
    def results(self) -> tuple[bytes, ...]:
        return self._evidence.result_keys()

    @functools.cached_property
    def talk(self) -> tuple[bytes, ...]:
        return self._evidence.talk_keys()

    @property
    def place(self) -> tuple[bytes, ...]:
        return () if self._evidence.place is None else (self._evidence.place,)

    def weaker(self) -> tuple[bytes, ...]:
        return (*self.calls, *self.results, *self.talk, *self.place)

    def shown(self, text: str) -> bytes:
        """The key of a turn whose block shows this and no more, because the model thought on behind a call."""
        return digest(self._evidence.namespace, b"shown", self._evidence.own, text_bytes(text))

    def all(self) -> tuple[bytes, ...]:
        """To record under; nobody asks for these again, so none of them is kept here."""
        made = self._evidence
        return (self.exact, *made.call_keys(), *made.result_keys(), *made.talk_keys(), *self.place, *self.also)


class _Evidence(NamedTuple):
    """What the weaker keys of one assistant are made of."""

    namespace: bytes
    own: bytes
    calls: tuple[ToolCall, ...]
    results: tuple[str, ...]
    talk: bytes
    place: bytes | None

    def call_keys(self) -> tuple[bytes, ...]:
        return tuple(
            [
                digest(self.namespace, b"call", text_bytes(call.id), text_bytes(call.name), arguments(call))
                for call in self.calls
                if is_unique_id(call.id)
            ]
        )

    def result_keys(self) -> tuple[bytes, ...]:
        unique = [each for each in self.results if is_unique_id(each)]
        return tuple([digest(self.namespace, b"result", text_bytes(each), self.own) for each in unique])

    def talk_keys(self) -> tuple[bytes, ...]:
        return (digest(self.talk, b"talk key"),)


class History(NamedTuple):
    """Everybody in a history (None for all but assistants), and where an answer to it will stand."""

    keys: tuple[Keys | None, ...]
    # One per message: what it says, whatever stands before it.
    digests: tuple[bytes, ...]
    # The thinking blocks in each message, which have to be read away before it can be told who it is.
    blocks: tuple[list[thinking_blocks.Block], ...]
    # The chat it belongs to, as far as that can be told; chats that begin with the same words share it.
    conversation: bytes
    end: "_Walk"
    # For each assistant, the key of what was sent as its reasoning in this chat: what came next is part of it, so that
    # another chat with the same answer has another key. None for all others, and where nothing came next.
    sent: tuple[bytes | None, ...] = ()
    unnamed_end: "_Walk | None" = None

    @property
    def tail(self) -> bytes:
        """The digest of the whole history."""
        return self.end.exact

    def answer_keys(self, answer: Message) -> Keys:
        """The keys to record the answer to this history under."""
        said = read(answer)
        keys = self.end.copy().step(answer, said)
        assert keys is not None
        if self.unnamed_end is not None:
            unnamed = self.unnamed_end.copy().step(answer, said)
            assert unnamed is not None
            keys.also = (*unnamed.talk, *unnamed.place)
        return keys


def namespace(base_url: str, credential: str) -> bytes:
    """The root of all identities of one caller: nobody with another key or upstream can share a digest with it."""
    return digest(_VERSION, base_url.encode(), credential.encode())


def identify(namespace: bytes, messages: Sequence[Message], conversation: str | None = None) -> History:
    """Identify every message of a history, in one pass over its bytes, from where a known one goes on.

    A conversation id the client gives narrows what merely looks like the same talk; it never widens anything.
    """
    under = namespace, conversation
    count, known = _known.longest(messages, under)
    begun = known if known is not None else History((), (), (), b"", _Walk(namespace, conversation))
    walk = begun.end.copy()
    # Clients name the chat in one shape of request and not in another; without a name the turn is found as well.
    unnamed = (begun.unnamed_end or _Walk(namespace, None)).copy() if conversation else None
    said = [read(message) for message in messages[count:]]
    keys, sent = list(begun.keys), list(begun.sent)
    for message, each in zip(messages[count:], said, strict=True):
        keys.append(walk.step(message, each))
        if sent and keys[-2] is not None:
            sent[-1] = walk.sent_key()
        sent.append(None)
    if unnamed is not None:
        for message, each in zip(messages[count:], said, strict=True):
            unnamed.step(message, each)
    digests = (*begun.digests, *[each.own for each in said])
    history = History(
        tuple(keys),
        digests,
        (*begun.blocks, *[each.blocks for each in said]),
        _chat(namespace, conversation, messages, digests),
        walk,
        tuple(sent),
        unnamed,
    )
    _known.keep(tuple(messages), history, under)
    return history


def _chat(namespace: bytes, conversation: str | None, messages: Sequence[Message], digests: Sequence[bytes]) -> bytes:
    """The chat that a history belongs to, as far as that can be told."""
    if conversation:
        return digest(namespace, b"conversation", text_bytes(conversation))
    # System prompts are rewritten in mid-chat; the first question stays.
    asked = (own for own, message in zip(digests, messages, strict=True) if message.role != "system")
    return digest(namespace, b"opening", next(asked, b""))


class _Walk:
    """The state while walking through a history: the chains so far, and what was said last."""

    def __init__(self, namespace: bytes, conversation: str | None) -> None:
        self._namespace = namespace
        self._narrowed = digest(namespace, b"talk", text_bytes(conversation or ""))
        self.exact = namespace
        self._talk = self._narrowed
        self._prompts: int | None = 0
        # The chain of the current round; None in the first one, which has no answer before it to hold on to.
        self._place: bytes | None = None
        self._place_bytes = 0
        self._last_answer: tuple[bytes, int] | None = None
        self._results: list[str] = []
        self._is_asking = False

    def copy(self) -> "_Walk":
        twin = object.__new__(_Walk)
        twin.__dict__.update(self.__dict__)
        # Others go on from here as well.
        twin._results = self._results.copy()
        return twin

    def sent_key(self) -> bytes:
        """The key of what was sent for the message before the last one, in a chat that went on with the last one."""
        return hashlib.sha256(self.exact + self._narrowed + b"sent").digest()

    def step(self, message: Message, said: Said) -> Keys | None:
        """Take one message into the chains; the keys it has if it is an assistant."""
        own = said.own
        self.exact = _link(self.exact, own)
        if message.role == "system":
            self._take_system()
            return None
        self._prompts = None
        if message.role == "user" and not self._is_asking:
            self._begin_round()
        self._is_asking = message.role == "user"
        self._talk = _link(self._talk, own)
        self._place = None if self._place is None else _link(self._place, own)
        if message.role == "assistant":
            return self._assistant(message, own, said.size)
        if message.role == "tool":
            self._results.append(message.tool_call_id or "")
        else:
            self._results = []
        return None

    def _take_system(self) -> None:
        """Prompts are rewritten and reminders slipped in anywhere; only the exact key minds, but for one case."""
        if self._prompts is not None:
            self._prompts += 1
            if self._prompts > 1:
                # Which prompt it is may change, and whether there is one; [S, S, U] is another history than [S, U].
                self._talk = digest(self._talk, b"another prompt")

    def _begin_round(self) -> None:
        if self._last_answer is not None:
            answer, self._place_bytes = self._last_answer
            self._place = digest(self._narrowed, b"place", answer)

    def _assistant(self, message: Message, own: bytes, size: int) -> Keys:
        place = self._place if self._place_bytes >= _FEWEST_PLACE_BYTES else None
        self._place_bytes += size
        evidence = _Evidence(self._namespace, own, message.tool_calls, tuple(self._results), self._talk, place)
        keys = Keys(self.exact, evidence)
        self._last_answer = own, size
        self._results = []
        return keys


def is_unique_id(call_id: str) -> bool:
    """Whether nobody could have given this id to another call."""
    if _DEEPSEEK_ID.fullmatch(call_id) or _UUID.fullmatch(call_id):
        return True
    found = _RANDOM_PART.fullmatch(call_id)
    if found is None:
        safe = _URL_SAFE.fullmatch(call_id)
        return safe is not None and _is_random(safe.group(1))
    # Words in a row are long but not random, and so are numbers; letters and digits mixed are.
    if found.group(1).isdigit() or found.group(1).isalpha():
        return False
    return len(set(found.group(1))) >= _FEWEST_DIFFERENT_CHARACTERS


def _is_random(text: str) -> bool:
    """Whether url-safe characters look drawn by lot: few separators, and hardly a word or number longer than two.

    Of 20 and more that really are, one in forty is not taken for it; that turn is found by its exact key alone.
    """
    separators = text.count("-") + text.count("_")
    if separators > max(4, len(text) // 6) or len(set(text)) < _FEWEST_DIFFERENT_CHARACTERS + 2:
        return False
    longest = 3.0 if _DIGIT_BEFORE_LETTER.search(text) else 2.6
    return len(text) - separators <= longest * len(_WORDS.findall(text))


def _link(parent: bytes, own: bytes) -> bytes:
    # Two digests of fixed length: nothing to delimit.
    return hashlib.sha256(parent + own).digest()


_known: Beginnings[Message, History] = Beginnings(_MOST_BYTES_KNOWN, lambda message: message.memory)
