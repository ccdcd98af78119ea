"""Which reasoning an exchange stores, when, and under which keys.

a turn that ended        when its finish_reason is read, before the client sees it
a turn with a call       when its first call is whole: some clients run a call as soon as they have all of it;
                         further calls are stored with the end, until then the first one leads to the reasoning
an interrupted turn      when the exchange closes, as far as it came; and once more without an incomplete call,
                         because clients drop that

A turn of a tool loop is in the file before the client continues: DeepSeek insists on its reasoning. Any other turn may
reach the file a moment later.
"""

import json
from collections.abc import Sequence

from deepseek_cursor_proxy.conversation import Batch, ChatRequest, Delta, Message, Reply
from deepseek_cursor_proxy.deepseek import rules
from deepseek_cursor_proxy.deepseek.server_tools import MESSAGES
from deepseek_cursor_proxy.exchange.attempt import Attempt
from deepseek_cursor_proxy.json_codec import object_in, repair_object
from deepseek_cursor_proxy.protocols.tools import echoed_message
from deepseek_cursor_proxy.reasoning import echoes, server_turns
from deepseek_cursor_proxy.reasoning.identity import details_key
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore

_Entry = tuple[Sequence[bytes], str]


class TurnRecorder:
    """Stores the turns of one reply. Used by the thread that runs the exchange."""

    def __init__(self, reply: Reply, store: ReasoningStore, namespace: bytes = b"") -> None:
        self._reply = reply
        self._store = store
        self._namespace = namespace
        # Whether the turn was stored when it ended, and with its first call.
        self._has_ended = self._has_called = False
        # Exact keys and texts; a turn stored with its call may get more reasoning until it ends.
        self._stored: set[tuple[bytes, str]] = set()

    def record_complete(self, batch: Batch, attempt: Attempt) -> None:
        """Store what this batch, which is part of the reply by now, completes."""
        if self._has_ended:
            return
        if self._reply.is_finished:
            self._has_ended = True
            self._record([self._reply.message()], attempt)
        elif not self._has_called and any(isinstance(item, Delta) and item.may_end_call for item in batch):
            message = self._reply.message()
            if all(rules.is_whole_call(call) for call in message.tool_calls):
                self._has_called = True
                self._record([message], attempt)

    def record_rest(self, attempt: Attempt) -> None:
        """Store the interrupted turn."""
        if not self._reply.is_empty and not self._has_ended:
            self._has_ended = True
            message = self._reply.message()
            whole = tuple(call for call in message.tool_calls if rules.is_whole_call(call))
            has_incomplete = bool(whole) and len(whole) < len(message.tool_calls)
            turns = [message, message._replace(tool_calls=whole)] if has_incomplete else [message]
            self._record(turns, attempt)

    def _record(self, turns: Sequence[Message], attempt: Attempt) -> None:
        """Store the reasoning of turns, under the keys of every form in which the client may echo them."""
        prepared, host = attempt.prepared, attempt.api.host
        assert prepared is not None
        # Whether an answer without reasoning means that the model thought nothing.
        is_sure = host.silence_means_no_thinking or (host.requires_reasoning and not attempt.request.thinking)
        if not (is_sure or turns[0].reasoning or self._reply.has_empty_reasoning()):
            return
        extras: list[_Entry] = []
        for turn in turns:
            if turn.details is not None and turn.reasoning:
                extras.append(((details_key(self._namespace, turn.reasoning),), turn.details))
        forms = self._echoed_forms(turns, prepared.request)
        has_calls = any(form.tool_calls for form in forms)
        names = {tool["function"]["name"] for tool in prepared.request.tools} if has_calls else set()
        new: list[_Entry] = []
        is_searched = False
        for form in forms:
            echo = echoed_message(form, prepared.request.custom_tools, names)
            keys, reasoning = prepared.history.answer_keys(echo), echo.reasoning or ""
            # Most turns with calls are stored with their first call, and get no reasoning after it.
            if (keys.exact, reasoning) not in self._stored:
                self._stored.add((keys.exact, reasoning))
                new.append(((*keys.record_keys(), *echoes.record_keys(keys, echo)), reasoning))
            if echo.server_items is not None:
                is_searched = True
                extras.append((server_turns.record_keys(self._namespace, echo, keys), echo.server_items))
        if new:
            # Each text once, under all its keys: one turn may be echoed in several forms.
            keys_of: dict[str, tuple[bytes, ...]] = {}
            for record_keys, text in new + extras:
                keys_of[text] = (*keys_of.get(text, ()), *record_keys)
            merged = [(record_keys, text) for text, record_keys in keys_of.items()]
            can_wait = not (has_calls or is_searched or rules.is_in_tool_loop(prepared.request))
            self._store.record(merged, can_wait=can_wait, caller=self._namespace)

    def _echoed_forms(self, turns: Sequence[Message], request: ChatRequest) -> list[Message]:
        """The turns, and after them the other forms in which the client may echo them."""
        forms = [*turns]
        # Many clients send no search back.
        forms += [form._replace(server_items=None) for form in forms if form.server_items is not None]
        if request.client_api == MESSAGES and any(form.tool_calls for form in forms):
            forms += [other for form in forms for other in _with_objects(form)]
        return forms


def _with_objects(turn: Message) -> list[Message]:
    """The turn with what clients of Messages echo in place of invalid arguments: a repair, or an empty object."""
    invalid = {call.arguments for call in turn.tool_calls if object_in(call.arguments) is None}
    if not invalid:
        return []
    found = []
    for objects in ({text: json.dumps(repair_object(text)) for text in invalid}, dict.fromkeys(invalid, "{}")):
        calls = [call._replace(arguments=objects.get(call.arguments, call.arguments)) for call in turn.tool_calls]
        found.append(turn._replace(tool_calls=tuple(calls)))
    return found
