"""Talks that move from API to API, made up from a seed: written by one, gone on with by another.

A Talk is what was said, in nobody's words. Each API writes it down as its clients do, who keep the thinking, empty it
or drop it, and write arguments down anew; and reads from an answer what such a client would keep of it.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from deepseek_cursor_proxy.lab.fake_deepseek import Answer, Call
from tests.support import messages_client, responses_client
from tests.support.histories import TOOLS

Json = dict[str, Any]
SYSTEM = "You are an agent."


@dataclass
class Turn:
    """One answer, the results of its calls, and what clients of some APIs have of it besides."""

    answer: Answer
    results: list[str]
    # What a chat showed, which may have the thinking in it.
    shown: str | None = None
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

    def keep(self, turn: Turn, body: bytes, *, is_stream: bool) -> None:
        """Note what a client has of a turn after this reply."""
        ...


def arguments(call: Call, rng: random.Random) -> str:
    """The arguments as they were written, or anew."""
    value = json.loads(call.arguments)
    return rng.choice((call.arguments, json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)))


def text(turn: Turn, rng: random.Random) -> str:
    said = turn.answer.content or ""
    return rng.choice((said, turn.shown)) if turn.shown is not None else said


class Chat:
    path = "/v1/chat/completions"

    def body(self, conversation: Conversation, rng: random.Random) -> Json:
        messages: list[Json] = [{"role": "system", "content": SYSTEM}]
        for question, turns in conversation.rounds:
            messages.append({"role": "user", "content": question})
            for turn in turns:
                messages.append(self._assistant(turn, rng))
                for call, told in zip(turn.answer.calls, turn.results, strict=True):
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": told})
        return {"messages": messages, "tools": TOOLS}

    def _assistant(self, turn: Turn, rng: random.Random) -> Json:
        said: Json = {"role": "assistant", "content": text(turn, rng) or None}
        if turn.answer.reasoning and rng.random() < 0.3:
            said["reasoning_content"] = turn.answer.reasoning
        if turn.answer.calls:
            said["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments(call, rng)}}
                for call in turn.answer.calls
            ]
        return said

    def keep(self, turn: Turn, body: bytes, *, is_stream: bool) -> None:
        if is_stream:
            chunks = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
            parts = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
            turn.shown = "".join(parts)
        else:
            turn.shown = json.loads(body)["choices"][0]["message"]["content"] or ""


class Responses:
    path = responses_client.PATH

    def body(self, conversation: Conversation, rng: random.Random) -> Json:
        wanted: Json = {"instructions": SYSTEM, "tools": responses_client.TOOLS, "include": [SEALED]}
        items: list[Json] = []
        known: Json = {}
        for question, turns in conversation.rounds:
            items.append(responses_client.question(question))
            for turn in turns:
                items += self._turn(turn, rng)
                if turn.response_id is not None and rng.random() < 0.5:
                    # All of it is known there; only what is new has to be said.
                    items, known = [], {"previous_response_id": turn.response_id}
                calls = zip(turn.answer.calls, turn.results, strict=True)
                items += [responses_client.output(call.id, told) for call, told in calls]
        return {**wanted, **known, "input": items}

    def _turn(self, turn: Turn, rng: random.Random) -> list[Json]:
        items: list[Json] = []
        kept = turn.reasoning_items
        if rng.random() < 0.3:
            kept = [{**item, "content": None} for item in kept]
        elif rng.random() < 0.3:
            kept = []
        elif not kept and turn.answer.reasoning and rng.random() < 0.5:
            content = [{"type": "reasoning_text", "text": turn.answer.reasoning}]
            kept = [{"type": "reasoning", "summary": [], "content": content}]
        items += kept
        if said := text(turn, rng):
            items.append({"role": "assistant", "content": [{"type": "output_text", "text": said}]})
        for call in turn.answer.calls:
            named = {"call_id": call.id, "name": call.name, "arguments": arguments(call, rng)}
            items.append({"type": "function_call", **named})
        return items

    def keep(self, turn: Turn, body: bytes, *, is_stream: bool) -> None:
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
                    told = [messages_client.result(call.id, result) for call, result in calls]
                    messages.append(messages_client.user(*rng.sample(told, len(told))))
        display = rng.choice(({}, {"display": "omitted"}))
        thinking = {"type": "adaptive", **display}
        body = {"system": SYSTEM, "messages": messages, "tools": messages_client.TOOLS, "max_tokens": 1000}
        return {**body, "thinking": thinking}

    def _turn(self, turn: Turn, rng: random.Random) -> list[Json]:
        kept = turn.thinking
        if rng.random() < 0.3:
            kept = [{**block, "thinking": ""} for block in kept]
        elif rng.random() < 0.3:
            kept = []
        elif not kept and turn.answer.reasoning and rng.random() < 0.5:
            kept = [{"type": "thinking", "thinking": turn.answer.reasoning, "signature": ""}]
        said = text(turn, rng)
        calls = [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
            for call in turn.answer.calls
        ]
        return [*kept, *([{"type": "text", "text": said}] if said else []), *calls]

    def keep(self, turn: Turn, body: bytes, *, is_stream: bool) -> None:
        message = messages_client.add_up_events(messages_client.events(body)) if is_stream else json.loads(body)
        turn.thinking = [block for block in message["content"] if block["type"] == "thinking"]


SEALED = "reasoning.encrypted_content"
APIS: Sequence[Api] = (Chat(), Responses(), Messages())
