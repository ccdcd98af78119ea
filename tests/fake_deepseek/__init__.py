"""A strict DeepSeek on 127.0.0.1 with scripted answers, for tests, the demo and the soak.

`answer` queues steps. Each accepted request takes the next one; the responder answers when the queue is empty. The next
request gets a fault (Failure, Raw) whatever it asks; an Answer is only spent on a request that keeps the contract, and
every other request gets DeepSeek's refusal. A description of a picture is no part of the script. `endpoints` has the
APIs: `contract` decides what is refused, `completion` writes an answer, and `native` does both for the Responses API,
`dialects` for other hosts of the models, `web_tools` for searches on chat completions; this file has the socket and the
script. Rule: `seen` has a request before the first byte of its response leaves, so a test that
has the response need not wait. Nothing outlives `close`.
"""

import json
import selectors
import socket
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, count
from queue import SimpleQueue
from socketserver import TCPServer
from typing import Any

from deepseek_cursor_proxy.json_codec import encode_json
from tests.fake_deepseek import leaks
from tests.fake_deepseek.completion import (
    Answer,
    Completion,
    Failure,
    PrefixCache,
    Raw,
    ReceivedRequest,
    Step,
    model_entry,
)
from tests.fake_deepseek.contract import NEWEST_RULES, Refusal, Rules
from tests.fake_deepseek.endpoints import chat_endpoint, endpoint_at, versions
from tests.fake_deepseek.messages_writer import BlockAnswer
from tests.fake_deepseek.searches import Citation, Search
from tests.fake_deepseek.web_tools import MESSAGE_FIELDS
from tests.support import cursor
from tests.support.cursor import Call

__all__ = [
    "Answer", "BlockAnswer", "Call", "Citation", "Failure", "FakeDeepSeek", "Raw", "ReceivedRequest", "Rules", "Search",
    "Step", "weather_responder",
]  # fmt: skip


def weather_responder(payload: Mapping[str, Any]) -> Answer:
    answer = cursor.weather_responder(payload)
    return Answer(answer.reasoning, answer.content, answer.calls)


class FakeDeepSeek:
    """Used by the test's thread and by handler threads; `_lock` protects the queue."""

    def __init__(
        self,
        *,
        rules: Rules = NEWEST_RULES,
        responder: Callable[[dict[str, Any]], Step] | None = None,
        keys: Collection[str] | None = None,
        host: str = "deepseek",
        has_chat_alone: bool = False,
        port: int = 0,
    ) -> None:
        self.seen: list[ReceivedRequest] = []
        self.release = threading.Event()
        self.hung_up = threading.Event()
        # Moments, on the monotonic clock, at which an answer began to stall and at which a client was gone.
        self.stalls: SimpleQueue[float] = SimpleQueue()
        self.hang_ups: SimpleQueue[float] = SimpleQueue()
        self.closing = threading.Event()
        self.cache = PrefixCache()
        # What the account and the list of models say.
        self.has_balance = True
        self.models: tuple[str, ...] = ("deepseek-flash", "deepseek-v4-pro")
        # Whether it takes what DeepSeek is only assumed, or was once reported, to refuse.
        self.is_lenient = False
        # If not, tools that DeepSeek runs itself are ignored, as it ignores what it does not know.
        self.runs_server_tools = True
        # The forms in which calls are handed on as text, one after another, by a server that does not decode them.
        self.leaks: Iterator[leaks.Form] | None = None
        # How long a connection may be unused after a request; None for any time.
        self.idle_seconds: float | None = None
        self._rules = rules
        self._responder = responder or (lambda payload: Answer(reasoning="Thinking about it.", content="Hello."))
        self._keys = keys
        self._chat = chat_endpoint(host, has_chat_alone=has_chat_alone)
        self._has_chat_alone = has_chat_alone
        self._lock = threading.Lock()
        self._queue: deque[Step] = deque()
        self._server = _Server(self, port)
        self._thread: threading.Thread | None = None
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def start(self) -> "FakeDeepSeek":
        # `close` waits at most this interval for the accepting loop.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        self.closing.set()
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.end_connections()
        self._server.server_close()

    def __enter__(self) -> "FakeDeepSeek":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def answer(self, *steps: Step) -> None:
        with self._lock:
            self._queue.extend(steps)

    def forget(self) -> None:
        with self._lock:
            self._queue.clear()
        self.seen.clear()
        self.hung_up.clear()

    @property
    def accepted(self) -> list[dict[str, Any]]:
        return [seen.payload for seen in self.seen if seen.status == 200]

    @property
    def refused(self) -> list[ReceivedRequest]:
        """The requests DeepSeek would refuse; scripted failures are not among them."""
        return [seen for seen in self.seen if seen.refusal is not None]

    @property
    def connections(self) -> int:
        return self._server.connections

    def wait_for_hangup(self, timeout: float = 5.0) -> bool:
        """True once a client left while its answer was being streamed or stalled."""
        return self.hung_up.wait(timeout)

    # For the handler threads …

    def reply_to(self, path: str, headers: dict[str, str], body: bytes) -> "_Reply":
        """Decide the response to a POST, and append it to `seen`."""
        endpoint = self._chat if self._has_chat_alone else endpoint_at(path, self._chat)
        parsed = endpoint.read(_without_oddities(body) if self.is_lenient else body)
        payload = {} if isinstance(parsed, Refusal) else parsed
        if not self.runs_server_tools:
            payload = {name: value for name, value in payload.items() if name not in ("server_tools", "server_choice")}
        step, refused = None, self.request_refusal(path, endpoint.paths, headers)
        if refused is None and (step := self._take(Failure, Raw)) is None:
            rules = replace(self._rules, is_beta=path.startswith("/beta/"), needs_headers=not self.is_lenient)
            refused = parsed if isinstance(parsed, Refusal) else endpoint.refusal(payload, rules)
        if refused is not None:
            step = _to_failure(refused)
        step = step or self._take(Answer, Failure, Raw) or self._responder(payload)
        if self.leaks is not None and isinstance(step, Answer):
            step = leaks.leak(step, next(self.leaks))
        status = step.status if isinstance(step, Failure) else 200 if isinstance(step, Answer) else 0
        self.seen.append(ReceivedRequest(path, headers, payload, status, refused.message if refused else None, body))
        return _Reply(step, payload, endpoint.writer)

    def request_refusal(self, path: str, paths: Collection[str], headers: dict[str, str]) -> Refusal | None:
        if path.partition("?")[0] not in paths:
            return Refusal("Not Found", 404)
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if not scheme and path.startswith("/anthropic/"):
            scheme, key = "bearer", headers.get("x-api-key", "")
        words = "Authentication Fails (auth header format should be Bearer sk-...)"
        if scheme.lower() == "bearer" and key.strip():
            if self._keys is None or key.strip() in self._keys:
                return None
            words = f"Authentication Fails, Your api key: ****{key.strip()[-4:]} is invalid"
        return Refusal(words, 401, "authentication_error")

    def _take(self, *kinds: type[Step]) -> Step | None:
        with self._lock:
            return self._queue.popleft() if self._queue and isinstance(self._queue[0], kinds) else None


def _without_oddities(body: bytes) -> bytes:
    """A body without unknown fields of messages, and with the content that may be absent."""
    payload = json.loads(body)
    messages = [
        {"content": None, **{name: value for name, value in message.items() if name in MESSAGE_FIELDS}}
        for message in payload.get("messages", ())
    ]
    return encode_json({**payload, "messages": messages} if messages else payload)


@dataclass(frozen=True)
class _Reply:
    step: Step
    payload: dict[str, Any]
    writer: Callable[..., Completion]


def _to_failure(refused: Refusal) -> Failure:
    return Failure(refused.status, refused.message, refused.type, refused.code)


class _Server(ThreadingHTTPServer):
    """One thread accepts, one answers per connection; `_workers` belongs to the accepting one until it has ended."""

    request_queue_size = 1024

    def __init__(self, fake: FakeDeepSeek, port: int) -> None:
        self.fake = fake
        self.connections = 0
        self._workers: list[tuple[threading.Thread, socket.socket]] = []
        super().__init__(("127.0.0.1", port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer would ask the resolver for the name of 127.0.0.1, which takes seconds on some machines.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.socket.getsockname()[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        # A list of our own: the mixin joins only threads that would keep Python alive after a forgotten `close`.
        worker = threading.Thread(target=self.process_request_thread, args=(request, client_address), daemon=True)
        self._workers = [pair for pair in self._workers if pair[0].is_alive()] + [(worker, request)]
        self.connections += 1
        worker.start()

    def end_connections(self) -> None:
        for _, connection in self._workers:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            if sys.platform == "win32" and (handle := connection.detach()) >= 0:
                # On Windows nothing less wakes a thread that waits for the socket.
                socket.close(handle)
        for worker, _ in self._workers:
            worker.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server
    is_used = False

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def handle_one_request(self) -> None:
        self.connection.settimeout(self.server.fake.idle_seconds if self.is_used else None)
        self.is_used = True
        super().handle_one_request()

    def do_GET(self) -> None:
        is_balance = self.path.endswith("/user/balance")
        expected = ("/user/balance",) if is_balance else versions("/models")
        fake = self.server.fake
        date = (("Date", formatdate(time.time(), usegmt=True)),)
        if refused := fake.request_refusal(self.path, expected, self._headers()):
            self._fail(replace(_to_failure(refused), headers=date))
        elif is_balance:
            # As on the pricing pages of September 2026: amounts are text.
            amounts = {"total_balance": "110.00", "granted_balance": "10.00", "topped_up_balance": "100.00"}
            if not fake.has_balance:
                amounts = dict.fromkeys(amounts, "0.00")
            infos = [{"currency": "CNY", **amounts}]
            self._send(200, encode_json({"is_available": fake.has_balance, "balance_infos": infos}), date)
        else:
            self._send(200, encode_json({"object": "list", "data": list(map(model_entry, fake.models))}), date)

    def do_POST(self) -> None:
        fake = self.server.fake
        self.connection.settimeout(None)
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            # The client disconnected inside its request.
            self.close_connection = True
            return
        reply = fake.reply_to(self.path, self._headers(), body)
        try:
            self._play(reply)
        except OSError:
            self.close_connection = True
            if not fake.closing.is_set():
                fake.hang_ups.put(time.monotonic())
                fake.hung_up.set()

    def _play(self, reply: "_Reply") -> None:
        match step := reply.step:
            case Raw():
                self.connection.sendall(step.data)
                if step.then_stall:
                    self._stall()
                self.close_connection = step.then_close
            case Failure():
                self._fail(step)
            case Answer():
                self._answer(step, reply)

    def _headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.headers.items()}

    def _fail(self, failure: Failure) -> None:
        error = {"message": failure.message, "type": failure.type, "param": None, "code": failure.code}
        body = encode_json({"error": error}) if failure.body is None else failure.body
        self._send(failure.status, body, failure.headers)

    def _send(self, status: int, body: bytes, headers: Iterable[tuple[str, str]] = ()) -> None:
        typed = () if any(name.lower() == "content-type" for name, _ in headers) else (_JSON,)
        self.connection.sendall(_head(status, (*typed, *headers, ("Content-Length", str(len(body))))) + body)

    def _answer(self, answer: Answer, reply: _Reply) -> None:
        cache, id = self.server.fake.cache, str(uuid.uuid4())
        completion = reply.writer(answer, reply.payload, cache, id, int(time.time()))
        if reply.payload.get("stream"):
            self.connection.sendall(_head(200, (_EVENTS, ("Transfer-Encoding", "chunked"))))
            for _ in range(answer.comments):
                self.connection.sendall(_chunk(b": keep-alive\n\n"))
            # The end of the HTTP body counts as no event: an answer can be cut or stalled between [DONE] and it.
            self._write(answer, map(_chunk, chain(completion.events(), (b"",))))
            return
        body = b"\n" * answer.comments + completion.body()
        if answer.cut_after is None and answer.stall_after is None:
            self._send(200, body)
        else:
            self.connection.sendall(_head(200, (_JSON, ("Content-Length", str(len(body))))))
            self._write(answer, (body[at : at + 1] for at in range(len(body))))

    def _write(self, answer: Answer, pieces: Iterable[bytes]) -> None:
        # One by one: a piece after a cut is never generated, so the cache does not keep that answer.
        rest = iter(pieces)
        for number in count():
            if number == answer.stall_after:
                self._stall()
            if number == answer.cut_after:
                self.close_connection = True
                return
            if (piece := next(rest, None)) is None:
                return
            self.connection.sendall(piece)
            if answer.pause:
                self.server.fake.closing.wait(answer.pause)

    def _stall(self) -> None:
        fake = self.server.fake
        fake.stalls.put(time.monotonic())
        with selectors.DefaultSelector() as selector:
            selector.register(self.connection, selectors.EVENT_READ)
            # A hundredth of a second is what a test waits for its release or its hang-up at most.
            while not fake.release.wait(0.01):
                if fake.closing.is_set() or (selector.select(0) and not self.connection.recv(1, socket.MSG_PEEK)):
                    raise ConnectionAbortedError("the client has left")


_JSON = ("Content-Type", "application/json")
_EVENTS = ("Content-Type", "text/event-stream; charset=utf-8")


def _head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    phrase = BaseHTTPRequestHandler.responses.get(status, ("Unknown",))[0]
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
