"""The three APIs as their clients use them: a question, its answer, and what goes back to the proxy with the next one.

`APIS` is the table. An `Api` encodes requests and histories and reads replies strictly: a stream that breaks a rule of
its API fails whatever test reads it. Tests that hold on all APIs are methods of an `ApiTestCase` with `@each_api` or
`@each_form`, which run them for every API (and streamed and plain) with a proxy of their own.
"""

import functools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from deepseek_cursor_proxy import proxy
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.support import cursor, messages_client, responses_client
from tests.support.cursor import Call
from tests.support.harness import RawReply, RunningProxy, SocketTestCase, error, request_bytes
from tests.support.histories import tool_calls
from tests.support.width import width

Json = dict[str, Any]
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}}
_ENDS = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length", "refusal": "content_filter"}


class Said(NamedTuple):
    """What an answer says, whatever its API; `end` in the words of chat completions."""

    text: str
    reasoning: str
    calls: tuple[Call, ...]
    end: str
    tokens: int

    @property
    def inputs(self) -> list[tuple[str, Any]]:
        return [(call.name, json.loads(call.arguments)) for call in self.calls]


class ApiReply(RawReply):
    api: "Api"

    @property
    def said(self) -> Said:
        return self.api.read(self)

    @property
    def events(self) -> list[Json]:
        return self.chunks if self.api is CHAT else super().events

    def turn(self, *, keeps_thinking: bool = True) -> list[Json]:
        """What the client adds to its history for this answer."""
        return self.api.echo(self, keeps_thinking=keeps_thinking)


class Api(ABC):
    name: str
    path: str

    def __repr__(self) -> str:
        return self.name

    @abstractmethod
    def tool(self, name: str, parameters: Any = PARAMETERS) -> Json: ...

    @abstractmethod
    def choice(self, name: str) -> Json:
        """The `tool_choice` that forces this tool."""

    @abstractmethod
    def encode(self, history: list[Json], system: str, fields: Json) -> Json: ...

    @abstractmethod
    def results(self, results: Iterable[tuple[str, Any]]) -> list[Json]:
        """The results of calls, by their ids."""

    @abstractmethod
    def thinking(self, text: str) -> list[Json]:
        """A thought as a client sends it that has no more of it than the text."""

    @abstractmethod
    def turn(self, text: str, calls: Sequence[Call] = (), thinking: Sequence[Json] = ()) -> list[Json]:
        """An answer in a history, made of its parts."""

    @abstractmethod
    def read(self, reply: RawReply) -> Said: ...

    @abstractmethod
    def whole(self, reply: RawReply) -> Json:
        """The object of a plain answer, or the one that a stream adds up to."""

    @abstractmethod
    def failure(self, events: Sequence[Json]) -> Json:
        """The error in which a stream ends, in the shape of this API."""

    @abstractmethod
    def beats(self, events: Sequence[Json]) -> int:
        """How many events of a stream do nothing but keep the client waiting."""

    @abstractmethod
    def thoughts(self, reply: RawReply) -> list[Json]:
        """The thinking as the client keeps it."""

    @abstractmethod
    def echo(self, reply: RawReply, *, keeps_thinking: bool) -> list[Json]: ...

    def user(self, text: str) -> Json:
        return {"role": "user", "content": text}

    def body(
        self,
        history: str | Sequence[Json] = "q",
        *,
        tools: str | Sequence[Json] = "read_file",
        system: str = "",
        **fields: Any,
    ) -> Json:
        """A request; `tools` may be names, `tool_choice` the name of a tool."""
        messages = [self.user(history)] if isinstance(history, str) else list(history)
        declared = [self.tool(name) for name in tools.split()] if isinstance(tools, str) else list(tools)
        if isinstance(name := fields.get("tool_choice"), str) and name not in ("auto", "none", "required"):
            fields["tool_choice"] = self.choice(name)
        return self.encode(messages, system, {"model": "deepseek-v4-pro", "tools": declared, **fields})

    def request(
        self, history: str | Sequence[Json] = "q", *, key: str = "sk-test", headers: Sequence[str] = (), **fields: Any
    ) -> bytes:
        version = [f"{name}: {value}" for name, value in messages_client.VERSION.items()] if self is MESSAGES else []
        return request_bytes(self.body(history, **fields), path=self.path, key=key, headers=[*version, *headers])


class _Chat(Api):
    name, path = "chat", "/v1/chat/completions"

    def tool(self, name: str, parameters: Any = PARAMETERS) -> Json:
        return {"type": "function", "function": {"name": name, "description": "Reads.", "parameters": parameters}}

    def choice(self, name: str) -> Json:
        return {"type": "function", "function": {"name": name}}

    def encode(self, history: list[Json], system: str, fields: Json) -> Json:
        prompt = [{"role": "system", "content": system}] if system else []
        usage = {"stream_options": {"include_usage": True}} if fields.get("stream") else {}
        return {"messages": [*prompt, *history], **usage, **fields}

    def results(self, results: Iterable[tuple[str, Any]]) -> list[Json]:
        return [{"role": "tool", "tool_call_id": call_id, "content": text} for call_id, text in results]

    def thinking(self, text: str) -> list[Json]:
        return [{"reasoning_content": text}]

    def turn(self, text: str, calls: Sequence[Call] = (), thinking: Sequence[Json] = ()) -> list[Json]:
        message: Json = {"role": "assistant", "content": text or None}
        for each in thinking:
            message |= each
        return [message | ({"tool_calls": tool_calls(calls)} if calls else {})]

    def read(self, reply: RawReply) -> Said:
        answer = cursor.add_up(reply.chunks if reply.is_stream else [reply.value])
        usage = answer.usage or {}
        return Said(
            answer.content, answer.reasoning or "", answer.calls, answer.finish_reason or "",
            usage.get("total_tokens", 0),
        )  # fmt: skip

    def whole(self, reply: RawReply) -> Json:
        answer = cursor.add_up(reply.chunks if reply.is_stream else [reply.value])
        return {"message": cursor.echo(answer), "reasoning": answer.reasoning, "finish_reason": answer.finish_reason}

    def failure(self, events: Sequence[Json]) -> Json:
        assert not any("error" in event for event in events[:-1]), events
        return error(events[-1])

    def beats(self, events: Sequence[Json]) -> int:
        deltas = [choice["delta"] for event in events for choice in event.get("choices", ())]
        return deltas.count({"content": ""})

    def thoughts(self, reply: RawReply) -> list[Json]:
        return []

    def echo(self, reply: RawReply, *, keeps_thinking: bool) -> list[Json]:
        """As Cursor does it, which keeps no thinking but what stands in the text."""
        said = self.read(reply)
        return self.turn(said.text, said.calls)


class _Responses(Api):
    name, path = "responses", responses_client.PATH

    def tool(self, name: str, parameters: Any = PARAMETERS) -> Json:
        return {"type": "function", "name": name, "description": "Reads.", "parameters": parameters}

    def choice(self, name: str) -> Json:
        return {"type": "function", "name": name}

    def encode(self, history: list[Json], system: str, fields: Json) -> Json:
        limit = {"max_output_tokens": fields.pop("max_tokens")} if "max_tokens" in fields else {}
        return {"input": history, **({"instructions": system} if system else {}), **limit, **fields}

    def results(self, results: Iterable[tuple[str, Any]]) -> list[Json]:
        return [responses_client.output(call_id, text) for call_id, text in results]

    def thinking(self, text: str) -> list[Json]:
        return [{"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}]

    def turn(self, text: str, calls: Sequence[Call] = (), thinking: Sequence[Json] = ()) -> list[Json]:
        words = [{"role": "assistant", "content": [{"type": "output_text", "text": text}]}] if text else []
        made = (
            {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
            for call in calls
        )
        return [*thinking, *words, *made]

    def read(self, reply: RawReply) -> Said:
        response = self.whole(reply)
        texts = {"reasoning": "", "message": ""}
        for item in response["output"]:
            if item["type"] in texts:
                texts[item["type"]] += "".join(responses_client.texts(item))
        calls = tuple(
            Call(item["call_id"], item["name"], item["arguments"])
            for item in response["output"]
            if item["type"] == "function_call"
        )
        whole = "tool_calls" if calls else "stop"
        end = {"completed": whole, "incomplete": "length"}.get(response["status"], response["status"])
        tokens = (response["usage"] or {}).get("total_tokens", 0)
        return Said(texts["message"], texts["reasoning"], calls, end, tokens)

    def whole(self, reply: RawReply) -> Json:
        if reply.is_stream:
            return responses_client.check_stream(reply.events)
        responses_client.check_object(reply.value)
        return dict(reply.value)

    def failure(self, events: Sequence[Json]) -> Json:
        response = responses_client.check_stream(events)
        assert (events[-1]["type"], response["status"]) == ("response.failed", "failed"), events[-1]
        assert set(response["error"]) == {"code", "message"}, response
        return dict(response["error"])

    def beats(self, events: Sequence[Json]) -> int:
        return responses_client.kinds(events).count("response.in_progress") - 1

    def thoughts(self, reply: RawReply) -> list[Json]:
        return [item for item in self.whole(reply)["output"] if item["type"] == "reasoning"]

    def echo(self, reply: RawReply, *, keeps_thinking: bool) -> list[Json]:
        """As Codex does it: the items as they came."""
        items = self.whole(reply)["output"]
        return [item for item in items if keeps_thinking or item["type"] != "reasoning"]


class _Messages(Api):
    name, path = "messages", messages_client.PATH

    def tool(self, name: str, parameters: Any = PARAMETERS) -> Json:
        return {"name": name, "description": "Reads.", "input_schema": parameters}

    def choice(self, name: str) -> Json:
        return {"type": "tool", "name": name}

    def encode(self, history: list[Json], system: str, fields: Json) -> Json:
        prompt = {"system": system} if system else {}
        return {"messages": history, **prompt, "max_tokens": 1000, **messages_client.THINKING, **fields}

    def results(self, results: Iterable[tuple[str, Any]]) -> list[Json]:
        blocks = [messages_client.result(call_id, text) for call_id, text in results]
        return [messages_client.user(*blocks)] if blocks else []

    def thinking(self, text: str) -> list[Json]:
        return [{"type": "thinking", "thinking": text, "signature": ""}]

    def turn(self, text: str, calls: Sequence[Call] = (), thinking: Sequence[Json] = ()) -> list[Json]:
        words = [{"type": "text", "text": text}] if text else []
        uses = (
            {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
            for call in calls
        )
        return [{"role": "assistant", "content": [*thinking, *words, *uses]}]

    def read(self, reply: RawReply) -> Said:
        message = self.whole(reply)
        texts = {"text": "", "thinking": ""}
        for block in message["content"]:
            if block["type"] in texts:
                texts[block["type"]] += block[block["type"]]
        calls = tuple(
            Call(block["id"], block["name"], json.dumps(block["input"]))
            for block in message["content"]
            if block["type"] == "tool_use"
        )
        usage = message["usage"]
        tokens = usage["input_tokens"] + usage["output_tokens"] + (usage.get("cache_read_input_tokens") or 0)
        end = _ENDS.get(message["stop_reason"], message["stop_reason"])
        return Said(texts["text"], texts["thinking"], calls, end, tokens)

    def whole(self, reply: RawReply) -> Json:
        return messages_client.add_up_events(reply.events) if reply.is_stream else dict(reply.value)

    def failure(self, events: Sequence[Json]) -> Json:
        *before, last = [event for event in events if event["type"] != "ping"]
        assert (before[0]["type"], last["type"]) == ("message_start", "error"), events
        if not any(event.get("delta", {}).get("type") == "input_json_delta" for event in before):
            # The open block is closed before the error.
            messages_client.blocks(before[1:])
        return error(last)

    def beats(self, events: Sequence[Json]) -> int:
        return responses_client.kinds(events).count("ping")

    def thoughts(self, reply: RawReply) -> list[Json]:
        return [block for block in self.whole(reply)["content"] if block["type"] == "thinking"]

    def echo(self, reply: RawReply, *, keeps_thinking: bool) -> list[Json]:
        """As Claude Code does it: the blocks as they came."""
        blocks = self.whole(reply)["content"]
        kept = [block for block in blocks if keeps_thinking or block["type"] != "thinking"]
        return [{"role": "assistant", "content": kept}]


CHAT, RESPONSES, MESSAGES = _Chat(), _Responses(), _Messages()
# But for those that were taken away.
APIS: tuple[Api, ...] = (CHAT, *(api for api in (RESPONSES, MESSAGES) if proxy.has(api.name)))


class ApiTestCase(SocketTestCase):
    """Proxies show no thinking in the text of a chat, so that answers compare."""

    def proxy(self, store: ReasoningStore | None = None, /, **settings: Any) -> RunningProxy:
        return super().proxy(store, **{"display_reasoning": "off", **settings})

    def send(self, proxy: RunningProxy, api: Api, data: bytes) -> ApiReply:
        return self.reply(api, self.round_trip(proxy, data))

    def reply(self, api: Api, raw: RawReply) -> ApiReply:
        reply = ApiReply(*raw)
        reply.api = api
        return reply

    def post(self, proxy: RunningProxy, api: Api, history: str | Sequence[Json] = "q", **fields: Any) -> ApiReply:
        return self.send(proxy, api, api.request(history, **fields))

    def ask(self, proxy: RunningProxy, api: Api, history: str | Sequence[Json] = "q", **fields: Any) -> ApiReply:
        reply = self.post(proxy, api, history, **fields)
        self.assertEqual(200, reply.status, reply.body)
        return reply

    def loop(
        self, proxy: RunningProxy, api: Api, history: list[Json], *, keeps_thinking: bool = False, **fields: Any
    ) -> ApiReply:
        """Ask until there are no more calls, each of which results in 42; the history grows by all of it."""
        while True:
            reply = self.ask(proxy, api, history, **fields)
            history += reply.turn(keeps_thinking=keeps_thinking)
            if not (calls := reply.said.calls):
                return reply
            history += api.results((call.id, "42") for call in calls)


_Case = TypeVar("_Case", bound=ApiTestCase)


def each_api(**exceptions: str) -> Callable[[Callable[[_Case, Api], None]], Callable[[_Case], None]]:
    """Run a test for every API, except for those named with the reason why not."""

    def decorate(test: Callable[[_Case, Api], None]) -> Callable[[_Case], None]:
        @functools.wraps(test)
        def run(case: _Case) -> None:
            for api in APIS:
                if api.name not in exceptions:
                    with case.subTest(api.name):
                        _begin(case)
                        test(case, api)

        return run

    return decorate


def each_form(**exceptions: str) -> Callable[[Callable[[_Case, Api, bool], None]], Callable[[_Case], None]]:
    """Run a test for every API, streamed and plain, except for those named with the reason why not."""

    def decorate(test: Callable[[_Case, Api, bool], None]) -> Callable[[_Case], None]:
        @functools.wraps(test)
        def run(case: _Case) -> None:
            # In a sample each API in one form, which differs from test to test.
            luck = sum(test.__name__.encode())
            for number, api in enumerate(APIS):
                for stream in width(((luck + number) % 2 == 0,), (True, False)):
                    if api.name not in exceptions:
                        with case.subTest(api.name, stream=stream):
                            _begin(case)
                            test(case, api, stream)

        return run

    return decorate


def _begin(case: ApiTestCase) -> None:
    """Give every case a proxy and a DeepSeek that knows nothing of the others."""
    case.fake.forget()
    case.fake.release.clear()
    while not case.fake.stalls.empty():
        case.fake.stalls.get()
    case.__dict__.pop("running", None)
