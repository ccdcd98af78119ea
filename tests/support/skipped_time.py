"""Time that a test skips, so that what takes minutes takes none, and a slow machine is in no hurry."""

import contextlib
import time
from unittest import mock

from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.upstream import response
from deepseek_cursor_proxy.upstream.connections import Connection
from tests.support.polling import PATIENCE


class SkippedTime(contextlib.ExitStack):
    """In this context, the clock by which answers of upstreams are waited for is ahead by what was skipped.

    A wait that has begun does not hear of it: it lasts as long as it was going to, or until data comes.
    """

    # Nothing that a machine does takes so long; only `skip` ends it.
    request_timeout = PATIENCE

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0
        receive = Connection.receive

        def receive_until(connection: Connection, until: float, peer: Peer | None) -> bytes | None:
            return receive(connection, until - self.skipped, peer)

        self.enter_context(mock.patch.object(Connection, "receive", receive_until))
        clock = mock.Mock(wraps=time, monotonic=lambda: time.monotonic() + self.skipped)
        self.enter_context(mock.patch.object(response, "time", clock))

    def skip(self, seconds: float) -> None:
        self.skipped += seconds
