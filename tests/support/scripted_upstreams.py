"""Upstreams that fail by a script, on an invented clock: the calls, the pauses and the error of a request are kept.

No sockets and no waits: a script is a list of names of `FAULTS`, the n-th of which happens to the n-th call of a
request; the calls after the last are answered.
"""

import json
import os
import random
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from unittest import mock

from deepseek_cursor_proxy import proxy
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import Heartbeat
from deepseek_cursor_proxy.errors import (
    ConnectionTimeout,
    ProxyError,
    QueueFull,
    UpstreamDropped,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamTimeout,
)
from deepseek_cursor_proxy.exchange import failover
from deepseek_cursor_proxy.exchange.client_request import RequestReport
from deepseek_cursor_proxy.exchange.exchange import Exchange
from deepseek_cursor_proxy.exchange.failover import Retries
from deepseek_cursor_proxy.observers.events import Event
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from deepseek_cursor_proxy.upstream import client as upstream_client
from deepseek_cursor_proxy.upstream.breaker import Breaker
from deepseek_cursor_proxy.upstream.call_limit import CallLimits, Slot
from deepseek_cursor_proxy.upstream.key_pool import KeyPool
from deepseek_cursor_proxy.upstream.response import UpstreamResponse
from tests.support.client_requests import ME, client_request

MODEL = "deepseek-v4-pro"
NO_REASONING = "The `reasoning_content` in the thinking mode must be passed back to the API."
NO_TOOLS = "tools[0].type: unknown tool"
CLIENT_KEY = "sk-client-0123456789"


def _event(finish_reason: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"id": "c", "model": MODEL, "choices": [choice]}).encode() + b"\n\n"


def _error_event(message: str) -> bytes:
    return b"data: " + json.dumps({"error": {"message": message}}).encode() + b"\n\n"


def _refused(status: int, message: str = "no", retry_after: int | None = None) -> Callable[[], ProxyError]:
    return lambda: UpstreamRefused(status, message, {"error": {"message": message}}, retry_after)


_DROP = UpstreamDropped("DeepSeek's answer was cut off (reset).")
ROLE, THOUGHT, TEXT = _event(role="assistant"), _event(reasoning_content="Hm."), _event(content="Hello")
END = _event("stop") + b"data: [DONE]\n\n"
# What happens in place of a response.
FAULTS: dict[str, Callable[[], ProxyError]] = {
    "dropped": lambda: UpstreamDropped("host:443 cannot be reached (Connection refused). Check network."),
    "failed": lambda: UpstreamFailed("The certificate of host is not trusted."),
    "timeout": lambda: UpstreamTimeout("host did not answer in time."),
    "connect timeout": lambda: ConnectionTimeout("host cannot be reached in time."),
    "429": _refused(429, "busy"),
    "429 after 1": _refused(429, "busy", 1),
    "429 after 3": _refused(429, "busy", 3),
    "429 after 100": _refused(429, "busy", 100),
    "400": _refused(400, "messages[0]: invalid"),
    "400 unknown model": _refused(400, "Model Not Exist"),
    "400 too long": _refused(400, "This model's maximum context length is 1000 tokens."),
    "400 reasoning": _refused(400, NO_REASONING),
    "400 tools": _refused(400, NO_TOOLS),
    **{str(status): _refused(status) for status in (401, 402, 403, 404, 422, 500, 502, 503, 504, 529)},
    "queue full": lambda: QueueFull("All slots are taken.", retry_after=2),
    "no stream": lambda: UpstreamFailed("DeepSeek answered with text/html, which is not an event stream."),
}
# What a stream of status 200 does.
STREAMS: dict[str, tuple[bytes | Heartbeat | ProxyError, ...]] = {
    "cut": (_DROP,),
    "cut after heartbeat": (Heartbeat(), _DROP),
    "cut after role": (ROLE, _DROP),
    "cut after text": (THOUGHT, TEXT, _DROP),
    "silent": (UpstreamTimeout("DeepSeek went silent in the middle of the answer."),),
    "silent after heartbeat": (Heartbeat(), UpstreamTimeout("DeepSeek went silent in the middle of the answer.")),
    "ended": (ROLE,),
    "reasoning refused": (_error_event(NO_REASONING),),
    "reasoning refused after heartbeat": (Heartbeat(), _error_event(NO_REASONING)),
    "reasoning refused after role": (ROLE, _error_event(NO_REASONING)),
    "reasoning refused after text": (TEXT, _error_event(NO_REASONING)),
    "tools refused": (_error_event(NO_TOOLS),),
    "broken": (_error_event("internal"),),
    "unreadable": (b"data: {\n\n",),
    "answered": (ROLE, THOUGHT, TEXT, END),
}
ANSWERED = "answered"


@dataclass(frozen=True)
class Case:
    """One request, the upstreams it can go to, and what happens to its calls."""

    faults: tuple[str, ...]
    # The keys of the owner at each table [upstreams], in the order of their priority; none: there are no tables.
    tables: tuple[int, ...] = ()
    budget: float = 20
    stream: bool = True
    # Whether an upstream of unknown kind is asked, or DeepSeek.
    is_unknown: bool = False
    # Whether the request has a tool that DeepSeek runs itself.
    has_search: bool = False
    # Whether the chat was answered by the first upstream before.
    is_home: bool = False
    # The key of DeepSeek is the owner's.
    is_held: bool = False


class Call(NamedTuple):
    upstream: str
    key: str
    # "transcript", "search" for a tool that DeepSeek runs, both or neither.
    form: str


@dataclass
class Outcome:
    calls: list[Call] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    # Status and code of the final error; None for an answer.
    error: tuple[int, str] | None = None

    @property
    def summary(self) -> tuple[list[Call], list[float], tuple[int, str] | None]:
        return self.calls, self.pauses, self.error


class _Response(UpstreamResponse):
    """A response that yields a script in place of what a connection receives."""

    has_input = True

    def __init__(self, script: str, slot: Slot | None) -> None:
        self._script = script
        self.slot = slot
        self.connect_seconds = 0.0

    def hide(self, secret: str) -> None: ...

    def note_progress(self) -> None: ...

    def note_keep_alive(self) -> None: ...

    def end_soon(self) -> None: ...

    def close(self, *, was_complete: bool = False) -> None:
        if self.slot is not None:
            self.slot.release()

    def raise_unless_stream(self) -> None:
        if self._script == "no stream":
            raise FAULTS["no stream"]()

    def stream(self) -> Generator[bytes | Heartbeat, None, None]:
        for piece in STREAMS[self._script]:
            if isinstance(piece, ProxyError):
                raise type(piece)(piece.message)
            yield piece

    def read_with_heartbeats(self, *_: Any) -> Generator[bytes | Heartbeat, None, None]:
        for piece in STREAMS.get(self._script, ()):
            if isinstance(piece, ProxyError):
                raise type(piece)(piece.message)
            if isinstance(piece, Heartbeat):
                yield piece
        message = {"role": "assistant", "reasoning_content": "Hm.", "content": "Hello"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        is_good = self._script == ANSWERED
        yield json.dumps({"id": "c", "model": MODEL, "choices": [choice]}).encode() if is_good else b"<html>"


class _Limits:
    """Grants slots, but for calls that are to find the queue full."""

    def __init__(self, world: "World") -> None:
        self._limits = CallLimits(lambda model: 100, 0)
        self._world = world

    def of(self, name: str) -> Any:
        return self

    def has_room(self, caller: bytes) -> bool:
        return True

    def acquire(self, peer: object, caller: bytes, before_wait: object) -> Slot:
        if self._world.faults[:1] == ["queue full"]:
            raise FAULTS[self._world.faults.pop(0)]()
        return self._limits.of(MODEL).acquire()


class World:
    """Services around scripted upstreams. Must be closed."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.faults: list[str] = []
        self.outcome = Outcome()
        self.now = 1000.0
        self._stack = ExitStack()
        clock = (lambda: self.now,)
        for kind in (Breaker, KeyPool):
            self._stack.enter_context(mock.patch.object(kind.__init__, "__defaults__", clock))  # type: ignore[misc]
        fixed = {"now": clock[0], "uniform": lambda low, high: low}
        self._stack.enter_context(mock.patch.dict(Retries.__init__.__kwdefaults__, fixed))
        self._stack.enter_context(mock.patch.object(failover, "pause", self._pause))
        names = [f"u{at}" for at in range(len(case.tables))]
        keys = {
            name: [f"key-{name}-{at:06}" for at in range(count)] for name, count in zip(names, case.tables, strict=True)
        }
        variables = {f"KEY_{name}": ",".join(own) for name, own in keys.items() if own}
        self._stack.enter_context(mock.patch.dict(os.environ, variables))
        url = "https://gateway.example/v1" if case.is_unknown else "https://api.deepseek.com"
        tables = {
            name: {"base_url": url, "priority": at, **({"key_env": f"KEY_{name}"} if keys[name] else {})}
            for at, name in enumerate(names, 1)
        }
        settings: dict[str, Any] = {"upstreams": tables} if tables else {"upstream_base_url": url}
        self.config = ProxyConfig(retry_budget=case.budget, **settings)
        store = ReasoningStore(":memory:")
        self._stack.callback(store.close)
        services = proxy.build(self.config, store)
        self._stack.callback(services.close)
        services.upstream_client.close()
        self.call_limits = _Limits(self)
        self.services = replace(services, upstream_client=self, observers=self)  # type: ignore[arg-type]
        if case.is_home:
            self.ask(())

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def close(self) -> None: ...

    def _pause(self, seconds: float, peer: object) -> None:
        self.now += seconds
        self.outcome.pauses.append(round(seconds, 3))

    def emit(self, event: Event) -> None: ...

    def send(self, call: upstream_client.Call, slot: Slot | None) -> Any:
        """The call, in the place of UpstreamClient.send."""
        destination, credential, payload = call.destination, call.credential, json.loads(call.body)
        has_turn = any(each["role"] == "assistant" for each in payload["messages"])
        has_search = any(tool["type"] != "function" for tool in payload.get("tools", ()))
        parts = [*([] if has_turn else ["transcript"]), *(["search"] if has_search else [])]
        self.outcome.calls.append(Call(destination.name, credential, " ".join(parts)))
        script = self.faults.pop(0) if self.faults else ANSWERED
        if script in FAULTS and script != "no stream":
            if slot is not None:
                slot.release()
            error = FAULTS[script]()
            error.message = error.message.replace("DeepSeek", destination.name)
            raise error
        return _Response(script, slot)

    def ask(self, faults: Sequence[str], text: str = "and?") -> Outcome:
        """Send the request while these faults happen to its calls."""
        self.outcome, self.faults = Outcome(), list(faults)
        tools: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        if self.case.has_search:
            tools.append({"type": "deepseek_web_search"})
        turns = [("user", "hi"), ("assistant", "Hello."), ("user", text)]
        messages = [{"role": role, "content": content} for role, content in turns]
        body = {"model": MODEL, "stream": self.case.stream, "messages": messages, "tools": tools}
        report = RequestReport(self.services.observers, self.services.numbers, "chat")
        report.add_caller(ME)
        client = client_request(report, body, self.config, CLIENT_KEY, has_held_key=self.case.is_held)
        try:
            with closing(Exchange.open(client, self.services)) as exchange:
                for _ in exchange.deltas():
                    pass
        except ProxyError as error:
            self.outcome.error = error.status, error.code
        return self.outcome


def play(case: Case) -> Outcome:
    with World(case) as world:
        return world.ask(case.faults)


def generate(rng: random.Random) -> Case:
    """A case with one to six faults, of which many are alike: rounds and budgets need repetition."""
    names = [*FAULTS, *(name for name in STREAMS if name != ANSWERED)]
    few = rng.sample(names, rng.randint(1, 3))
    faults = tuple(rng.choice(few if rng.random() < 0.7 else names) for _ in range(rng.randint(1, 6)))
    tables = tuple(rng.choice((0, 1, 2)) for _ in range(rng.choice((0, 1, 2, 2, 3))))
    return Case(
        faults, tables, budget=rng.choice((0, 2, 20, 20)), stream=rng.random() < 0.8, is_unknown=rng.random() < 0.3,
        has_search=rng.random() < 0.3, is_home=rng.random() < 0.4, is_held=rng.random() < 0.2,
    )  # fmt: skip
