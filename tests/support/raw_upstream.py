"""A server in DeepSeek's place that sends any bytes and fails at any of them; and an HTTPS proxy that tunnels to it.

A function of the request's bytes chooses the reply, so that many can run side by side. `close` cuts all connections
and joins their threads.
"""

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIRE = Path(__file__).parents[1] / "wire"
CERTIFICATE = WIRE / "tls_test_only_certificate.pem"
KEY = WIRE / "tls_test_only_key.pem"

CLOSE, RESET, HANG, KEEP = "close", "reset", "hang", "keep"


@dataclass(frozen=True)
class ScriptedReply:
    """Bytes to send, each piece in a packet of its own, and what happens then."""

    pieces: Iterable[bytes]
    then: str = CLOSE

    @classmethod
    def of(cls, data: bytes, then: str = CLOSE) -> "ScriptedReply":
        return cls((data,), then)


class RawServer:
    """Accepts on a thread and serves each connection on another; `_lock` protects `_open`."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._is_closing = False
        self.connections = 0
        self.hung_up = threading.Event()
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        self._is_closing = True
        # Not every system wakes `accept` when its socket is closed; a connection does.
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._acceptor.join()
        self._listener.close()
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def serve(self, sock: socket.socket) -> None:
        raise NotImplementedError

    def _accept(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            if self._is_closing:
                sock.close()
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads = [each for each in self._threads if each.is_alive()] + [thread]
            with self._lock:
                self._open.add(sock)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError):
                self.serve(sock)
        finally:
            with self._lock:
                self._open.discard(sock)
                sock.close()

    def hang(self, sock: socket.socket) -> None:
        """Send nothing until the client closes; one that sends another request here is closed, too."""
        with contextlib.suppress(OSError):
            sock.recv(65536)
        self.hung_up.set()


class RawUpstream(RawServer):
    """Sends to every request the reply that `respond` returns for its bytes; with `tls`, inside TLS."""

    def __init__(self, respond: Callable[[bytes], ScriptedReply], *, tls: bool = False) -> None:
        self._respond = respond
        self._context = None
        self.requests: list[bytes] = []
        if tls:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(CERTIFICATE, KEY)
        super().__init__()
        if tls:
            self.url = f"https://localhost:{self.port}"

    def serve(self, sock: socket.socket) -> None:
        if self._context is None:
            self._serve_requests(sock)
            return
        with sock.dup() as twin, self._context.wrap_socket(twin, server_side=True) as secured:
            self._serve_requests(secured)

    def _serve_requests(self, sock: socket.socket) -> None:
        while (request := _read_request(sock)) is not None:
            self.requests.append(request)
            play = self._respond(request)
            for piece in play.pieces:
                sock.sendall(piece)
            if play.then == HANG:
                self.hang(sock)
            if play.then == RESET:
                # Closing with a linger of 0 sends RST in place of FIN.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if play.then != KEEP:
                return
        self.hung_up.set()


class TunnelProxy(RawServer):
    """An HTTPS_PROXY: answers CONNECT with `reply`, and if that is a 200 connects to `target`."""

    def __init__(self, target: int, reply: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n") -> None:
        self._target = target
        self._reply = reply
        self.heads: list[bytes] = []
        self.seen = b""
        super().__init__()

    def serve(self, sock: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            data = sock.recv(65536)
            if not data:
                return
            head += data
        self.heads.append(head)
        if not self._reply:
            self.hang(sock)
            return
        sock.sendall(self._reply)
        if b" 200 " not in self._reply[:16]:
            return
        with socket.create_connection(("127.0.0.1", self._target)) as target:
            back = threading.Thread(target=_copy, args=(target, sock), daemon=True)
            back.start()
            with contextlib.suppress(OSError):
                while data := sock.recv(65536):
                    self.seen += data
                    target.sendall(data)
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_RDWR)
            back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _read_request(sock: socket.socket) -> bytes | None:
    data = bytearray()
    while (end := data.find(b"\r\n\r\n")) < 0:
        if not (more := sock.recv(65536)):
            return None
        data += more
    length = int(bytes(data[:end]).lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
    while len(data) < end + 4 + length:
        if not (more := sock.recv(65536)):
            return None
        data += more
    return bytes(data)
