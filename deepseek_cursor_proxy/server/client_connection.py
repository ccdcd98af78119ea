"""One client connection: reads requests strictly, calls the app, writes its replies, until one side ends it.

It is a generator that yields wherever it would have to wait for its client or for DeepSeek, and so is the app;
`connections` waits, and resumes it.

A client that closes, even half of its connection, counts as gone, as it does for nginx: what runs for it stops. That
is seen wherever the proxy waits (`net/wait`, `connections`) and raised as ClientGone; closing the body (`api/reply`)
closes the exchange, which closes the upstream response and thereby its connection.
When the proxy stops, connections without a request end at once and the others after their response; a response that
takes too long for that ends where it is, with an error for the client.
"""

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Generator
from enum import Enum, IntEnum
from typing import Protocol

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import (
    ClientGone,
    InternalError,
    ProtocolError,
    ProxyError,
    ProxyStopping,
    RequestTimeout,
)
from deepseek_cursor_proxy.http1 import bodies, heads
from deepseek_cursor_proxy.http1.lull import BLOCKING, HasFileno, Lull, SingleWait, Steps, WaitHandle
from deepseek_cursor_proxy.http1.messages import Body, Headers, HttpReply, HttpRequest
from deepseek_cursor_proxy.net.deadline import Deadline
from deepseek_cursor_proxy.net.wait import ReadWaiter, can_write
from deepseek_cursor_proxy.server.request_body import RequestBody

_log = logging.getLogger(__name__)

_RECEIVE_BYTES = 65536
# What is kept of requests that a client sends before it has the answer to the one before.
_MOST_EARLY_BYTES = 32 * 1024
# What the system buffers for a client that reads slowly. By default Linux grows it to 4 MB, all of which is generated
# and paid for before we notice that the client does not read.
_SEND_BUFFER_BYTES = 128 * 1024
# How long we go on reading after a refusal: closing a socket with unread bytes would lose the reply. A client that
# still sends gets more time than a silent one.
_LINGER_SECONDS = 10.0
_LINGER_SILENCE_SECONDS = 2.0
# A stream that never pauses is left to a worker after so many pieces, so that it does not keep the others waiting.
_MOST_PIECES = 8


class ServerContext(Protocol):
    """The server of a connection. `app` and `config` are read for every request: they may change between two."""

    @property
    def app(self) -> Callable[[HttpRequest], HttpReply | Steps[HttpReply]]: ...

    @property
    def config(self) -> ProxyConfig: ...


class StopStage(IntEnum):
    """How far the stop of the server has come."""

    SERVING = 0
    # No request is read any more; connections end after the response they send.
    FINISH_RESPONSES = 1
    # Responses end where they are, with an error for the client.
    END_RESPONSES = 2
    ABORT = 3


class Wait(Enum):
    """What a connection waits for, until its `deadline`."""

    # The client sends something, or closes.
    READABLE = "readable"
    # The client reads.
    WRITABLE = "writable"


# Why a connection does not go on. A Lull with a handle: the app waits for that. BLOCKING: a worker goes on at once.
Pause = Wait | Lull
Pauses = Generator[Pause, None, None]


class ClientConnection:
    """Used by one thread at a time: a worker, or the event loop's, which also calls `stop` at any moment."""

    def __init__(self, sock: socket.socket, server: ServerContext) -> None:
        # With a timeout, Python would look at the socket and at the clock before every call.
        sock.setblocking(False)
        self.sock = sock
        self._waiter = ReadWaiter(sock)
        self._server = server
        self._address = _peer_address(sock)
        # What has arrived and was not read yet.
        self._rest = b""
        # Whether the request that is read begins as HEAD does: no reply to it has a body, a refusal included.
        self._is_head = False
        self._stage = StopStage.SERVING
        self._is_ending = False
        # Whether a wait for the client has to end.
        self._is_interrupted = False
        # The end of a wait for the client; see Wait.
        self.deadline = Deadline(0.0)
        # What the app last waited for.
        self._source: HasFileno | None = None
        self._source_waiter = self._waiter
        self._steps = self._serve()
        self.pause: Pause | None = BLOCKING

    # By `connections`, which waits for it …

    def resume(self) -> Pause | None:
        """Run until the next wait, and return it, also as `pause`; None when the connection has ended."""
        self.pause = next(self._steps, None)
        return self.pause

    @property
    def handle(self) -> WaitHandle | None:
        """What the app or its stream waits for."""
        return self.pause.handle if isinstance(self.pause, Lull) else None

    def wait(self, seconds: float) -> bool:
        """Wait until the connection can go on; False if the time is over first."""
        handle, pause = self.handle, self.pause
        if handle is None or not isinstance(pause, Lull):
            return can_write(self.sock, seconds) if pause is Wait.WRITABLE else self._waiter.wait(seconds)
        if (source := handle.source) is None or pause.for_writing:
            return False
        if source is not self._source:
            self._source = source
            self._source_waiter = self._waiter if source is self else ReadWaiter(source, self)
        try:
            return self._source_waiter.wait(min(seconds, handle.until - time.monotonic()))
        except (ClientGone, ProxyError) as error:
            self.interrupt(error)
            return True

    def interrupt(self, error: Exception | None = None) -> None:
        """End the wait with this error, or because the client left or the proxy stops.

        The app or its stream raises the error itself, because it has to store its unfinished turn.
        """
        if (handle := self.handle) is not None:
            handle.interrupt(error or self.close_reason or ClientGone())
        else:
            self._is_interrupted = True

    @property
    def can_receive(self) -> bool:
        """Whether `receive_early` may be called."""
        return self._stage < StopStage.END_RESPONSES and len(self._rest) < _MOST_EARLY_BYTES

    def receive_early(self) -> bool:
        """Keep what a client sends before it has its answer; False if the client has left."""
        data = self._receive_now()
        self._rest += data or b""
        return data != b""

    def stop(self, stage: StopStage) -> None:
        self._stage = stage
        self._is_ending = self._is_ending or stage is StopStage.END_RESPONSES
        if stage >= StopStage.END_RESPONSES:
            # Wakes a worker that waits for the client or for DeepSeek: to this worker, the client has left.
            self._shut(socket.SHUT_RDWR if stage is StopStage.ABORT else socket.SHUT_RD)

    def close(self) -> None:
        self._shut(socket.SHUT_WR)
        self.sock.close()

    def _shut(self, how: int) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(how)

    # As the Peer of waits …

    @property
    def close_reason(self) -> ProxyError | None:
        return ProxyStopping() if self._is_ending else None

    def fileno(self) -> int:
        return self.sock.fileno()

    def has_left(self) -> bool:
        try:
            return self.sock.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    # All requests …

    def _serve(self) -> Pauses:
        """Answer requests until the connection ends."""
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            try:
                while (yield from self._serve_one()):
                    pass
            except ProxyError as error:
                yield from self._refuse(error)
        except (OSError, ClientGone):
            pass
        except Exception as error:
            details = _log.isEnabledFor(logging.DEBUG)
            _log.error("unexpected %s on a connection", type(error).__name__, exc_info=details)

    def _refuse(self, error: ProxyError) -> Pauses:
        """Send what is wrong and end the connection, leaving the client the time to read it."""
        yield from self._send(encode_refusal(error, with_body=not self._is_head))
        yield from self._linger()

    # One request …

    def _serve_one(self) -> Generator[Pause, None, bool]:
        """Serve the next request; False if the connection ends after it."""
        head = yield from self._read_head()
        if head is None:
            return False
        body = RequestBody(self, head, self._server.config)
        path, query = heads.split_target(head.target)
        authority = heads.target_authority(head.target)
        request = HttpRequest(head.method, path, query, head.headers, body.read, self, self._address, authority)
        reply = yield from self._call_app(request)
        is_persistent = heads.keeps_alive(head.version, head.headers) and body.is_read and not self._stage
        if isinstance(reply.body, bytes):
            data = _encode_reply(reply, reply.body, is_persistent=is_persistent, with_body=not self._is_head)
            yield from self._send(data)
        else:
            # HTTP/1.0 has no chunks: there the end of the connection is the end of the body.
            is_chunked = head.version >= (1, 1)
            is_persistent = is_persistent and is_chunked
            yield from self._stream(reply, reply.body, is_persistent=is_persistent, is_chunked=is_chunked)
        # An idle connection holds nothing of its last answer.
        self._source, self._source_waiter = None, self._waiter
        if not body.is_read:
            yield from self._linger()
        return is_persistent

    def _call_app(self, request: HttpRequest) -> Steps[HttpReply]:
        try:
            reply = self._server.app(request)
            return reply if isinstance(reply, HttpReply) else (yield from reply)
        except (ProxyError, ClientGone):
            raise
        except Exception as error:
            details = _log.isEnabledFor(logging.DEBUG)
            _log.error("unexpected %s while answering a request", type(error).__name__, exc_info=details)
            failure = InternalError()
            return HttpReply.json(failure.payload(), failure.status)

    # Reading …

    def _read_head(self) -> Generator[Pause, None, heads.RequestHead | None]:
        """The next request's head; None when the client is done, or idle for too long, or the proxy stops."""
        config = self._server.config
        data, self._rest = self._rest, b""
        if data:
            self._is_head = _begins_as_head(data)
            if self._stage:
                # The client sent it in advance, after our reply kept the connection open.
                raise ProxyStopping
            # The loop may have sent the end of the response before.
            yield BLOCKING
        else:
            data = (yield from self._receive(Deadline.after(config.idle_timeout), config.idle_timeout)) or b""
            if not data:
                return None
            self._is_head = _begins_as_head(data)
        received = heads.parse_whole_head(data, heads.parse_request_head)
        if received is None:
            received = yield from self._read_long_head(data, config.header_timeout)
        if received is None:
            return None
        head, self._rest = received
        self._is_head = head.method == "HEAD"
        return head

    def _read_long_head(
        self, data: bytes | None, timeout: float
    ) -> Generator[Pause, None, heads.ReceivedHead[heads.RequestHead] | None]:
        """A head that did not arrive at once, or is to be refused; None when nothing but blank lines came."""
        buffer = heads.HeadBuffer()
        # After its first bytes the whole head has one deadline: a byte now and then does not extend it.
        deadline = Deadline.after(timeout)
        while data:
            if (raw := buffer.feed(data)) is not None:
                return heads.ReceivedHead(heads.parse_request_head(raw), buffer.take_rest())
            data = yield from self._receive(deadline, timeout)
            deadline = self.deadline
        if buffer.is_empty:
            return None
        if self._stage:
            raise ProxyStopping
        if data is None:
            raise RequestTimeout("The request did not arrive in time.")
        raise ProtocolError("The request ends in the middle of its head.")

    def _receive(self, deadline: Deadline, timeout: float) -> Generator[Pause, None, bytes | None]:
        """What arrives, b"" when the client closed or the proxy stops, None when the deadline came first."""
        self.deadline = deadline
        while True:
            yield Wait.READABLE
            # Once more after the deadline, and when the proxy stops: something may have arrived by then.
            data = self._receive_now()
            if data is not None:
                return data
            if self._is_interrupted or self._stage:
                return b""
            self.deadline = self.deadline.allow_for_stop(timeout)
            if self.deadline.is_over:
                return None

    def _receive_now(self) -> bytes | None:
        """What has arrived, b"" when the client closed, None when there is nothing."""
        try:
            return self.sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def receive(self, deadline: Deadline) -> Steps[bytes | None]:
        """As `_receive`, for a body: the app waits, and a stop lets it go on."""
        wait, seconds = SingleWait(deadline, self), deadline.left
        while True:
            yield Lull(wait, then_blocks=False)
            wait.raise_interruption()
            if (data := self._receive_now()) is not None:
                return data
            wait.until = deadline = deadline.allow_for_stop(seconds)
            if deadline.is_over:
                return None

    def take_rest(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest

    def put_back(self, rest: bytes) -> None:
        self._rest = rest

    # Writing …

    def send(self, data: bytes) -> None:
        """Send a few bytes before the reply; ClientGone if they do not fit, because the client does not read."""
        if self.send_now(data) < len(data):
            raise ClientGone

    def send_now(self, data: bytes | memoryview) -> int:
        """Send what can be sent without waiting; returns the number of bytes."""
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0

    def _send(self, data: bytes) -> Pauses:
        """Send everything. If the client does not read: ClientGone once it has closed, else TimeoutError."""
        if (sent := self.send_now(data)) < len(data):
            yield from self._send_rest(data, sent)

    def _send_rest(self, data: bytes, sent: int) -> Pauses:
        view = memoryview(data)[sent:]
        timeout = self._server.config.write_timeout
        self.deadline = Deadline.after(timeout)
        while view:
            yield Wait.WRITABLE
            if sent := self.send_now(view):
                view, self.deadline = view[sent:], Deadline.after(timeout)
            elif self._is_interrupted:
                raise ClientGone
            else:
                self.deadline = self.deadline.allow_for_stop(timeout)
                if self.deadline.is_over:
                    raise TimeoutError

    def _stream(self, reply: HttpReply, body: Body, *, is_persistent: bool, is_chunked: bool) -> Pauses:
        coding: Headers = (("Transfer-Encoding", "chunked"),) if is_chunked else ()
        try:
            head = heads.reply_head(reply.status, reply.headers + coding + _connection_header(is_persistent))
            if self._is_head:
                # The head alone, as it is for GET (RFC 9112, 6.1); nothing of the body is computed.
                yield from self._send(head)
            else:
                yield from self._send_pieces(body, head, is_chunked=is_chunked)
            if not body.is_finished:
                # Closing it may block.
                yield BLOCKING
        except Exception:
            yield BLOCKING
            raise
        finally:
            body.close()

    def _send_pieces(self, body: Body, head: bytes, *, is_chunked: bool) -> Pauses:
        """Send every piece as one write, the head with the first and the end with the last."""
        frame: Callable[[bytes], bytes] = bodies.chunk if is_chunked else bytes
        pieces = iter(body)
        unsent, count = head, 0
        for piece in pieces:
            if isinstance(piece, Lull):
                if unsent:
                    yield from self._send(unsent)
                    unsent = b""
                count = 0
                yield piece
            elif body.is_finished:
                rest = [each for each in pieces if not isinstance(each, Lull)]
                unsent += frame(b"".join([piece, *rest]))
            else:
                data = unsent + frame(piece) if unsent else frame(piece)
                unsent = b""
                if (sent := self.send_now(data)) < len(data):
                    yield from self._send_rest(data, sent)
                count += 1
                if count % _MOST_PIECES == 0:
                    yield BLOCKING
        unsent += bodies.LAST_CHUNK if is_chunked else b""
        if unsent:
            yield from self._send(unsent)

    def _linger(self) -> Pauses:
        """Discard what the client still sends, until it has read our reply; an early close would lose the reply."""
        self._shut(socket.SHUT_WR)
        deadline = Deadline.after(_LINGER_SECONDS)
        while not deadline.is_over:
            silence = min(deadline, Deadline.after(_LINGER_SILENCE_SECONDS))
            if not (yield from self._receive(silence, _LINGER_SILENCE_SECONDS)):
                return


def encode_refusal(error: ProxyError, *, with_body: bool = True) -> bytes:
    """The last reply of a connection."""
    headers = (("Retry-After", str(error.retry_after)),) if error.retry_after is not None else ()
    reply = HttpReply.json(error.payload(), error.status, headers)
    assert isinstance(reply.body, bytes)
    return _encode_reply(reply, reply.body, is_persistent=False, with_body=with_body)


def _encode_reply(reply: HttpReply, body: bytes, *, is_persistent: bool, with_body: bool = True) -> bytes:
    headers = reply.headers
    has_content = reply.status not in (204, 304)
    if has_content:
        headers += (("Content-Length", str(len(body))),)
    head = heads.reply_head(reply.status, headers + _connection_header(is_persistent))
    return head + body if with_body and has_content else head


def _begins_as_head(data: bytes) -> bool:
    # Blank lines may precede a request (RFC 9112, 2.2).
    return data.lstrip(b"\r\n").startswith(b"HEAD ")


def _peer_address(sock: socket.socket) -> str:
    """The client's address; empty when it has left already."""
    with contextlib.suppress(OSError):
        name = sock.getpeername()
        return str(name[0]) if isinstance(name, tuple) else ""
    return ""


def _connection_header(is_persistent: bool) -> Headers:
    # Always sent: HTTP/1.0 assumes the opposite of 1.1.
    return (("Connection", "keep-alive" if is_persistent else "close"),)
