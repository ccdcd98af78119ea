"""Tests of streams, once more with a worker that waits for nothing: the event loop resumes every stream at once."""

import unittest
from unittest import mock

from deepseek_cursor_proxy.server import connections, workers


class DrivenStreams(unittest.TestCase):
    """Stands before a test case of streams among the bases of a class."""

    def setUp(self) -> None:
        # Never few, and no moment: a worker parks its connection before every wait.
        self.enterContext(mock.patch.object(workers, "_FEW", -1))
        self.enterContext(mock.patch.object(connections, "_SHORT_LINGER_SECONDS", 0))
        super().setUp()
