"""The benchmark's DeepSeek: quick enough that a measure shows the proxy before it.

One thread and one selector serve every connection; a chunk costs some microseconds. A paced stream sends each chunk
when it is due, and the chunk says when that was: the monotonic clock is the machine's, so a client in another process
can compute its delay. `GET /restored` returns how many messages of the last tool turn came with a reasoning. It checks
and refuses nothing: the strict one is `fake_deepseek`.

The last user message of a request holds a command (`parse_command`). Answers are encoded beforehand wherever they can
be, and %-formatted where they must differ, to cost the measured machine little time. No two plain answers, turns or
streams have the same reasoning, so that a proxy has to store each of them. Chunks look like the real DeepSeek's, which
have 250 to 300 bytes, and every event is an HTTP chunk of its own.
"""

import heapq
import random
import re
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from itertools import count, cycle, islice

from deepseek_cursor_proxy.json_codec import encode_json
from tests.bench.load_clients import content_length
from tests.fake_deepseek.completion import model_entry
from tests.support.processes import wait_for_end_of_stdin

# A long chat has a few megabytes.
_RECEIVED_AT_ONCE = 1 << 20
# Multiples of it are spread evenly whatever their number, so streams that begin together do not speak together.
_GOLDEN = 0.6180339887
# How often it looks whether it is to stop.
_LOOK_SECONDS = 0.05


def serve_deepseek() -> None:
    with LoadUpstream() as upstream:
        wait_for_end_of_stdin(upstream.url)


class LoadUpstream:
    """Serves on a thread of its own between `start` and `close`; only that thread touches connections."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._listener.setblocking(False)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._is_running = True
        self._connections: set[_Connection] = set()
        # Paced streams by the moment their next chunk is due; the number decides between equals.
        self._due: list[tuple[int, int, _Paced]] = []
        self._numbers = count(1)
        self._restored = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "LoadUpstream":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_running = False
        self._thread.join()
        for connection in list(self._connections):
            self.drop(connection)
        self._selector.close()
        self._listener.close()

    def _serve(self) -> None:
        while self._is_running:
            wait = (self._due[0][0] - time.monotonic_ns()) / 1e9 if self._due else _LOOK_SECONDS
            for key, events in self._selector.select(wait):
                react: Callable[[int], None] = key.data
                react(events)
            self._send_due()

    def _accept(self, events: int) -> None:
        # All of them at once: a thousand new connections do not wait until those before are served.
        with suppress(BlockingIOError):
            while True:
                sock, _ = self._listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection = _Connection(sock, self)
                self._connections.add(connection)
                self._selector.register(sock, selectors.EVENT_READ, connection.react)

    def _send_due(self) -> None:
        # One reading of the clock: on a machine that cannot keep up, connections with requests get their turn too.
        now = time.monotonic_ns()
        while self._due and self._due[0][0] <= now:
            due, number, stream = heapq.heappop(self._due)
            if stream.connection.is_open and stream.send():
                heapq.heappush(self._due, (due + stream.interval, number, stream))

    def watch(self, connection: "_Connection", events: int) -> None:
        self._selector.modify(connection.sock, events, connection.react)

    def drop(self, connection: "_Connection") -> None:
        connection.is_open = False
        self._connections.discard(connection)
        self._selector.unregister(connection.sock)
        connection.sock.close()

    def answer(self, connection: "_Connection", request: bytes) -> None:
        if request.startswith(b"GET"):
            is_question = request.startswith(b"GET /restored")
            connection.send(json_answer(b"%d" % self._restored) if is_question else MODELS)
            return
        number = next(self._numbers)
        match parse_command(request):
            case [b"plain"]:
                connection.send(plain(number))
            case [b"turn"]:
                self._restored = count_reasonings(request)
                connection.send(turn(number))
            case [b"stream", chunks]:
                connection.send(stream(int(chunks), number))
            case [b"paced", rate, chunks]:
                connection.send(opening())
                paced = _Paced(connection, int(rate), int(chunks))
                first = time.monotonic_ns() + int(number * _GOLDEN % 1 * paced.interval)
                heapq.heappush(self._due, (first, number, paced))
            case _:
                raise OSError("a request without a command")


class _Connection:
    """One client's connection; used by the thread that serves."""

    __slots__ = ("_needed", "_received", "_server", "_unsent", "is_open", "sock")

    def __init__(self, sock: socket.socket, server: LoadUpstream) -> None:
        self.sock = sock
        self.is_open = True
        self._server = server
        self._received = bytearray()
        # The length of the request that is coming in; 0 until its head is there.
        self._needed = 0
        self._unsent = bytearray()

    def react(self, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                del self._unsent[: self.sock.send(self._unsent)]
                if not self._unsent:
                    self._server.watch(self, selectors.EVENT_READ)
            if events & selectors.EVENT_READ:
                self._receive()
        except BlockingIOError:
            pass
        except OSError:
            self._server.drop(self)

    def send(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            return
        sent = 0
        with suppress(BlockingIOError):
            sent = self.sock.send(data)
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]
            self._server.watch(self, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def _receive(self) -> None:
        data = self.sock.recv(_RECEIVED_AT_ONCE)
        if not data:
            self._server.drop(self)
            return
        self._received += data
        while self._received:
            if not self._needed:
                end = self._received.find(b"\r\n\r\n")
                if end < 0:
                    return
                self._needed = end + 4 + (content_length(self._received, end) or 0)
            if len(self._received) < self._needed:
                return
            request = bytes(self._received[: self._needed])
            del self._received[: self._needed]
            self._needed = 0
            self._server.answer(self, request)


class _Paced:
    __slots__ = ("_chunks", "_mark", "_sent", "connection", "interval")

    def __init__(self, connection: _Connection, rate: int, chunks: int) -> None:
        self.connection = connection
        self.interval = 1_000_000_000 // rate
        self._chunks = chunks
        self._sent = self._mark = 0

    def send(self) -> bool:
        is_thinking = self._sent < self._chunks // 2
        # Marks grow, also where the clock ticks every 15 ms: who listens tells chunks apart by them.
        self._mark = max(time.monotonic_ns(), self._mark + 1)
        data = marked_chunk(self._mark, is_thinking)
        self._sent += 1
        is_last = self._sent == self._chunks
        try:
            self.connection.send(data + ending() if is_last else data)
        except OSError:
            # The selector will tell, too, and then the connection is dropped.
            return False
        return not is_last


# Its answers, as bytes for the socket, HTTP included …

_COMMAND = re.compile(rb"bench:([a-z]+(?: \d+)*)")
# A reasoning that is there and says something: blanks, spelt out or escaped, are what placeholders are made of.
_REASONING = re.compile(rb'"reasoning_content"\s*:\s*"(?!(?:\s|\\[nrt])*")')
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def parse_command(request: bytes) -> list[bytes]:
    """The words of a request's last command; none if it has no command."""
    found = _COMMAND.match(request, max(0, request.rfind(b"bench:")))
    return found[1].split() if found else []


def count_reasonings(request: bytes) -> int:
    """How many messages of a request carry a reasoning that is not blank."""
    return len(_REASONING.findall(request))


def json_answer(body: bytes) -> bytes:
    return _head(len(body)) + body


def plain(serial: int) -> bytes:
    """A small completion with reasoning."""
    return _PLAIN % (serial, serial)


def turn(serial: int) -> bytes:
    id = "call_00_" + "".join(random.choices(_ALPHABET, k=24))
    return json_answer(_TURN % (serial, serial, random.choice(_THOUGHTS), id.encode(), serial))


def _head(length: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % length


def _completion(message: bytes, finish_reason: bytes) -> bytes:
    return (
        b'{"id":"7a1f0c2e-3b5d-4e6f-8a9b-%%012d","object":"chat.completion","created":1786000000,"model":"deepseek-v4-pro",'
        b'"choices":[{"index":0,"message":{"role":"assistant",%b},"logprobs":null,"finish_reason":"%b"}],'
        b'"usage":%b,"system_fingerprint":"fp_9954b31ca7"}' % (message, finish_reason, _USAGE)
    )


_USAGE = encode_json(
    {
        "prompt_tokens": 1200,
        "completion_tokens": 340,
        "total_tokens": 1540,
        "prompt_tokens_details": {"cached_tokens": 1152},
        "completion_tokens_details": {"reasoning_tokens": 210},
        "prompt_cache_hit_tokens": 1152,
        "prompt_cache_miss_tokens": 48,
    }
)
_PLAIN_BODY = _completion(
    b'"content":"It is a quarter past ten.","reasoning_content":"They ask for the time of day, number %012d."', b"stop"
)
# The serial number has a fixed width, so one length is right for all of them.
_PLAIN = _head(len(_PLAIN_BODY % (0, 0))) + _PLAIN_BODY
_TURN = _completion(
    b'"content":"I read the next file.","reasoning_content":"Number %012d. %b","tool_calls":[{"index":0,"id":"%b",'
    b'"type":"function","function":{"name":"tool_7","arguments":"{\\"path\\": \\"src/part_%012d.py\\"}"}}]',
    b"tool_calls",
)
_SENTENCE = "so the next thing to look at is where this value comes from and who else may change it before we do"
_WORDS = _SENTENCE.split()
# As long as real ones between two calls: some 300 to 900 characters, and no mark of percent in them.
_THOUGHTS = tuple(" ".join(islice(cycle(_WORDS), count)).encode() for count in range(70, 210, 10))
MODELS = json_answer(
    encode_json({"object": "list", "data": [model_entry("deepseek-flash"), model_entry("deepseek-v4-pro")]})
)


def stream(chunks: int, serial: int) -> bytes:
    first = _chunk(b'{"content":null,"reasoning_content":"%012d"}' % serial)
    return opening() + first + _rest(chunks - 1) + ending()


@lru_cache(maxsize=8)
def opening() -> bytes:
    """What precedes the chunks: the head, and DeepSeek's first event, which has the role alone."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + _chunk(b'{"role":"assistant","content":null,"reasoning_content":""}')


def marked_chunk(moment: int, is_thinking: bool) -> bytes:
    """A chunk that contains the moment it was sent."""
    return _marked_template(is_thinking) % moment


@lru_cache(maxsize=8)
def ending() -> bytes:
    """What follows the chunks: the finish reason, the usage, and the end of the events and of the body."""
    last = _event(b'{"content":"","reasoning_content":null}', b'"stop"', b',"usage":' + _USAGE)
    return _http_chunk(last) + _http_chunk(b"data: [DONE]\n\n") + _http_chunk(b"")


@lru_cache(maxsize=8)
def _rest(chunks: int) -> bytes:
    words = islice(cycle(_WORDS), chunks)
    # With the first one, which is not among these, half of them think.
    thinking = (chunks + 1) // 2 - 1
    templates = (b'{"content":null,"reasoning_content":" %b"}', b'{"content":" %b","reasoning_content":null}')
    return b"".join(_chunk(templates[number >= thinking] % word.encode()) for number, word in enumerate(words))


@lru_cache(maxsize=8)
def _marked_template(is_thinking: bool) -> bytes:
    names = (b"content", b"reasoning_content") if is_thinking else (b"reasoning_content", b"content")
    # Written with a moment of the same width, so that the length of the HTTP chunk is right; then made a template.
    moment = b"0" * 19
    return _chunk(b'{"%b":null,"%b":"@%b@"}' % (*names, moment)).replace(b"@%b@" % moment, b"@%019d@")


def _chunk(delta: bytes) -> bytes:
    return _http_chunk(_event(delta, b"null", b""))


def _event(delta: bytes, finish_reason: bytes, usage: bytes) -> bytes:
    return (
        b'data: {"id":"2d9e4b6c-1f3a-4c5d-9e7f-0a1b2c3d4e5f","object":"chat.completion.chunk","created":1786000000,'
        b'"model":"deepseek-v4-pro","system_fingerprint":"fp_9954b31ca7","choices":[{"index":0,"delta":%b,'
        b'"logprobs":null,"finish_reason":%b}]%b}\n\n' % (delta, finish_reason, usage)
    )


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
