"""HttpRequest and HttpReply, the values between the server and the API; Body, a streamed reply; Peer, its client.

HttpRequest reads its body on demand, so a wrong path or key is answered before a byte of the body is read.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from deepseek_cursor_proxy.errors import ProxyError
from deepseek_cursor_proxy.json_codec import encode_json

Headers = tuple[tuple[str, str], ...]
Pieces = Generator[bytes, None, None]


class Body(Protocol):
    """A reply that is produced while it is sent; `close` ends it even if it was never iterated.

    A generator is one as well, if nothing is to be ended before its first item.
    """

    # Whether the items that are left, if any, come without waiting.
    @property
    def is_finished(self) -> bool: ...

    def __iter__(self) -> Iterator[bytes]: ...

    def close(self) -> None: ...


class Peer(Protocol):
    """A client that may leave, or whose answer the proxy may end: its descriptor, and why or whether it ends."""

    # The error with which the proxy ends the client's answer; None as long as it does not.
    @property
    def close_reason(self) -> ProxyError | None: ...

    def fileno(self) -> int: ...

    # Whether the client closed or half-closed its connection; raises nothing.
    def has_left(self) -> bool: ...


# Named tuples, because these take a fraction of the time that a frozen dataclass does.


class HttpRequest(NamedTuple):
    method: str
    path: str
    query: str = ""
    # By names in lower case.
    headers: Mapping[str, str] = MappingProxyType({})
    read_body: Callable[[], bytes] = bytes
    peer: Peer | None = None
    # The other end of the socket, which behind a tunnel is this machine: for counting, never for trust.
    client_ip: str = ""
    # The host[:port] of a request target in absolute form; empty for a plain path.
    authority: str = ""


class HttpReply(NamedTuple):
    status: int
    body: bytes | Body | Pieces = b""
    headers: Headers = ()

    @classmethod
    def json(cls, value: Any, status: int = 200, headers: Headers = ()) -> "HttpReply":
        return cls(status, encode_json(value), (("Content-Type", "application/json"), *headers))

    @classmethod
    def events(cls, body: bytes | Body | Pieces, headers: Headers = ()) -> "HttpReply":
        kind = ("Content-Type", "text/event-stream; charset=utf-8")
        # X-Accel-Buffering keeps an nginx in between from holding events back.
        return cls(200, body, (kind, ("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no"), *headers))
