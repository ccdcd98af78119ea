"""Connections to a server: the Dialer opens one, a Connection sends commands and reads their replies.

Every call has a deadline. A connection on which a call failed is closed: a reply that was not read must never reach
the next caller. Failures of the network and refused credentials are raised as RedisUnavailable, with the server's name.
"""

import contextlib
import functools
import socket
import ssl
from collections.abc import Iterator, Sequence

from deepseek_cursor_proxy.features.redis.address import Node, RedisAddress
from deepseek_cursor_proxy.features.redis.protocol import (
    Command,
    RedisRefused,
    RedisUnavailable,
    Reply,
    ReplyError,
    ReplyReader,
    encode,
)
from deepseek_cursor_proxy.net.wait import Deadline, wait_readable

_RECEIVE_BYTES = 64 * 1024
# What has arrived of a reply gives the rest more time: a long one takes several round trips.
_BYTES_PER_SECOND = 1024 * 1024
# What a socket without time left raises if it would have to wait.
_WOULD_WAIT = (TimeoutError, BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Connection:
    """Used by one thread at a time, the next one when all replies have been read."""

    def __init__(self, node: Node, sock: socket.socket) -> None:
        self.node = node
        self._sock = sock
        self._reader = ReplyReader(self._receive)
        self._deadline = Deadline(0.0)
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
        self._deadline = deadline
        with network_errors(self.node):
            replies = [self._reader.read() for _ in range(self._missing)]
        if self._reader.has_rest:
            # Perhaps they are the replies to something else.
            raise RedisUnavailable(f"{self.node}: it sends more replies than it got commands")
        self._missing = 0
        return replies

    def _receive(self) -> bytes:
        self._sock.settimeout(max(self._deadline.left, 0.0))
        data = self._sock.recv(_RECEIVE_BYTES)
        if not data:
            raise RedisUnavailable(f"{self.node}: the server closed the connection")
        self._deadline = Deadline(self._deadline + len(data) / _BYTES_PER_SECOND)
        return data

    @property
    def is_idle(self) -> bool:
        """Whether the next call may use it: nothing is missing, and the server neither closed it nor sent more."""
        return not self._missing and not wait_readable(self._sock, 0, None)

    def close(self) -> None:
        self._sock.close()


@contextlib.contextmanager
def network_errors(node: Node) -> Iterator[None]:
    """Raise errors of the network, and replies that are not RESP2, as RedisUnavailable that names the server."""
    try:
        yield
    except _WOULD_WAIT:
        raise RedisUnavailable(f"{node}: no reply in time") from None
    except (ConnectionRefusedError, ssl.SSLCertVerificationError) as error:
        raise RedisRefused(f"{node}: {error.strerror}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise RedisUnavailable(f"{node}: {reason}") from None


class Dialer:
    """Opens connections. Called by any thread."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        # Made on demand: loading the certificates of the system takes a while.
        self._tls_context = functools.cache(lambda: ssl.create_default_context(cafile=address.authorities or None))

    def open(self, node: Node, deadline: Deadline) -> Connection:
        """A connection that is logged in and has its database selected."""
        with network_errors(node):
            sock = socket.create_connection(node, max(deadline.left, 0.001))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(max(deadline.left, 0.001))
            if self._address.has_tls:
                # It closes the socket if the handshake fails.
                sock = self._tls_context().wrap_socket(sock, server_hostname=node.host)
        connection = Connection(node, sock)
        try:
            self._log_in(connection, deadline)
        except BaseException:
            connection.close()
            raise
        return connection

    def _log_in(self, connection: Connection, deadline: Deadline) -> None:
        login, database = self._address.login, self._address.database
        commands: list[Command] = [(b"AUTH", *login)] if login else []
        commands += [(b"SELECT", b"%d" % database)] if database else []
        for reply in connection.exchange(commands, deadline):
            if isinstance(reply, ReplyError):
                raise RedisRefused(f"{connection.node}: {reply.text}")
