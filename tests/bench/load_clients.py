"""The clients of a benchmark: one at a time, or many driven by one selector.

Nothing here waits for anything but sockets, and many clients cost one thread: threads of Python would be slower than
the proxy that they measure. Requests are encoded beforehand; responses are read to their end and not kept. After a
response that closes its connection the next request opens a new one.
"""

import json
import re
import select
import selectors
import socket
import time
from array import array
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.support.processes import BenchmarkFailed

# Longer than any answer takes to begin.
PATIENCE_SECONDS = 30.0
_RECEIVED_AT_ONCE = 262144
# A mark is a moment in nanoseconds between two of these; no JSON writer escapes any of it.
MARK = re.compile(rb"@(\d{19})@")
# A mark may be cut in two by the end of what was received; it is shorter than this.
_MARK_LENGTH = 24
CHAT = "/chat/completions"
_LENGTH = re.compile(rb"(?i)\r\ncontent-length:[ \t]*(\d+)")
_CHUNKED = re.compile(rb"(?i)\r\ntransfer-encoding:[ \t]*chunked")
_CONNECTION_CLOSE = re.compile(rb"(?i)\r\nconnection:[ \t]*close")
# The end of a chunked body with the chunk and the event before it: enough to see whether the stream ended properly.
_TAIL_BYTES = 64


def content_length(data: bytes | bytearray, end: int) -> int | None:
    found = _LENGTH.search(data, 0, end)
    return int(found[1]) if found else None


class ResponseReader:
    __slots__ = ("_head", "_is_chunked", "_left", "closes", "tail")

    def __init__(self) -> None:
        self._head: bytes | None = b""
        self._left: int | None = None
        self._is_chunked = False
        # Whether the connection ends with this answer.
        self.closes = False
        self.tail = b"\r\n"

    def feed(self, data: bytes) -> bool:
        """Take the next bytes, none at the end; whether the response is complete. BenchmarkFailed unless it's a 200."""
        if not data:
            if self._head is not None or self._is_chunked or self._left is not None:
                raise BenchmarkFailed("an answer was broken off")
            return True
        if self._head is not None:
            data = self._head + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._head = data
                return False
            self._read_head(data, end)
            data = data[end + 4 :]
        if self._left is not None:
            self._left -= len(data)
            return self._left <= 0
        self.tail = (self.tail + data[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        return self._is_chunked and self.tail.endswith(b"\r\n0\r\n\r\n")

    def _read_head(self, data: bytes, end: int) -> None:
        if not data.startswith((b"HTTP/1.1 200 ", b"HTTP/1.0 200 ")):
            raise BenchmarkFailed(f"an answer was {data[:300].decode(errors='replace')!r}")
        self._head = None
        self._left = content_length(data, end)
        self._is_chunked = self._left is None and _CHUNKED.search(data, 0, end) is not None
        is_framed = self._left is not None or self._is_chunked
        self.closes = (
            not is_framed or data.startswith(b"HTTP/1.0") or _CONNECTION_CLOSE.search(data, 0, end) is not None
        )


def _body(answer: bytes) -> bytes:
    """The body of a complete answer, without the lengths between its chunks."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    if not _CHUNKED.search(head):
        return rest
    pieces = []
    while (length := int(rest.partition(b"\r\n")[0].partition(b";")[0], 16)) > 0:
        start = rest.index(b"\r\n") + 2
        pieces.append(rest[start : start + length])
        rest = rest[start + length + 2 :]
    return b"".join(pieces)


def post(url: str, body: bytes, path: str = CHAT) -> bytes:
    fields = f"Authorization: Bearer sk-bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return _request_line("POST", url, path) + fields.encode() + b"\r\n" + body


def get(url: str, path: str) -> bytes:
    return _request_line("GET", url, path) + b"Authorization: Bearer sk-bench\r\n\r\n"


def _request_line(method: str, url: str, path: str) -> bytes:
    address = urlsplit(url)
    return f"{method} {address.path.rstrip('/')}{path} HTTP/1.1\r\nHost: {address.netloc}\r\n".encode()


def _connect(url: str) -> socket.socket:
    sock = socket.create_connection(_address(url), PATIENCE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _address(url: str) -> tuple[str, int]:
    # By number, so that all clients use the same address: a name may have several.
    address = urlsplit(url)
    return socket.gethostbyname(address.hostname or ""), address.port or 80


@dataclass(frozen=True)
class Timing:
    """Seconds from connecting, if need be, to the first piece of JSON in an answer, and to the end of it."""

    first: float
    whole: float


class Client:
    """One kept-alive connection, made for the first request. Used by one thread."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._socket: socket.socket | None = None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def fetch(self, request: bytes) -> Any:
        pieces: list[bytes] = []
        self.ask(request, pieces.append)
        try:
            return json.loads(_body(b"".join(pieces)))
        except ValueError as error:
            raise BenchmarkFailed(f"an answer is no JSON: {error}") from error

    def ask(self, request: bytes, keep: Callable[[bytes], object] = lambda data: None) -> Timing:
        """Send a request and read its response; BenchmarkFailed unless that is a whole 200."""
        started = time.perf_counter()
        if self._socket is not None and select.select([self._socket], [], [], 0)[0]:
            # Closed while it was idle: another column, which is waited for, may take longer than a server keeps it.
            self.close()
        sock = self._socket = self._socket or _connect(self.url)
        reader, first = ResponseReader(), None
        sock.sendall(request)
        while True:
            data = sock.recv(_RECEIVED_AT_ONCE)
            if first is None and b"{" in data:
                first = time.perf_counter() - started
            keep(data)
            if reader.feed(data):
                break
        whole = time.perf_counter() - started
        if reader.closes:
            self.close()
        if request.endswith(b'"stream":true}') and b"data: [DONE]" not in reader.tail:
            raise BenchmarkFailed(f"a stream ended with {reader.tail.decode(errors='replace')!r}")
        return Timing(whole if first is None else first, whole)


def requests_per_second(url: str, clients: int, request: bytes, seconds: float) -> float:
    """Responses per second to so many clients that all ask at once for so long."""
    answered = 0
    with selectors.DefaultSelector() as selector, ExitStack() as stack:

        def join() -> socket.socket:
            sock = stack.enter_context(_connect(url))
            selector.register(sock, selectors.EVENT_READ, ResponseReader())
            return sock

        # One after another, and before the clock runs: how many may connect at once is another question.
        joined = [join() for _ in range(clients)]
        started = now = time.perf_counter()
        for sock in joined:
            # Small enough for the buffer of any socket.
            sock.send(request)
        while now - started < seconds:
            ready = selector.select(PATIENCE_SECONDS)
            if not ready:
                raise BenchmarkFailed(f"nothing was answered for {PATIENCE_SECONDS:g} seconds")
            for key, _ in ready:
                sock, reader = key.fileobj, key.data
                if not reader.feed(sock.recv(_RECEIVED_AT_ONCE)):
                    continue
                answered += 1
                if reader.closes:
                    selector.unregister(sock)
                    sock.close()
                    sock = join()
                else:
                    selector.modify(sock, selectors.EVENT_READ, ResponseReader())
                sock.send(request)
            now = time.perf_counter()
    return answered / (now - started)


@dataclass(frozen=True)
class Crowd:
    """So many streams of `chunks` marked chunks each, at `rate` per second; they begin one after another."""

    url: str
    request: bytes
    streams: int
    chunks: int
    rate: int
    # Seconds between the beginnings of two streams, and for which one may be late in the end.
    stagger: float = 0.002
    grace: float = 1.0

    @property
    def seconds(self) -> float:
        return self.streams * self.stagger + self.chunks / self.rate + self.grace


@dataclass
class CrowdResult:
    """What a crowd received: the nanoseconds each chunk was under way, and why streams failed."""

    lags: "array[int]" = field(default_factory=lambda: array("q"))
    failures: list[str] = field(default_factory=list)


def run_crowd(crowd: Crowd, midway: Callable[[], None] = lambda: None) -> CrowdResult:
    """Run streams until all ended or their time is over; call `midway` once. Late chunks are missing, not failed."""
    with closing(_CrowdRunner(crowd)) as runner:
        runner.run(midway)
        return runner.result


@dataclass(slots=True, eq=False)
class _Stream:
    sock: socket.socket
    reader: ResponseReader = field(default_factory=ResponseReader)
    count: int = 0
    # Marks only grow. A proxy that shows the thinking in the text brings each of them twice.
    last: int = 0
    rest: bytes = b""


class _CrowdRunner:
    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._address = _address(crowd.url)
        self._selector = selectors.DefaultSelector()
        self._streams: set[_Stream] = set()
        self.result = CrowdResult()

    def close(self) -> None:
        for stream in list(self._streams):
            self._leave(stream)
        self._selector.close()

    def run(self, midway: Callable[[], None]) -> None:
        crowd, started, count = self._crowd, time.monotonic(), 0
        middle = crowd.streams * crowd.stagger + crowd.chunks / crowd.rate / 2
        is_midway_over = False
        while (elapsed := time.monotonic() - started) < crowd.seconds and (self._streams or count < crowd.streams):
            while count < min(crowd.streams, elapsed / crowd.stagger + 1):
                sock = socket.socket()
                sock.setblocking(False)
                # It can be written to once it is connected; if that fails, writing does.
                sock.connect_ex(self._address)
                stream = _Stream(sock)
                self._streams.add(stream)
                self._selector.register(stream.sock, selectors.EVENT_WRITE, stream)
                count += 1
            if elapsed >= middle and not is_midway_over:
                is_midway_over = True
                midway()
            next_moment = started + (count * crowd.stagger if count < crowd.streams else crowd.seconds)
            if not is_midway_over:
                next_moment = min(next_moment, started + middle)
            for key, events in self._selector.select(max(0.0, next_moment - time.monotonic())):
                self._react(key.data, events)
        if not is_midway_over:
            # A machine this busy skipped the middle.
            midway()
        self.result.failures += ["nothing came in time" for stream in self._streams if not stream.count]

    def _react(self, stream: _Stream, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                stream.sock.send(self._crowd.request)
                self._selector.modify(stream.sock, selectors.EVENT_READ, stream)
            elif self._is_over(stream):
                self._leave(stream)
                if stream.count < self._crowd.chunks:
                    raise BenchmarkFailed(f"a stream ended after {stream.count} of {self._crowd.chunks} chunks")
        except (OSError, BenchmarkFailed) as error:
            self.result.failures.append(str(error))
            self._leave(stream)

    def _is_over(self, stream: _Stream) -> bool:
        data = stream.sock.recv(_RECEIVED_AT_ONCE)
        now = time.monotonic_ns()
        text = stream.rest + data
        for found in MARK.findall(text):
            mark = int(found)
            if mark > stream.last:
                stream.last = mark
                stream.count += 1
                self.result.lags.append(max(0, now - mark))
        stream.rest = text[-_MARK_LENGTH:]
        return stream.reader.feed(data)

    def _leave(self, stream: _Stream) -> None:
        if stream in self._streams:
            self._streams.remove(stream)
            with suppress(KeyError):
                self._selector.unregister(stream.sock)
            stream.sock.close()
