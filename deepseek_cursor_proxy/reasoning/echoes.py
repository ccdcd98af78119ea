"""Turns whose reasoning and text a client divides otherwise than the model did, found by their squeezed text.

opencode and pi send the thinking of turns before a switch of the model or the API as text before the answer, in the
same message or, by Responses, in one of its own. Qwen Code trims reasoning and edits older messages, so that no other
key finds the turn. Its squeezed text is still the same: reasoning and text without white space. Where a reasoning is
stored under it and the calls (`TurnKeys.squeezed_key`), the message gets it byte for byte, and its text loses the echo.
That happens before the history is identified: the turn and all later ones have the keys that they would have had
without the echo.

Rule: the client itself sends all of the reasoning, so no text of another chat can get in. No I/O.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from deepseek_cursor_proxy.chat_memory import NO_CHAT, Chat, Stage
from deepseek_cursor_proxy.conversation import ChatRequest, Message, is_blank, remove_spaces
from deepseek_cursor_proxy.reasoning import thinking_blocks
from deepseek_cursor_proxy.reasoning.identity import History, TurnKeys
from deepseek_cursor_proxy.reasoning.restore import FindTexts, FoundTurns, look_up

# By index in the client's history: the message without its echo; None if it was nothing but the echo.
_Edits = Mapping[int, Message | None]
_ECHOES: Stage[Message, _Edits] = Stage("echoes")
_BYTES_PER_EDIT = 300

_SQUEEZED_NOTICE = remove_spaces(thinking_blocks.NOTICE)
# No model writes more white space before an answer.
_LONGEST_LEAD = 8


def record_keys(keys: TurnKeys, answer: Message) -> tuple[bytes, ...]:
    """The keys by the squeezed text of an answer; none for one without reasoning, which has no echo.

    Nor for one with nothing else: any answer that says the same has this text.
    """
    if is_blank(answer.reasoning) or not isinstance(answer.content, str):
        return ()
    if not answer.tool_calls and is_blank(answer.content):
        return ()
    squeezed, lead = _squeeze(f"{answer.reasoning}{answer.content}"), _lead(answer.content)
    key = keys.squeezed_key(squeezed)
    return (key, keys.squeezed_key(squeezed, lead)) if 0 < len(lead) <= _LONGEST_LEAD else (key,)


def find_turns(namespace: bytes, request: ChatRequest, find: FindTexts, memory: Chat = NO_CHAT) -> FoundTurns:
    """Identify the turns of a request and look them up.

    Only turns that no other key proves are examined, so a chat without echoes needs no further query.
    """
    messages = request.messages
    lookup = memory.look_up(_ECHOES, messages, namespace)
    edits = dict(lookup.result or {})

    def look_up_all() -> FoundTurns:
        edited = request
        if edits:
            kept = [edits.get(at, message) for at, message in enumerate(messages)]
            edited = request._replace(messages=tuple([message for message in kept if message is not None]))
        return look_up(edited, History(namespace, edited.messages, request.chat_name, memory), find, memory)

    turns = look_up_all()
    if not turns.unproven and not edits:
        return turns
    start = lookup.count - sum(message is None for message in edits.values())
    origins = [at for at in range(len(messages)) if at not in edits or edits[at] is not None]
    new = _find_echoes(turns, [at for at in turns.unproven if at >= start], find)
    edits |= {origins[at]: message for at, message in new.items()}
    lookup.store(edits, sum([_BYTES_PER_EDIT + message.byte_size for message in edits.values() if message is not None]))
    return look_up_all() if new else turns


class _Reading(NamedTuple):
    """One way to read an unproven turn: a message alone, or with the text of the message before it."""

    at: int
    message: Message
    # The text of the message before it, if that belongs to the turn.
    echo: str | None
    keys: TurnKeys
    squeezed: str

    @property
    def key(self) -> bytes:
        return self.keys.squeezed_key(self.squeezed)

    def without_echo(self, texts: Sequence[str], find: FindTexts) -> Message | None:
        """The message with its reasoning and without the echo; None if no stored text is its reasoning."""
        message = self.message
        said = message.reasoning if self.echo is None else self.echo
        if said is not None and not is_blank(said):
            squeezed = remove_spaces(said)
            stored = next((text for text in texts if remove_spaces(text) == squeezed), None)
            return message._replace(reasoning=stored) if stored not in (None, message.reasoning) else None
        if len({remove_spaces(text) for text in texts}) != 1:
            # None; or the text can be divided in two ways.
            return None
        rest = _text_after(str(message.content), texts[0])
        if rest is None:
            return None
        # The echo may have ended with white space, or the client has added some.
        lead = _lead(rest)[-_LONGEST_LEAD:]
        leads = {self.keys.squeezed_key(self.squeezed, lead[start:]): lead[start:] for start in range(len(lead))}
        known = find(list(leads)) if leads else {}
        own_lead = next((own for key, own in leads.items() if key in known), "")
        return message._replace(content=own_lead + rest.lstrip(), reasoning=texts[0])


def _find_echoes(turns: FoundTurns, unproven: Iterable[int], find: FindTexts) -> dict[int, Message | None]:
    """The messages with an echo, without it, by index."""
    readings = [reading for at in unproven for reading in _readings(turns, at)]
    texts = find([reading.key for reading in readings]) if readings else {}
    edits: dict[int, Message | None] = {}
    for reading in readings:
        at = reading.at
        if at not in edits and (message := reading.without_echo(texts.get(reading.key, ()), find)) is not None:
            edits |= {at: message} if reading.echo is None else {at - 1: None, at: message}
    return edits


def _readings(turns: FoundTurns, at: int) -> list[_Reading]:
    """The ways to read a turn: as one with the message before or after it, and alone."""
    messages, keys = turns.request.messages, turns.history.keys
    readings = []
    for last in (at, at + 1):
        own = keys[last] if 0 < last < len(keys) and keys[last - 1] is not None else None
        if own is None:
            continue
        echo, answer = messages[last - 1], messages[last]
        is_echo = is_blank(echo.reasoning) and not echo.tool_calls and is_blank(answer.reasoning)
        if is_echo and isinstance(echo.content, str) and isinstance(answer.content, str):
            readings.append(_Reading(last, answer, echo.content, own, _squeeze(echo.content + answer.content)))
    message, own = messages[at], keys[at]
    if own is not None and isinstance(message.content, str):
        readings.append(_Reading(at, message, None, own, _squeeze((message.reasoning or "") + message.content)))
    return readings


def _squeeze(text: str) -> str:
    """A reasoning and the text after it without white space, and without the blocks and notices that we display."""
    if "<" in text and (openings := [at for each in thinking_blocks.OPENINGS if (at := text.find(each)) >= 0]):
        text = text[: min(openings)] + thinking_blocks.strip_display(text[min(openings) :])
    return remove_spaces(thinking_blocks.strip_notices(text)).replace(_SQUEEZED_NOTICE, "")


def _lead(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]


def _text_after(text: str, reasoning: str) -> str | None:
    """The text after a reasoning that it begins with, white space aside; None if it begins otherwise."""
    begins, text = reasoning.strip(), text.lstrip()
    if text.startswith(begins):
        return text[len(begins) :]
    squeezed = remove_spaces(begins)
    left = len(squeezed)
    for at, character in enumerate(text, 1):
        left -= len(remove_spaces(character))
        if not left:
            return text[at:] if remove_spaces(text[:at]) == squeezed else None
    return None
