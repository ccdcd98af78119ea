"""The benchmark's DeepSeek: quick enough that a measure shows the proxy before it.

One thread and one selector serve every connection with the answers of `load_answers`; a chunk costs some microseconds.
A paced stream sends each chunk when it is due, and the chunk says when that was: the monotonic clock is the machine's,
so a client in another process can compute its delay. `GET /restored` returns how many messages of the last tool turn
came with a reasoning. It checks and refuses nothing: the strict one is `fake_deepseek`.
"""

import heapq
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count

from tests.bench import load_answers
from tests.bench.load_answers import Command
from tests.bench.load_clients import content_length
from tests.support.processes import wait_for_end_of_stdin

# A long chat has a few megabytes.
_RECEIVED_AT_ONCE = 1 << 20
# Multiples of it are spread evenly whatever their number, so streams that begin together do not speak together.
_GOLDEN = 0.6180339887


def serve_deepseek() -> None:
    """Serve as the benchmark's DeepSeek, in a process of its own."""
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
        # A byte written to one end wakes the thread that waits for the other.
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._stop)
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
        self._wake_writer.send(b"x")
        self._thread.join()
        for connection in list(self._connections):
            self.drop(connection)
        self._selector.close()
        for each in (self._listener, self._wake_reader, self._wake_writer):
            each.close()

    def _serve(self) -> None:
        while self._is_running:
            wait = (self._due[0][0] - time.monotonic_ns()) / 1e9 if self._due else None
            for key, events in self._selector.select(wait):
                react: Callable[[int], None] = key.data
                react(events)
            self._send_due()

    def _stop(self, events: int) -> None:
        self._is_running = False

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
            connection.send(load_answers.json_answer(b"%d" % self._restored) if is_question else load_answers.MODELS)
            return
        command, number = load_answers.parse_command(request), next(self._numbers)
        match command:
            case Command("plain"):
                connection.send(load_answers.plain(number))
            case Command("turn"):
                self._restored = load_answers.count_reasonings(request)
                connection.send(load_answers.turn(number))
            case Command("stream"):
                connection.send(load_answers.stream(command.chunks, number))
            case Command("paced"):
                connection.send(load_answers.opening())
                stream = _Paced(connection, command)
                first = time.monotonic_ns() + int(number * _GOLDEN % 1 * stream.interval)
                heapq.heappush(self._due, (first, number, stream))
            case _:
                connection.send(load_answers.REFUSAL)


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
    __slots__ = ("_command", "_mark", "_sent", "connection", "interval")

    def __init__(self, connection: _Connection, command: Command) -> None:
        self.connection = connection
        self.interval = 1_000_000_000 // command.rate
        self._command = command
        self._sent = self._mark = 0

    def send(self) -> bool:
        """Sends the next chunk; whether another one follows."""
        is_thinking = self._sent < self._command.chunks // 2
        # Marks grow, also where the clock ticks every 15 ms: who listens tells chunks apart by them.
        self._mark = max(time.monotonic_ns(), self._mark + 1)
        data = load_answers.marked_chunk(self._mark, is_thinking)
        self._sent += 1
        is_last = self._sent == self._command.chunks
        try:
            self.connection.send(data + load_answers.ending() if is_last else data)
        except OSError:
            # The selector will tell, too, and then the connection is dropped.
            return False
        return not is_last
