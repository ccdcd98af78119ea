"""Connections to a server: the Dialer opens one, a Connection sends commands and reads their replies.

Every call has a deadline. A connection on which a call failed is closed: a reply that was not read must never reach
the next caller. Failures of the network and refused credentials are raised as EngineDown, with the server's name.
"""

import contextlib
import functools
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from deepseek_cursor_proxy.net.deadline import Deadline
from deepseek_cursor_proxy.net.threads import start_thread
from deepseek_cursor_proxy.net.wait import wait_readable
from deepseek_cursor_proxy.storage.resp.address import EngineAddress, Node
from deepseek_cursor_proxy.storage.resp.protocol import (
    Command,
    EngineDown,
    EngineRefused,
    Reply,
    ReplyError,
    ReplyParser,
    encode,
)

S = TypeVar("S")
T = TypeVar("T")
_RECEIVE_BYTES = 64 * 1024
# What a socket without time left raises if it would have to wait.
_WOULD_WAIT = (TimeoutError, BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Connection:
    """Used by one thread at a time; the pool hands it on when all replies have been read."""

    def __init__(self, node: Node, sock: socket.socket) -> None:
        self.node = node
        self._sock = sock
        self._parser = ReplyParser()
        self._missing = 0

    def exchange(self, commands: Sequence[Command], deadline: Deadline) -> list[Reply]:
        self.send(commands, deadline)
        return self.receive(deadline)

    def send(self, commands: Sequence[Command], deadline: Deadline) -> None:
        self._missing += len(commands)
        rest = memoryview(encode(commands))
        with network_errors(self.node):
            while rest:
                # Without time left the socket does not wait, but takes what it can.
                self._sock.settimeout(max(deadline.left, 0.0))
                rest = rest[self._sock.send(rest) :]

    def receive(self, deadline: Deadline) -> list[Reply]:
        """The replies to all that was sent, in its order."""
        replies: list[Reply] = []
        with network_errors(self.node):
            while len(replies) < self._missing:
                self._sock.settimeout(max(deadline.left, 0.0))
                data = self._sock.recv(_RECEIVE_BYTES)
                if not data:
                    raise EngineDown(f"{self.node}: the server closed the connection")
                replies += self._parser.feed(data)
        if len(replies) > self._missing:
            raise EngineDown(f"{self.node}: it sends more replies than it got commands")
        self._missing = 0
        return replies

    @property
    def is_idle(self) -> bool:
        """Whether the next call may use it: nothing is missing, and the server neither closed it nor sent more."""
        return not self._missing and self._parser.is_between_replies and not wait_readable(self._sock, 0, None)

    def close(self) -> None:
        self._sock.close()


@contextlib.contextmanager
def network_errors(node: Node) -> Iterator[None]:
    """Raise errors of the network, and replies that are not RESP, as EngineDown that names the server."""
    try:
        yield
    except _WOULD_WAIT:
        raise EngineDown(f"{node}: no reply in time") from None
    except (ConnectionRefusedError, ssl.SSLCertVerificationError) as error:
        raise EngineRefused(f"{node}: {error.strerror}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise EngineDown(f"{node}: {reason}") from None


class Dialer:
    """Opens connections. Called by any thread."""

    def __init__(self, address: EngineAddress) -> None:
        self._address = address
        # Made on demand: loading the certificates of the system takes a while.
        self._tls_context = functools.cache(lambda: ssl.create_default_context(cafile=address.authorities or None))

    def open(self, node: Node, deadline: Deadline) -> Connection:
        """A connection that is logged in and has its database selected."""
        return self._open(node, deadline, self._address.login, self._address.database)

    def open_sentinel(self, node: Node, deadline: Deadline) -> Connection:
        """A connection to a Sentinel, which mostly has no password; if it has one, it is that of the servers."""
        try:
            return self._open(node, deadline, (), 0)
        except EngineRefused:
            return self._open(node, deadline, self._address.login, 0)

    def _open(self, node: Node, deadline: Deadline, login: tuple[bytes, ...], database: int) -> Connection:
        with network_errors(node):
            _, sock = first_answer(_resolve(node, deadline), deadline, _connect)
            if self._address.has_tls:
                # It closes the socket if the handshake fails.
                sock = self._tls_context().wrap_socket(sock, server_hostname=node.host)
        connection = Connection(node, sock)
        try:
            _greet(connection, deadline, login, database)
        except BaseException:
            connection.close()
            raise
        return connection


def first_answer(candidates: Iterable[S], deadline: Deadline, ask: Callable[[S, Deadline], T]) -> tuple[S, T]:
    """Ask one after the other, each within its share of the time; raises what the last one raises."""
    *others, last = candidates
    for left, each in zip(range(len(others) + 1, 1, -1), others, strict=True):
        with contextlib.suppress(EngineDown, OSError):
            return each, ask(each, Deadline.after(deadline.left / left))
    return last, ask(last, deadline)


def _connect(address: Sequence[Any], deadline: Deadline) -> socket.socket:
    sock = socket.create_connection(address[4][:2], max(deadline.left, 0.001))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(max(deadline.left, 0.001))
    return sock


def _resolve(node: Node, deadline: Deadline) -> list[Any]:
    """The addresses of a name. The system's resolver cannot be interrupted, so a thread calls it."""
    try:
        return socket.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        pass  # it is a name, not an address
    lookup: Future[list[Any]] = Future()
    if start_thread(lambda: _look_up(node, lookup), "engine-lookup") is None:
        raise OSError("no thread is left to look the name up")
    return lookup.result(max(deadline.left, 0.0))


def _look_up(node: Node, lookup: "Future[list[Any]]") -> None:
    try:
        lookup.set_result(socket.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:
        lookup.set_exception(error)


def _greet(connection: Connection, deadline: Deadline, login: tuple[bytes, ...], database: int) -> None:
    """Log in with RESP3, or with RESP2 where the server has no HELLO (before Redis 6)."""
    select: list[Command] = [(b"SELECT", b"%d" % database)] if database else []
    replies = connection.exchange([(b"HELLO", b"3", *([b"AUTH", *login] if login else [])), *select], deadline)
    if isinstance(replies[0], ReplyError) and replies[0].text.lower().startswith(("noproto", "err unknown command")):
        # A server without users takes the password alone.
        words = login[1:] if login[:1] == (b"default",) else login
        replies = connection.exchange([*([(b"AUTH", *words)] if words else []), *select], deadline)
    for reply in replies:
        if isinstance(reply, ReplyError):
            raise EngineRefused(f"{connection.node}: {reply.text}")
