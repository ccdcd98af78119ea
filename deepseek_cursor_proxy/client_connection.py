"""One client connection: requests read strictly, replies written whole, until one side has had enough.

A client that closes, even half of its connection, counts as gone, as it does for nginx: whatever runs for it stops.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator

from deepseek_cursor_proxy import http1
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.encodings import TooMuch, Unpacker, is_known
from deepseek_cursor_proxy.errors import (
    BadRequest,
    ClientGone,
    ProtocolError,
    ProxyError,
    RequestTimeout,
    TooLarge,
    UnknownEncoding,
)
from deepseek_cursor_proxy.wire import Body, Headers, HttpReply, HttpRequest

_log = logging.getLogger(__name__)

Application = Callable[[HttpRequest], HttpReply]

_RECEIVE_BYTES = 65536
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# A body may take this long, and longer in proportion to its size: slower than a bad mobile link is an attack.
_BODY_SECONDS = 10.0
_BODY_BYTES_PER_SECOND = 50_000
# How long a refused client is listened to so that it can read the refusal; without that, TCP resets it away.
_LINGER_SECONDS = 2.0


class ClientConnection:
    """Used by its own thread; `stop_after_answer` and `abort` may be called by any."""

    def __init__(self, sock: socket.socket, app: Application | None, config: ProxyConfig) -> None:
        self._sock = sock
        self._app = app
        self._config = config
        self._source = _source(sock)
        self._rest = b""
        self._is_stopping = False
        # Protects `_is_reading_head`: closing a connection must not hit one that just became busy.
        self._lock = threading.Lock()
        self._is_reading_head = False

    def serve(self) -> None:
        """Answer requests until the connection ends."""
        with contextlib.suppress(OSError, ClientGone):
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                while not self._is_stopping and self._serve_one():
                    pass
            except ProxyError as error:
                self.refuse(error)

    def refuse(self, error: ProxyError, *, linger: bool = True) -> None:
        """Tell what is wrong and end the connection, leaving the client the time to read it."""
        with contextlib.suppress(OSError):
            headers = (("Retry-After", str(error.retry_after)),) if error.retry_after is not None else ()
            self._write(HttpReply.json(error.payload(), error.status, headers), keep=False)
            if linger:
                self._linger()

    # Stopping, from other threads …

    def stop_after_answer(self) -> None:
        self._is_stopping = True
        with self._lock:
            if self._is_reading_head:
                self._shut(socket.SHUT_RD)

    def abort(self) -> None:
        """Whatever is going on: our own waits see a client that has left, and a write to it fails."""
        self._is_stopping = True
        self._shut(socket.SHUT_RDWR)

    def _shut(self, how: int) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(how)

    # The client, as someone who may leave …

    def fileno(self) -> int:
        return self._sock.fileno()

    def has_left(self) -> bool:
        try:
            return self._sock.recv(1, socket.MSG_PEEK) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    # One request …

    def _serve_one(self) -> bool:
        """Whether the connection goes on after this request."""
        head = self._read_head()
        if head is None:
            return False
        body = _RequestBody(self, head, self._config.max_request_body_bytes)
        path, query = http1.split_target(head.target)
        reply = self._ask(HttpRequest(head.method, path, query, head.headers, body.read, self, self._source))
        keep = http1.keeps_alive(head.version, head.headers) and body.is_read and not self._is_stopping
        if isinstance(reply.body, bytes):
            self._write(reply, keep=keep, with_body=head.method != "HEAD")
        else:
            # HTTP/1.0 knows no chunks: there the end of the connection is the end of the answer.
            is_chunked = head.version >= (1, 1)
            keep = keep and is_chunked
            self._stream(reply, reply.body, keep=keep, is_chunked=is_chunked)
        if not body.is_read:
            self._linger()
        return keep

    def _ask(self, request: HttpRequest) -> HttpReply:
        assert self._app is not None
        try:
            return self._app(request)
        except (ProxyError, ClientGone):
            raise
        except Exception as error:
            details = _log.isEnabledFor(logging.DEBUG)
            _log.error("unexpected %s while answering a request", type(error).__name__, exc_info=details)
            return HttpReply.json(ProxyError("The proxy failed on this request; please report it.").payload(), 500)

    # Reading …

    def _read_head(self) -> http1.RequestHead | None:
        """The next request's head; None when the client is done, or idle for too long."""
        with self._lock:
            self._is_reading_head = True
        try:
            raw = self._read_raw_head()
        finally:
            with self._lock:
                self._is_reading_head = False
        return None if raw is None else http1.parse_request_head(raw)

    def _read_raw_head(self) -> bytes | None:
        buffer = http1.HeadBuffer()
        data = self._rest
        idle_until = time.monotonic() + self._config.idle_timeout
        # From its first byte on, the whole head has one deadline: a byte now and then does not extend it.
        head_until = None
        while True:
            if data and head_until is None:
                head_until = time.monotonic() + self._config.header_timeout
            if (raw := buffer.feed(data)) is not None:
                self._rest = buffer.take_rest()
                return raw
            received = self.receive(head_until or idle_until)
            if received is None and not buffer.is_empty:
                raise RequestTimeout("The request did not arrive in time.")
            if not received and not buffer.is_empty:
                raise ProtocolError("The request ends in the middle of its head.")
            if not received:
                return None
            data = received

    def receive(self, until: float) -> bytes | None:
        """What arrives, b"" when the client closed, None when the moment `until` came first."""
        try:
            self._sock.settimeout(max(0.001, until - time.monotonic()))
            return self._sock.recv(_RECEIVE_BYTES)
        except TimeoutError:
            return None
        except ConnectionError:
            return b""

    def take_rest(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest

    def put_back(self, rest: bytes) -> None:
        """Bytes behind a body: the beginning of the next request."""
        self._rest = rest

    # Writing …

    def send(self, data: bytes) -> None:
        """Send everything; TimeoutError when the client takes nothing for that long, however slowly it reads."""
        self._sock.settimeout(self._config.write_timeout)
        sent = self._sock.send(data)
        while sent < len(data):
            data = data[sent:]
            sent = self._sock.send(data)

    def _write(self, reply: HttpReply, *, keep: bool, with_body: bool = True) -> None:
        assert isinstance(reply.body, bytes)
        headers = reply.headers
        if reply.status != 204:
            headers += (("Content-Length", str(len(reply.body))),)
        head = http1.reply_head(reply.status, headers + _connection_header(keep))
        self.send(head + reply.body if with_body else head)

    def _stream(self, reply: HttpReply, body: Body, *, keep: bool, is_chunked: bool) -> None:
        framing: Headers = (("Transfer-Encoding", "chunked"),) if is_chunked else ()
        try:
            self.send(http1.reply_head(reply.status, reply.headers + framing + _connection_header(keep)))
            for piece in body:
                if piece:
                    self.send(http1.chunk(piece) if is_chunked else piece)
            if is_chunked:
                self.send(http1.LAST_CHUNK)
        finally:
            body.close()

    def _linger(self) -> None:
        """Read away what the client still sends, so that it comes to reading what we said."""
        self._shut(socket.SHUT_WR)
        deadline = time.monotonic() + _LINGER_SECONDS
        while time.monotonic() < deadline and self.receive(deadline):
            pass


def _source(sock: socket.socket) -> str:
    """The address at the other end; none when nobody is there any more."""
    with contextlib.suppress(OSError):
        name = sock.getpeername()
        return str(name[0]) if isinstance(name, tuple) else ""
    return ""


def _connection_header(keep: bool) -> Headers:
    # Said both ways: HTTP/1.0 assumes the opposite of 1.1.
    return (("Connection", "keep-alive" if keep else "close"),)


class _RequestBody:
    """The body of one request, read when somebody asks for it."""

    def __init__(self, connection: ClientConnection, head: http1.RequestHead, limit: int) -> None:
        self._connection = connection
        self._limit = limit
        self._coding = head.headers.get("content-encoding", "").strip().lower()
        self._expects_continue = http1.expects_continue(head)
        self._decoder: http1.BodyDecoder | None = None
        self._too_large: TooLarge | None = None
        try:
            self._decoder = http1.request_body(head, limit)
        except TooLarge as error:
            # Told when the body is asked for: a wrong path or key is the more useful answer.
            self._too_large = error

    @property
    def is_read(self) -> bool:
        return self._too_large is None and (self._decoder is None or self._decoder.is_complete)

    def read(self) -> bytes:
        """The whole body, unpacked; BadRequest, RequestTimeout, TooLarge, UnknownEncoding or ClientGone otherwise."""
        if self._too_large is not None:
            raise self._too_large
        if not is_known(self._coding):
            raise UnknownEncoding(f"Content-Encoding {self._coding[:40]!r} is unknown; send identity, gzip or deflate.")
        if self._decoder is None:
            return b""
        unpack = Unpacker(self._coding, self._limit)
        try:
            body = b"".join(unpack.feed(piece) for piece in self._pieces(self._decoder))
        except TooMuch:
            raise TooLarge(f"The unpacked request body is larger than {self._limit} bytes.") from None
        except ValueError as error:
            raise BadRequest(f"The request body cannot be unpacked: {error}.") from None
        finally:
            # The next request, if there is one, even when this body is of no use.
            self._connection.put_back(self._decoder.rest)
        if not unpack.is_complete:
            raise BadRequest("The compressed request body is incomplete.")
        return body

    def _pieces(self, decoder: http1.BodyDecoder) -> Iterator[bytes]:
        data = self._connection.take_rest()
        if self._expects_continue and not data:
            self._connection.send(_CONTINUE)
        started, received = time.monotonic(), 0
        while True:
            yield decoder.feed(data)
            if decoder.is_complete:
                return
            received += len(data)
            more = self._connection.receive(started + _BODY_SECONDS + received / _BODY_BYTES_PER_SECOND)
            if more is None:
                raise RequestTimeout("The request body did not arrive in time.")
            if not more:
                raise BadRequest("The request body ends before its announced end.", code="incomplete_body")
            data = more
