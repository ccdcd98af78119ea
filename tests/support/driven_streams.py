"""Tests of streams, once more with the stream loop: its one thread drives every stream, however few there are."""

import select
import unittest
from unittest import mock

from deepseek_cursor_proxy.server import stream_loop

needs_stream_loop = unittest.skipUnless(hasattr(select, "epoll"), "elsewhere every thread waits for itself")


@needs_stream_loop
class DrivenStreams(unittest.TestCase):
    """Stands before a test case of streams among the bases of a class."""

    def setUp(self) -> None:
        self.enterContext(mock.patch.object(stream_loop, "_MAX_OWN_THREADS", 0))
        self.enterContext(mock.patch.object(stream_loop, "_IDLE_SECONDS", 0.02))
        super().setUp()
