"""Reply, which adds the deltas of one answer up to its message.

An answer is held as the pieces that came, and joined once, when its message is asked for.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deepseek_cursor_proxy.conversation.deltas import CallPiece, Delta, ForeignReasoning
from deepseek_cursor_proxy.conversation.messages import Message, ToolCall, pack_items


class Reply:
    """Adds up the deltas of one answer. Used by the one thread that runs the exchange."""

    # All of an answer is held until it is stored. A million tokens are four million characters: what is longer than
    # this does not come to an end.
    MAX_CHARACTERS = 16 * 1024 * 1024

    def __init__(self) -> None:
        self.usage: Mapping[str, Any] | None = None
        # In characters: what this holds in memory.
        self.size = 0
        # Whether any reasoning came under another name than `reasoning_content`.
        self.is_foreign = False
        self._choices: dict[int, _Choice] = {}

    def add(self, delta: Delta) -> None:
        # All at once, because this runs for every chunk: fields by name take longer.
        index, reasoning, text, calls, _, usage, chunk, _, foreign, server = delta
        self.size += delta.size if calls else len(reasoning or "") + len(text or "")
        if usage is not None:
            self.usage = usage
        if chunk is None or chunk.get("choices"):
            choice = self._choices.get(index)
            if choice is None:
                choice = self._choices[index] = _Choice()
            choice.add(delta)
            if foreign is not None:
                self.is_foreign = True
                self.size += _size_of_details(foreign.details)
            if server is not None:
                self.size += server.size

    @property
    def choices(self) -> list[int]:
        return sorted(self._choices)

    @property
    def is_too_long(self) -> bool:
        return self.size > self.MAX_CHARACTERS

    @property
    def is_empty(self) -> bool:
        return not any(choice.has_content for choice in self._choices.values())

    @property
    def is_finished(self) -> bool:
        """Whether every choice that began has a finish_reason."""
        return bool(self._choices) and all(choice.finish_reason for choice in self._choices.values())

    def finish_reason(self, choice: int = 0) -> str | None:
        found = self._choices.get(choice)
        return found.finish_reason if found else None

    def has_content(self, choice: int) -> bool:
        found = self._choices.get(choice)
        return found is not None and found.has_content

    def message(self, choice: int = 0) -> Message:
        return (self._choices.get(choice) or _Choice()).message()

    def has_empty_reasoning(self, choice: int) -> bool:
        """Whether upstream said that the model thought nothing, and did not just leave the reasoning out."""
        details = (self.usage or {}).get("completion_tokens_details")
        tokens = details.get("reasoning_tokens") if isinstance(details, Mapping) else None
        return tokens == 0 or (self._choices.get(choice) or _Choice()).has_empty_reasoning

    @property
    def foreign_names(self) -> tuple[str, ...]:
        """The names other than `reasoning_content` under which reasoning came."""
        return tuple(dict.fromkeys(name for choice in self._choices.values() for name in choice.foreign_names))

    @property
    def has_mixed_names(self) -> bool:
        """Whether upstream used `reasoning_content` and other names in the same answer."""
        return any(choice.has_mixed_names for choice in self._choices.values())

    def reasoning_before_calls(self, choice: int = 0) -> str | None:
        """The reasoning that a display shows, if the model thought on after its calls; None otherwise."""
        return (self._choices.get(choice) or _Choice()).reasoning_before_calls()


class _Choice:
    """One choice, kept as fragments: joining at the end keeps a long answer linear."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self._reasoning: list[str] = []
        self._text: list[str] = []
        self._calls: dict[int, _ToolCallPieces] = {}
        self._thoughts_before_calls: int | None = None
        self._details: list[dict[str, Any]] = []
        # Each with the pieces of reasoning and of text before it.
        self._server_items: list[tuple[Mapping[str, Any], int, int]] = []
        # In the order they came.
        self.foreign_names: dict[str, None] = {}
        self.has_empty_reasoning = False
        # How many pieces of reasoning came under another name only.
        self._foreign_pieces = 0
        # Until the next delta.
        self._message: Message | None = None

    def add(self, delta: Delta) -> None:
        _, reasoning, text, calls, finish_reason, _, _, _, foreign, server = delta
        self._message = None
        if reasoning:
            self._reasoning.append(reasoning)
        elif reasoning is not None:
            self.has_empty_reasoning = True
        if foreign is not None:
            self._add_foreign(foreign, bool(reasoning))
        if text:
            self._text.append(text)
        if server is not None:
            before = len(self._reasoning), len(self._text)
            self._server_items += [(piece.item, *before) for piece in server.pieces if piece.is_whole]
        if calls and self._thoughts_before_calls is None:
            self._thoughts_before_calls = len(self._reasoning)
        for piece in calls:
            self._calls.setdefault(piece.index, _ToolCallPieces()).add(piece)
        if finish_reason:
            self.finish_reason = finish_reason

    def _add_foreign(self, foreign: ForeignReasoning, has_text: bool) -> None:
        self.foreign_names[foreign.name] = None
        if has_text and not foreign.is_native:
            self._foreign_pieces += 1
        merge_details(self._details, foreign.details)

    @property
    def has_mixed_names(self) -> bool:
        return bool(self.foreign_names) and len(self._reasoning) > self._foreign_pieces

    @property
    def has_content(self) -> bool:
        return bool(self._reasoning or self._text or self._calls or self._server_items)

    def reasoning_before_calls(self) -> str | None:
        count = self._thoughts_before_calls
        return join_pieces(self._reasoning[:count]) if count is not None and count < len(self._reasoning) else None

    def message(self) -> Message:
        if self._message is None:
            calls = tuple(self._calls[index].whole() for index in sorted(self._calls))
            self._message = Message("assistant", join_pieces(self._text), join_pieces(self._reasoning), calls)
            if self._details:
                details = json.dumps(self._details, ensure_ascii=False, separators=(",", ":"))
                self._message = self._message._replace(details=details)
            if self._server_items:
                self._message = self._message._replace(server_items=pack_items("answer", self._all_items()))
        return self._message

    def _all_items(self) -> list[Mapping[str, Any]]:
        """The items, with the lengths of the reasoning and of the text in their places."""
        found: list[Mapping[str, Any]] = []
        thoughts = texts = 0
        for item, reasoning_end, text_end in [*self._server_items, ({}, len(self._reasoning), len(self._text))]:
            words = {"thinking": self._reasoning[thoughts:reasoning_end], "text": self._text[texts:text_end]}
            found += [{"type": kind, "length": len(join_pieces(each))} for kind, each in words.items() if each]
            found += [item] if item else []
            thoughts, texts = reasoning_end, text_end
        return found


class _ToolCallPieces:
    def __init__(self) -> None:
        self._id = self._name = ""
        self._arguments: list[str] = []

    def add(self, piece: CallPiece) -> None:
        # Later pieces may repeat id and name, empty or in full; they are never continued.
        self._id, self._name = self._id or piece.id, self._name or piece.name
        self._arguments.append(piece.arguments)

    def whole(self) -> ToolCall:
        return ToolCall(self._id, self._name, join_pieces(self._arguments))


# The fields of a detail that a stream sends in pieces.
_DETAIL_TEXTS = ("text", "summary", "data")


def merge_details(known: list[dict[str, Any]], new: Sequence[Mapping[str, Any]]) -> None:
    """Add the details of a chunk: one that continues an earlier one, by type and index, is joined to it."""
    earlier = len(known)
    for each in new:
        index = each.get("index")
        open_ones = known[:earlier] if index is not None else known[:earlier][-1:]
        same = (one for one in open_ones if one.get("type") == each.get("type") and one.get("index") == index)
        target = next(same, None)
        if target is None:
            known.append(dict(each))
            continue
        for name, value in each.items():
            before = target.get(name)
            if name in _DETAIL_TEXTS and isinstance(before, str) and isinstance(value, str):
                target[name] = before + value
            elif value is not None:
                target[name] = value


def _size_of_details(details: Sequence[Mapping[str, Any]]) -> int:
    """About how many characters they have."""
    return sum(len(value) if isinstance(value, str) else 16 for each in details for value in each.values())


def join_pieces(pieces: list[str]) -> str:
    """The pieces as one text; a character that was cut into two surrogates becomes whole again."""
    text = "".join(pieces)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text
