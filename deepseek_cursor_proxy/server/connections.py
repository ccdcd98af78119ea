"""Client connections: accepted in a loop, each served on a thread of its own until one side ends it, stopped in stages.

Connections has those of one listener. A client beyond the limit gets a refusal, and the time to read it. When no
descriptors are left, clients wait in the system's queue.

ClientConnection reads requests strictly, calls the app and writes its replies; `serve` is the loop, on the thread of
the connection. A client that closes, even half of its connection, counts as gone, as it does for nginx: what runs for
it stops. That is seen wherever the thread waits (`net/wait`) and raised as ClientGone; closing the body (see
`api/endpoint`) closes the exchange, which closes the upstream response and thereby its connection.
When the proxy stops, connections without a request end at once and the others after their response; a response that
takes too long for that ends where it is, with an error for the client.
"""

import contextlib
import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable
from enum import IntEnum
from functools import partial
from typing import Any, Protocol

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import (
    BadRequest,
    ClientGone,
    InternalError,
    Overloaded,
    ProtocolError,
    ProxyError,
    ProxyStopping,
    RequestTimeout,
    TooLarge,
    UnknownEncoding,
)
from deepseek_cursor_proxy.http1 import bodies, heads
from deepseek_cursor_proxy.http1.bodies import ContentDecoder, DecodedTooLarge
from deepseek_cursor_proxy.http1.messages import Body, HttpReply, HttpRequest, Pieces
from deepseek_cursor_proxy.net.threads import ReusedThreads
from deepseek_cursor_proxy.net.wait import ReadWaiter, Wakeup, pause, wait_until, wait_until_client_reads
from deepseek_cursor_proxy.server import resource_limits

_log = logging.getLogger(__name__)

_FOR_EVER_SECONDS = 86400.0
# How many clients beyond the limit have a thread that waits until they have read the refusal.
_MOST_REFUSED = 128
# How long no client is accepted when that fails, as it does without descriptors.
_PAUSE_SECONDS = 0.05
_SECONDS_BETWEEN_WARNINGS = 30.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# An aborted connection ends within moments.
_CLOSE_SECONDS = 1.0
# By whether it stays open; always sent, because HTTP/1.0 assumes the opposite of 1.1.
_CONNECTION = {True: b"Connection: keep-alive\r\n", False: b"Connection: close\r\n"}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_RECEIVE_BYTES = 65536
# What the system buffers for a client that reads slowly. By default Linux grows it to 4 MB, all of which is generated
# and paid for before we notice that the client does not read.
_SEND_BUFFER_BYTES = 128 * 1024
# Linux sends the head of a stream with the first piece, or after a fifth of a second: one packet less to wake for.
_MORE_FOLLOWS = getattr(socket, "MSG_MORE", 0)
# How long we keep reading after a refusal: closing a socket with unread bytes would lose the reply. A client that still
# sends gets more time than a silent one.
_DRAIN_SECONDS = 10.0
_DRAIN_SILENCE_SECONDS = 2.0
# How long an idle connection waits at a time: on Windows nothing else ends a wait when the proxy stops.
_LOOK_SECONDS = 0.5 if os.name == "nt" else 3600.0


class ServerContext(Protocol):
    """The server of a connection. `app` and `config` are read for every request: they may change between two."""

    @property
    def app(self) -> Callable[[HttpRequest], HttpReply]: ...

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


class Connections:
    """One thread accepts, those of the connections serve, any thread stops them.

    `_changed` protects all fields, and is notified when a connection ends and when `accept` is over.
    """

    def __init__(self, name: str, too_many: Overloaded) -> None:
        """`too_many` is what a client beyond the limit reads. Raises OSError when no descriptors are left."""
        self._threads = ReusedThreads(name)
        self._too_many = too_many
        # Set, it ends `accept`.
        self._end = Wakeup()
        self._changed = threading.Condition()
        self._is_accepting = False
        self._open: set[ClientConnection] = set()
        self._stage = StopStage.SERVING
        self._warned_at = float("-inf")

    def __len__(self) -> int:
        return self._threads.busy

    # Accepting …

    def accept(self, listener: socket.socket, on_accept: Callable[[socket.socket, Any], object]) -> None:
        """Accept clients until `stop_accepting`; whatever happens to one, the next is accepted."""
        with self._changed:
            if self._end.has_left():
                # Stopped before it started; the listener may be closed by now.
                return
            self._is_accepting = True
        try:
            listener.setblocking(False)
            waiter = ReadWaiter(listener, self._end)
            with contextlib.suppress(ClientGone):
                while True:
                    if waiter.wait(_FOR_EVER_SECONDS):
                        self._accept_one(listener, on_accept)
        finally:
            with self._changed:
                self._is_accepting = False
                self._changed.notify_all()

    def stop_accepting(self) -> None:
        """Returns when no client is accepted any more; before `accept`, none will be."""
        with self._changed:
            self._end.set()
            self._changed.wait_for(lambda: not self._is_accepting)

    def _accept_one(self, listener: socket.socket, on_accept: Callable[[socket.socket, Any], object]) -> None:
        try:
            sock, address = listener.accept()
        except (BlockingIOError, ConnectionError):
            # That client has left already.
            return
        except OSError as error:
            if error.errno in _EXHAUSTED and time.monotonic() - self._warned_at >= _SECONDS_BETWEEN_WARNINGS:
                self._warned_at = time.monotonic()
                _log.warning("no client can be accepted (%s); raise the limit of open files", error.strerror)
            pause(_PAUSE_SECONDS, self._end)
            return
        try:
            on_accept(sock, address)
        except Exception as error:
            # A bug costs one client, not all that come after it.
            _log.error("unexpected %s while accepting a client", type(error).__name__)
            sock.close()

    # Serving …

    def start(self, sock: socket.socket, most: int, serve: Callable[[], None], server: ServerContext) -> None:
        """Have a thread call `serve` for an accepted client, or refuse the client if there are `most` already."""
        count = self._threads.busy
        if count < most:
            has_thread = self._threads.start(serve)
        else:
            refuse = partial(self.serve, ClientConnection(sock, server), self._too_many)
            has_thread = count < most + _MOST_REFUSED and self._threads.start(refuse)
        if not has_thread:
            with contextlib.closing(sock), contextlib.suppress(OSError):
                sock.send(encode_refusal(self._too_many))

    def serve(self, connection: "ClientConnection", refusal: Overloaded | None = None) -> None:
        """Serve the connection until it ends; on its thread."""
        with self._changed:
            self._open.add(connection)
            if self._stage:
                connection.stop(self._stage)
        try:
            connection.serve(refusal)
        finally:
            connection.close()
            with self._changed:
                self._open.discard(connection)
                self._changed.notify_all()

    def stop(self, stage: StopStage, seconds: float) -> None:
        """Bring all connections to this stage, and wait for their ends, for `seconds` at most."""
        with self._changed:
            self._stage = stage
            for connection in self._open:
                connection.stop(stage)
            wait_until(self._changed, lambda: not self._open, seconds)

    def close(self) -> None:
        """After the last stage."""
        self._threads.close(_CLOSE_SECONDS)
        self._end.close()


class ClientConnection:
    """Used by its thread; `stop` is called by any. The lock protects `_stage` and `_reads_head`."""

    def __init__(self, sock: socket.socket, server: ServerContext, address: tuple[Any, ...] = ("",)) -> None:
        """`address` is the client's, as `accept` returned it."""
        # With a timeout, Python would look at the socket and at the clock before every call.
        sock.setblocking(False)
        self.sock = sock
        self._waiter = ReadWaiter(sock)
        self._server = server
        self._client_ip: str = address[0]
        # What has arrived and was not read yet.
        self._rest = b""
        # Whether the request that is read begins as HEAD does: no reply to it has a body, a refusal included.
        self._is_head = False
        self._lock = threading.Lock()
        self._stage = StopStage.SERVING
        self._reads_head = False
        self._is_ending = False

    def stop(self, stage: StopStage) -> None:
        with self._lock:
            self._stage = stage
            self._is_ending = self._is_ending or stage is StopStage.END_RESPONSES
            if stage >= StopStage.END_RESPONSES or (stage and self._reads_head):
                # Wakes the thread, which waits for the client or for DeepSeek: to it, the client has left.
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

    def serve(self, refusal: ProxyError | None = None) -> None:
        """Answer requests until the connection ends, or send the refusal that ends it."""
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            try:
                if refusal is not None:
                    # Not raised: it is the same for all clients, and would hold the frames of each.
                    return self._refuse(refusal)
                while self._serve_one():
                    pass
            except ProxyError as error:
                self._refuse(error)
        except (OSError, ClientGone):
            pass
        except Exception as error:
            details = _log.isEnabledFor(logging.DEBUG)
            _log.error("unexpected %s on a connection", type(error).__name__, exc_info=details)

    def _refuse(self, error: ProxyError) -> None:
        """Send the error and give the client time to read it; the connection ends after it."""
        self.send(encode_refusal(error, with_body=not self._is_head))
        self._drain()

    # One request …

    def _serve_one(self) -> bool:
        """Serve the next request; False if the connection ends after it."""
        received = self._read_head()
        if received is None:
            return False
        head = received.head
        body = RequestBody(self, head, received.rest, self._server.config)
        path, query, authority = heads.split_target(head.target)
        request = HttpRequest(head.method, path, query, head.headers, body.read, self, self._client_ip, authority)
        reply = self._call_app(request)
        is_read, self._rest = body.is_read, body.rest
        is_persistent = heads.keeps_alive(head.version, head.headers) and is_read and not self._stage
        if isinstance(reply.body, bytes):
            self.send(_encode_reply(reply, reply.body, is_persistent=is_persistent, with_body=not self._is_head))
        else:
            # HTTP/1.0 has no chunks: there the end of the connection is the end of the body.
            is_chunked = head.version >= (1, 1)
            is_persistent = is_persistent and is_chunked
            self._stream(reply, reply.body, is_persistent=is_persistent, is_chunked=is_chunked)
        if not is_read:
            self._drain()
        if body.size > resource_limits.BYTES_KEPT:
            # After all that was made of it.
            del request, reply
            resource_limits.give_back_memory()
        return is_persistent

    def _call_app(self, request: HttpRequest) -> HttpReply:
        try:
            return self._server.app(request)
        except (ProxyError, ClientGone):
            raise
        except Exception as error:
            details = _log.isEnabledFor(logging.DEBUG)
            _log.error("unexpected %s while answering a request", type(error).__name__, exc_info=details)
            failure = InternalError()
            return HttpReply.json(failure.payload(), failure.status)

    # Reading …

    def _read_head(self) -> heads.ReceivedHead[heads.RequestHead] | None:
        """The next request's head and what came after it; None when the client is done or idle, or the proxy stops."""
        with self._lock:
            self._reads_head = True
            # When the proxy stops, a request that has arrived gets an error.
            seconds = 0.0 if self._stage else self._server.config.idle_timeout
        data = self._rest or self.receive(time.monotonic() + seconds)
        if not data:
            return None
        received = heads.parse_whole_head(data, heads.parse_request_head) or self._read_long_head(data)
        if received is None:
            return None
        self._is_head = received.head.method == "HEAD"
        with self._lock:
            self._reads_head = False
            if self._stage:
                # It came at the moment of the stop, or in advance, after our reply kept the connection open.
                raise ProxyStopping
        return received

    def _read_long_head(self, data: bytes) -> heads.ReceivedHead[heads.RequestHead] | None:
        """A head that did not arrive at once, or is to be refused; None when nothing but blank lines came."""
        # Blank lines may precede a request (RFC 9112, 2.2).
        self._is_head = data.lstrip(b"\r\n").startswith(b"HEAD ")
        buffer = heads.HeadBuffer()
        # After its first bytes the whole head has one deadline: a byte now and then does not extend it.
        until = time.monotonic() + self._server.config.header_timeout
        more: bytes | None = data
        while more:
            if (raw := buffer.feed(more)) is not None:
                return heads.ReceivedHead(heads.parse_request_head(raw), buffer.take_rest())
            more = self.receive(until)
        if buffer.is_empty:
            return None
        if self._stage:
            raise ProxyStopping
        if more is None:
            raise RequestTimeout("The request did not arrive in time.")
        raise ProtocolError("The request ends in the middle of its head.")

    def receive(self, until: float) -> bytes | None:
        """What arrives, b"" when the client closed or the proxy stops, None when the moment `until` came first."""
        while True:
            left = until - time.monotonic()
            if self._waiter.wait(min(left, _LOOK_SECONDS)):
                try:
                    return self.sock.recv(_RECEIVE_BYTES)
                except BlockingIOError:
                    continue
                except OSError:
                    return b""
            elif self._stage and self._reads_head:
                return b""
            elif left <= 0:
                return None

    # Writing …

    def send(self, data: bytes, flags: int = 0) -> None:
        """Send everything; ClientGone once the client has closed, or if it does not read."""
        try:
            sent = self.sock.send(data, flags)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._send_rest(memoryview(data)[sent:])

    def _send_rest(self, view: memoryview) -> None:
        while view:
            if not wait_until_client_reads(self, self._server.config.write_timeout):
                raise ClientGone
            with contextlib.suppress(BlockingIOError):
                view = view[self.sock.send(view) :]

    def _stream(self, reply: HttpReply, body: Body | Pieces, *, is_persistent: bool, is_chunked: bool) -> None:
        """Send the head, then every piece as one write, the end with the last."""
        frame: Callable[[bytes], bytes] = bodies.chunk if is_chunked else bytes
        coding, end = (b"Transfer-Encoding: chunked\r\n", bodies.LAST_CHUNK) if is_chunked else (b"", b"")
        answer = None if isinstance(body, Generator) else body
        try:
            head = heads.reply_head(reply.status, reply.headers, coding + _CONNECTION[is_persistent])
            if self._is_head:
                # The head alone, as it is for GET (RFC 9112, 6.1); nothing of the body is computed.
                return self.send(head)
            self.send(head, _MORE_FOLLOWS)
            pieces = iter(body)
            for piece in pieces:
                if answer is not None and answer.is_finished:
                    end = frame(b"".join([piece, *pieces])) + end
                else:
                    self.send(frame(piece))
            if end:
                self.send(end)
        finally:
            body.close()

    def _drain(self) -> None:
        """Discard what the client still sends, until it has read our reply; an early close would lose the reply."""
        self._shut(socket.SHUT_WR)
        until = time.monotonic() + _DRAIN_SECONDS
        while (now := time.monotonic()) < until and self.receive(min(until, now + _DRAIN_SILENCE_SECONDS)):
            pass


class RequestBody:
    """The body of one request: read when the app calls for it, decoded, bounded in size and time.

    One that the app does not read stays on the connection, which then ends after the reply: bytes that one side takes
    for a body and the other for a request are how requests are smuggled.
    """

    # Once it is read and unpacked.
    size = 0

    def __init__(self, source: "ClientConnection", head: heads.RequestHead, rest: bytes, config: ProxyConfig) -> None:
        self._source = source
        # What came after the head; once the body is read, what came after that.
        self.rest = rest
        self._headers = head.headers
        self._config = config
        self._limit = config.max_request_body_bytes
        self._expects_continue = "expect" in head.headers and heads.expects_continue(head)
        self._decoder: bodies.BodyDecoder | None = None
        self._too_large: TooLarge | None = None
        try:
            self._decoder = bodies.body_decoder(head, self._limit, ProtocolError)
        except TooLarge as error:
            # Raised by `read`: a wrong path or key is the more useful answer.
            self._too_large = error

    @property
    def is_read(self) -> bool:
        return self._too_large is None and (self._decoder is None or self._decoder.is_complete)

    def read(self) -> bytes:
        """Read and decode the whole body; raises BadRequest, RequestTimeout, TooLarge or UnknownEncoding."""
        if self._too_large is not None:
            raise self._too_large
        try:
            unpacker = bodies.content_decoder(self._headers, self._limit)
        except bodies.UnknownCoding as error:
            raise UnknownEncoding(f"Content-Encoding {error} is unknown; send identity, gzip or deflate.") from None
        if self._decoder is None:
            return b""
        try:
            pieces = self._read_pieces(self._decoder)
            # BodyDecoder has counted a body that is not compressed.
            body = b"".join(pieces) if unpacker is None else self._unpack(pieces, unpacker)
            self.size = len(body)
            return body
        finally:
            # Also when this body is refused: the next request may follow it.
            self.rest = self._decoder.rest

    def _unpack(self, pieces: Iterable[bytes], unpacker: ContentDecoder) -> bytes:
        try:
            body = b"".join(map(unpacker.decode, pieces))
        except DecodedTooLarge:
            raise TooLarge(f"The unpacked request body is larger than {self._limit} bytes.") from None
        except ValueError as error:
            raise BadRequest(f"The request body cannot be unpacked: {error}.") from None
        if not unpacker.is_complete:
            raise BadRequest("The compressed request body is incomplete.")
        return body

    def _read_pieces(self, decoder: bodies.BodyDecoder) -> list[bytes]:
        data = self.rest
        if self._expects_continue and not data:
            self._source.send(_CONTINUE)
        pieces = [decoder.feed(data)]
        until = time.monotonic() + self._config.body_timeout
        while not decoder.is_complete:
            # Each byte received extends the deadline a little: a byte now and then does not keep a thread for ever.
            until += len(data) / self._config.body_rate
            more = self._source.receive(until)
            if more is None:
                raise RequestTimeout("The request body did not arrive in time.")
            if not more:
                raise self._source.close_reason or BadRequest(
                    "The request body ends before its announced end.", code="incomplete_body"
                )
            data = more
            pieces.append(decoder.feed(data))
        return pieces


def encode_refusal(error: ProxyError, *, with_body: bool = True) -> bytes:
    """The last reply of a connection."""
    headers = (("Retry-After", str(error.retry_after)),) if error.retry_after is not None else ()
    reply = HttpReply.json(error.payload(), error.status, headers)
    assert isinstance(reply.body, bytes)
    return _encode_reply(reply, reply.body, is_persistent=False, with_body=with_body)


def _encode_reply(reply: HttpReply, body: bytes, *, is_persistent: bool, with_body: bool = True) -> bytes:
    has_content = reply.status not in (204, 304)
    length = b"Content-Length: %d\r\n" % len(body) if has_content else b""
    head = heads.reply_head(reply.status, reply.headers, length + _CONNECTION[is_persistent])
    return head + body if with_body and has_content else head
