"""One client connection: reads requests strictly, calls the app, writes its replies, until one side ends it.

A client that closes, even half of its connection, counts as gone, as it does for nginx: what runs for it stops. That
is seen wherever the proxy waits (`net/wait`, for a shared stream `stream_loop`) and raised as ClientGone; closing the
body (`api/reply`) closes the exchange, which closes the upstream response and thereby its connection.
When the proxy stops, connections without a request end at once and the others after their response; a response that
takes too long for that ends where it is, with an error for the client.
"""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from functools import cached_property
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
from deepseek_cursor_proxy.http1 import heads
from deepseek_cursor_proxy.http1.messages import Body, Headers, HttpReply, HttpRequest
from deepseek_cursor_proxy.net.deadline import Deadline
from deepseek_cursor_proxy.net.wait import ReadWaiter, can_write
from deepseek_cursor_proxy.net.wakeup import Wakeup
from deepseek_cursor_proxy.server.request_body import RequestBody
from deepseek_cursor_proxy.server.stream_loop import StreamLoop
from deepseek_cursor_proxy.server.stream_sender import StreamSender

_log = logging.getLogger(__name__)

_RECEIVE_BYTES = 65536
# What the system buffers for a client that reads slowly. By default Linux grows it to 4 MB, all of which is generated
# and paid for before we notice that the client does not read.
_SEND_BUFFER_BYTES = 128 * 1024
# How long we go on reading after a refusal: closing a socket with unread bytes would lose the reply. A client that
# still sends gets more time than a silent one.
_LINGER_SECONDS = 10.0
_LINGER_SILENCE_SECONDS = 2.0
# How often a client that does not read is checked: it may have closed, which a blocked write does not show.
_RECHECK_SECONDS = 0.25


class ServerContext(Protocol):
    """The server of a connection. `app` and `config` are read for every request: they may change between two."""

    @property
    def app(self) -> Callable[[HttpRequest], HttpReply]: ...

    @property
    def config(self) -> ProxyConfig: ...

    @property
    def stream_loop(self) -> StreamLoop: ...

    # Ends the waits of connections without a request when the server stops.
    @property
    def stop_wakeup(self) -> Wakeup: ...


class ClientConnection:
    """Used by its own thread; `stop_after_response`, `end_response` and `abort` may be called by any."""

    def __init__(self, sock: socket.socket, server: ServerContext) -> None:
        # With a timeout, Python would look at the socket and at the clock before every call.
        sock.setblocking(False)
        self._sock = sock
        self._waiter = ReadWaiter(sock)
        self._server = server
        self._address = _peer_address(sock)
        self._rest = b""
        # Whether the request that is read begins as HEAD does: no reply to it has a body, a refusal included.
        self._is_head = False
        self._is_stopping = False
        self._is_ending = False
        # Protects `_is_idle`: closing an idle connection must not hit one that just became busy.
        self._lock = threading.Lock()
        self._is_idle = False

    def serve(self) -> None:
        """Answer requests until the connection ends."""
        with contextlib.suppress(OSError, ClientGone):
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            try:
                self._serve_all()
            except ProxyError as error:
                self._refuse(error)

    def _serve_all(self) -> None:
        is_open = True
        while is_open and not self._is_stopping:
            is_open = self._serve_one()
        if is_open and self._rest:
            # The client sent it in advance, after our reply kept the connection open.
            self._is_head = _begins_as_head(self._rest)
            raise ProxyStopping

    def _refuse(self, error: ProxyError) -> None:
        """Send what is wrong and end the connection, leaving the client the time to read it."""
        self.send(encode_refusal(error, with_body=not self._is_head))
        self._linger()

    # Stopping, from other threads …

    def stop_after_response(self) -> None:
        with self._lock:
            self._is_stopping = True
            if self._is_idle:
                self._shut(socket.SHUT_RD)

    def end_response(self) -> None:
        """End the response now: `close_reason` interrupts its waits."""
        with self._lock:
            self._is_stopping = self._is_ending = True
        self._shut(socket.SHUT_RD)

    def abort(self) -> None:
        """End the connection now: waits see a client that has left, and writes to it fail."""
        self._is_stopping = True
        self._shut(socket.SHUT_RDWR)

    def _shut(self, how: int) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(how)

    # As the Peer of waits …

    @property
    def close_reason(self) -> ProxyError | None:
        return ProxyStopping() if self._is_ending else None

    def fileno(self) -> int:
        return self._sock.fileno()

    def has_left(self) -> bool:
        try:
            return self._sock.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    # One request …

    def _serve_one(self) -> bool:
        """Whether the connection goes on after this request."""
        head = self._read_head()
        if head is None:
            return False
        body = RequestBody(self, head, self._server.config)
        path, query = heads.split_target(head.target)
        authority = heads.target_authority(head.target)
        request = HttpRequest(head.method, path, query, head.headers, body.read, self, self._address, authority)
        reply = self._call_app(request)
        is_persistent = heads.keeps_alive(head.version, head.headers) and body.is_read and not self._is_stopping
        if isinstance(reply.body, bytes):
            self.send(_encode_reply(reply, reply.body, is_persistent=is_persistent, with_body=not self._is_head))
        else:
            # HTTP/1.0 has no chunks: there the end of the connection is the end of the body.
            is_chunked = head.version >= (1, 1)
            is_persistent = is_persistent and is_chunked
            self._stream(reply, reply.body, is_persistent=is_persistent, is_chunked=is_chunked)
        if not body.is_read:
            self._linger()
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

    def _read_head(self) -> heads.RequestHead | None:
        """The next request's head; None when the client is done, or idle for too long, or the proxy stops."""
        self._begin_idle()
        try:
            return self._await_head()
        finally:
            self._end_idle()

    def _begin_idle(self) -> None:
        with self._lock:
            self._is_idle = True
            if self._is_stopping:
                self._shut(socket.SHUT_RD)

    def _end_idle(self) -> None:
        with self._lock:
            self._is_idle = False

    def _await_head(self) -> heads.RequestHead | None:
        config = self._server.config
        first = self._rest or self.receive(Deadline.after(config.idle_timeout))
        if not first:
            return None
        self._is_head = _begins_as_head(first)
        deadline: Deadline | None = None

        def receive() -> bytes | None:
            nonlocal deadline
            # After its first bytes the whole head has one deadline: a byte now and then does not extend it.
            deadline = deadline or Deadline.after(config.header_timeout)
            data = self.receive(deadline)
            deadline = deadline.allow_for_stop(config.header_timeout)
            return data

        try:
            head, self._rest = heads.read_request_head(receive, first)
        except heads.IncompleteHead as error:
            if error.is_empty:
                return None
            raise self._incomplete_head(is_late=error.is_late) from None
        self._is_head = head.method == "HEAD"
        return head

    def _incomplete_head(self, *, is_late: bool) -> ProxyError:
        if self._is_stopping:
            return ProxyStopping()
        if is_late:
            return RequestTimeout("The request did not arrive in time.")
        return ProtocolError("The request ends in the middle of its head.")

    def receive(self, deadline: Deadline) -> bytes | None:
        """What arrives, b"" when the client closed, None when the deadline came first."""
        waiter = self._idle_waiter if self._is_idle else self._waiter
        try:
            while waiter.wait(deadline.left):
                try:
                    return self._sock.recv(_RECEIVE_BYTES)
                except BlockingIOError:
                    # A spurious event.
                    continue
            return None
        except ConnectionError:
            return b""
        except ClientGone:
            # The server stops: what has arrived by now is the last that is read.
            with contextlib.suppress(OSError):
                return self._sock.recv(_RECEIVE_BYTES)
            return b""

    @cached_property
    def _idle_waiter(self) -> ReadWaiter:
        return ReadWaiter(self._sock, self._server.stop_wakeup)

    def take_rest(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest

    def put_back(self, rest: bytes) -> None:
        self._rest = rest

    # Writing …

    def send(self, data: bytes) -> None:
        """Send everything. If the client does not read: ClientGone once it has closed, else TimeoutError."""
        sent = self.send_now(data)
        view = memoryview(data)[sent:] if sent < len(data) else b""
        while view:
            try:
                view = view[self._sock.send(view) :]
            except BlockingIOError:
                self._await_reader()

    def send_now(self, data: bytes) -> int:
        """Send what can be sent without waiting; how many bytes that was."""
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0

    def _await_reader(self) -> None:
        timeout = self._server.config.write_timeout
        left, deadline = timeout, Deadline.after(timeout)
        while not can_write(self._sock, min(_RECHECK_SECONDS, left)):
            if left <= 0:
                raise TimeoutError
            deadline = deadline.allow_for_stop(timeout)
            left = deadline.left
            # When we shut down reading ourselves it looks the same, and the client may still read.
            if self.has_left() and not self._is_stopping:
                raise ClientGone

    def _stream(self, reply: HttpReply, body: Body, *, is_persistent: bool, is_chunked: bool) -> None:
        coding: Headers = (("Transfer-Encoding", "chunked"),) if is_chunked else ()
        try:
            head = heads.reply_head(reply.status, reply.headers + coding + _connection_header(is_persistent))
            if self._is_head:
                # The head alone, as it is for GET (RFC 9112, 6.1); nothing of the body is computed.
                self.send(head)
            else:
                StreamSender(self, body, head, is_chunked=is_chunked).run(self._server.stream_loop)
        finally:
            body.close()

    def _linger(self) -> None:
        """Discard what the client still sends, until it has read our reply; an early close would lose that."""
        self._shut(socket.SHUT_WR)
        deadline = Deadline.after(_LINGER_SECONDS)
        self._begin_idle()
        try:
            while self.receive(min(deadline, Deadline.after(_LINGER_SILENCE_SECONDS))) and not deadline.is_over:
                pass
        finally:
            self._end_idle()


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
