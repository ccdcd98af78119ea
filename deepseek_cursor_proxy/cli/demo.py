"""The `demo` command: a scripted Cursor asks a small DeepSeek, first directly, then through the proxy. It needs no key.

What Cursor does to the history is the reason for this project: it shows an answer's content and sends exactly that
back, thinking block included, keeps the ids of tool calls, and drops `reasoning_content`. The small DeepSeek keeps the
one rule that this breaks: a history whose turns lack their reasoning gets DeepSeek's 400.

Each request is recorded at both ends (what Cursor sent, what DeepSeek received, what Cursor got) and judged by the
reasoning that DeepSeek remembers, never by the proxy's own reports. Loopback only, no file; everything that is started
has ended before `run` returns.
"""

import hashlib
import json
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from itertools import zip_longest
from socketserver import TCPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from deepseek_cursor_proxy.cli.parser import program_name
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.reasoning.thinking_blocks import block_at
from deepseek_cursor_proxy.server.proxy_server import DeepSeekProxyHandler, DeepSeekProxyServer
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore

# The first takes two tools to answer; the second shows that finished turns are carried along as well.
_QUESTIONS = ("What is the weather like here?", "Do I need an umbrella?")
_TOOLS = [{"type": "function", "function": {"name": name}} for name in ("get_location", "get_weather")]
_RESULTS = {"get_location": '{"city": "Hangzhou"}', "get_weather": '{"sky": "cloudy", "celsius": 7}'}
# A model that calls tools for ever ends here.
_MOST_REQUESTS = 20
_GREEN, _RED, _BOLD, _PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[1m", "\x1b[0m"
MISSING_REASONING = "The `reasoning_content` in the thinking mode must be passed back to the API."

Message = Mapping[str, Any]


def run(options: dict[str, Any]) -> int:
    """Play the chat and explain it; 0 only if every request was accepted with every reasoning exactly as it was."""
    with SmallDeepSeek() as deepseek, _accepting(deepseek):
        _show_problem(_play(deepseek, deepseek.url)[-1])
    with SmallDeepSeek() as deepseek, _accepting(deepseek), _proxy_for(deepseek) as url:
        requests = _play(deepseek, url)
    for number, request in enumerate(requests, 1):
        _show_request(number, request)
    _show_result(requests)
    return 0 if all(request.is_good for request in requests) else 1


@contextmanager
def _proxy_for(deepseek: "SmallDeepSeek") -> Iterator[str]:
    """A proxy as long as the context lasts; its base URL."""
    address = ("127.0.0.1", 0)
    with closing(ReasoningStore(":memory:")) as store, DeepSeekProxyServer(address, DeepSeekProxyHandler) as proxy:
        # Without retries: every request shown is one that Cursor sent.
        proxy.config, proxy.reasoning_store = ProxyConfig(upstream_base_url=deepseek.url, retry_budget=0), store
        with _accepting(proxy):
            yield f"http://127.0.0.1:{proxy.server_port}/v1"


@contextmanager
def _accepting(server: Any) -> Iterator[None]:
    # The interval is how long shutdown may wait for the accepting loop to look up.
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


# Cursor …


class _Answer(NamedTuple):
    """An answer as Cursor got it."""

    status: int
    content: str
    calls: Sequence[Mapping[str, Any]] = ()
    error: str = ""


@dataclass(frozen=True)
class _Request:
    """One request at both ends; `thoughts` are the reasonings of the turns before it, as DeepSeek had them."""

    sent: Sequence[Message]
    received: "Sequence[ReceivedRequest]"
    answer: _Answer
    thoughts: Sequence[str]

    @property
    def is_accepted(self) -> bool:
        """Whether DeepSeek took it at the first try, and the answer came through."""
        return [seen.status for seen in self.received] == [self.answer.status] == [200]

    @property
    def turns(self) -> list[tuple[str | None, str | None]]:
        """For every turn before this request, its reasoning and the one that reached DeepSeek."""
        messages = self.received[-1].payload.get("messages", ()) if self.received else ()
        found = [message.get("reasoning_content") for message in messages if message["role"] == "assistant"]
        return list(zip_longest(self.thoughts, found))

    @property
    def is_good(self) -> bool:
        return self.is_accepted and all(real == found for real, found in self.turns)


def _play(deepseek: "SmallDeepSeek", base_url: str) -> list[_Request]:
    """All questions with the tools that they take, or as far as the chat gets."""
    messages: list[Message] = [{"role": "system", "content": "You are a coding assistant."}]
    requests: list[_Request] = []
    for question in _QUESTIONS:
        messages.append({"role": "user", "content": question})
        while messages[-1]["role"] != "assistant" and len(requests) < _MOST_REQUESTS:
            before, thoughts = len(deepseek.seen), list(deepseek.thoughts)
            answer = _post(base_url, messages)
            requests.append(_Request(list(messages), deepseek.seen[before:], answer, thoughts))
            if answer.status != 200:
                return requests
            # As Cursor echoes it: null for a turn of calls alone.
            echo = {"role": "assistant", "content": answer.content}
            calls = {"content": answer.content or None, "tool_calls": answer.calls} if answer.calls else {}
            messages.append({**echo, **calls})
            for call in answer.calls:
                result = _RESULTS[call["function"]["name"]]
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return requests


def _post(base_url: str, messages: Sequence[Message]) -> _Answer:
    url = urlsplit(base_url)
    body = {"model": "deepseek-v4-pro", "messages": messages, "tools": _TOOLS}
    headers = {"Authorization": "Bearer sk-demo", "Content-Type": "application/json"}
    with closing(HTTPConnection(url.hostname or "", url.port, timeout=30)) as connection:
        connection.request("POST", f"{url.path}/chat/completions", json.dumps(body).encode(), headers)
        response = connection.getresponse()
        reply = json.loads(response.read())
    if response.status != 200:
        return _Answer(response.status, "", error=reply["error"]["message"])
    message = reply["choices"][0]["message"]
    return _Answer(200, message["content"] or "", message.get("tool_calls") or ())


# DeepSeek …


class ReceivedRequest(NamedTuple):
    """A request, and the status it was answered with."""

    payload: dict[str, Any]
    status: int


class SmallDeepSeek(TCPServer):
    """Its one client waits for every answer, so one thread will do."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.seen: list[ReceivedRequest] = []
        # The reasoning of every answer, in order.
        self.thoughts: list[str] = []

    def reply_to(self, payload: dict[str, Any]) -> dict[str, Any] | None:
        """The model's answer; None if the reasoning of a turn is missing."""
        turns = [message for message in payload["messages"] if message["role"] == "assistant"]
        is_refused = any("reasoning_content" not in turn for turn in turns)
        self.seen.append(ReceivedRequest(payload, 400 if is_refused else 200))
        if is_refused:
            return None
        answer = _weather_answer(payload["messages"])
        self.thoughts.append(answer["reasoning_content"])
        return answer


def _weather_answer(messages: Sequence[Message]) -> dict[str, Any]:
    """Call for the place, then for its weather, then answer; the second question at once."""
    digest = hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()
    results = sum(message["role"] == "tool" for message in messages)
    looking, city = "You are in Hangzhou. Looking up.", '{"city": "Hangzhou"}'
    thought, text, name, arguments = (
        ("first I need the place.", None, "get_location", "{}"),
        ("the place is known, the sky is not.", looking, "get_weather", city),
        ("everything is known.", "It is cloudy in Hangzhou, 7 degrees.", "", ""),
    )[results]
    if messages[-1]["content"] == _QUESTIONS[1]:
        thought, text = "I know enough to reply.", "Yes, take an umbrella."
    reasoning = f"After {len(messages)} messages ({digest[:8]}): {thought}"
    answer: dict[str, Any] = {"role": "assistant", "content": text, "reasoning_content": reasoning}
    if name:
        function = {"name": name, "arguments": arguments}
        answer["tool_calls"] = [{"id": f"call_00_{digest[:24]}", "type": "function", "function": function}]
    return answer


class _Handler(BaseHTTPRequestHandler):
    """HTTP/1.0, so that the end of the connection is that of the answer."""

    server: SmallDeepSeek

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def do_POST(self) -> None:
        payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = self.server.reply_to(payload)
        end = "tool_calls" if answer and "tool_calls" in answer else "stop"
        choices = [{"index": 0, "message": answer, "finish_reason": end}]
        reply: dict[str, Any] = {"id": "demo", "model": payload["model"], "choices": choices}
        if answer is None:
            reply = {"error": {"message": MISSING_REASONING, "type": "invalid_request_error"}}
        self.send_response(400 if answer is None else 200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(reply).encode())


# The story …


def _show_problem(refused: _Request) -> None:
    _line(f"Without the proxy, request {len(refused.thoughts) + 1} of a Cursor chat with tools fails:", _BOLD)
    _line(f"   HTTP {refused.answer.status}  {refused.answer.error}", _RED)
    _line("\nThrough the proxy, the same chat:", _BOLD)


def _show_request(number: int, request: _Request) -> None:
    _line(f"\n{number}. Cursor sends {_news(request.sent[-1])}", _BOLD)
    stripped = ", ".join(str(turn) for turn in range(1, len(request.thoughts) + 1))
    _fact("Cursor stripped", f"reasoning_content of turn {stripped}" if stripped else "nothing yet")
    for turn, (real, found) in enumerate(request.turns, 1):
        words = "nothing" if found is None else f'"{found[:44]}…"'
        verdict = "exact" if found == real else "NOT what DeepSeek had thought"
        label = "the proxy restored" if turn == 1 else ""
        _fact(label, f"turn {turn}: {words}  {verdict}", "" if found == real else _RED)
    _fact("DeepSeek", *(("accepted it", _GREEN) if request.is_accepted else (_refusal(request), _RED)))
    for label, text in _shown(request.answer):
        _fact(label, text)


def _show_result(requests: Sequence[_Request]) -> None:
    accepted = sum(request.is_accepted for request in requests)
    exact = [real == found for request in requests for real, found in request.turns]
    is_good = all(request.is_good for request in requests)
    summary = f"{accepted} of {len(requests)} requests accepted, {sum(exact)} of {len(exact)} reasonings restored"
    _line(f"\n{summary} exactly.", _GREEN if is_good else _RED)
    if is_good:
        _line(f"Now with your own key: {program_name()}")


def _fact(label: str, text: str, colour: str = "") -> None:
    _line(f"   {label:<20}{text}", colour)


def _line(text: str, colour: str = "") -> None:
    """Print a line, in colour where a person reads it on a terminal."""
    print(f"{colour}{text}{_PLAIN}" if colour and sys.stdout.isatty() else text)


def _news(message: Message) -> str:
    return f"the result of a tool: {message['content']}" if message["role"] == "tool" else f'"{message["content"]}"'


def _refusal(request: _Request) -> str:
    tries = " and ".join(str(seen.status) for seen in request.received) or "was not asked"
    return f"{tries}; Cursor got {request.answer.status} {request.answer.error}"


def _shown(answer: _Answer) -> Iterator[tuple[str, str]]:
    """The answer on Cursor's screen: the folded thinking, the text, the tools to run."""
    block = block_at(answer.content)
    if block is not None:
        yield "Cursor shows", f"[Thinking] {block.reasoning}"
    if text := answer.content[block.end if block else 0 :]:
        yield "", text
    for call in answer.calls:
        yield "", f"-> runs {call['function']['name']}({call['function']['arguments']})"
