"""The law of chats in which the model and the API change at any turn: every turn keeps its reasoning, byte for byte.

opencode and pi send the thinking of turns that another model or API has made as text before the answer. The chats are
generated, and echoed as these two do it; DeepSeek must see what it would have seen without a switch.
"""

import itertools
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.chat_memory import ChatMemory
from deepseek_cursor_proxy.exchange import services
from tests.fake_deepseek import Answer, Call
from tests.support import messages_client, responses_client
from tests.support.harness import RunningProxy, SocketTestCase, request_bytes
from tests.support.histories import TOOLS, tool_calls
from tests.support.laws import check_law
from tests.support.width import width

Json = dict[str, Any]
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
MODELS = ("deepseek-v4-pro", "deepseek-v4-flash")
HEADERS = {"opencode": "User-Agent: opencode/1.18.33", "pi": "x-stainless-lang: js", "other": "User-Agent: other/1"}
WORDS = ("Look", " ", "\n", "\n\n", "a.py", "思", "<details>", "</think>", "OK.", "`x`", "🌧", "\t")


@dataclass
class Turn:
    """An answer, and what the client keeps of it."""

    api: str
    model: str
    answer: Answer
    # The text that the client shows, and in its own API what it sends back as it is.
    text: str
    own: Any

    @property
    def calls(self) -> list[Call]:
        return list(self.answer.calls)


class Agent:
    """A chat as opencode or pi keeps it. Results are "ok"."""

    def __init__(self, name: str, prompt_names_model: bool) -> None:
        self.name = name
        self.history: list[Turn | str] = []
        self._prompt_names_model = prompt_names_model

    def body(self, api: str, model: str) -> Json:
        prompt = f"You are {model}." if self._prompt_names_model else "You are an agent."
        if api == CHAT:
            messages = [part for each in self.history for part in self._chat(each, model)]
            return {"model": model, "messages": [{"role": "system", "content": prompt}, *messages], "tools": TOOLS}
        if api == MESSAGES:
            messages = [part for each in self.history for part in self._messages(each, model)]
            body = {"model": model, "system": prompt, "messages": messages, "tools": messages_client.TOOLS}
            return {**body, "max_tokens": 1000, "thinking": {"type": "adaptive"}}
        items = [part for index, each in enumerate(self.history) for part in self._responses(each, model, index)]
        body = {"model": model, "input": [{"role": "developer", "content": prompt}, *items], "store": False}
        return {**body, "tools": responses_client.TOOLS, "include": ["reasoning.encrypted_content"]}

    def _call_id(self, turn: Turn, call: Call, api: str, model: str) -> str:
        """pi has the ids of a call and of its item as one, which it writes in the characters of another API."""
        if self.name != "pi" or turn.api != RESPONSES or api == CHAT or (turn.api, turn.model) == (api, model):
            return call.id
        item = next(each for each in turn.own if each.get("call_id") == call.id)
        return re.sub(r"[^a-zA-Z0-9_-]", "_", f"{call.id}|{item['id']}")[:64].rstrip("_")

    def _echo(self, turn: Turn) -> list[str]:
        return [each for each in (turn.answer.reasoning or "", turn.text) if each.strip()]

    def _chat(self, each: Turn | str, model: str) -> list[Json]:
        if isinstance(each, str):
            return [{"role": "user", "content": each}]
        message: Json = {"role": "assistant", "content": each.text}
        if (each.api, each.model) == (CHAT, model):
            message["reasoning_content"] = each.answer.reasoning
        else:
            message["content"] = "".join(self._echo(each))
            message |= {"reasoning_content": ""} if self.name == "opencode" else {}
        results = [{"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in each.calls]
        return [message | ({"tool_calls": tool_calls(each.calls)} if each.calls else {}), *results]

    def _messages(self, each: Turn | str, model: str) -> list[Json]:
        if isinstance(each, str):
            return [messages_client.user(each)]
        ids = [self._call_id(each, call, MESSAGES, model) for call in each.calls]
        if (each.api, each.model) == (MESSAGES, model):
            content = each.own
        else:
            uses = zip(ids, each.calls, strict=True)
            content = [{"type": "text", "text": text} for text in self._echo(each)] + [
                {"type": "tool_use", "id": id_, "name": call.name, "input": json.loads(call.arguments)}
                for id_, call in uses
            ]
        results = [messages_client.result(id_, "ok") for id_ in ids]
        return [{"role": "assistant", "content": content}, *([messages_client.user(*results)] if results else [])]

    def _responses(self, each: Turn | str, model: str, index: int) -> list[Json]:
        if isinstance(each, str):
            return [{"role": "user", "content": each}]
        ids = [self._call_id(each, call, RESPONSES, model) for call in each.calls]
        outputs = [{"type": "function_call_output", "call_id": id_, "output": "ok"} for id_ in ids]
        if (each.api, each.model) == (RESPONSES, model):
            # opencode keeps no ids, and no reasoning but the encrypted one.
            kept = each.own if self.name == "pi" else [_without(item, "id", "content") for item in each.own]
            return [*kept, *outputs]
        texts = [
            {"role": "assistant", "content": [{"type": "output_text", "text": text}]}
            | ({"type": "message", "id": f"msg_{index}"} if self.name == "pi" else {})
            for text in self._echo(each)
        ]
        calls = [
            {"type": "function_call", "call_id": id_, "name": call.name, "arguments": call.arguments}
            for id_, call in zip(ids, each.calls, strict=True)
        ]
        return [*texts, *calls, *outputs]


def _without(item: Json, *names: str) -> Json:
    dropped = names if item["type"] == "reasoning" else ("id",)
    return {name: value for name, value in item.items() if name not in dropped}


def generated_answer(rng: random.Random, number: int) -> Answer:
    calls = tuple(
        Call(f"call_{at:02}_{number:08x}{rng.getrandbits(64):016x}", "read_file", f'{{"path":"{number}"}}')
        for at in range(rng.choice((0, 1, 1, 2)))
    )
    reasoning = "".join(rng.choices(WORDS, k=rng.randrange(1, 8)))
    content = "".join(rng.choices(WORDS, k=rng.randrange(0 if calls else 1, 6)))
    # An answer of nothing but white space is none.
    content = content if content.strip() else "" if calls else "Done."
    return Answer(reasoning if reasoning.strip() else "Hm.", content, calls)


class TestSwitches(SocketTestCase):
    def ask(self, proxy: RunningProxy, agent: Agent, api: str, model: str, answer: Answer) -> None:
        self.fake.answer(answer)
        headers = [HEADERS[agent.name], "anthropic-version: 2023-06-01"]
        reply = self.round_trip(proxy, request_bytes(agent.body(api, model), path=api, headers=headers))
        self.assertEqual(200, reply.status, reply.body)
        text, own = answer.content or "", None
        if api == CHAT:
            text = reply.value["choices"][0]["message"]["content"] or ""
        elif api == RESPONSES:
            own = reply.value["output"]
        else:
            own = reply.value["content"]
        agent.history.append(Turn(api, model, answer, text, own))

    def test_every_turn_keeps_its_reasoning_over_switches_of_models_and_apis(self) -> None:
        check_law(itertools.product(range(width(1, 60)), HEADERS), lambda case: self._play(*case))

    def test_the_memory_changes_no_byte_of_such_a_chat(self) -> None:
        check_law(itertools.product(range(width(1, 20)), HEADERS), self._compare)

    def _compare(self, case: tuple[int, str]) -> None:
        with_memory = list(self._play(*case))
        with mock.patch.object(services, "ChatMemory", return_value=ChatMemory(0)):
            self.assertEqual(list(self._play(*case)), with_memory)

    def _play(self, seed: int, name: str) -> Iterator[bytes]:
        rng, proxy = random.Random(seed), self.proxy()
        agent = Agent(name, prompt_names_model=rng.random() < 0.5)
        said: list[Answer] = []
        before: list[Json] = []
        api, model = rng.choice((CHAT, RESPONSES, MESSAGES)), MODELS[0]
        for number in range(9):
            if not said or not said[-1].calls:
                agent.history.append(f"Question {number}")
            if rng.random() < 0.4:
                api, model = rng.choice((CHAT, RESPONSES, MESSAGES)), rng.choice(MODELS)
            self.ask(proxy, agent, api, model, generated_answer(rng, number))
            sent = self.fake.accepted[-1]["messages"]
            turns = [each for each in sent if each["role"] == "assistant"]
            self.assertEqual(
                [(one.reasoning, one.content) for one in said],
                [(each["reasoning_content"], each["content"] or "") for each in turns],
                (number, api, model),
            )
            # DeepSeek bills a prefix that it has seen at a fraction.
            self.assertEqual(before, sent[1 : len(before) + 1])
            before = sent[1:]
            said.append(agent.history[-1].answer)  # type: ignore[union-attr]
            self.assertEqual([], self.fake.refused)
            yield self.fake.seen[-1].body
