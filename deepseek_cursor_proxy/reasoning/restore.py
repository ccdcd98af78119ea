"""Restore the reasoning that the client dropped, and prepare the request to send.

No I/O: `look_up` reads the texts stored under the keys of the history with a given function, `prepare` makes the
request. Our own thinking blocks and notices leave the text here; `identity` strips them by the same functions.

The reasoning of an assistant message comes from the first source that has it:
  1. STORE    by the turn's exact key: the model's own bytes, whatever the client sends in their place
  2. CLIENT   a string in the request that is not blank; but the text of 3 or 4, if it differs in white space only,
              because clients trim, split and join reasoning
  3. STORE    by a weaker key that proves the turn
  4. DISPLAY  the one thinking block at the start of its text, which only our display writes like that
  5. MISSING  a filler where DeepSeek accepts one; in a tool loop `missing_reasoning_strategy` decides

A transcript replaces turns whose reasoning is lost, which DeepSeek refuses in a tool loop: everything from the first
message after the system prompt up to the last lost turn becomes one system message that the model can read, the rest is
sent natively. It depends on nothing but the messages in it, so the next request of the chat begins with the same bytes.

One rule: of several texts under a key the one that the client sends or shows counts, else the oldest. The oldest stays
the oldest, so a chat sends the same prefix again and hits DeepSeek's cache, whatever other chats record.
"""

import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from deepseek_cursor_proxy.chat_memory import NO_CHAT, Chat, Stage
from deepseek_cursor_proxy.conversation import ChatRequest, Message, count_prompts, is_blank, remove_spaces
from deepseek_cursor_proxy.deepseek.chat_api import plain_text
from deepseek_cursor_proxy.deepseek.history_repair import RepairedHistory, is_silent, repair
from deepseek_cursor_proxy.deepseek.model_names import can_see_images
from deepseek_cursor_proxy.deepseek.rules import FILLER, ReasoningNeed, reasoning_needs
from deepseek_cursor_proxy.errors import MissingReasoning, TooLarge
from deepseek_cursor_proxy.reasoning import thinking_blocks
from deepseek_cursor_proxy.reasoning.identity import PROOFS, History, TurnKeys
from deepseek_cursor_proxy.reasoning.thinking_blocks import Block

# The memory of a turn's keys and of how it was restored.
_BYTES_PER_TURN = 1000
# After this number of requests the store is asked for all turns of a chat again.
_MOST_USES = 100

_PREAMBLE = (
    "Earlier tool-call turns of this conversation could not be replayed natively, because the reasoning that belongs "
    "to them is no longer available. They follow as a transcript, complete and in order. Everything in it really "
    "happened: the calls were made and the results are real. Continue from there; do not repeat finished work."
)

FindTexts = Callable[[Collection[bytes]], dict[bytes, list[str]]]
# For each key the texts recorded under it, oldest first.
StoredTexts = Mapping[bytes, list[str]]


class Source(Enum):
    CLIENT = "client"
    STORE = "store"
    DISPLAY = "display"
    MISSING = "missing"


# Where the reasoning of a turn came from; none: it needs none; empty: the model had thought nothing.
OUTCOMES = ("none", "store", "client", "display", "empty", "missing")


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
    # In one word, one of OUTCOMES: every request of a long chat counts these.
    outcome: str = field(init=False)

    def __post_init__(self) -> None:
        outcome = self.source.value
        if self.source is not Source.CLIENT and self.need is ReasoningNeed.NONE:
            outcome = "none"
        elif self.source in (Source.STORE, Source.DISPLAY) and self.is_empty:
            outcome = "empty"
        object.__setattr__(self, "outcome", outcome)


class Restoration(NamedTuple):
    """The history with its reasoning restored and its tool calls in order, and a Turn for each assistant in it."""

    repaired: RepairedHistory
    turns: tuple[Turn, ...]
    # At least the bytes of all reasoning, details and items in it.
    size: int

    def positions(self) -> Mapping[int, int]:
        """The index of each assistant of the client's history in the repaired one, which has no empty ones."""
        pairs = zip(self.repaired.origins, self.repaired.messages, strict=True)
        return {origin: at for at, (origin, message) in enumerate(pairs) if message.role == "assistant"}

    def lost_turns(self) -> list[Turn]:
        """The turns that are sent without a reasoning that DeepSeek insists on."""
        lost = [turn for turn in self.turns if turn.source is Source.MISSING and turn.need is ReasoningNeed.HARD]
        by_index = {turn.index: turn for turn in self.turns}
        # Clients split text and calls; then the reasoning may come with the next message.
        following = [by_index.get(turn.index + 1) for turn in lost]
        pairs = zip(lost, following, strict=True)
        return [turn for turn, after in pairs if after is None or after.source is Source.MISSING]

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

    @classmethod
    def of(cls, turns: Sequence[Turn]) -> "TurnCounts":
        count = [turn.outcome for turn in turns].count
        return cls(count("store") + count("display"), count("client"), count("empty"), count("missing"))


_NO_TURNS = TurnCounts()


class PreparedRequest(NamedTuple):
    """A request ready to be sent, the history to record its answer under, and how it was changed."""

    request: ChatRequest
    history: History
    turns: tuple[Turn, ...]
    counts: TurnCounts = _NO_TURNS
    # How often each kind of repair was made to the tool history.
    repairs: Mapping[str, int] = MappingProxyType({})
    # Where the native part begins in the repaired history; 0 when all of it is native.
    boundary: int = 0
    notice: str = ""
    # At least the bytes of its reasoning, details and items.
    size: float = math.inf

    def check_size(self, most: int) -> None:
        """Raise TooLarge if the reasoning texts alone exceed `most`: a short history may name one long text often."""
        if self.size * self.request.choices <= most:
            return
        size = sum(
            [
                len(message.reasoning or "") + len(message.details or "") + len(message.server_items or "")
                for message in self.request.messages
                if message.reasoning or message.details or message.server_items
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

    def replaces_client_text(self, client_text: str) -> bool:
        """Whether it takes the place of the reasoning that the client sent.

        It does if both differ in white space only, because clients trim and join reasoning; and if the exact key found
        it and it is not empty: then the model wrote it here.
        """
        if self.reasoning is None or self.reasoning == client_text:
            return False
        is_exact = self.proof == "exact" and not is_blank(self.reasoning)
        return is_exact or remove_spaces(self.reasoning) == remove_spaces(client_text)


_UNKNOWN = StoreMatch(None, "unknown")


@dataclass(eq=False, slots=True)
class _RestoredTurn:
    """A restored assistant, and the match it depends on besides the history before it."""

    match: StoreMatch
    message: Message
    turn: Turn
    # About how many bytes it takes.
    size: int


class _RestoredTurns(NamedTuple):
    """The assistants of a history by index, and how many requests used them since all were looked up.

    `settled` counts the messages before the first turn without a source: the next request takes those as they are.
    """

    turns: Mapping[int, _RestoredTurn] = MappingProxyType({})
    settled: int = 0
    uses: int = 0


_NOTHING_RESTORED = _RestoredTurns()
# The same TurnKeys object always means the same turn after the same history.
_RESTORE: Stage[TurnKeys | None, _RestoredTurns] = Stage("restore")


def _conditions(request: ChatRequest) -> tuple[bool, bool]:
    """What decides, beside the messages, whether reasoning is needed."""
    return request.thinking, bool(request.tools or request.server_tools)


class FoundTurns(NamedTuple):
    """A request, its history, the texts that are stored for it, and the function that looked them up."""

    request: ChatRequest
    history: History
    stored: StoredTexts
    # What an earlier request of the chat restored; its settled turns were not looked up again.
    known: _RestoredTurns = _NOTHING_RESTORED
    # The indices of turns for which no stored key covers their text.
    unproven: Sequence[int] = ()
    find: FindTexts = lambda keys: {}


def look_up(request: ChatRequest, history: History, find: FindTexts, memory: Chat = NO_CHAT) -> FoundTurns:
    """The texts stored for a history: for a chat that only grew, those of its newest turns."""
    newest = len(history.keys) - 1
    while newest >= 0 and history.keys[newest] is None:
        newest -= 1
    if newest < 0:
        return FoundTurns(request, history, {}, _NOTHING_RESTORED, (), find)
    known = memory.look_up(_RESTORE, history.keys, _conditions(request)).result or _NOTHING_RESTORED
    if known.uses < _MOST_USES:
        # At least one turn: if nothing of the chat is stored, the store was cleared.
        stored, unproven = _find_turns(history, min(known.settled, newest), find)
        if stored or not known.settled:
            unproven = [at for at in unproven if at >= known.settled]
            return FoundTurns(request, history, stored, known, unproven, find)
    stored, unproven = _find_turns(history, 0, find)
    return FoundTurns(request, history, stored, _NOTHING_RESTORED, unproven, find)


def _find_turns(history: History, start: int, find: FindTexts) -> tuple[StoredTexts, list[int]]:
    """The texts of the turns from an index on, and the indices of those whose text no stored key covers."""
    turns = [(at, keys) for at, keys in enumerate(history.keys[start:], start) if keys is not None]
    stored = find([keys.exact for _, keys in turns])
    others = [(at, keys) for at, keys in turns if keys.exact not in stored]
    if others:
        stored |= find([key for _, keys in others for key in keys.record_keys() if key != keys.exact])
    # The keys of calls alone say nothing about the text.
    return stored, [at for at, keys in others if not any(key in stored for key in (*keys.result, keys.near))]


def prepare(
    request: ChatRequest,
    found: FoundTurns,
    strategy: str,
    memory: Chat = NO_CHAT,
    refused: PreparedRequest | None = None,
) -> PreparedRequest:
    """The request to send, by the strategy for reasoning that is missing where DeepSeek insists on it.

    `request` is that of `found`, perhaps for another model or without some of its tools. After DeepSeek's refusal of
    `refused`, of the turns sent natively those with a filler count as lost, or all if none has.
    """
    repaired, turns, size = restoration = restore(request, found, memory)
    counts = TurnCounts.of(turns) if turns else _NO_TURNS
    lost = restoration.lost_turns() if counts.missing else []
    if refused is not None:
        sent = restoration.turns_from(refused.boundary)
        lost = [turn for turn in sent if turn.is_empty or turn.source is Source.MISSING] or sent
    if lost and strategy == "reject":
        raise MissingReasoning(
            f"The reasoning of {len(lost)} earlier assistant message(s) is not available, and "
            'missing_reasoning_strategy is "reject". Start a new chat, or run the proxy with '
            "--missing-reasoning-strategy recover.",
            details={"missing_reasoning_messages": len(lost)},
        )
    if repaired.messages != request.messages:
        request = request._replace(messages=repaired.messages)
    native = PreparedRequest(request, found.history, turns, counts, repaired.repairs, size=size)
    if not lost or (strategy == "placeholder" and refused is None):
        return refused or native
    return _with_transcript(native, restoration, lost[-1])


def _with_transcript(native: PreparedRequest, restoration: Restoration, last_lost: Turn) -> PreparedRequest:
    """The request with a transcript up to the last lost turn."""
    request, last = native.request, restoration.positions()[last_lost.index]
    transcription = transcribe(request.messages, last, with_pictures=can_see_images(request.model))
    if transcription is None:
        # Without a user message there is nothing to answer; the fillers are already in place.
        return native
    has_notice = any(turn.has_notice for turn in restoration.turns_from(transcription.boundary))
    return native._replace(
        request=request._replace(messages=transcription.messages),
        counts=native.counts._replace(recovered=transcription.transcript_count),
        boundary=transcription.boundary,
        notice="" if has_notice else thinking_blocks.NOTICE,
    )


def restore(request: ChatRequest, found: FoundTurns, memory: Chat = NO_CHAT) -> Restoration:
    """Restore the reasoning of every assistant that has a source, and strip our display from its text."""
    history, known = found.history, found.known
    if not any(history.keys):
        # The first question of a chat.
        return Restoration(repair(request.messages, memory), (), 0)
    messages = list(request.messages)
    lookup = memory.look_up(_RESTORE, history.keys, _conditions(request))
    # This history when it was shorter.
    before = lookup.result or _NOTHING_RESTORED
    start = known.settled if _conditions(request) == _conditions(found.request) else 0
    # In the order of the history.
    restored = dict(known.turns)
    while restored and next(reversed(restored)) >= start:
        restored.popitem()
    for index, each in restored.items():
        messages[index] = each.message
    settled = len(messages)
    for index, need in enumerate(reasoning_needs(request, start), start):
        keys, former = history.keys[index], before.turns.get(index)
        if keys is None:
            continue
        message, blocks = messages[index], history.blocks[index]
        is_known = index < known.settled
        match = known.turns[index].match if is_known else _match(message, blocks, keys, found.stored)
        if former is None or former.match != match:
            # Else the same object, which later stages compare at once.
            former = _restore_one(message, index, need, match, blocks)
        restored[index] = former
        messages[index] = former.message
        # Turns that say nothing are left out, whatever they may have thought.
        if former.turn.source is Source.MISSING and settled == len(messages) and not is_silent(former.message):
            settled = index
    size = sum([each.size for each in restored.values()])
    lookup.store(_RestoredTurns(restored, settled, known.uses + 1), size)
    repaired, turns = repair(messages, memory), tuple([each.turn for each in restored.values()])
    if "empty dropped" in repaired.repairs:
        # They are not sent, so they miss nothing.
        kept = {*repaired.origins}
        turns = tuple([turn for turn in turns if turn.index in kept])
    return Restoration(repaired, turns, size)


def _restore_one(
    message: Message, index: int, need: ReasoningNeed, match: StoreMatch, blocks: Sequence[Block]
) -> _RestoredTurn:
    client_text = None if is_blank(message.reasoning) else message.reasoning
    reasoning, source, proof = _choose_source(match, client_text, blocks)
    content, has_notice = message.content, False
    if isinstance(content, str):
        if blocks:
            ours = thinking_blocks.blocks_that_show(blocks, (match.reasoning, reasoning))
            content = thinking_blocks.strip_blocks(content, blocks[:1] if source is Source.DISPLAY else ours)
        content, has_notice = thinking_blocks.strip_notices(content), thinking_blocks.is_notice(content)
    turn = Turn(index, need, source, not reasoning, has_notice, proof)
    if need is not ReasoningNeed.NONE and (turn.is_empty or source is Source.MISSING):
        reasoning = FILLER
    elif need is ReasoningNeed.NONE and source is Source.STORE:
        # DeepSeek ignores it there, so it would only cost bytes.
        reasoning = None
    # Without _replace(), which takes three times as long: this runs for every assistant of a history.
    restored = Message(message.role, content, reasoning, *message[3:])
    size = _BYTES_PER_TURN + len(content) + 2 * len(reasoning or match.reasoning or "")
    size += len(message.details or "") + len(message.server_items or "")
    return _RestoredTurn(match, restored, turn, size)


def _choose_source(
    match: StoreMatch, client_text: str | None, blocks: Sequence[Block]
) -> tuple[str | None, Source, str]:
    """The reasoning of a turn, where it comes from, and what proves it."""
    if match.reasoning is None and thinking_blocks.is_one_at_the_start(blocks):
        shown = blocks[0].reasoning
        if client_text is None or remove_spaces(client_text) == remove_spaces(shown):
            return shown, Source.DISPLAY, match.proof
    if client_text is not None and not match.replaces_client_text(client_text):
        return client_text, Source.CLIENT, ""
    return match.reasoning, Source.MISSING if match.reasoning is None else Source.STORE, match.proof


def _match(message: Message, blocks: Sequence[Block], keys: TurnKeys, stored: StoredTexts) -> StoreMatch:
    """The reasoning of a turn, by the strongest of its keys that is known."""
    exact = stored.get(keys.exact, ())
    if len(exact) == 1:
        # The usual case: the weaker keys are not computed.
        return StoreMatch(exact[0], "exact")
    client_text = None if is_blank(message.reasoning) else message.reasoning
    shown = blocks[0] if blocks and blocks[0].start == 0 else None
    for proof in PROOFS if stored else ():
        known = [stored[key] for key in keys.by_proof(proof) if key in stored]
        if not known:
            continue
        # A client that merged two turns into one message left the calls of both in it, in order.
        ends = [_drop_beginnings(texts) if message.tool_calls else texts for texts in known]
        chosen = dict.fromkeys([_choose(texts, client_text, shown) for texts in ends])
        if proof == "near" and shown is not None and shown.reasoning and not all(map(shown.matches, chosen)):
            # The client shows another reasoning: this is another chat's turn with the same text.
            return StoreMatch(None, "contradicted near")
        return StoreMatch("\n\n".join(filter(None, chosen)), proof)
    return _UNKNOWN


def _drop_beginnings(texts: Sequence[str]) -> Sequence[str]:
    """The texts that are not the beginning of another one.

    A turn with calls is recorded with its first call, and again if the model went on thinking: only the end counts.
    """
    return [text for text in texts if not any(other != text and other.startswith(text) for other in texts)]


def _choose(texts: Sequence[str], client_text: str | None, shown: Block | None) -> str:
    """Of the texts under one key the one that the client sends or shows, else the oldest."""
    if client_text is not None:
        words = remove_spaces(client_text)
        alike = [text for text in texts if remove_spaces(text) == words]
        if alike:
            return client_text if client_text in alike else alike[0]
    if shown is None:
        return texts[0]
    return shown.reasoning if shown.reasoning in texts else next(filter(shown.matches, texts), texts[0])


class Transcription(NamedTuple):
    messages: tuple[Message, ...]
    # How many messages the transcript replaces, and where native history begins in the client's numbering.
    transcript_count: int
    boundary: int


def transcribe(messages: Sequence[Message], last_lost: int, *, with_pictures: bool = False) -> Transcription | None:
    """The history with all up to `last_lost` and its results (and pictures) as a transcript; None without a user."""
    if not any(message.role == "user" for message in messages):
        return None
    prompt_count = count_prompts(messages)
    boundary = last_lost + 1
    while boundary < len(messages) and messages[boundary].role == "tool":
        boundary += 1
    replaced = messages[prompt_count:boundary]
    sent = [*messages[:prompt_count], Message("system", _transcript(replaced))]
    parts = [part for message in replaced if not isinstance(message.content, str) for part in message.content]
    pictures = [part for part in parts if part["type"] != "text"]
    if with_pictures and pictures:
        lead = {"type": "text", "text": "[the pictures of the transcript, in order]"}
        sent.append(Message("user", (lead, *pictures)))
    if boundary == len(messages) or messages[boundary].role != "user":
        # The native part does not begin with a question: the last one again.
        sent += [message for message in messages[:boundary] if message.role == "user"][-1:]
    return Transcription((*sent, *messages[boundary:]), boundary - prompt_count, boundary)


def _transcript(messages: Sequence[Message]) -> str:
    entries = [_entry(message) for message in messages]
    # The transcript's digest is in every line that we add: a tool result cannot predict it, so it can neither forge a
    # role nor end the transcript; and the same transcript has the same lines in every later request.
    digest = hashlib.sha256()
    for _, text in entries:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    mark = digest.hexdigest()[:8]
    # One join: each copy of 28 MB with a single emoji takes 112.
    pieces = [piece for role, text in entries for piece in (f"--- {mark} {role} ---\n", text, "\n\n")]
    return "".join([_PREAMBLE, f"\n\n--- {mark} transcript ---\n\n", *pieces, f"--- {mark} end of transcript ---"])


def _entry(message: Message) -> tuple[str, str]:
    """The role of a message, and its text, reasoning and calls."""
    if message.role == "tool":
        return f"result of {message.tool_call_id}", plain_text(message.content)
    lines = []
    if message.reasoning and message.reasoning.strip():
        lines.append(f"(thinking) {message.reasoning}")
    if content := plain_text(message.content):
        lines.append(content)
    lines += [f"(calls {call.name}, id {call.id})\n{call.arguments}" for call in message.tool_calls]
    return f"{message.role} {message.name}" if message.name else message.role, "\n".join(lines)
