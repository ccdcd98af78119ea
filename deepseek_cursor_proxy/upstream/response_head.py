"""Reading the head of an answer: announcements are passed over, and nothing is waited for beyond the deadline."""

from typing import NamedTuple

from deepseek_cursor_proxy.http1 import heads
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.upstream.pool import Connection

# Announcements (100, 102, 103) before an answer; a server that has more of them has no answer.
_MOST_ANNOUNCEMENTS = 16


class ClosedBeforeResponse(ConnectionError):
    """The other side closed without a single byte of an answer."""


class IncompleteHead(ValueError):
    """The other side closed in the middle of the head."""


class Begun(NamedTuple):
    """The head, and what arrived behind it."""

    head: heads.ResponseHead
    rest: bytes


def read(connection: Connection, peer: Peer | None, deadline: float) -> Begun:
    """OSError, TimeoutError or ValueError when there is none; what waiting for it raises when the client leaves."""
    rest = b""
    for _ in range(_MOST_ANNOUNCEMENTS + 1):
        first = rest or _received(connection, peer, deadline)
        if not first:
            raise ClosedBeforeResponse
        whole = heads.head_at_once(first, heads.parse_response_head)
        head, rest = whole if whole is not None else _collected(first, connection, peer, deadline)
        if head.status == 101:
            raise ValueError("it switches protocols")
        if head.status >= 200:
            return Begun(head, rest)
    raise ValueError("it announces an answer for ever")


def _collected(first: bytes, connection: Connection, peer: Peer | None, deadline: float) -> Begun:
    buffer = heads.HeadBuffer(heads.bad_response)
    data = first
    while (raw := buffer.feed(data)) is None:
        data = _received(connection, peer, deadline)
        if not data:
            raise ClosedBeforeResponse if buffer.is_empty else IncompleteHead("it ends in the middle of its head")
    return Begun(heads.parse_response_head(raw), buffer.take_rest())


def _received(connection: Connection, peer: Peer | None, deadline: float) -> bytes:
    received = connection.receive(deadline, peer)
    if received is None:
        raise TimeoutError
    return received
