"""Make a tool history that DeepSeek accepts out of whatever a client kept of it.

DeepSeek wants every call answered right after its message, by results that name it, and nothing else there. Clients
that were stopped, restarted or summarised send something else. What is done here depends only on the messages before
and at each place, so a history that grows keeps the bytes it had:

    cancelled   a call without a result gets a neutral one
    moved       a result behind other messages goes next to its call, if no answer of the model stands in between
    repeated    the same result again is dropped
    orphaned    a result without a call, or a second one with other words, becomes readable text
    named       calls without an id, or with one that is taken, get an id by their place; their results the same
    emptied     an assistant that says nothing at all is left out

Nothing a client sent is lost: what cannot stay a result stays as text.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from deepseek_cursor_proxy.conversation import Message, ToolCall
from deepseek_cursor_proxy.deepseek.chat_api import plain_text
from deepseek_cursor_proxy.deepseek.rules import FILLER

CANCELLED = "[cancelled: this call was not answered]"


class RepairedHistory(NamedTuple):
    """The history to send; `origins` tells for each message which of the client's it is or belongs to."""

    messages: tuple[Message, ...]
    origins: tuple[int, ...]
    repairs: Mapping[str, int]


def repair(messages: Sequence[Message]) -> RepairedHistory:
    """The same history with every call answered in its place."""
    if _is_in_order(messages):
        return RepairedHistory(tuple(messages), tuple(range(len(messages))), {})
    bench = _Bench()
    for index, message in enumerate(messages):
        bench.take(index, message)
    repaired = bench.finished()
    # Somebody who said nothing at all is better than nobody: DeepSeek refuses a request without messages.
    return repaired if repaired.messages else RepairedHistory(tuple(messages), tuple(range(len(messages))), {})


def _is_in_order(messages: Sequence[Message]) -> bool:
    """Whether there is nothing to do, as in nearly every request; telling takes a tenth of doing it all the same."""
    # Ids of the last assistant's calls that have no result yet.
    waiting: set[str] = set()
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in waiting:
                return False
            waiting.remove(message.tool_call_id)
        elif waiting:
            return False
        elif message.role == "assistant":
            waiting = {call.id for call in message.tool_calls}
            if len(waiting) < len(message.tool_calls) or "" in waiting or _is_silent(message):
                return False
    return not waiting and bool(messages)


def _is_silent(message: Message) -> bool:
    is_empty = not (message.tool_calls or message.content or message.prefix)
    return is_empty and message.reasoning in (None, "", FILLER)


class _Round:
    """One assistant with calls: which of them are answered."""

    def __init__(self, index: int, message: Message, asked: Sequence[str]) -> None:
        self.index = index
        self.message = message
        self.results: dict[int, tuple[int, Message]] = {}
        # By the id as the client wrote it, which is what results name: the calls still unanswered, first one last.
        self._waiting: dict[str, list[int]] = {}
        for position in reversed(range(len(asked))):
            self._waiting.setdefault(asked[position], []).append(position)
        self._unanswered = dict.fromkeys(range(len(asked)))

    @property
    def ids(self) -> Sequence[str]:
        """The ids that results may name."""
        return tuple(self._waiting)

    def take(self, index: int, result: Message) -> bool:
        """Whether a result answers one of the calls: with its id, or without one the first that is unanswered."""
        call_id = result.tool_call_id or ""
        waiting = self._waiting.get(call_id, [])
        while waiting and waiting[-1] not in self._unanswered:
            # Answered meanwhile by a result without an id.
            waiting.pop()
        position = waiting.pop() if waiting else None
        if position is None and not call_id and self._unanswered:
            position = next(iter(self._unanswered))
        if position is None:
            return False
        del self._unanswered[position]
        self.results[position] = index, result
        return True


class _OpenRounds:
    """The rounds a result may belong to: several when a client split one turn into a message per call.

    Found by id, so that a history of nothing but calls and results that do not fit takes no longer than any other.
    """

    def __init__(self) -> None:
        self.newest: _Round | None = None
        # Whether anybody but tools and assistants has spoken since the newest call.
        self.is_interrupted = False
        self._unanswered: list[_Round] = []
        self._waiting: dict[str, list[_Round]] = {}
        self._given: set[tuple[str, str]] = set()

    def add(self, current: _Round) -> None:
        self.newest, self.is_interrupted = current, False
        self._unanswered.append(current)
        for call_id in current.ids:
            self._waiting.setdefault(call_id, []).append(current)

    def take(self, index: int, result: Message) -> _Round | None:
        """The newest round that has a call for this result; the call is answered by now."""
        rounds = self._waiting.get(result.tool_call_id, []) if result.tool_call_id else self._unanswered
        while rounds and not rounds[-1].take(index, result):
            # It has nothing left to ask for, and never will again.
            rounds.pop()
        if not rounds:
            return None
        self._given.add(_said(result))
        return rounds[-1]

    def has_given(self, result: Message) -> bool:
        return _said(result) in self._given


def _said(result: Message) -> tuple[str, str]:
    content = result.content
    return result.tool_call_id or "", content if isinstance(content, str) else json.dumps(content)


class _Bench:
    """The history while it is being repaired."""

    def __init__(self) -> None:
        # Messages in their final order; a round stands where its assistant stands.
        self._line: list[_Round | tuple[int, Message]] = []
        self._open = _OpenRounds()
        # Whether the user has spoken since the last call.
        self._has_asked = False
        self._repairs: Counter[str] = Counter()

    def take(self, index: int, message: Message) -> None:
        if message.role == "tool":
            self._take_result(index, message)
        elif message.role == "assistant":
            self._take_assistant(index, message)
        else:
            self._open.is_interrupted = True
            self._has_asked = self._has_asked or message.role == "user"
            self._line.append((index, message))

    def finished(self) -> RepairedHistory:
        messages: list[Message] = []
        origins: list[int] = []
        for each in self._line:
            for origin, message in self._closed(each) if isinstance(each, _Round) else [each]:
                messages.append(message)
                origins.append(origin)
        return RepairedHistory(
            tuple(messages), tuple(origins), {name: count for name, count in self._repairs.items() if count}
        )

    def _take_assistant(self, index: int, message: Message) -> None:
        if message.tool_calls:
            named = self._named(index, message.tool_calls)
            asked = tuple(call.id for call in message.tool_calls)
            if named != message.tool_calls:
                message = message._replace(tool_calls=named)
            if self._has_asked:
                # A question was answered by these calls: what was open before it is over.
                self._open = _OpenRounds()
            current = _Round(index, message, asked)
            self._open.add(current)
            self._has_asked = False
            self._line.append(current)
            return
        if _is_silent(message):
            self._repairs["emptied"] += 1
            return
        self._open, self._has_asked = _OpenRounds(), False
        self._line.append((index, message))

    def _named(self, index: int, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        taken: set[str] = set()
        written = {call.id for call in calls}
        named = []
        for position, call in enumerate(calls):
            if not call.id or call.id in taken:
                self._repairs["named"] += 1
                # By place, so that every later request gives the same name.
                name = f"call_{index}_{position}"
                while name in written or name in taken:
                    name += "_"
                call = call._replace(id=name)
            taken.add(call.id)
            named.append(call)
        return tuple(named)

    def _take_result(self, index: int, message: Message) -> None:
        current = self._open.take(index, message)
        if current is not None:
            self._repairs["moved"] += self._open.is_interrupted or current is not self._open.newest
        elif self._open.has_given(message):
            self._repairs["repeated"] += 1
        else:
            self._repairs["orphaned"] += 1
            text = f"[result of tool call {message.tool_call_id or 'without id'}]\n{plain_text(message.content)}"
            self._line.append((index, Message("user", text)))

    def _closed(self, current: _Round) -> list[tuple[int, Message]]:
        """A round with every call answered: as the client ordered them, or by call when some had to be made up."""
        calls = current.message.tool_calls
        missing = [position for position in range(len(calls)) if position not in current.results]
        self._repairs["cancelled"] += len(missing)
        for position in missing:
            current.results[position] = current.index, Message("tool", CANCELLED)
        order = sorted(current.results) if missing else list(current.results)
        answers = [
            (origin, _answering(result, calls[each].id)) for each in order for origin, result in [current.results[each]]
        ]
        return [(current.index, current.message), *answers]


def _answering(result: Message, call_id: str) -> Message:
    return result if result.tool_call_id == call_id else result._replace(tool_call_id=call_id)
