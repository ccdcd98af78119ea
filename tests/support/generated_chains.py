"""Chats generated from a seed that mix chat completions and responses, chained or echoed.

No socket: an App with a DeepSeek that is a function. Two callers have the same chat word for word; only the reasoning
differs. Every request is checked: DeepSeek accepts it, and sees all reasoning of this caller and none of the other's.
"""

import dataclasses
import json
import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from deepseek_cursor_proxy import proxy as composition
from deepseek_cursor_proxy.api.routes import App
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.http1.messages import HttpRequest
from deepseek_cursor_proxy.storage.private_files import InstallationSecret
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from deepseek_cursor_proxy.upstream.call_limit import CallLimits
from deepseek_cursor_proxy.upstream.connections import Destination
from deepseek_cursor_proxy.upstream.response import UpstreamResponse
from tests.fake_deepseek import contract
from tests.fake_deepseek.completion import Answer, Call, Completion, PrefixCache
from tests.support.harness import chat_text
from tests.support.histories import TOOLS
from tests.support.responses_client import Json, check_stream, events, output, question

CONFIG = ProxyConfig(retry_budget=0)
PATH = "/v1/responses"
QUESTIONS = ("continue", "Please fix the failing test.", "thanks", "What does this file do?")


class Upstream:
    """A DeepSeek that answers `says` at once."""

    def __init__(self) -> None:
        self.says = Answer()
        self.payload: Json = {}
        # Slots are not released here.
        self.call_limits = CallLimits(lambda model: 10**9, 0)

    def send(self, destination: Destination, body: bytes, *_: Any) -> "_FakeResponse":
        self.payload = json.loads(body)
        refusal = contract.refusal(self.payload)
        assert refusal is None, f"DeepSeek would refuse this: {refusal}"
        return _FakeResponse(Completion(self.says, self.payload, PrefixCache(), "1", 0))

    def close(self) -> None:
        """Nothing is open."""


class _FakeResponse(UpstreamResponse):
    connect_seconds = 0.0
    has_input = True

    def __init__(self, completion: Completion) -> None:
        self._completion = completion

    def read_with_heartbeats(self) -> Iterator[bytes]:
        yield self._completion.body()

    def stream(self, **_: bool) -> Iterator[bytes]:
        yield from (b"".join(self._completion.events()),)

    def raise_unless_stream(self) -> None:
        """The response is a stream if one was requested."""

    def note_progress(self) -> None:
        """There are no deadlines."""

    end_soon = note_progress

    def close(self, **_: bool) -> None:
        """Nothing is open."""


class Proxy:
    """An App with its own store."""

    def __init__(self, secret: InstallationSecret) -> None:
        self.upstream = Upstream()
        self._store = ReasoningStore(":memory:")
        services = composition.Proxy.build(CONFIG, self._store)
        services.upstream.close()
        self.services = dataclasses.replace(services, secret=secret, upstream=self.upstream)  # type: ignore[arg-type]
        self._app = App(CONFIG, lambda: self.services)

    def send(self, method: str, path: str, key: str, body: Json | None = None) -> tuple[int, bytes]:
        data = json.dumps(body).encode()
        headers = {"authorization": f"Bearer {key}"}
        reply = self._app(HttpRequest(method, path, headers=headers, read_body=lambda: data))
        if isinstance(reply.body, bytes):
            return reply.status, reply.body
        with closing(reply.body) as pieces:
            return reply.status, b"".join(pieces)

    def close(self) -> None:
        self.services.close()
        self._store.close()


@dataclass(frozen=True)
class RecordedAnswer:
    """An answer: its reasoning, and what the client got."""

    thought: str
    shown: str
    calls: tuple[Call, ...]
    # The output items of the Responses API; chat completions have none.
    items: tuple[Json, ...] = ()

    def message(self, rng: random.Random) -> Json:
        calls = [{"id": each.id, "type": "function", "function": _function(each, rng)} for each in self.calls]
        return {"role": "assistant", "content": self.shown or None, **({"tool_calls": calls} if calls else {})}

    def echoed(self, rng: random.Random, *, is_sealed: bool = False) -> list[Json]:
        """The answer as a client sends it back: unchanged as Codex does, or without ids as opencode does."""
        if self.items and not is_sealed and rng.random() < 0.5:
            return list(self.items)
        echo: list[Json] = [
            {"type": "function_call", "call_id": each.id, **_function(each, rng)} for each in self.calls
        ]
        if self.shown:
            part = {"type": "output_text", "text": self.shown, "annotations": []}
            echo.insert(0, {"type": "message", "role": "assistant", "content": [part]})
        if self.items and (is_sealed or rng.random() < 0.5):
            envelope = self.items[0].get("encrypted_content")
            echo.insert(0, {"type": "reasoning", "summary": [], "content": None, "encrypted_content": envelope})
        return echo


def _function(call: Call, rng: random.Random) -> Json:
    """The function of a call, whose arguments many clients encode again."""
    again = json.dumps(json.loads(call.arguments), separators=(",", ":"))
    return {"name": call.name, "arguments": rng.choice((call.arguments, again))}


@dataclass
class Chain:
    key: str
    history: list[RecordedAnswer | Json] = field(default_factory=list)
    # All stored responses, and the last one, if it was the last answer.
    kept: list[str] = field(default_factory=list)
    last: str | None = None

    @property
    def thoughts(self) -> list[str]:
        return [each.thought for each in self.history if isinstance(each, RecordedAnswer)]


class TwoCallers:
    """The same chat of two callers; `_words` generates its content, `_ways` how each of them sends it."""

    def __init__(self, seed: int, proxy: Proxy) -> None:
        self._proxy = proxy
        self._words = random.Random(f"words {seed}")
        self._ways = random.Random(f"ways {seed}")
        self._count = 0
        self.chains = [Chain("sk-one"), Chain("sk-two")]
        self._ask(f"Question {seed}")

    def step(self) -> None:
        """One answer for each of the two callers."""
        self._count += 1
        says = self._generate_answer()
        for chain in self._ways.sample(self.chains, 2):
            thought = f"{chain.key} thinks {self._count}: {self._ways.random()} </details>\n"
            self._proxy.upstream.says = dataclasses.replace(says, reasoning=thought)
            answer = self._send_chat(chain) if self._ways.random() < 0.3 else self._send_response(chain)
            self._check(chain, self._proxy)
            chain.history.append(answer)
        if says.calls:
            for chain in self.chains:
                chain.history += [output(call.id, f"result of {call.id}") for call in says.calls]
        else:
            self._ask(self._words.choice(QUESTIONS))
        self._check_isolation()
        self._delete_some()

    def move(self, other: Proxy) -> None:
        """Send the sealed history to a proxy that has never seen any of it."""
        other.upstream.says = Answer(reasoning="x", content="y")
        for chain in self.chains:
            if all(each.items for each in chain.history if isinstance(each, RecordedAnswer)):
                items = self._items(chain.history, is_sealed=True)
                status, reply = other.send("POST", PATH, chain.key, self._body(input=items, store=False))
                assert status == 200, reply
                self._check(chain, other)

    def _generate_answer(self) -> Answer:
        name = "".join(self._words.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=24))
        calls = tuple(
            Call(f"call_{number:02d}_{name}", "read_file", json.dumps({"path": self._words.random(), "é": [1, None]}))
            for number in range(self._words.choice((0, 0, 1, 2)))
        )
        text = self._words.choice((None, "Done.", "Looking.")) if calls else self._words.choice(("Done.", "Yes. 😀"))
        return Answer(content=text, calls=calls, piece=self._words.choice((4, 30, 200)))

    def _ask(self, text: str) -> None:
        for chain in self.chains:
            chain.history.append(question(text))

    # The two APIs …

    def _body(self, **more: Any) -> Json:
        return {"tools": TOOLS, "stream": self._ways.random() < 0.5, **more}

    def _send_chat(self, chain: Chain) -> RecordedAnswer:
        messages = [self._message(each) for each in chain.history]
        body = self._body(messages=messages)
        status, reply = self._proxy.send("POST", "/v1/chat/completions", chain.key, body)
        assert status == 200, reply
        chain.last = None
        says = self._proxy.upstream.says
        return RecordedAnswer(says.reasoning or "", chat_text(reply), says.calls)

    def _message(self, each: RecordedAnswer | Json) -> Json:
        if isinstance(each, RecordedAnswer):
            return each.message(self._ways)
        if each["type"] == "message":
            return {"role": "user", "content": each["content"][0]["text"]}
        return {"role": "tool", "tool_call_id": each["call_id"], "content": each["output"]}

    def _send_response(self, chain: Chain) -> RecordedAnswer:
        body = self._body(store=self._ways.random() < 0.8, include=["reasoning.encrypted_content"])
        if chain.last is not None and self._ways.random() < 0.6:
            place = max(at for at, each in enumerate(chain.history) if isinstance(each, RecordedAnswer))
            body |= {"previous_response_id": chain.last, "input": chain.history[place + 1 :]}
        else:
            body["input"] = self._items(chain.history)
        status, reply = self._proxy.send("POST", PATH, chain.key, body)
        assert status == 200, reply
        response = check_stream(events(reply)) if body["stream"] else json.loads(reply)
        assert response["status"] == "completed", response
        chain.last = response["id"] if body["store"] else None
        chain.kept += [response["id"]] if body["store"] else []
        says = self._proxy.upstream.says
        return RecordedAnswer(says.reasoning or "", response["output_text"], says.calls, tuple(response["output"]))

    def _items(self, history: list[RecordedAnswer | Json], *, is_sealed: bool = False) -> list[Json]:
        return [
            item
            for each in history
            for item in (each.echoed(self._ways, is_sealed=is_sealed) if isinstance(each, RecordedAnswer) else [each])
        ]

    # The laws …

    def _check(self, chain: Chain, proxy: Proxy) -> None:
        messages = proxy.upstream.payload["messages"]
        sent = [each["reasoning_content"] for each in messages if each["role"] == "assistant"]
        assert sent == chain.thoughts, f"upstream saw {sent}, the model thought {chain.thoughts}"
        others = [each for each in chain.history if not isinstance(each, RecordedAnswer)]
        assert len(messages) == len(others) + len(sent), "a message was lost or repeated"

    def _check_isolation(self) -> None:
        """Neither caller sees the other's responses."""
        mine, theirs = self._ways.sample(self.chains, 2)
        if mine.kept and self._ways.random() < 0.2:
            path = f"{PATH}/{self._ways.choice(mine.kept)}"
            assert self._proxy.send("GET", path, theirs.key)[0] == 404
            assert self._proxy.send("DELETE", path, theirs.key)[0] == 404
            assert self._proxy.send("GET", path, mine.key)[0] == 200

    def _delete_some(self) -> None:
        """Delete any stored responses but the last one."""
        chain = self._ways.choice(self.chains)
        if self._ways.random() < 0.3:
            gone = [each for each in chain.kept if each != chain.last][: self._ways.randrange(1, 5)]
            for each in gone:
                assert self._proxy.send("DELETE", f"{PATH}/{each}", chain.key)[0] == 200
                assert self._proxy.send("GET", f"{PATH}/{each}", chain.key)[0] == 404
                chain.kept.remove(each)
