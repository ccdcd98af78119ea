"""Put back what the client stripped, and decide what to do about what nobody has.

The pure half of preparing a request: it is handed the identities of the history and whatever the store found under
them, and returns the request to send. Our own blocks and notices leave the text here, on the only way upstream.

An assistant's reasoning comes from the first of these that has it:
  1. CLIENT   a string in the request that is not blank
  2. STORE    this turn, remembered: by its exact key, else by a weaker one that proves it; also in place of a string
              that differs from it in white space only, because clients trim, split and join what they keep
  3. DISPLAY  the one thinking block at the start of its text, which only our display writes like that
  4. nobody   a filler where DeepSeek is content with one; in a tool loop the strategy decides
"""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from deepseek_cursor_proxy.conversation import ChatRequest, Message, is_blank, without_spaces
from deepseek_cursor_proxy.deepseek.history_repair import RepairedHistory, repair
from deepseek_cursor_proxy.deepseek.rules import FILLER, ReasoningNeed, can_see_images, reasoning_needs
from deepseek_cursor_proxy.errors import MissingReasoning
from deepseek_cursor_proxy.memo import Beginnings
from deepseek_cursor_proxy.reasoning import notices, thinking_blocks, transcript
from deepseek_cursor_proxy.reasoning.identity import History, Keys

# Of histories that were restored before, with their reasonings: some eight chats of 200 tool turns.
_MOST_BYTES_KNOWN = 16 * 1024 * 1024
_BYTES_PER_TURN = 1000

# How a turn may be proven, strongest first, and which of its keys do it.
_PROOFS = {
    "exact": "exact",
    "linked": "linked",
    "call": "calls",
    "result": "results",
    "talk": "talk",
    "place": "place",
}

# What the store found: for each key the texts recorded under it, newest first.
Found = Mapping[bytes, Sequence[str]]
Find = Callable[[Collection[bytes]], dict[bytes, list[str]]]


class Source(Enum):
    CLIENT = "client"
    STORE = "store"
    DISPLAY = "display"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Turn:
    """What became of one assistant message: how badly its reasoning was needed, and who had it."""

    index: int
    need: ReasoningNeed
    source: Source
    is_empty: bool
    has_notice: bool
    # Which kind of key found it, when the store did; or why no key could.
    proof: str = ""

    @property
    def is_lost(self) -> bool:
        return self.source is Source.NOBODY and self.need is ReasoningNeed.HARD

    @property
    def is_made_up(self) -> bool:
        """Whether DeepSeek is sent a filler in place of reasoning."""
        return self.need is not ReasoningNeed.NONE and (self.is_empty or self.source is Source.NOBODY)


class Link(NamedTuple):
    """This reasoning, which one key leads to, is what another key shall lead to as well.

    Without a known key it is stored for that; not, though, if the store knows one of the keys in `unless` by then.
    """

    known: bytes | None
    new: bytes
    reasoning: str
    unless: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Restoration:
    """The history with every reasoning somebody had and its tool calls in order; `turns` tells of each assistant."""

    repaired: RepairedHistory
    turns: tuple[Turn, ...]
    links: tuple[Link, ...] = ()

    @functools.cached_property
    def positions(self) -> Mapping[int, int]:
        """Where each assistant of the client's history stands in the repaired one; those that said nothing do not."""
        pairs = zip(self.repaired.origins, self.repaired.messages, strict=True)
        return {origin: at for at, (origin, message) in enumerate(pairs) if message.role == "assistant"}

    def is_carried(self, turn: Turn) -> bool:
        """Whether the next message goes on with the same turn, as clients write text and calls apart, and has it."""
        following = self._by_index.get(turn.index + 1)
        return following is not None and following.source is not Source.NOBODY

    @functools.cached_property
    def _by_index(self) -> Mapping[int, Turn]:
        return {turn.index: turn for turn in self.turns}

    def native(self, boundary: int) -> list[Turn]:
        """The turns that stand at or behind a place of the repaired history."""
        return [turn for turn in self.turns if self.positions.get(turn.index, -1) >= boundary]


class Prepared(NamedTuple):
    """A request ready to be sent, where to record its answer, and what was done to it on the way."""

    request: ChatRequest
    history: History
    turns: tuple[Turn, ...]
    # Turns that a weaker key found: remembered under one for exactly this place as well, they stay found, and no other
    # chat can make them ambiguous, so the prefix that DeepSeek has cached stays.
    links: tuple[Link, ...] = ()
    # What was done to the tool history, and how often.
    repairs: Mapping[str, int] = MappingProxyType({})
    transcribed: int = 0
    # Where the native part begins in the repaired history; 0 when all of it is native.
    boundary: int = 0
    notice: str = ""

    @property
    def filled(self) -> int:
        """How many turns got back a reasoning that the client had dropped."""
        found = (Source.STORE, Source.DISPLAY)
        return sum(turn.source in found and turn.need is not ReasoningNeed.NONE for turn in self.turns)

    @property
    def kept(self) -> int:
        """How many turns came with their reasoning."""
        return sum(turn.source is Source.CLIENT for turn in self.turns)

    @property
    def missing(self) -> int:
        """How many turns needed a reasoning that nobody had."""
        return sum(turn.source is Source.NOBODY and turn.need is not ReasoningNeed.NONE for turn in self.turns)

    @property
    def is_recovered(self) -> bool:
        return self.transcribed > 0


def look_up(request: ChatRequest, history: History, find: Find) -> Found:
    """What the store knows of a history: one query for a chat that only grew, more for turns that need other proofs."""
    turns = [(at, keys) for at, keys in enumerate(history.keys) if keys is not None]
    sent = [key for key in history.sent if key is not None]
    found = find([*sent, *(keys.exact for _, keys in turns[-1:])])
    unsure = [turn for turn in turns if not _is_settled(request, history, turn[0], found)]
    if not unsure:
        return found
    if exact := [keys.exact for _, keys in unsure if keys.exact not in found]:
        found |= find(exact)
    if weaker := [keys for _, keys in unsure if len(found.get(keys.exact, ())) != 1]:
        found |= find([key for keys in weaker for key in (*keys.linked, *keys.weaker())])
    if shown := [key for at, keys in unsure for key in _shown(keys, history.blocks[at], found)]:
        found |= find(shown)
    return found


def _is_settled(request: ChatRequest, history: History, at: int, found: Found) -> bool:
    """Whether it is known what was sent for a turn, and the client says nothing against it."""
    sent = found.get(history.sent[at] or b"")
    if sent is None:
        return False
    blocks, kept = history.blocks[at], request.messages[at].reasoning
    if kept is not None and not is_blank(kept):
        return kept in sent
    return not blocks or blocks[0].start > 0 or sent[0] in blocks[0].readings


def _shown(keys: Keys, blocks: Sequence[thinking_blocks.Block], found: Found) -> tuple[bytes, ...]:
    """The keys that tell whether the blocks of a turn show a part of its reasoning only; most show all of it."""
    known = found.get(keys.exact, ()) if blocks else ()
    if not known or any(text in blocks[0].readings for text in known):
        return ()
    return keys.shown("".join(block.reasoning for block in blocks)), keys.shown(blocks[0].reasoning)


def restore(request: ChatRequest, history: History, found: Found) -> Restoration:
    """Fill the reasoning of every assistant that somebody can vouch for, and take our display out of its text."""
    messages = list(request.messages)
    links = []
    # What became of the assistants of this history when it was shorter, by their places.
    _, before = _known.longest(history.keys)
    restored: dict[int, _Restored] = {}
    for index, need in enumerate(reasoning_needs(request)):
        keys = history.keys[index]
        if keys is None:
            continue
        blocks = _with_parts(history.blocks[index], keys, found)
        shown = blocks[0] if blocks and blocks[0].start == 0 else None
        sent = history.sent[index]
        texts = found.get(sent) if sent is not None else None
        known = _sent_before(texts, shown) or recall(keys, found, shown)
        one = before.get(index) if before is not None else None
        if one is None or one.turn.need is not need or one.known != known:
            meant = _original(messages[index].reasoning, keys, found) or known
            new = _Restored(known, *_restore_one(messages[index], index, need, meant, blocks))
            # The very same message if only its proof is another, as after the first time it was sent: what was made of
            # the history from here on is found again by the objects it was made of.
            one = new._replace(message=one.message) if one is not None and one.message == new.message else new
        restored[index] = one
        messages[index] = one.message
        if known.key is not None and known.reasoning is not None:
            links.append(Link(known.key, keys.linked[0], known.reasoning))
        if sent is not None and texts is None and need is not ReasoningNeed.NONE:
            links += _as_sent(one, keys, sent, found)
    _known.keep(history.keys, restored, state_size=sum(one.size for one in restored.values()))
    return Restoration(repair(messages), tuple(one.turn for one in restored.values()), tuple(links))


def _sent_before(texts: Sequence[str] | None, shown: thinking_blocks.Block | None) -> "Recalled | None":
    """What was sent for a turn in its chat before, whatever other chats have said since."""
    if texts is None or (shown is not None and texts[0] not in shown.readings and _contradicts(shown, texts[:1])):
        return None
    return Recalled(None, "sent without") if texts[0] == FILLER else Recalled(texts[0], "sent")


def _as_sent(one: "_Restored", keys: Keys, sent: bytes, found: Found) -> list[Link]:
    """How to know again what is sent for a turn now."""
    source, known = one.turn.source, one.known
    reasoning = "" if one.turn.is_made_up else one.message.reasoning or ""
    if source is Source.NOBODY:
        # Unless it was not lost at all: a file that could not be read, or an answer that is stored only now.
        unless = (sent,) if known.proof.startswith("ambiguous") else (sent, keys.exact)
        return [Link(None, sent, FILLER, unless)]
    if reasoning in found.get(keys.exact, ()):
        return [Link(keys.exact, sent, reasoning)]
    if source is Source.CLIENT or known.proof in ("linked", "talk", "place"):
        # The client's own words come again with the next request. What was found by the talk around it gives way to
        # what is really said here one day, and has its link until then.
        return []
    if known.key is not None and reasoning == known.reasoning:
        return [Link(known.key, sent, reasoning)]
    return [Link(None, sent, reasoning, (sent,))]


class Recalled(NamedTuple):
    """What the store knows of a turn (None: nothing it can vouch for), and how it knows or why not."""

    reasoning: str | None
    proof: str
    # The key that found it, when that says nothing about its place: see Prepared.links.
    key: bytes | None = None
    # Whether it is what the client kept, before the client changed the white space in it.
    is_original: bool = False


class _Restored(NamedTuple):
    """What became of an assistant, and by what the store knew of it; the rest depends on the history before it."""

    known: Recalled
    message: Message
    turn: Turn

    @property
    def size(self) -> int:
        reasoning = self.message.reasoning or self.known.reasoning or ""
        return _BYTES_PER_TURN + len(self.message.content) + 2 * len(reasoning)


# By keys: the very same object only ever stands for the same turn after the same history.
_known: Beginnings[Keys | None, Mapping[int, _Restored]] = Beginnings(_MOST_BYTES_KNOWN, lambda keys: 0)


def recall(keys: Keys, found: Found, shown: thinking_blocks.Block | None = None) -> Recalled:
    """The reasoning of a turn, by the strongest of its keys that names exactly one.

    Two stored turns that could both be meant and differ prove nothing, unless the client still shows which it is.
    """
    exact = found.get(keys.exact, ())
    if len(exact) == 1:
        # The usual case; making the weaker keys of such a turn would be work for nothing.
        return Recalled(exact[0], "exact")
    doubt = "unknown"
    for proof in _PROOFS:
        several = (keys.exact,) if proof == "exact" else getattr(keys, _PROOFS[proof])
        texts = {key: _meant(found[key], shown) for key in several if key in found}
        whole = dict.fromkeys(text for text in texts.values() if text is not None)
        if proof == "linked" and (exact or (shown is not None and _contradicts(shown, whole))):
            # Something was really said here since: what was only found here is another's.
            continue
        if proof in ("talk", "place") and shown is not None and _contradicts(shown, whole):
            # The client shows other thoughts in their place: this is somebody else's turn in the same words.
            return Recalled(None, f"contradicted {proof}")
        if texts and None not in texts.values():
            # A client that merged two turns into one message left the calls of both in it, in order.
            joined = "\n\n".join(text for text in whole if text)
            certain = [key for key in texts if len(found[key]) == 1 and proof not in ("exact", "linked")]
            return Recalled(joined, proof, certain[0] if certain and len(whole) == 1 else None)
        if texts and doubt == "unknown":
            doubt = f"ambiguous {proof}"
    return Recalled(None, doubt)


def _original(kept: str | None, keys: Keys, found: Found) -> Recalled | None:
    """The remembered reasoning that a client kept with other white space; the same words prove which one is meant."""
    if kept is None or is_blank(kept) or kept in found.get(keys.exact, ()):
        return None
    words = without_spaces(kept)
    for proof in _PROOFS:
        several = (keys.exact,) if proof == "exact" else getattr(keys, _PROOFS[proof])
        alike = {text for key in several for text in found.get(key, ()) if without_spaces(text) == words}
        if len(alike) == 1 and kept not in alike:
            return Recalled(alike.pop(), proof, is_original=True)
        if alike or (proof == "exact" and len(found.get(keys.exact, ())) == 1):
            # The very same, or several that differ in white space only; or the weaker keys were not looked up.
            break
    return None


def _with_parts(blocks: Sequence[thinking_blocks.Block], keys: Keys, found: Found) -> Sequence[thinking_blocks.Block]:
    """The blocks, the last of them open if they are known to show how the reasoning begins."""
    if not blocks or keys.exact not in found:
        return blocks
    proofs = _shown(keys, blocks, found)
    for count, proof in zip((len(blocks), 1), proofs, strict=False):
        if proof in found:
            return [*blocks[: count - 1], replace(blocks[count - 1], is_open=True), *blocks[count:]]
    return blocks


def _contradicts(shown: thinking_blocks.Block, texts: Iterable[str]) -> bool:
    return bool(shown.reasoning) and not all(thinking_blocks.fits(text, shown) for text in texts)


def _meant(texts: Sequence[str], shown: thinking_blocks.Block | None) -> str | None:
    """Which of the reasonings recorded under one key is meant; None when that is not certain."""
    if len(texts) == 1:
        return texts[0]
    fitting = [text for text in texts if shown is not None and text in shown.readings]
    return fitting[0] if fitting else None


def prepare(request: ChatRequest, history: History, found: Found, strategy: str) -> Prepared:
    """The request to send, by the strategy for reasoning that is missing where it matters."""
    restoration = restore(request, history, found)
    lost = [turn for turn in restoration.native(0) if turn.is_lost and not restoration.is_carried(turn)]
    if lost and strategy == "reject":
        raise _missing(len(lost))
    if lost and strategy == "recover":
        return _recovered(request, history, restoration, lost[-1])
    return _as_restored(request, history, restoration)


def prepare_again(request: ChatRequest, found: Found, refused: Prepared, strategy: str) -> Prepared:
    """After DeepSeek's refusal: of what was sent natively, every turn with a filler counts as lost, or all if none."""
    history = refused.history
    restoration = restore(request, history, found)
    native = restoration.native(refused.boundary)
    lost = [turn for turn in native if turn.is_empty or turn.source is Source.NOBODY] or native
    if strategy == "reject":
        raise _missing(len(lost))
    return _recovered(request, history, restoration, lost[-1]) if lost else refused


def _restore_one(
    message: Message, index: int, need: ReasoningNeed, known: Recalled, blocks: Sequence[thinking_blocks.Block]
) -> tuple[Message, Turn]:
    reasoning, source, proof = known.reasoning, Source.STORE, known.proof
    if known.reasoning is None and (shown := _shown_whole(message.reasoning, blocks)) is not None:
        reasoning, source = shown, Source.DISPLAY
    elif not is_blank(message.reasoning) and not known.is_original:
        reasoning, source, proof = message.reasoning, Source.CLIENT, ""
    elif known.reasoning is None and thinking_blocks.is_single(blocks):
        reasoning, source = blocks[0].reasoning, Source.DISPLAY
    elif known.reasoning is None:
        source = Source.NOBODY
    content, has_notice = message.content, False
    if isinstance(content, str):
        ours = blocks[:1] if source is Source.DISPLAY else thinking_blocks.ours(blocks, known.reasoning, reasoning)
        text = thinking_blocks.cut(content, ours)
        content, has_notice = notices.without(text), notices.is_notice(text)
    turn = Turn(index, need, source, not reasoning, has_notice, proof)
    # Without _replace(), which takes three times as long: this runs for every assistant of a history.
    return Message(message.role, content, _to_send(reasoning, turn), *message[3:]), turn


def _shown_whole(kept: str | None, blocks: Sequence[thinking_blocks.Block]) -> str | None:
    """What the one block of a turn says, if the client kept the same beside it with other white space."""
    if kept is None or is_blank(kept) or not thinking_blocks.is_single(blocks) or kept in blocks[0].readings:
        return None
    words = without_spaces(kept)
    return next((each for each in blocks[0].readings if without_spaces(each) == words), None)


def _to_send(reasoning: str | None, turn: Turn) -> str | None:
    if turn.is_made_up:
        return FILLER
    if turn.need is ReasoningNeed.NONE and turn.source is Source.STORE:
        # Ignored where it is not needed, so it would be paid for in bytes alone.
        return None
    return reasoning


def _as_restored(request: ChatRequest, history: History, restoration: Restoration) -> Prepared:
    repaired, links = restoration.repaired, restoration.links
    if repaired.messages != request.messages:
        request = request._replace(messages=repaired.messages)
    return Prepared(request, history, restoration.turns, links, repaired.repairs)


def _recovered(request: ChatRequest, history: History, restoration: Restoration, last_lost: Turn) -> Prepared:
    restored = _as_restored(request, history, restoration)
    last = restoration.positions[last_lost.index]
    recovered = transcript.recover(restored.request.messages, last, with_pictures=can_see_images(request.model))
    if recovered is None:
        # Nothing to answer is left without a user message; the fillers are already in place.
        return restored
    has_told = any(turn.has_notice for turn in restoration.native(recovered.boundary))
    return restored._replace(
        request=request._replace(messages=recovered.messages),
        transcribed=recovered.transcribed,
        boundary=recovered.boundary,
        notice="" if has_told else notices.NOTICE,
    )


def _missing(count: int) -> MissingReasoning:
    return MissingReasoning(
        f"The reasoning of {count} earlier assistant message(s) is not available, and missing_reasoning_strategy is "
        '"reject". Start a new chat, or run the proxy with --missing-reasoning-strategy recover.',
        details={"missing_reasoning_messages": count},
    )
