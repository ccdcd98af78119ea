"""The clients of a soak: agents that work properly, and clients that do everything else.

Each client is a function that makes one run and raises ClientRunFailed when the proxy did not do what it must.
The fake DeepSeek plays the step that the question names, and checks every history: its reasoning is a function of the
messages before it, so every turn can be compared byte for byte.
"""

import contextlib
import json
import random
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.fake_deepseek import Answer, Failure, FakeDeepSeek, Raw, Step, weather_responder
from tests.support.cursor import WEATHER_TOOLS, ClientAnswer, CursorClient
from tests.support.harness import read_next_reply
from tests.support.processes import wait_for_end_of_stdin

# Longer than anything takes that works.
_PATIENCE_SECONDS = 30.0
# Real servers close unused connections; the proxy must notice and drop them from its pool.
IDLE_SECONDS = 0.3


class ClientRunFailed(Exception):
    """The proxy did not do what it must; the message says what was expected."""


@dataclass(frozen=True)
class ClientRun:
    """What one run of a client needs: the proxy's URL, a source of chance, and a counter of requests."""

    url: str
    rng: random.Random
    count: Callable[[int], None]

    def ask(self, client: CursorClient, text: str) -> ClientAnswer:
        turn = client.ask(text)
        self.count(len(turn.answers))
        return turn.final

    @contextlib.contextmanager
    def connect(self, receive_buffer: int | None = None) -> Iterator[socket.socket]:
        address = urlsplit(self.url)
        with socket.socket() as sock:
            if receive_buffer is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            sock.settimeout(_PATIENCE_SECONDS)
            sock.connect((address.hostname, address.port))
            yield sock

    def pause(self, least: float, most: float) -> None:
        threading.Event().wait(self.rng.uniform(least, most))


def tool_loop(run: ClientRun) -> None:
    """An agent's chat: two questions, the first with tools, all of it remembered."""
    stream = run.rng.random() < 0.7
    system = f"You are assistant {run.rng.random()}."
    with CursorClient(f"{run.url}/v1", tools=WEATHER_TOOLS, stream=stream, system=system) as client:
        for question in ("loop: do I need an umbrella?", "loop: are you sure?"):
            answer = run.ask(client, question)
            _expect(answer.is_whole and answer.done == stream and not answer.cut, "a tool loop", answer)


def three_answers(run: ClientRun) -> None:
    body = {"n": 3, "stream": run.rng.random() < 0.5}
    with run.connect() as sock:
        run.count(1)
        sock.sendall(_request("short", **body))
        reply = _read_answer(sock)
        _expect(all(b'"index":%d' % choice in reply for choice in range(3)), "three answers", reply[-300:])


def slow_reader(run: ClientRun) -> None:
    """Read little at a time, but all of it."""
    with run.connect(receive_buffer=8192) as sock:
        run.count(1)
        sock.sendall(_request("large", stream=True))
        data = b""
        while not data.endswith(b"\r\n0\r\n\r\n"):
            run.pause(0.001, 0.01)
            data = data[-8:] + _some(sock, 16384)


def idle_client(run: ClientRun) -> None:
    """Keep a connection for a while and use it twice."""
    with run.connect() as sock:
        for _ in range(2):
            run.count(1)
            sock.sendall(_request("short"))
            _read_answer(sock)
            run.pause(0.1, 0.6)


def burst(run: ClientRun) -> None:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(run.connect()) for _ in range(30)]
        run.count(len(socks))
        for sock in socks:
            sock.sendall(b"GET /v1/models HTTP/1.1\r\nHost: soak\r\n\r\n")
        for sock in socks:
            _read_answer(sock)


def disconnecting_client(run: ClientRun) -> None:
    """Ask, perhaps read a little, and disconnect by FIN, RST or half-close."""
    question, until = run.rng.choice((("hang", b""), ("endless", b""), ("endless", b"data: "), ("silent", b"data: ")))
    with run.connect() as sock:
        run.count(1)
        sock.sendall(_request(question, stream=until != b"" or run.rng.random() < 0.5))
        seen = b""
        while until not in seen:
            seen += _some(sock)
        run.pause(0.0, 0.1)
        way = run.rng.choice(("FIN", "RST", "half-close"))
        if way == "RST":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if way == "half-close":
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass


def blocked_reader(run: ClientRun) -> None:
    """Ask for more than the buffers hold, read nothing of it and disconnect."""
    with run.connect(receive_buffer=4096) as sock:
        run.count(1)
        sock.sendall(_request("huge", stream=True))
        run.pause(0.2, 0.6)


def bad_request(run: ClientRun) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: soak\r\nAuthorization: Bearer sk-soak\r\n"
    request, status = run.rng.choice(
        (
            (b"garbage\r\n\r\n", 400),
            (run.rng.randbytes(run.rng.randint(1, 300)) + b"\0\r\n\r\n", 400),
            (head + b"Content-Length: 3\r\n\r\n{]}", 400),
            (head + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nx", 400),
            (head + b"Content-Length: 99999999999\r\n\r\n", 413),
            (head.replace(b"Authorization", b"X") + b"Content-Length: 2\r\n\r\n{}", 401),
            (b"GET /nowhere HTTP/1.1\r\nHost: soak\r\n\r\n", 404),
        )
    )
    with run.connect() as sock:
        run.count(1)
        sock.sendall(request)
        _expect_status(_some(sock), status)


def failing_upstream(run: ClientRun) -> None:
    """A refusal keeps its status; a stream that was cut ends in an error event and properly."""
    question, status = run.rng.choice((("429", 429), ("500", 500), ("garbage", 502), ("cut", 200)))
    with run.connect() as sock:
        run.count(1)
        sock.sendall(_request(question, stream=True))
        reply = _read_answer(sock, status)
        _expect(b'"error"' in reply, f"an error ({question})", reply[-300:])


def pipelining_client(run: ClientRun) -> None:
    """Send several requests in pieces that fit none of them; their answers come whole and in order."""
    kinds = run.rng.choices((_HEALTH, _request("short", stream=True)), k=run.rng.randint(2, 6))
    run.count(len(kinds))
    data = b"".join(kinds)
    with run.connect() as sock, sock.makefile("rb") as file:
        while data:
            size = run.rng.randint(1, 400)
            sock.sendall(data[:size])
            data = data[size:]
            run.pause(0, 0.001)
        for kind in kinds:
            end = b'{"ok":true}' if kind is _HEALTH else b"data: [DONE]\n\n"
            reply = read_next_reply(file)
            _expect((reply.status, reply.body[-len(end) :]) == (200, end), "answers in order", reply)


def expecting_client(run: ClientRun) -> None:
    head, _, body = _request("short", stream=True).partition(b"\r\n\r\n")
    with run.connect() as sock:
        run.count(1)
        sock.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
        _expect_status(_some(sock), 100)
        sock.sendall(body)
        _read_answer(sock)


def dripping_client(run: ClientRun) -> None:
    """Send the beginning of a request byte by byte, which may take too long."""
    with run.connect() as sock, contextlib.suppress(OSError):
        run.count(1)
        for byte in _request("short")[: run.rng.randint(5, 40)]:
            sock.send(bytes([byte]))
            run.pause(0.005, 0.015)


def flooding_client(run: ClientRun) -> None:
    """Send more than is kept of it while the answer to the first request is streamed, and leave."""
    with run.connect() as sock, contextlib.suppress(OSError):
        run.count(1)
        sock.sendall(_request("endless", stream=True))
        sock.settimeout(0.1)
        for _ in range(20):
            sock.send(_HEALTH * 200)


CLIENTS: tuple[Callable[[ClientRun], None], ...] = (
    *(tool_loop,) * 5, *(disconnecting_client,) * 3, three_answers, slow_reader, idle_client, burst, blocked_reader,
    bad_request, failing_upstream, pipelining_client, expecting_client, dripping_client, flooding_client,
)  # fmt: skip
_HEALTH = b"GET /healthz HTTP/1.1\r\nHost: soak\r\n\r\n"


def _request(question: str, **fields: Any) -> bytes:
    body = json.dumps({"model": "deepseek-v4-pro", "messages": [{"role": "user", "content": question}], **fields})
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: soak\r\nAuthorization: Bearer sk-soak\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def _some(sock: socket.socket, most: int = 65536) -> bytes:
    data = sock.recv(most)
    _expect(bool(data), "more of an answer", "the connection's end")
    return data


def _read_answer(sock: socket.socket, status: int = 200) -> bytes:
    data = _some(sock)
    while b"\r\n\r\n" not in data:
        data += _some(sock)
    _expect_status(data, status)
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    while len(body) < int(length[1]) if length else not body.endswith(b"\r\n0\r\n\r\n"):
        body += _some(sock)
    return head + body


def _expect_status(data: bytes, status: int) -> None:
    _expect(data.startswith(b"HTTP/1.1 %d " % status), f"status {status}", data[:300])


def _expect(is_so: bool, what: str, got: object) -> None:
    if not is_so:
        raise ClientRunFailed(f"expected {what}, got {got!r:.400}")


def serve_deepseek() -> None:
    def respond(payload: dict[str, Any]) -> Step:
        # Tests read `seen`; a soak would only fill memory with it.
        fake.seen.clear()
        return answer_to(payload)

    with FakeDeepSeek(responder=respond) as fake:
        fake.idle_seconds = IDLE_SECONDS
        wait_for_end_of_stdin(fake.url)


_EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
_STEPS: dict[str, Step] = {
    "short": Answer("A thought.", "An answer."), "large": Answer("A thought.", "x" * 400_000, piece=10_000),
    "huge": Answer("A thought.", "x" * 12_000_000, piece=100_000),
    "endless": Answer("A thought. " * 20, "Four" * 20_000, piece=4, pause=0.01),
    "silent": Answer("A thought.", "Half of it.", piece=4, stall_after=4), "hang": Raw(b"", then_stall=True),
    "cut": Answer("A thought.", "Half of it.", piece=4, cut_after=4), "garbage": Raw(b"no HTTP at all\r\n\r\n"),
    "429": Failure(429, "Too fast."), "500": Failure(500, "Broken."),
}  # fmt: skip


def answer_to(payload: Mapping[str, Any]) -> Step:
    """The step that the last question names; a Failure when an earlier turn came back without its reasoning."""
    messages = payload["messages"]
    step = _STEPS.get(messages[-1]["content"])
    if step is not None:
        return step
    for at, message in enumerate(messages):
        if message["role"] == "assistant":
            thought = weather_responder({**payload, "messages": messages[:at]}).reasoning
            if message.get("reasoning_content") != thought:
                return Failure(422, f"Turn {at} came back with {message.get('reasoning_content')!r}, not {thought!r}.")
    return weather_responder(payload)
