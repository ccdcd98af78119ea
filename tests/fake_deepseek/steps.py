"""The steps of a script: an Answer, or a fault in its place; and what is noted of a request."""

from dataclasses import dataclass
from typing import Any

from tests.fake_deepseek.completion import Answer


@dataclass(frozen=True)
class Failure:
    """An error in DeepSeek's envelope, or with `body` any other bytes."""

    status: int
    message: str = "The server is overloaded, please try again later."
    type: str = "server_error"
    code: str = "server_error"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None


@dataclass(frozen=True)
class Raw:
    """Bytes for the socket in place of an HTTP response; after them the connection may stall or stay open."""

    data: bytes
    then_close: bool = True
    then_stall: bool = False


Step = Answer | Failure | Raw


@dataclass(frozen=True)
class ReceivedRequest:
    """One POST and its response; the status of a Raw is 0. The payload is that of a chat on every path."""

    path: str
    headers: dict[str, str]
    payload: dict[str, Any]
    status: int
    refusal: str | None
    body: bytes
