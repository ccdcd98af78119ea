"""Reads the head of a response before a deadline; interim responses (100, 102, 103) are skipped."""

from deepseek_cursor_proxy.http1 import heads
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.net.deadline import Deadline
from deepseek_cursor_proxy.upstream.pool import Connection

# A server that sends more interim responses than this has no final one.
_MOST_INTERIM_RESPONSES = 16


class ClosedBeforeResponse(ConnectionError):
    """The server closed without a single byte of a response."""


def read(connection: Connection, peer: Peer | None, deadline: Deadline) -> heads.ReceivedHead[heads.ResponseHead]:
    """OSError, TimeoutError or ValueError when there is none; ClientGone or its `close_reason` when the peer goes."""
    rest = b""
    for _ in range(_MOST_INTERIM_RESPONSES + 1):
        try:
            response = heads.read_response_head(lambda: connection.receive(deadline, peer), rest)
        except heads.IncompleteHead as error:
            if error.is_late:
                raise TimeoutError from None
            if error.is_empty:
                raise ClosedBeforeResponse from None
            raise
        if response.head.status == 101:
            raise ValueError("it switches protocols")
        if response.head.status >= 200:
            return response
        rest = response.rest
    raise ValueError("it announces an answer for ever")
