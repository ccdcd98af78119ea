"""Conversations that move from API to API, generated from a seed: begun with one, continued with another.

A Conversation is independent of any API. Each Api encodes it as its clients do, which keep the thinking, empty it or
drop it, and encode arguments again; and it takes from a reply what such a client would keep.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.fake_deepseek import Answer, Call
from tests.support import messages_client, responses_client
from tests.support.harness import chat_text
from tests.support.histories import TOOLS

Json = dict[str, Any]
SYSTEM = "You are an agent."


@dataclass
class Turn:
    """One answer, the results of its calls, and what clients of some APIs keep besides."""

    answer: Answer
    results: list[str]
    # The text of a chat completion, which may contain the thinking.
    displayed: str | None = None
    thinking: list[Json] = field(default_factory=list)
    reasoning_items: list[Json] = field(default_factory=list)
    response_id: str | None = None


@dataclass
class Conversation:
    """Questions and the turns after each of them."""

    key: str
    rounds: list[tuple[str, list[Turn]]] = field(default_factory=list)

    @property
    def turns(self) -> list[Turn]:
        return [turn for _, turns in self.rounds for turn in turns]


class Api(Protocol):
    path: str

    def body(self, conversation: Conversation, rng: random.Random) -> Json: ...

    def store_reply(self, turn: Turn, body: bytes, *, is_stream: bool) -> None:
        """Keep what a client keeps of this reply."""
        ...


def arguments(call: Call, rng: random.Random) -> str:
    """The arguments as they came, or encoded again."""
    value = json.loads(call.arguments)
    return rng.choice((call.arguments, json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)))


def echo_text(turn: Turn, rng: random.Random) -> str:
    text = turn.answer.content or ""
    return rng.choice((text, turn.displayed)) if turn.displayed is not None else text


class Chat:
    path = "/v1/chat/completions"

    def body(self, conversation: Conversation, rng: random.Random) -> Json:
        messages: list[Json] = [{"role": "system", "content": SYSTEM}]
        for question, turns in conversation.rounds:
            messages.append({"role": "user", "content": question})
            for turn in turns:
                messages.append(self._assistant(turn, rng))
                for call, result in zip(turn.answer.calls, turn.results, strict=True):
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return {"messages": messages, "tools": TOOLS}

    def _assistant(self, turn: Turn, rng: random.Random) -> Json:
        message: Json = {"role": "assistant", "content": echo_text(turn, rng) or None}
        if turn.answer.reasoning and rng.random() < 0.3:
            message["reasoning_content"] = turn.answer.reasoning
        if turn.answer.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments(call, rng)}}
                for call in turn.answer.calls
            ]
        return message

    def store_reply(self, turn: Turn, body: bytes, *, is_stream: bool) -> None:
        turn.displayed = chat_text(body)


class Responses:
    path = responses_client.PATH

    def body(self, conversation: Conversation, rng: random.Random) -> Json:
        fields: Json = {"instructions": SYSTEM, "tools": responses_client.TOOLS, "include": [SEALED]}
        items: list[Json] = []
        previous: Json = {}
        for question, turns in conversation.rounds:
            items.append(responses_client.question(question))
            for turn in turns:
                items += self._turn(turn, rng)
                if turn.response_id is not None and rng.random() < 0.5:
                    # The stored response has all of it; only new items are sent.
                    items, previous = [], {"previous_response_id": turn.response_id}
                calls = zip(turn.answer.calls, turn.results, strict=True)
                items += [responses_client.output(call.id, result) for call, result in calls]
        return {**fields, **previous, "input": items}

    def _turn(self, turn: Turn, rng: random.Random) -> list[Json]:
        items: list[Json] = []
        reasoning = turn.reasoning_items
        if rng.random() < 0.3:
            reasoning = [{**item, "content": None} for item in reasoning]
        elif rng.random() < 0.3:
            reasoning = []
        elif not reasoning and turn.answer.reasoning and rng.random() < 0.5:
            content = [{"type": "reasoning_text", "text": turn.answer.reasoning}]
            reasoning = [{"type": "reasoning", "summary": [], "content": content}]
        items += reasoning
        if text := echo_text(turn, rng):
            items.append({"role": "assistant", "content": [{"type": "output_text", "text": text}]})
        for call in turn.answer.calls:
            named = {"call_id": call.id, "name": call.name, "arguments": arguments(call, rng)}
            items.append({"type": "function_call", **named})
        return items

    def store_reply(self, turn: Turn, body: bytes, *, is_stream: bool) -> None:
        response = responses_client.check_stream(responses_client.events(body)) if is_stream else json.loads(body)
        turn.reasoning_items = [item for item in response["output"] if item["type"] == "reasoning"]
        turn.response_id = response["id"]


class Messages:
    path = messages_client.PATH

    def body(self, conversation: Conversation, rng: random.Random) -> Json:
        messages: list[Json] = []
        for question, turns in conversation.rounds:
            messages.append(messages_client.user(question))
            for turn in turns:
                messages.append({"role": "assistant", "content": self._turn(turn, rng)})
                if turn.answer.calls:
                    calls = zip(turn.answer.calls, turn.results, strict=True)
                    blocks = [messages_client.result(call.id, result) for call, result in calls]
                    messages.append(messages_client.user(*rng.sample(blocks, len(blocks))))
        display = rng.choice(({}, {"display": "omitted"}))
        thinking = {"type": "adaptive", **display}
        body = {"system": SYSTEM, "messages": messages, "tools": messages_client.TOOLS, "max_tokens": 1000}
        return {**body, "thinking": thinking}

    def _turn(self, turn: Turn, rng: random.Random) -> list[Json]:
        blocks = turn.thinking
        if rng.random() < 0.3:
            blocks = [{**block, "thinking": ""} for block in blocks]
        elif rng.random() < 0.3:
            blocks = []
        elif not blocks and turn.answer.reasoning and rng.random() < 0.5:
            blocks = [{"type": "thinking", "thinking": turn.answer.reasoning, "signature": ""}]
        text = echo_text(turn, rng)
        calls = [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
            for call in turn.answer.calls
        ]
        return [*blocks, *([{"type": "text", "text": text}] if text else []), *calls]

    def store_reply(self, turn: Turn, body: bytes, *, is_stream: bool) -> None:
        message = messages_client.add_up_events(messages_client.events(body)) if is_stream else json.loads(body)
        turn.thinking = [block for block in message["content"] if block["type"] == "thinking"]


SEALED = "reasoning.encrypted_content"
APIS: Sequence[Api] = (Chat(), Responses(), Messages())
