"""Restore the reasoning that the client dropped, and prepare the request to send.

No I/O: `look_up` reads the texts stored under the keys of the history with a given function, `prepare` makes the
request. Our own thinking blocks and notices leave the text here; `identity` strips them by the same functions.

The reasoning of an assistant message comes from the first source that has it:
  0. STORE    what this chat sent for the turn before, unless the client contradicts it
  1. STORE    the store, by the turn's exact key: the model's own bytes, whatever the client sends in their place; of
              several texts under that key, the client's decides
  2. CLIENT   a string in the request that is not blank; but the text of 3 or 4, if it differs in white space only,
              because clients trim, split and join reasoning
  3. STORE    the store, by a weaker key that proves the turn
  4. DISPLAY  the one thinking block at the start of its text, which only our display writes like that
  5. MISSING  a filler where DeepSeek accepts one; in a tool loop `missing_reasoning_strategy` decides
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from deepseek_cursor_proxy.chat_memory import NO_CHAT, Chat, Lookup, Stage
from deepseek_cursor_proxy.conversation import ChatRequest, Message, is_blank, remove_spaces
from deepseek_cursor_proxy.deepseek.history_repair import RepairedHistory, repair
from deepseek_cursor_proxy.deepseek.model_names import can_see_images
from deepseek_cursor_proxy.deepseek.rules import FILLER, ReasoningNeed, reasoning_needs
from deepseek_cursor_proxy.errors import MissingReasoning, TooLarge
from deepseek_cursor_proxy.reasoning import thinking_blocks, transcript
from deepseek_cursor_proxy.reasoning.identity import PROOFS, History, TurnKeys
from deepseek_cursor_proxy.reasoning.thinking_blocks import Block

# The memory of a turn's keys and of how it was restored.
_BYTES_PER_TURN = 1000
# After so many requests of a chat the store is asked for all its turns again: it counts uses, and may have lost some.
_MOST_USES = 100

FindTexts = Callable[[Collection[bytes]], dict[bytes, list[str]]]
# For each key the texts recorded under it, newest first.
StoredTexts = Mapping[bytes, list[str]]


class Source(Enum):
    CLIENT = "client"
    STORE = "store"
    DISPLAY = "display"
    MISSING = "missing"


# Python 3.11 takes a tenth of a microsecond to look up a member, and every turn of a long chat needs several.
_CLIENT, _MISSING, _NOT_NEEDED = Source.CLIENT, Source.MISSING, ReasoningNeed.NONE


@dataclass(frozen=True, slots=True)
class Turn:
    """How one assistant message was restored: how much its reasoning is needed, and where it came from."""

    index: int
    need: ReasoningNeed
    source: Source
    is_empty: bool
    has_notice: bool
    # Which kind of key found it in the store, or why none did.
    proof: str = ""

    @property
    def is_lost(self) -> bool:
        return self.source is _MISSING and self.need is ReasoningNeed.HARD

    @property
    def has_filler(self) -> bool:
        """True if DeepSeek gets a filler in place of reasoning."""
        return self.need is not ReasoningNeed.NONE and (self.is_empty or self.source is Source.MISSING)


class KeyAlias(NamedTuple):
    """An instruction to the store: `new` leads to the reasoning that `known` leads to.

    Without a known key the store inserts the reasoning, unless it has one of the keys in `unless` by then.
    """

    known: bytes | None
    new: bytes
    reasoning: str
    unless: tuple[bytes, ...] = ()


class Restoration(NamedTuple):
    """The history with its reasoning restored and its tool calls in order, and one Turn for each assistant."""

    repaired: RepairedHistory
    turns: tuple[Turn, ...]
    aliases: tuple[KeyAlias, ...] = ()

    def positions(self) -> Mapping[int, int]:
        """The index of each assistant of the client's history in the repaired one, which has no empty ones."""
        pairs = zip(self.repaired.origins, self.repaired.messages, strict=True)
        return {origin: at for at, (origin, message) in enumerate(pairs) if message.role == "assistant"}

    def lost_turns(self) -> list[Turn]:
        """The turns that are sent without a reasoning that DeepSeek insists on."""
        if not (lost := [turn for turn in self.turns if turn.is_lost]):
            return []
        positions, by_index = self.positions(), {turn.index: turn for turn in self.turns}
        # Clients split text and calls; then the reasoning may come with the next message.
        following = [by_index.get(turn.index + 1) for turn in lost]
        return [
            turn
            for turn, after in zip(lost, following, strict=True)
            if turn.index in positions and (after is None or after.source is Source.MISSING)
        ]

    def turns_from(self, boundary: int) -> list[Turn]:
        """The turns from an index of the repaired history on."""
        positions = self.positions()
        return [turn for turn in self.turns if positions.get(turn.index, -1) >= boundary]


class TurnCounts(NamedTuple):
    """Assistant turns of a history by where their reasoning came from."""

    # Turns that got back a reasoning that the client had dropped; a filler does not count.
    filled: int = 0
    # Turns that came with their reasoning.
    kept: int = 0
    # Turns that got a filler because the model had thought nothing.
    empty: int = 0
    # Turns that needed a reasoning that no source had.
    missing: int = 0
    # Messages that were replayed as text.
    recovered: int = 0


class PreparedRequest(NamedTuple):
    """A request ready to be sent, the history to record its answer under, and how it was changed."""

    request: ChatRequest
    history: History
    turns: tuple[Turn, ...]
    # More keys, of exactly this history, for turns that a weaker key found: whatever other chats record, these turns
    # are found again, and the prefix that DeepSeek has cached stays.
    aliases: tuple[KeyAlias, ...] = ()
    # How often each kind of repair was made to the tool history.
    repairs: Mapping[str, int] = MappingProxyType({})
    transcript_count: int = 0
    # Where the native part begins in the repaired history; 0 when all of it is native.
    boundary: int = 0
    notice: str = ""

    def count_turns(self) -> TurnCounts:
        if not (self.turns or self.transcript_count):
            return TurnCounts()
        kept = len([turn for turn in self.turns if turn.source is _CLIENT])
        needed = [turn for turn in self.turns if turn.source is not _CLIENT and turn.need is not _NOT_NEEDED]
        restored = [turn for turn in needed if turn.source is not _MISSING]
        empty = len([turn for turn in restored if turn.is_empty])
        return TurnCounts(len(restored) - empty, kept, empty, len(needed) - len(restored), self.transcript_count)

    @property
    def missing_count(self) -> int:
        """How many turns needed a reasoning that no source had."""
        return len([turn for turn in self.turns if turn.source is _MISSING and turn.need is not _NOT_NEEDED])

    @property
    def has_transcript(self) -> bool:
        return self.transcript_count > 0

    def check_size(self, most: int) -> None:
        """Raise TooLarge if the reasoning texts alone exceed `most`: a short history may name one long text often."""
        size = sum(
            [
                len(message.reasoning or "") + len(message.details or "") + len(message.server_items or "")
                for message in self.request.messages
                if message.role == "assistant"
            ]
        )
        # The calls of all choices are made at once.
        if size * self.request.choices > most:
            raise TooLarge(
                f"The history with its reasoning is larger than {most} bytes, which is more than DeepSeek takes. "
                "Start a new chat."
            )


class StoreMatch(NamedTuple):
    """The reasoning that the store proves for a turn, or None; and the proof, or why there is none."""

    reasoning: str | None
    proof: str
    # The key that found it, if it depends on nothing before the turn: see PreparedRequest.aliases.
    key: bytes | None = None
    # Whether it takes the place of a different reasoning that the client sent.
    beats_client: bool = False


_UNKNOWN = StoreMatch(None, "unknown")


class FoundTurns(NamedTuple):
    """A request, its history, and the texts that are stored for it."""

    request: ChatRequest
    history: History
    stored: StoredTexts
    # The indices of turns for which no stored key covers their text.
    doubtful: Sequence[int] = ()


def look_up(request: ChatRequest, history: History, find: FindTexts, memory: Chat = NO_CHAT) -> FoundTurns:
    """The texts stored for a history: one query for a chat that only grew, more for turns that need other proofs."""
    turns = [(at, keys) for at, keys in enumerate(history.keys) if keys is not None]
    if not turns:
        return FoundTurns(request, history, {})
    before = _look_up_restored(request, history, memory).result or _NOTHING_RESTORED
    stored = _find_sent(history, before, [keys.exact for _, keys in turns[-1:]], find)
    settled = before.count_settled(history, stored)
    others = []
    for at, keys in turns:
        if at < settled:
            continue
        sent = stored.get(history.sent_keys[at] or b"")
        if sent is None or not _is_confirmed(sent, request.messages[at].reasoning, history.blocks[at]):
            others.append((at, keys))
    if not others:
        return FoundTurns(request, history, stored)
    # Each further query is for the turns that those before it have not decided.
    if exact := [keys.exact for _, keys in others if keys.exact not in stored]:
        stored |= find(exact)
    if undecided := [keys for _, keys in others if len(stored.get(keys.exact, ())) != 1]:
        stored |= find([key for keys in undecided for key in keys.weaker_keys()])
    if words := [key for at, keys in others if (key := own_words_key(request.messages[at], keys, stored))]:
        stored |= find(words)
    doubtful = [at for at, keys in others if not _is_text_proven(keys, stored)]
    if partial := [key for at, keys in others for key in _partial_keys(keys, history.blocks[at], stored)]:
        stored |= find(partial)
    return FoundTurns(request, history, stored, doubtful)


def _find_sent(
    history: History, before: "_RestoredTurns", newest: Sequence[bytes], find: FindTexts
) -> dict[bytes, list[str]]:
    """The texts that this chat has sent, and those under the exact key of the newest turn.

    The chat memory knows the texts of turns that were sent before. They count while the store has the newest turn: else
    it may have been cleared.
    """
    known = before.sent if before.uses < _MOST_USES else {}
    sent_keys = [key for key in history.sent_keys if key is not None]
    stored = find([*(key for key in sent_keys if key not in known), *newest])
    if not known:
        return stored
    return {**known, **stored} if stored else find(sent_keys)


def _is_confirmed(sent: Sequence[str], reasoning: str | None, blocks: Sequence[Block]) -> bool:
    """True unless the client contradicts the reasoning that this chat sent: by its own, or by a block it shows."""
    if reasoning is not None and not is_blank(reasoning):
        return reasoning in sent
    return not blocks or blocks[0].start != 0 or sent[0] in blocks[0].readings


def _is_text_proven(keys: TurnKeys, stored: StoredTexts) -> bool:
    """True if a stored key covers the text of a turn; the keys of calls alone say nothing about it."""
    return any(key in stored for key in (keys.exact, keys.alias, *keys.result, keys.dialogue, *keys.round))


def _partial_keys(keys: TurnKeys, blocks: Sequence[Block], stored: StoredTexts) -> tuple[bytes, ...]:
    """The keys that prove that the blocks of a turn show a part of its reasoning only; most show all of it."""
    texts = stored.get(keys.exact, ()) if blocks else ()
    if not texts or any(text in blocks[0].readings for text in texts):
        return ()
    return keys.partial_key("".join(block.reasoning for block in blocks)), keys.partial_key(blocks[0].reasoning)


def prepare(
    request: ChatRequest, history: History, stored: StoredTexts, strategy: str, memory: Chat = NO_CHAT
) -> PreparedRequest:
    """The request to send, by the strategy for reasoning that is missing where DeepSeek insists on it."""
    restoration = restore(request, history, stored, memory)
    lost = restoration.lost_turns()
    if lost and strategy == "reject":
        raise _missing_reasoning(len(lost))
    if lost and strategy == "recover":
        return _prepare(request, history, restoration, lost[-1])
    return _prepare(request, history, restoration)


def prepare_second_attempt(
    request: ChatRequest, stored: StoredTexts, refused: PreparedRequest, strategy: str
) -> PreparedRequest:
    """After DeepSeek's refusal: of the turns sent natively, those with a filler count as lost, or all if none has."""
    history = refused.history
    restoration = restore(request, history, stored)
    native = restoration.turns_from(refused.boundary)
    lost = [turn for turn in native if turn.is_empty or turn.source is Source.MISSING] or native
    if strategy == "reject":
        raise _missing_reasoning(len(lost))
    return _prepare(request, history, restoration, lost[-1]) if lost else refused


def _prepare(
    request: ChatRequest, history: History, restoration: Restoration, last_lost: Turn | None = None
) -> PreparedRequest:
    """The restored request; with a transcript up to the last lost turn, if there is one."""
    repaired, turns, aliases = restoration
    if repaired.messages != request.messages:
        request = request._replace(messages=repaired.messages)
    native = PreparedRequest(request, history, turns, aliases, repaired.repairs)
    if last_lost is None:
        return native
    last = restoration.positions()[last_lost.index]
    transcription = transcript.transcribe(request.messages, last, with_pictures=can_see_images(request.model))
    if transcription is None:
        # Without a user message there is nothing to answer; the fillers are already in place.
        return native
    has_notice = any(turn.has_notice for turn in restoration.turns_from(transcription.boundary))
    return native._replace(
        request=request._replace(messages=transcription.messages),
        transcript_count=transcription.transcript_count,
        boundary=transcription.boundary,
        notice="" if has_notice else thinking_blocks.NOTICE,
    )


def _missing_reasoning(count: int) -> MissingReasoning:
    return MissingReasoning(
        f"The reasoning of {count} earlier assistant message(s) is not available, and missing_reasoning_strategy is "
        '"reject". Start a new chat, or run the proxy with --missing-reasoning-strategy recover.',
        details={"missing_reasoning_messages": count},
    )


class _RestoredTurn(NamedTuple):
    """A restored assistant, and the match it depends on besides the history before it."""

    match: StoreMatch
    message: Message
    turn: Turn
    # The texts of its sent key, when it was restored.
    sent: list[str] | None
    # About how many bytes it takes.
    size: int

    def is_unchanged(self, need: ReasoningNeed, sent: list[str] | None) -> bool:
        """True if this chat has sent the turn before, and with the same reasoning."""
        return self.sent is sent is not None and self.turn.need is need


class _RestoredTurns(NamedTuple):
    """The assistants of a history by index, the texts of their sent keys, and how many requests used these texts.

    `settled` counts the messages up to the last turn that, like all before it, was restored from what this chat had
    sent: the next request restores them the same way while it gets the same texts.
    """

    turns: Mapping[int, _RestoredTurn] = MappingProxyType({})
    sent: Mapping[bytes, list[str]] = MappingProxyType({})
    uses: int = 0
    settled: int = 0

    def count_settled(self, history: History, stored: StoredTexts) -> int:
        """The messages that need not be looked at again; 0 if their texts were read anew."""
        # Either all texts of settled turns are the same objects, or none is: see _find_sent.
        last = self.turns.get(self.settled - 1)
        is_same = last is not None and stored.get(history.sent_keys[self.settled - 1] or b"") is last.sent
        return self.settled if is_same else 0


_NOTHING_RESTORED = _RestoredTurns()


# The same TurnKeys object always means the same turn after the same history.
_RESTORE: Stage[TurnKeys | None, _RestoredTurns] = Stage("restore")


def _look_up_restored(request: ChatRequest, history: History, memory: Chat) -> Lookup[TurnKeys | None, _RestoredTurns]:
    # All but the messages that decides how much their reasoning is needed.
    return memory.look_up(_RESTORE, history.keys, (request.thinking, bool(request.tools or request.server_tools)))


def restore(request: ChatRequest, history: History, stored: StoredTexts, memory: Chat = NO_CHAT) -> Restoration:
    """Restore the reasoning of every assistant that has a source, and strip our display from its text."""
    messages = list(request.messages)
    if not any(history.keys):
        # The first question of a chat.
        return Restoration(repair(messages, memory), (), ())
    aliases: list[KeyAlias | None] = []
    lookup = _look_up_restored(request, history, memory)
    # This history when it was shorter.
    before = lookup.result or _NOTHING_RESTORED
    settled = start = before.count_settled(history, stored)
    is_settled = True
    restored = {index: turn for index, turn in before.turns.items() if index < start}
    for index, known in restored.items():
        messages[index] = known.message
    sent_texts = dict(before.sent) if start else {}
    for index, need in enumerate(reasoning_needs(request, start), start):
        keys, sent_key = history.keys[index], history.sent_keys[index]
        if keys is None:
            continue
        sent = stored.get(sent_key) if sent_key is not None else None
        if sent_key is not None and sent is not None:
            sent_texts[sent_key] = sent
        former = before.turns.get(index)
        if former is not None and former.is_unchanged(need, sent) and keys.exact not in stored:
            # As for the last request: nothing else was looked up for it.
            if is_settled := is_settled and _is_confirmed(sent or (), messages[index].reasoning, history.blocks[index]):
                settled = index + 1
            restored[index] = former
            messages[index] = former.message
            continue
        is_settled = False
        blocks = _open_partial_block(history.blocks[index], keys, stored)
        shown = blocks[0] if blocks and blocks[0].start == 0 else None
        match = match_sent(sent, shown) or match_turn(keys, stored, shown)
        if former is not None and former.turn.need is need and former.match == match:
            new = former if former.sent is sent else former._replace(sent=sent)
        else:
            best = match_client(messages[index], match, keys, stored)
            message, turn = _restore_one(messages[index], index, need, best, blocks)
            if former is not None and former.message == message:
                # The same object if only the proof changed, as it does once a turn was sent: later stages look up
                # their memory by these objects.
                message = former.message
            reasoning = message.reasoning or match.reasoning or ""
            size = _BYTES_PER_TURN + len(message.content) + 2 * len(reasoning)
            new = _RestoredTurn(match, message, turn, sent, size)
        restored[index] = new
        messages[index] = new.message
        if match.key is not None and match.reasoning is not None:
            aliases.append(KeyAlias(match.key, keys.alias, match.reasoning))
        if sent_key is not None and sent is None and need is not ReasoningNeed.NONE:
            aliases.append(_sent_alias(new, keys, sent_key, stored))
    uses = before.uses + 1 if before.uses < _MOST_USES else 0
    lookup.store(_RestoredTurns(restored, sent_texts, uses, settled), sum([new.size for new in restored.values()]))
    turns = tuple([new.turn for new in restored.values()])
    return Restoration(repair(messages, memory), turns, tuple(filter(None, aliases)))


def _open_partial_block(blocks: Sequence[Block], keys: TurnKeys, stored: StoredTexts) -> Sequence[Block]:
    """The blocks; one that shows only the beginning of its stored reasoning is marked as open."""
    if not blocks or keys.exact not in stored:
        return blocks
    partial = _partial_keys(keys, blocks, stored)
    for count, key in zip((len(blocks), 1), partial, strict=False):
        if key in stored:
            return [*blocks[: count - 1], replace(blocks[count - 1], is_open=True), *blocks[count:]]
    return blocks


def _sent_alias(restored: _RestoredTurn, keys: TurnKeys, sent_key: bytes, stored: StoredTexts) -> KeyAlias | None:
    """The alias by which the next request finds the reasoning that is sent for a turn now."""
    source, match = restored.turn.source, restored.match
    reasoning = "" if restored.turn.has_filler else restored.message.reasoning or ""
    if source is Source.MISSING:
        # With `exact`, because it may exist after all: in a file that could not be read, or in an answer stored later.
        unless = (sent_key,) if match.proof.startswith("ambiguous") else (sent_key, keys.exact)
        return KeyAlias(None, sent_key, FILLER, unless)
    if reasoning in stored.get(keys.exact, ()):
        return KeyAlias(keys.exact, sent_key, reasoning)
    if source is Source.CLIENT or match.proof in ("alias", "dialogue", "round"):
        # The client sends its own text again. A reasoning found by a weak key has its alias, and has to give way to one
        # that the model produces exactly here later.
        return None
    if match.key is not None and reasoning == match.reasoning:
        return KeyAlias(match.key, sent_key, reasoning)
    return KeyAlias(None, sent_key, reasoning, (sent_key,))


def _restore_one(
    message: Message, index: int, need: ReasoningNeed, match: StoreMatch, blocks: Sequence[Block]
) -> tuple[Message, Turn]:
    client_text = None if is_blank(message.reasoning) else message.reasoning
    single = blocks[0] if match.reasoning is None and thinking_blocks.is_single(blocks) else None
    displayed = _displayed(single, client_text) if single is not None else None
    reasoning, source, proof = match.reasoning, Source.STORE, match.proof
    if displayed is not None:
        reasoning, source = displayed, Source.DISPLAY
    elif client_text is not None and not match.beats_client:
        reasoning, source, proof = client_text, Source.CLIENT, ""
    elif match.reasoning is None:
        source = Source.MISSING
    content, has_notice = message.content, False
    if isinstance(content, str):
        own = blocks[:1] if source is Source.DISPLAY else thinking_blocks.own_blocks(blocks, match.reasoning, reasoning)
        text = thinking_blocks.strip_blocks(content, own)
        content, has_notice = thinking_blocks.strip_notices(text), thinking_blocks.is_notice(text)
    turn = Turn(index, need, source, not reasoning, has_notice, proof)
    if turn.has_filler:
        reasoning = FILLER
    elif need is ReasoningNeed.NONE and source is Source.STORE:
        # DeepSeek ignores it there, so it would only cost bytes.
        reasoning = None
    # Without _replace(), which takes three times as long: this runs for every assistant of a history.
    return Message(message.role, content, reasoning, *message[3:]), turn


def _displayed(shown: Block, client_text: str | None) -> str | None:
    """The reasoning that a block shows, unless the client sent one of its own in other words, or the same bytes."""
    if client_text is None:
        return shown.reasoning
    if client_text in shown.readings:
        return None
    words = remove_spaces(client_text)
    return next((text for text in shown.readings if remove_spaces(text) == words), None)


def match_sent(sent: Sequence[str] | None, shown: Block | None) -> StoreMatch | None:
    """The reasoning that this chat has sent for a turn before, whatever other chats have stored since."""
    if sent is None or (shown is not None and sent[0] not in shown.readings and _contradicts(shown, sent[:1])):
        return None
    return StoreMatch(None, "sent without") if sent[0] == FILLER else StoreMatch(sent[0], "sent")


def match_turn(keys: TurnKeys, stored: StoredTexts, shown: Block | None = None) -> StoreMatch:
    """The reasoning of a turn, by the strongest of its keys that leads to exactly one.

    Two stored turns that both fit and differ prove nothing, unless the block that the client sent, `shown`, decides.
    """
    if not stored:
        return _UNKNOWN
    exact = stored.get(keys.exact, ())
    if len(exact) == 1:
        # The usual case: the weaker keys are not computed.
        return StoreMatch(exact[0], "exact")
    doubt = ""
    for proof in PROOFS:
        text_by_key = {key: _choose(stored[key], shown) for key in keys.by_proof(proof) if key in stored}
        if not text_by_key:
            continue
        texts = dict.fromkeys(text for text in text_by_key.values() if text is not None)
        is_contradicted = shown is not None and _contradicts(shown, texts)
        if proof == "alias" and (exact or is_contradicted):
            # The model has produced another reasoning exactly here since; the alias is of another chat.
            continue
        if proof in ("dialogue", "round") and is_contradicted:
            # The client shows another reasoning: this is another chat's turn with the same text.
            return StoreMatch(None, f"contradicted {proof}")
        if None in text_by_key.values():
            doubt = doubt or f"ambiguous {proof}"
            continue
        # A client that merged two turns into one message left the calls of both in it, in order.
        joined = "\n\n".join(text for text in texts if text)
        certain = [key for key in text_by_key if len(stored[key]) == 1 and proof not in ("exact", "alias")]
        return StoreMatch(joined, proof, certain[0] if certain and len(texts) == 1 else None)
    return StoreMatch(None, doubt or "unknown")


def own_words_key(message: Message, keys: TurnKeys, stored: StoredTexts) -> bytes | None:
    """The key of a turn by the client's reasoning and text; None if the reasoning is absent or stored exactly here."""
    exact, reasoning = stored.get(keys.exact, ()), message.reasoning
    if not exact or reasoning is None or is_blank(reasoning) or reasoning in exact:
        return None
    return keys.words_key(remove_spaces(f"{reasoning}{message.content}"))


def match_client(message: Message, match: StoreMatch, keys: TurnKeys, stored: StoredTexts) -> StoreMatch:
    """The match of a turn whose reasoning the client sent, perhaps changed; `match` is the one without it.

    Clients trim and join reasoning, or send a placeholder for it. The stored text beats theirs if it has the same words
    and other white space, by any proof; or different words, by the exact key: then it is what the model wrote here. But
    a client that has cut its history may begin like another chat, and still have what the model wrote in its own.
    """
    exact, reasoning = stored.get(keys.exact, ()), message.reasoning
    if reasoning is None or is_blank(reasoning) or reasoning in exact:
        return match
    words = remove_spaces(reasoning)
    if not any(remove_spaces(text) == words for text in exact):
        if own_words_key(message, keys, stored) in stored:
            # What the model wrote in the client's own chat.
            return match
        if len(exact) == 1:
            # What the model wrote here; but an empty text is no reason to drop the client's.
            return match if is_blank(exact[0]) else StoreMatch(exact[0], "exact", beats_client=True)
    for proof in PROOFS:
        texts = (text for key in keys.by_proof(proof) for text in stored.get(key, ()))
        alike = {text for text in texts if remove_spaces(text) == words}
        if len(alike) == 1 and reasoning not in alike:
            return StoreMatch(alike.pop(), proof, beats_client=True)
        if alike:
            # The same text, or several that differ in white space only.
            return match
    # If there are several, the one that this chat has sent before.
    return match._replace(beats_client=match.proof == "sent" and match.reasoning in exact)


def _choose(texts: Sequence[str], shown: Block | None) -> str | None:
    """The one text recorded under a key, or the one of several that the client shows; None if that is uncertain."""
    if len(texts) == 1:
        return texts[0]
    return next((text for text in texts if shown is not None and text in shown.readings), None)


def _contradicts(shown: Block, texts: Iterable[str]) -> bool:
    return bool(shown.reasoning) and not all(map(shown.fits, texts))
