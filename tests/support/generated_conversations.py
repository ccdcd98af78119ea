"""Conversations that move from API to API, generated from a seed: begun with one, continued with another.

A Conversation is independent of any API. `body` encodes it for an API as its clients do, which keep the thinking, empty
it or drop it, and encode arguments again; a turn keeps of a reply what such a client would keep.
"""

import json
import random
from dataclasses import dataclass, field, replace

from tests.fake_deepseek import Answer, Call
from tests.support.apis import CHAT, MESSAGES, RESPONSES, Api, Json
from tests.support.harness import RawReply

SYSTEM = "You are an agent."
SEALED = "reasoning.encrypted_content"


@dataclass
class Turn:
    """One answer, the results of its calls, and what clients of some APIs keep besides."""

    answer: Answer
    results: list[str]
    # The text of a chat completion, which may contain the thinking.
    displayed: str | None = None
    # The thinking as the clients of an API keep it, by the name of the API.
    thoughts: dict[str, list[Json]] = field(default_factory=dict)
    response_id: str | None = None

    def store_reply(self, api: Api, reply: RawReply) -> None:
        """Keep what a client keeps of this reply."""
        self.thoughts[api.name] = api.thoughts(reply)
        if api is CHAT:
            self.displayed = api.read(reply).text
        if api is RESPONSES:
            self.response_id = RESPONSES.whole(reply)["id"]

    def encoded(self, api: Api, rng: random.Random) -> list[Json]:
        text = self.answer.content or ""
        if self.displayed is not None:
            text = rng.choice((text, self.displayed))
        calls = [replace(call, arguments=_encode_again(call, rng)) for call in self.answer.calls]
        return api.turn(text, calls, self._thinking(api, rng))

    def _thinking(self, api: Api, rng: random.Random) -> list[Json]:
        """Whole, emptied, dropped, or nothing but its text."""
        kept = self.thoughts.get(api.name, [])
        emptied = {"content": None} if api is RESPONSES else {"thinking": ""}
        if rng.random() < 0.3:
            return [{**each, **emptied} for each in kept]
        if rng.random() < 0.3:
            return []
        if not kept and self.answer.reasoning and rng.random() < 0.5:
            return api.thinking(self.answer.reasoning)
        return kept


@dataclass
class Conversation:
    """Questions and the turns after each of them."""

    key: str
    rounds: list[tuple[str, list[Turn]]] = field(default_factory=list)

    @property
    def turns(self) -> list[Turn]:
        return [turn for _, turns in self.rounds for turn in turns]


def _encode_again(call: Call, rng: random.Random) -> str:
    """The arguments as they came, or encoded again."""
    value = json.loads(call.arguments)
    return rng.choice((call.arguments, json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)))


def body(api: Api, conversation: Conversation, rng: random.Random) -> Json:
    """The request for a conversation; `tools` and the rest are the same on every API."""
    history: list[Json] = []
    fields: Json = {"include": [SEALED]} if api is RESPONSES else {}
    for question, turns in conversation.rounds:
        history.append(api.user(question))
        for turn in turns:
            history += turn.encoded(api, rng)
            if api is RESPONSES and turn.response_id is not None and rng.random() < 0.5:
                # The stored response has all of it; only new items are sent.
                history, fields["previous_response_id"] = [], turn.response_id
            results = [(call.id, result) for call, result in zip(turn.answer.calls, turn.results, strict=True)]
            history += api.results(rng.sample(results, len(results)) if api is MESSAGES else results)
    if api is MESSAGES and rng.random() < 0.5:
        fields["thinking"] = {"type": "adaptive", "display": "omitted"}
    return api.body(history, system=SYSTEM, **fields)
