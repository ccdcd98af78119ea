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

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from deepseek_cursor_proxy.conversation import Message, ToolCall
from deepseek_cursor_proxy.deepseek import FILLER, plain_text

CANCELLED = "[cancelled: this call was not answered]"


@dataclass(frozen=True)
class Repaired:
    """The history to send; `origins` tells for each message which of the client's it is or belongs to."""

    messages: tuple[Message, ...]
    origins: tuple[int, ...]
    repairs: Mapping[str, int]


def repair(messages: Sequence[Message]) -> Repaired:
    """The same history with every call answered in its place."""
    bench = _Bench()
    for index, message in enumerate(messages):
        bench.take(index, message)
    return bench.finished()


@dataclass
class _Round:
    """One assistant with calls: which of them are answered, and whether its results still stand right behind it."""

    index: int
    message: Message
    # Per call: the id as the client wrote it, which is what its results name.
    asked: tuple[str, ...]
    results: dict[int, tuple[int, Message]]
    is_adjacent: bool = True

    def position_of(self, call_id: str) -> int | None:
        """The call a result answers: the first unanswered one with that id; without an id, the first unanswered."""
        for position, asked in enumerate(self.asked):
            if position not in self.results and (asked == call_id or not call_id):
                return position
        return None

    def answer_to(self, call_id: str) -> Message | None:
        given = [result for position, (_, result) in self.results.items() if self.asked[position] == call_id]
        return given[-1] if given else None


class _Bench:
    """The history while it is being repaired."""

    def __init__(self) -> None:
        # Messages in their final order; a round stands where its assistant stands.
        self._line: list[_Round | tuple[int, Message]] = []
        self._open: _Round | None = None
        self._repairs: Counter[str] = Counter()

    def take(self, index: int, message: Message) -> None:
        if message.role == "tool":
            self._take_result(index, message)
        elif message.role == "assistant":
            self._take_assistant(index, message)
        else:
            if self._open is not None:
                self._open.is_adjacent = False
            self._line.append((index, message))

    def finished(self) -> Repaired:
        messages: list[Message] = []
        origins: list[int] = []
        for each in self._line:
            for origin, message in self._closed(each) if isinstance(each, _Round) else [each]:
                messages.append(message)
                origins.append(origin)
        return Repaired(
            tuple(messages), tuple(origins), {name: count for name, count in self._repairs.items() if count}
        )

    def _take_assistant(self, index: int, message: Message) -> None:
        if message.tool_calls:
            named = self._named(index, message.tool_calls)
            asked = tuple(call.id for call in message.tool_calls)
            if named != message.tool_calls:
                message = replace(message, tool_calls=named)
            self._open = _Round(index, message, asked, {})
            self._line.append(self._open)
            return
        self._open = None
        if not message.content and message.reasoning in (None, "", FILLER) and not message.prefix:
            self._repairs["emptied"] += 1
            return
        self._line.append((index, message))

    def _named(self, index: int, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        taken: set[str] = set()
        named = []
        for position, call in enumerate(calls):
            if not call.id or call.id in taken:
                self._repairs["named"] += 1
                # By place, so that every later request gives the same name.
                call = replace(call, id=f"call_{index}_{position}")
            taken.add(call.id)
            named.append(call)
        return tuple(named)

    def _take_result(self, index: int, message: Message) -> None:
        call_id = message.tool_call_id or ""
        current = self._open
        position = current.position_of(call_id) if current is not None else None
        if current is not None and position is not None:
            self._repairs["moved"] += not current.is_adjacent
            current.results[position] = index, message
        elif current is not None and current.answer_to(call_id) == message:
            self._repairs["repeated"] += 1
        else:
            self._repairs["orphaned"] += 1
            text = f"[result of tool call {call_id or 'without id'}]\n{plain_text(message.content)}"
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
    return result if result.tool_call_id == call_id else replace(result, tool_call_id=call_id)
