"""What a host sends beside text and reasoning, and wants back: searches that it ran itself, reasoning details.

Turns for which DeepSeek ran its own tools are sent back as they came, whatever the client dropped from them.

Codex drops the ids of searches, other clients drop fields of them or the reasoning between them. DeepSeek finds the
results of a search by its item, and its prefix cache hits only on an equal beginning, so the turn shall go back as it
came. The recorder stores the items of an answer with the places of its reasoning (see conversation.pack_items), under
its exact key (see identity) and under keys made of its texts and calls, for histories that have changed. An item counts
as a stored one if none of its fields contradicts that; if one of a turn does, the turn stays as the client sent it.

Reasoning details are stored under the text that they came with (see `identity.details_key`).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deepseek_cursor_proxy.chat_memory import NO_CHAT, Chat, Stage
from deepseek_cursor_proxy.conversation import Message, is_blank, pack_items
from deepseek_cursor_proxy.deepseek.server_tools import is_made_by_tool
from deepseek_cursor_proxy.reasoning.identity import TurnKeys, details_key, digest, is_unique_id, text_bytes
from deepseek_cursor_proxy.reasoning.restore import FindTexts, PreparedRequest

# A field that does not identify an item, and the fields that clients get although DeepSeek did not send them.
_CHANGING_FIELD = "status"
_ADDED_FIELDS = frozenset({"action", "query"})


def record_keys(namespace: bytes, turn: Message, keys: TurnKeys) -> tuple[bytes, ...]:
    """The keys to record the items of an answer under, the strongest first."""
    return _exact_key(keys), *(_key(namespace, text) for text in _identifying_texts(turn))


_COMPLETE: Stage[Message, tuple[Message, ...]] = Stage("items")


def complete(prepared: PreparedRequest, namespace: bytes, find: FindTexts, memory: Chat = NO_CHAT) -> PreparedRequest:
    """The request with the items of every turn as DeepSeek sent them, where the store has these."""
    messages = prepared.request.messages
    if not any(message.server_items is not None for message in messages):
        return prepared
    lookup = memory.look_up(_COMPLETE, messages, namespace)
    completed = [*(lookup.result or ()), *messages[lookup.count :]]
    places = [at for at, message in enumerate(messages) if message.role == "assistant"]
    turns = [keys for keys in prepared.history.keys if keys is not None]
    exact_keys: dict[int, bytes] = {}
    if not prepared.counts.recovered and len(turns) == len(places):
        # The request still has all turns of the history.
        exact_keys = {at: _exact_key(keys) for at, keys in zip(places, turns, strict=True)}
    new = [at for at in places if at >= lookup.count and messages[at].server_items is not None]
    missing = _complete_each(completed, {at: exact_keys[at] for at in new if at in exact_keys}, find)
    missing += [at for at in new if at not in exact_keys]
    # A turn is looked up by its texts only if no other key finds it: many turns may have the same texts.
    text_keys = {at: _key(namespace, texts[0]) for at in missing if (texts := _identifying_texts(messages[at]))}
    _complete_each(completed, text_keys, find)
    size = lookup.size + sum([len(completed[at].server_items or "") for at in new])
    lookup.store(tuple(completed), size)
    request = prepared.request._replace(messages=tuple(completed))
    return prepared._replace(request=request, size=prepared.size + size)


def _complete_each(messages: list[Message], keys: Mapping[int, bytes], find: FindTexts) -> list[int]:
    """Complete the messages at these indexes in place. Returns the indexes for which no stored turn fits."""
    stored = find([*keys.values()]) if keys else {}
    missing: list[int] = []
    for at, key in keys.items():
        message = _complete(messages[at], stored.get(key, ()))
        if message is None:
            missing.append(at)
        else:
            messages[at] = message
    return missing


def _identifying_texts(turn: Message) -> list[str]:
    """The reasoning, the text, and the random ids of the calls, as far as there are any."""
    content = turn.content if isinstance(turn.content, str) else ""
    calls = " ".join(call.id for call in turn.tool_calls if is_unique_id(call.id))
    # Clients trim the text, and the reasoning is the original by now.
    texts = ["" if is_blank(turn.reasoning) else turn.reasoning or "", content.strip(), calls]
    return [text for text in texts if text]


def _key(namespace: bytes, text: str) -> bytes:
    return digest(namespace, b"server items", text_bytes(text))


def _exact_key(keys: TurnKeys) -> bytes:
    return digest(keys.exact, b"server items")


def _complete(message: Message, stored: Sequence[str]) -> Message | None:
    """The message with the stored items; None if no stored turn fits."""
    assert message.server_items is not None
    ((api, sent),) = json.loads(message.server_items).items()
    own = [item for item in sent if is_made_by_tool(item)]
    # Whether the client sent the reasoning in its places.
    lengths: list[int] = [item["length"] for item in sent if item.get("type") == "thinking"]
    has_thinking = bool(lengths) and sum(lengths) == len(message.reasoning or "")
    # If several fit, take the oldest: it was sent before.
    for text in stored:
        ((_, whole),) = json.loads(text).items()
        theirs = [item for item in whole if is_made_by_tool(item)]
        if len(own) == len(theirs) and all(_may_be_cut_from(*pair) for pair in zip(own, theirs, strict=True)):
            return message._replace(server_items=pack_items(api, _merge_items(sent, whole, has_thinking)))
    return None


def _may_be_cut_from(sent: Mapping[str, Any], whole: Mapping[str, Any]) -> bool:
    """Whether a client may have made one item of the other, by dropping fields."""
    for name, value in sent.items():
        if value is None or name == _CHANGING_FIELD or (name in _ADDED_FIELDS and name not in whole):
            continue
        stored = whole.get(name)
        if isinstance(value, dict) and isinstance(stored, dict):
            if not _may_be_cut_from(value, stored):
                return False
        elif value != stored:
            return False
    return True


def _merge_items(
    sent: Sequence[Mapping[str, Any]], whole: Sequence[Mapping[str, Any]], has_thinking: bool
) -> list[Mapping[str, Any]]:
    """The stored items, with the texts that the client sent between them, and the reasoning if it sent none."""
    gaps: list[list[Mapping[str, Any]]] = [[]]
    for item in sent:
        if is_made_by_tool(item):
            gaps.append([])
        elif has_thinking or item.get("type") != "thinking":
            gaps[-1].append(item)
    items: list[Mapping[str, Any]] = []
    rest = iter(gaps)
    for item in whole:
        if is_made_by_tool(item):
            items += [*next(rest), item]
        elif item.get("type") == "thinking" and not has_thinking:
            items.append(item)
    return [*items, *next(rest)]


_DETAILS: Stage[Message, tuple[Message, ...]] = Stage("details")


def add_details(
    prepared: PreparedRequest, namespace: bytes, find: FindTexts, memory: Chat = NO_CHAT
) -> PreparedRequest:
    """The request with the list of details beside each reasoning that came with one."""
    lookup = memory.look_up(_DETAILS, prepared.request.messages, namespace)
    new = prepared.request.messages[lookup.count :]
    keys = [details_key(namespace, message.reasoning) if message.reasoning else None for message in new]
    stored = find([key for key in keys if key is not None])
    # If several lists have the same text, take the oldest: it was sent before.
    pairs = zip(new, keys, strict=True)
    added = [message._replace(details=stored[key][0]) if key in stored else message for message, key in pairs]
    messages = (*(lookup.result or ()), *added)
    size = lookup.size + sum([len(message.details or "") for message in added])
    lookup.store(messages, size)
    return prepared._replace(request=prepared.request._replace(messages=messages), size=prepared.size + size)
