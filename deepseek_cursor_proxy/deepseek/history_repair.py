"""Repairs a tool history so that DeepSeek accepts it, and gives system messages a role that the model's template has.

DeepSeek requires the result of every tool call, by id, right after the message with the calls. Clients that were
stopped, restarted or summarised send other histories. The repairs, by their names in log and trace:

    cancelled       a call without a result gets a neutral one
    moved           a result after other messages goes next to its call, if no answer of the model is in between
    repeated        the same result again is dropped
    orphaned        a result without a call, or a second and different one, becomes a user message
    ids given       a call without an id, or with a duplicate, gets an id made of its position, and so does its result
    empty dropped   an assistant message without any content is left out

Each repair depends only on messages up to its position, so a chat that grows keeps its prefix for DeepSeek's cache.
No text of a client is lost: a result that cannot stay a result stays as text.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from deepseek_cursor_proxy.chat_memory import NO_CHAT, Chat, Stage
from deepseek_cursor_proxy.conversation import ChatRequest, Message, count_prompts
from deepseek_cursor_proxy.deepseek.chat_api import plain_text
from deepseek_cursor_proxy.deepseek.hosts import Host
from deepseek_cursor_proxy.deepseek.model_names import takes_later_system
from deepseek_cursor_proxy.deepseek.rules import FILLER

CANCELLED = "[cancelled: this call was not answered]"


class RepairedHistory(NamedTuple):
    """The history to send; `origins` holds, for each message, the index of its source in the client's history."""

    messages: tuple[Message, ...]
    origins: Sequence[int]
    repairs: Mapping[str, int]


# For histories without anything to repair.
_IN_ORDER: Stage[Message, None] = Stage("repair")
# None for histories without a message in another role.
_ROLES: Stage[Message, tuple[Message, ...] | None] = Stage("roles")


def repair(messages: Sequence[Message], memory: Chat = NO_CHAT) -> RepairedHistory:
    """The same history with every call answered right after it."""
    lookup = memory.look_up(_IN_ORDER, messages)
    unchanged = RepairedHistory(tuple(messages), range(len(messages)), {})
    if messages and _is_in_order(messages[lookup.count :]):
        lookup.store(None)
        return unchanged
    builder = _HistoryBuilder()
    for index, message in enumerate(messages):
        builder.add(index, message)
    repaired = builder.history()
    # DeepSeek refuses a request without messages, so empty ones stay if there are no others.
    return repaired if repaired.messages else unchanged


def _is_in_order(messages: Sequence[Message]) -> bool:
    """Whether there is nothing to repair, as in nearly every request. Takes a tenth of the time of a repair."""
    # Ids of the last assistant's calls that have no result yet.
    open_ids: set[str] = set()
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in open_ids:
                return False
            open_ids.remove(message.tool_call_id)
        elif open_ids:
            return False
        elif message.role == "assistant":
            open_ids = {call.id for call in message.tool_calls}
            if len(open_ids) < len(message.tool_calls) or "" in open_ids:
                return False
            if not open_ids and is_silent(message):
                return False
    return not open_ids


def is_silent(message: Message) -> bool:
    """Whether an assistant message without calls says nothing at all."""
    is_empty = not (message.tool_calls or message.content or message.prefix or message.server_items)
    return is_empty and message.reasoning in (None, "", FILLER)


def use_template_roles(request: ChatRequest, host: Host, memory: Chat = NO_CHAT) -> ChatRequest:
    """The request with system messages only where the model's template takes them: others are the user's.

    V4's template writes the header of an answer after a user message or a result, and none after a system message: the
    model then continues the user's text, and the reasoning of a past turn becomes part of it. So the role stays only at
    the beginning, and not right before an answer.
    """
    messages = request.messages
    if takes_later_system(request.model, host):
        return request
    leading = count_prompts(messages)
    is_before_answer = leading == len(messages) or messages[leading].role == "assistant"
    kept = max(0, leading - is_before_answer)
    lookup = memory.look_up(_ROLES, messages, kept)
    if lookup.result is None and "system" not in [message.role for message in messages[max(kept, lookup.count) :]]:
        # Nearly every chat.
        lookup.store(None)
        return request
    known = lookup.result or messages[: lookup.count]
    new = [
        message._replace(role="user") if message.role == "system" and at >= kept else message
        for at, message in enumerate(messages[lookup.count :], lookup.count)
    ]
    sent = (*known, *new)
    lookup.store(sent)
    return request._replace(messages=sent)


class _Round:
    """One assistant message with calls, and their results."""

    def __init__(self, index: int, message: Message, ids: Sequence[str]) -> None:
        self.index = index
        self.message = message
        self.results: dict[int, tuple[int, Message]] = {}
        # Positions of calls by the id that the client sent, in reverse order; entries are dropped late.
        self.positions: dict[str, list[int]] = {}
        for position in reversed(range(len(ids))):
            self.positions.setdefault(ids[position], []).append(position)
        self._unanswered = dict.fromkeys(range(len(ids)))

    def add_result(self, index: int, result: Message) -> bool:
        """Add a result to the call with its id, or without an id to the first open call; False if there is none."""
        call_id = result.tool_call_id or ""
        positions = self.positions.get(call_id, [])
        while positions and positions[-1] not in self._unanswered:
            # Answered by a result without an id.
            positions.pop()
        position = positions.pop() if positions else None
        if position is None and not call_id and self._unanswered:
            position = next(iter(self._unanswered))
        if position is None:
            return False
        del self._unanswered[position]
        self.results[position] = index, result
        return True


class _HistoryBuilder:
    """Builds the repaired history, message by message.

    Several rounds stay open at once, because clients split one turn into a message per call; results find theirs by id.
    """

    def __init__(self) -> None:
        # In their final order.
        self._entries: list[_Round | tuple[int, Message]] = []
        self._repairs: Counter[str] = Counter()
        # Since the last call: whether a message of the user came, and whether any other message came.
        self._has_user_message = self._is_interrupted = False
        self._close_rounds()

    def _close_rounds(self) -> None:
        """No later result belongs to the rounds so far."""
        self._open: list[_Round] = []
        self._open_by_id: dict[str, list[_Round]] = {}
        self._newest: _Round | None = None
        self._results: set[tuple[str, str]] = set()

    def add(self, index: int, message: Message) -> None:
        if message.role == "tool":
            self._add_result(index, message)
        elif message.role == "assistant" and message.tool_calls:
            self._add_round(index, message)
        elif message.role == "assistant" and is_silent(message):
            self._repairs["empty dropped"] += 1
        else:
            self._is_interrupted = True
            self._has_user_message = self._has_user_message or message.role == "user"
            if message.role == "assistant":
                self._close_rounds()
                self._has_user_message = self._is_interrupted = False
            self._entries.append((index, message))

    def history(self) -> RepairedHistory:
        messages: list[Message] = []
        origins: list[int] = []
        for entry in self._entries:
            for origin, message in self._complete(entry) if isinstance(entry, _Round) else [entry]:
                messages.append(message)
                origins.append(origin)
        return RepairedHistory(
            tuple(messages), tuple(origins), {name: count for name, count in self._repairs.items() if count}
        )

    def _add_round(self, index: int, message: Message) -> None:
        ids = [call.id for call in message.tool_calls]
        sent = set(ids)
        used: set[str] = set()
        calls = []
        for position, call in enumerate(message.tool_calls):
            if not call.id or call.id in used:
                self._repairs["ids given"] += 1
                # By position, so that every later request gets the same id.
                name = f"call_{index}_{position}"
                while name in sent or name in used:
                    name += "_"
                call = call._replace(id=name)
            used.add(call.id)
            calls.append(call)
        if tuple(calls) != message.tool_calls:
            message = message._replace(tool_calls=tuple(calls))
        if self._has_user_message:
            # These calls answer the user.
            self._close_rounds()
        self._newest = _Round(index, message, ids)
        self._has_user_message = self._is_interrupted = False
        self._open.append(self._newest)
        for call_id in self._newest.positions:
            self._open_by_id.setdefault(call_id, []).append(self._newest)
        self._entries.append(self._newest)

    def _add_result(self, index: int, message: Message) -> None:
        content = message.content if isinstance(message.content, str) else json.dumps(message.content)
        key = (message.tool_call_id or "", content)
        rounds = self._open_by_id.get(message.tool_call_id, []) if message.tool_call_id else self._open
        while rounds and not rounds[-1].add_result(index, message):
            # All its calls are answered.
            rounds.pop()
        if rounds:
            self._results.add(key)
            self._repairs["moved"] += self._is_interrupted or rounds[-1] is not self._newest
        elif key in self._results:
            self._repairs["repeated"] += 1
        else:
            self._repairs["orphaned"] += 1
            text = f"[result of tool call {message.tool_call_id or 'without id'}]\n{plain_text(message.content)}"
            self._entries.append((index, Message("user", text)))

    def _complete(self, current: _Round) -> list[tuple[int, Message]]:
        """A round with every call answered, in the client's order; in the order of the calls if results are missing."""
        calls = current.message.tool_calls
        missing = [position for position in range(len(calls)) if position not in current.results]
        self._repairs["cancelled"] += len(missing)
        for position in missing:
            current.results[position] = current.index, Message("tool", CANCELLED)
        order = sorted(current.results) if missing else list(current.results)
        completed = [(current.index, current.message)]
        for position in order:
            origin, result = current.results[position]
            if result.tool_call_id != calls[position].id:
                result = result._replace(tool_call_id=calls[position].id)
            completed.append((origin, result))
        return completed
