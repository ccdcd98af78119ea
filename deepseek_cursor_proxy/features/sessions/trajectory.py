"""The values of a session: its head, a turn to record, and a node as it is read; and the turns of a request.

A message is in the form of chat completions, as DeepSeek saw it, with the reasoning of the turn as
`reasoning_content`; a filler in place of an unknown reasoning is left out.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from deepseek_cursor_proxy.conversation import Message, is_blank
from deepseek_cursor_proxy.deepseek.usage import TokenLogprobs, add_usage
from deepseek_cursor_proxy.json_codec import as_object
from deepseek_cursor_proxy.observers.events import Finished, Result

Json = Mapping[str, Any]

_LONGEST_TITLE = 120


@dataclass(frozen=True)
class SessionOptions:
    """What a client asks for when it creates a session."""

    name: str = ""
    tags: tuple[str, ...] = ()
    # Every step is a node, and not only the ends of trajectories.
    track_tree: bool = False
    ttl_seconds: float | None = None
    # Whether calls in the model's own markup become calls: the client has asked for the parser by name.
    reads_written_calls: bool = False


class Session(NamedTuple):
    uuid: str
    options: SessionOptions
    model: str
    created_at: float
    used_at: float
    requests: int = 0
    nodes: int = 0
    tokens: int = 0
    cost: float | None = None


def new_session(options: SessionOptions, model: str, now: float) -> Session:
    options = replace(options, name=storable(options.name))
    return Session(str(uuid.uuid4()), options, storable(model), now, now)


def storable(text: str) -> str:
    """The text with `?` for lone surrogates, which are legal in JSON and have no UTF-8 form."""
    return text.encode(errors="replace").decode()


class RecordedTurn(NamedTuple):
    """One answered request: what was sent, the answer, and what is known about both."""

    # Prompts before the first other message take no part in deciding where the turn belongs.
    messages: Sequence[Message]
    tools: Sequence[Json]
    answer: Message
    info: Json
    model: str = ""
    tokens: int = 0
    cost: float | None = None
    # Lists of tokens, of the answer's text and of its reasoning, if the request asked for them.
    logprobs: Sequence[Sequence[Json]] = ()


class UnnamedSession(NamedTuple):
    """The session of a chat that named none: begun, under a name of ours, with the first turn that is recorded."""

    chat: bytes
    name: str
    model: str


class TurnOfSession(NamedTuple):
    caller: bytes
    session: str | UnnamedSession
    turn: RecordedTurn


@dataclass(frozen=True)
class Node:
    """One trajectory. `own` are the indexes of the messages that the model wrote in this session."""

    id: int
    parent: int | None
    messages: tuple[Json, ...]
    tools: tuple[Json, ...]
    own: frozenset[int]
    info: Json
    # By the index of a message.
    logprobs: Mapping[int, Sequence[Sequence[Json]]] = field(default_factory=dict)


def turns_of(event: Finished, caller: bytes, named: str, logprobs: TokenLogprobs | None = None) -> list[TurnOfSession]:
    """The turns of a caller's request: one for each answer; the first has the tokens and the cost of all.

    One that named no session is recorded in one of its chat.
    """
    prepared, facts, tokens, answer = event.prepared, event.facts, event.tokens, event.message
    if prepared is None or answer is None:
        # It was not sent, or not answered.
        return []
    request, cost = prepared.request, event.cost.amount if event.cost is not None else None
    info = {
        "usage": add_usage({}, event.usage) if event.usage is not None else None,
        "cost": cost,
        "model": facts.model,
        "started": facts.started_at,
        "finished": facts.started_at + event.timing.total,
        "metadata": {
            "finish_reason": event.finish_reason,
            "is_complete": event.end.result is Result.COMPLETED,
            "api": facts.api,
            "request_numbers": [facts.number],
            "requested_model": facts.requested_model,
            "recovered": prepared.counts.recovered,
            "missing_reasoning": prepared.counts.missing,
        },
    }
    total = tokens.prompt + tokens.output if tokens is not None else 0
    # With several answers it is not known whose they are.
    lists = (logprobs.text, logprobs.reasoning) if logprobs is not None and not event.other_messages else ()
    model, kept = request.requested_model, [each for each in lists if each]
    first = RecordedTurn(request.messages, request.tools, answer, info, model, total, cost, kept)
    other = first._replace(info={**info, "cost": None}, tokens=0, cost=None)
    turns = [first, *(other._replace(answer=message) for message in event.other_messages)]
    name = title((message.role, message.content) for message in request.messages)
    session = named or UnnamedSession(prepared.history.conversation, name, facts.model)
    return [TurnOfSession(caller, session, turn) for turn in turns]


def title(messages: Iterable[tuple[object, object]]) -> str:
    """The beginning of the first question of messages, each given by its role and content."""
    questions = (content for role, content in messages if role == "user" and isinstance(content, str))
    return " ".join(next(questions, "").split())[:_LONGEST_TITLE]


def message_json(message: Message) -> dict[str, Any]:
    """A message in the form of chat completions."""
    fields: dict[str, Any] = {"role": message.role}
    if message.role == "tool":
        fields["tool_call_id"] = message.tool_call_id
    fields["content"] = message.content if isinstance(message.content, str) else list(message.content)
    if message.name is not None:
        fields["name"] = message.name
    if not is_blank(message.reasoning):
        fields["reasoning_content"] = message.reasoning
    if message.tool_calls:
        fields["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return fields


def merge_info(before: Json, after: Json) -> dict[str, Any]:
    """What is known about a node that a turn continued: the beginning of the first, the end of the last, the sums."""
    costs = [info["cost"] for info in (before, after) if info.get("cost") is not None]
    earlier, later = as_object(before.get("metadata")), as_object(after.get("metadata"))
    return {
        **after,
        "usage": add_usage(as_object(before.get("usage")), as_object(after.get("usage"))) or None,
        "cost": sum(costs) if costs else None,
        "started": before.get("started"),
        "metadata": {
            **later,
            "request_numbers": [*earlier.get("request_numbers", ()), *later.get("request_numbers", ())],
            "recovered": earlier.get("recovered", 0) + later.get("recovered", 0),
        },
    }


def reasoning_of(message: object) -> str:
    reasoning = as_object(message).get("reasoning_content")
    return reasoning if isinstance(reasoning, str) else ""
