"""HttpRequest and HttpReply, the values between the server and the API, and what a streamed reply waits for.

HttpRequest reads its body on demand, so a wrong path or key is answered before a byte of the body is read.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from deepseek_cursor_proxy.errors import ProxyError
from deepseek_cursor_proxy.json_codec import encode_json

Headers = tuple[tuple[str, str], ...]


class WaitHandle(Protocol):
    """What has to say something before an answer can go on."""

    @property
    def until(self) -> float:
        """The moment from which on the answer goes on without that."""
        ...

    @property
    def is_drained(self) -> bool:
        """Whether the answer can only go on with what it waits for."""
        ...

    def fileno(self) -> int: ...

    def wait(self) -> None:
        """Returns when the answer can go on."""
        ...

    def interrupt(self, error: Exception) -> None:
        """The answer goes on at once, with this failure."""
        ...


class Body(Protocol):
    """A reply that is produced while it is sent; `close` ends it even if it was never iterated.

    As long as there is something `awaited`, asking for the next piece waits for nobody: an empty piece is a lull, and
    whoever asks waits for it when it is drained. Where nothing is awaited, the next piece may take its time.
    """

    @property
    def wait_handle(self) -> WaitHandle | None: ...

    @property
    def is_over(self) -> bool:
        """Whether all that is still to come, if anything is, is there without waiting for anybody."""
        ...

    def __iter__(self) -> Iterator[bytes]: ...

    def close(self) -> None: ...


class Peer(Protocol):
    """The client as someone who may leave, or be left: a descriptor to wait on, and what to ask when it stirs."""

    @property
    def close_reason(self) -> ProxyError | None:
        """What the client has to be told because the proxy ends its answer; None as long as it does not."""
        ...

    def fileno(self) -> int: ...

    def has_left(self) -> bool:
        """Raises nothing. True once the client closed or half-closed its connection."""
        ...


# Named tuples, because these take a fraction of the time that a frozen dataclass does.


class HttpRequest(NamedTuple):
    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = MappingProxyType({})
    read_body: Callable[[], bytes] = bytes
    peer: Peer | None = None
    # The socket's other end, which in a tunnel is this machine: good for counting, never for trusting.
    source: str = ""
    # The host[:port] of a request target in absolute form; empty for a plain path.
    authority: str = ""

    def header(self, name: str) -> str | None:
        """A header's value; `name` is in lower case, as the reader stores them."""
        return self.headers.get(name)


class HttpReply(NamedTuple):
    status: int
    body: bytes | Body = b""
    headers: Headers = ()

    @classmethod
    def json(cls, value: Any, status: int = 200, headers: Headers = ()) -> "HttpReply":
        return cls(status, encode_json(value), (("Content-Type", "application/json"), *headers))

    @classmethod
    def events(cls, body: "bytes | Body") -> "HttpReply":
        # X-Accel-Buffering keeps an nginx in between from holding events back.
        headers = (
            ("Content-Type", "text/event-stream; charset=utf-8"),
            ("Cache-Control", "no-cache"),
            ("X-Accel-Buffering", "no"),
        )
        return cls(200, body, headers)
