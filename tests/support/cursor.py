"""A scripted Cursor: it asks, runs the tools that the model calls, and echoes the history as Cursor does.

What Cursor does to the history is the reason for this project: it shows an answer's content and sends exactly that
back, thinking block included, keeps the ids of tool calls, and drops `reasoning_content`. The client reads every answer
to the end of its HTTP body over one kept-alive connection and reports it; it judges and retries nothing.
`weather_responder` plays the model's side of a tool loop.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

# A script whose model calls tools for ever is a bug; it ends here.
_MOST_ANSWERS = 20


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Answer:
    reasoning: str
    content: str | None = None
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class ClientAnswer:
    """One answer as the client saw it; `cut` tells that its HTTP body ended early."""

    status: int
    content: str = ""
    reasoning: str | None = None
    calls: tuple[Call, ...] = ()
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    events: tuple[dict[str, Any], ...] = ()
    comments: int = 0
    done: bool = False
    cut: bool = False

    @property
    def is_whole(self) -> bool:
        return self.status == 200 and self.error is None and self.finish_reason is not None


@dataclass(frozen=True)
class ClientTurn:
    answers: tuple[ClientAnswer, ...]

    @property
    def final(self) -> ClientAnswer:
        return self.answers[-1]


def run_weather_tool(name: str, arguments: str) -> str:
    """The results the weather assistant's two tools give."""
    return json.dumps({"city": "Hangzhou"} if name == "get_location" else {"sky": "cloudy", "celsius": 7})


class CursorClient:
    """Used by one thread. `messages` is the history it will send next; tests may edit it."""

    def __init__(
        self,
        base_url: str,
        *,
        key: str = "sk-test",
        model: str = "deepseek-v4-pro",
        system: str = "You are a coding assistant.",
        tools: Sequence[Mapping[str, Any]] = (),
        stream: bool = True,
        run_tool: Callable[[str, str], str] = run_weather_tool,
    ) -> None:
        url = urlsplit(base_url)
        connect = HTTPSConnection if url.scheme == "https" else HTTPConnection
        self._connection = connect(url.hostname or "127.0.0.1", url.port, timeout=30)
        self._path = url.path.rstrip("/") + "/chat/completions"
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self.model = model
        self.tools = list(tools)
        self.stream = stream
        self.run_tool = run_tool
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system}]

    def __enter__(self) -> "CursorClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def ask(self, text: str) -> ClientTurn:
        """Ask, and run tools until there is a final answer or one that is not whole."""
        self.messages.append({"role": "user", "content": text})
        answers: list[ClientAnswer] = []
        while not answers or (answers[-1].is_whole and answers[-1].calls and len(answers) < _MOST_ANSWERS):
            answer = self.post()
            answers.append(answer)
            if answer.is_whole:
                self.messages.append(echo(answer))
                for call in answer.calls:
                    result = self.run_tool(call.name, call.arguments)
                    self.messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return ClientTurn(tuple(answers))

    def post(self, messages: Sequence[Mapping[str, Any]] | None = None) -> ClientAnswer:
        body = self.body(self.messages if messages is None else messages)
        self._connection.request("POST", self._path, json.dumps(body).encode(), self._headers)
        response = self._connection.getresponse()
        answer = _read(response)
        if answer.cut:
            # A connection that broke inside an answer is of no use to the next request.
            self._connection.close()
        return answer

    def body(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The request for a history; the shape Cursor gives it for models it does not know."""
        body: dict[str, Any] = {"model": self.model, "messages": messages}
        # Cursor names its user by a hash, always asks for usage, and leaves out an empty tool list.
        body |= {"stream": self.stream, "user": "0f3c9d41a7b2"}
        body |= {"tools": self.tools} if self.tools else {}
        body |= {"stream_options": {"include_usage": True}} if self.stream else {}
        return body


def echo(answer: ClientAnswer) -> dict[str, Any]:
    """The assistant message Cursor sends back for an answer it showed."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if answer.calls:
        # Cursor sends null, not "", for a turn of calls alone.
        message["content"] = answer.content or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
    return message


def _read(response: HTTPResponse) -> ClientAnswer:
    events: list[dict[str, Any]] = []
    comments, done, cut = 0, False, False
    try:
        if not response.getheader("Content-Type", "").startswith("text/event-stream"):
            events.append(_object(response.read()))
        for line in _lines(response):
            comments += line.startswith(b":")
            done = done or line == b"data: [DONE]"
            if line.startswith(b"data:") and line != b"data: [DONE]":
                events.append(json.loads(line[5:]))
    except (HTTPException, ConnectionError):
        cut = True
    return replace(add_up(events), status=response.status, comments=comments, done=done, cut=cut)


def _object(body: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(body))
    except (ValueError, TypeError):
        return {"error": {"message": body.decode("utf-8", "replace")}}


def _lines(response: HTTPResponse) -> Iterator[bytes]:
    rest = b""
    while data := response.read1(65536):
        *lines, rest = (rest + data).split(b"\n")
        yield from (line.rstrip(b"\r") for line in lines)


def add_up(events: Sequence[dict[str, Any]]) -> ClientAnswer:
    """The answer that events add up to; a whole completion is added up like one big delta."""
    content, reasoning, end, usage, error = "", None, None, None, None
    calls: dict[int, Call] = {}
    for event in events:
        usage, error = event.get("usage") or usage, event.get("error") or error
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or choice.get("message") or {}
            content += delta.get("content") or ""
            if isinstance(thought := delta.get("reasoning_content"), str):
                reasoning = (reasoning or "") + thought
            end = choice.get("finish_reason") or end
            for position, piece in enumerate(delta.get("tool_calls") or ()):
                index = piece.get("index", position)
                calls[index] = _extend_call(calls.get(index, Call("", "", "")), piece)
    called = tuple(calls[index] for index in sorted(calls))
    return ClientAnswer(200, content, reasoning, called, end, usage, error, tuple(events))


def _extend_call(call: Call, piece: Mapping[str, Any]) -> Call:
    function = piece.get("function") or {}
    name, arguments = function.get("name") or "", function.get("arguments") or ""
    return Call(call.id or piece.get("id") or "", call.name or name, call.arguments + arguments)


def _tool(name: str, description: str, **fields: str) -> dict[str, Any]:
    properties = {field: {"type": "string", "description": meaning} for field, meaning in fields.items()}
    parameters = {"type": "object", "properties": properties, "required": list(fields)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER_TOOLS = (_tool("get_location", "Where the user is."), _tool("get_weather", "The weather there.", city="where"))


def weather_responder(payload: Mapping[str, Any]) -> Answer:
    messages = payload["messages"]
    digest = hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).digest()
    # Base64 with two letters for its two signs: DeepSeek's ids end in letters and digits only.
    id = "call_00_" + base64.b64encode(digest, altchars=b"Zz")[:24].decode()
    thought = f"After {len(messages)} messages ({digest.hex()[:8]}): "
    question = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=0)
    results = sum(message["role"] == "tool" for message in messages[question:])
    if not payload.get("tools") or any(message["role"] == "tool" for message in messages[:question]):
        return Answer(f"{thought}I know enough to reply.", "Yes, take an umbrella.")
    if results == 0:
        return Answer(f"{thought}first I need the place.", calls=(Call(id, "get_location", "{}"),))
    if results == 1:
        call = Call(id, "get_weather", json.dumps({"city": "Hangzhou"}))
        return Answer(f"{thought}the place is known, the sky is not.", "You are in Hangzhou. Looking up.", (call,))
    return Answer(f"{thought}everything is known.", "It is cloudy in Hangzhou, 7 degrees.")
