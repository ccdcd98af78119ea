"""Connections to a server and RESP2 on them: the Dialer opens one, a Connection sends commands and reads their replies.

Every call has a deadline. A connection on which a call failed is closed: a reply that was not read must never reach
the next caller. Failures of the network and refused credentials are raised as RedisUnavailable, with the server's name.
A reply is bounded in bytes, elements and depth; past a bound, and for anything that is not RESP2, the connection fails.

RedisAddress is the URL of the server or of a cluster, parsed:

    redis://user:password@host:6379/0                    one server; rediss:// with TLS; valkey://, valkeys:// alike
    redis://host1:6379,host2:6379/?cluster=1             a cluster, by some of its nodes
    rediss://host/?ca=/etc/ssl/engine.pem                TLS, checked with this certificate authority

User and password are percent-encoded. No text made here has the password in it.
"""

import contextlib
import functools
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote_to_bytes, urlsplit

from deepseek_cursor_proxy.config.values import StoreUrl
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.net.wait import Deadline, wait_readable

_SCHEMES = {"redis": False, "valkey": False, "rediss": True, "valkeys": True}
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s\[\]:/@]+))(?::(?P<port>[0-9]{1,5}))?")
_EXAMPLE = "write it like redis://user:password@host:6379/0"


class Node(NamedTuple):
    """A server of the engine."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class RedisAddress:
    text: str
    nodes: tuple[Node, ...]
    # User and password, if there are any.
    login: tuple[bytes, ...] = field(default=(), repr=False)
    database: int = 0
    has_tls: bool = False
    authorities: str = ""
    is_cluster: bool = False

    def __str__(self) -> str:
        return self.text

    @classmethod
    def parse(cls, url: str) -> "RedisAddress":
        """Raises StartupError, with the remedy."""
        text = StoreUrl(url).toml()
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        except ValueError:
            _refuse(text, f"is no URL; {_EXAMPLE}")
        if parts.scheme not in _SCHEMES:
            _refuse(text, "begins with none of redis://, rediss://, valkey:// and valkeys://")
        address = cls(
            text,
            _nodes(parts, text),
            _login(parts),
            _database(parts.path, text),
            _SCHEMES[parts.scheme],
            options.pop("ca", ""),
            options.pop("cluster", "0") == "1",
        )
        _check_options(address, options)
        return address


def check(url: str) -> None:
    """Raise StartupError for an address that cannot be used; nothing is connected."""
    RedisAddress.parse(url)


def _nodes(parts: SplitResult, text: str) -> tuple[Node, ...]:
    nodes = []
    for name in parts.netloc.rpartition("@")[2].split(","):
        found = _HOST.fullmatch(name)
        port = int(found["port"] or 6379) if found is not None else 0
        if found is None or not 0 < port < 65536:
            _refuse(text, f'has "{name}" where a host or host:port belongs; {_EXAMPLE}')
        nodes.append(Node(found["ipv6"] or found["name"], port))
    return tuple(nodes)


def _login(parts: SplitResult) -> tuple[bytes, ...]:
    userinfo, at, _ = parts.netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    return (unquote_to_bytes(user) or b"default", unquote_to_bytes(password)) if at else ()


def _database(path: str, text: str) -> int:
    number = path.strip("/") or "0"
    if not number.isdecimal() or len(number) > 5:
        _refuse(text, f'has "{number}" where the number of a database belongs; {_EXAMPLE}')
    return int(number)


def _check_options(address: RedisAddress, options: dict[str, str]) -> None:
    text = address.text
    if options:
        _refuse(text, f'has the option "{min(options)}"; there are cluster=1 and ca=FILE')
    if address.is_cluster and address.database:
        _refuse(text, "names a database, and a cluster has only 0; leave it out")
    if len(address.nodes) > 1 and not address.is_cluster:
        _refuse(text, "names several servers; add ?cluster=1")
    if address.authorities and not address.has_tls:
        _refuse(text, "has the option ca without TLS; begin it with rediss://")
    if address.authorities and not Path(address.authorities).is_file():
        _refuse(text, f"names {address.authorities}, which is no file; name a file of certificates")


def _refuse(text: str, reason: str) -> NoReturn:
    raise StartupError(f'the address "{text}" {reason}')


Command: TypeAlias = tuple[bytes, ...]
Reply: TypeAlias = "bytes | int | str | list[Reply] | ReplyError | None"


class RedisUnavailable(Exception):
    """The server cannot be used now; the text is one line, without the password."""


class RedisRefused(RedisUnavailable):
    """The server, or its machine, said no: trying again at once is pointless."""


class ProtocolError(ValueError):
    """The server does not send RESP2."""


@dataclass(frozen=True)
class ReplyError:
    """An error reply: a value, because the other replies of a pipeline stand beside it."""

    text: str

    @property
    def code(self) -> str:
        """The first word, such as ERR, OOM or NOSCRIPT; Redis 6.2 has it at the end if a command of a script failed."""
        found = re.match(r"ERR Error running script .*: -(\w+)", self.text)
        return found[1] if found else self.text.partition(" ")[0]


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


# RESP2 …

# Far above the largest value that a store keeps, far below what would hurt.
MAX_REPLY_BYTES = 128 * 1024 * 1024
MAX_ELEMENTS = 1_000_000
MAX_DEPTH = 32
_MAX_LINE_BYTES = 64 * 1024


def encode(commands: Iterable[Command]) -> bytes:
    parts = []
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in command]
    return b"".join(parts)


class ReplyReader:
    """Used by the one thread that has the connection."""

    def __init__(self, receive: Callable[[], bytes]) -> None:
        """`receive` returns the next bytes of the server, at least one, or raises."""
        self._receive = receive
        self._buffer = bytearray()
        # Of the reply that is being read.
        self._bytes_left = self._elements_left = 0

    @property
    def has_rest(self) -> bool:
        """Whether bytes arrived after the reply that was read last."""
        return bool(self._buffer)

    def read(self) -> Reply:
        self._bytes_left, self._elements_left = MAX_REPLY_BYTES, MAX_ELEMENTS
        return self._read_value(MAX_DEPTH)

    def _read_value(self, depth: int) -> Reply:
        line = self._read_line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest.decode("utf-8", "replace")
        if kind == b"-":
            return ReplyError(" ".join(rest.decode("utf-8", "replace").split()))
        if kind == b":":
            return _number(rest)
        if kind not in (b"$", b"*"):
            raise ProtocolError("a reply is not in the form of RESP2")
        length = _number(rest)
        if length == -1:
            return None
        if kind == b"$":
            return self._read_string(length)
        self._elements_left -= length
        _require(length >= 0 and self._elements_left >= 0 and depth > 0, "has too many elements")
        return [self._read_value(depth - 1) for _ in range(length)]

    def _read_line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n", 0, _MAX_LINE_BYTES)) < 0:
            _require(len(self._buffer) < _MAX_LINE_BYTES, "has a line that is too long")
            self._buffer += self._receive()
        return self._take(end)

    def _read_string(self, length: int) -> bytes:
        _require(0 <= length <= self._bytes_left, "is too large")
        while len(self._buffer) < length + 2:
            self._buffer += self._receive()
        _require(self._buffer[length : length + 2] == b"\r\n", "has a string that does not end where it should")
        return self._take(length)

    def _take(self, end: int) -> bytes:
        """What stands before the end of a line, which is taken as well."""
        data = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        self._bytes_left -= end + 2
        _require(self._bytes_left >= 0, "is too large")
        return data


def _number(text: bytes) -> int:
    # int() takes blanks and underscores too.
    _require(text.removeprefix(b"-").isdigit() and len(text) < 20, "has a number that is none")
    return int(text)


def _require(is_met: bool, fault: str) -> None:
    if not is_met:
        raise ProtocolError(f"a reply {fault}")
