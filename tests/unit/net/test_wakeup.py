"""One thread ends the waits of others, on any system."""

import unittest
from contextlib import closing
from functools import partial
from unittest import mock

from deepseek_cursor_proxy.errors import ProxyStopping
from deepseek_cursor_proxy.net import wait
from deepseek_cursor_proxy.net.wait import Wakeup
from tests.support.harness import PATIENCE
from tests.unit.net.test_wait import socket_pair, soon, systems


class TestWakeup(unittest.TestCase):
    def setUp(self) -> None:
        self.wakeup = Wakeup()
        self.addCleanup(self.wakeup.close)

    def test_a_wakeup_that_is_set_ends_every_kind_of_wait_of_its_peer_now_and_later(self) -> None:
        for name, system in systems().items():
            with self.subTest(name), mock.patch.multiple(wait, **system), closing(Wakeup()) as wakeup:
                silent, _ = socket_pair(self)
                waiter = wait.ReadWaiter(silent, wakeup)
                self.assertFalse(waiter.wait(0.0) or wait.wait_readable(silent, 0.0, wakeup))
                for end in (partial(wait.wait_readable, silent), lambda *_: waiter.wait(PATIENCE), wait.pause):  # noqa: B023
                    with soon(wakeup.set), self.assertRaises(wait.ClientGone):
                        end(PATIENCE, wakeup)

    def test_a_wakeup_set_with_a_reason_ends_each_wait_with_a_new_error(self) -> None:
        self.wakeup.set(ProxyStopping)
        errors = []
        for _ in range(2):
            with self.assertRaises(ProxyStopping) as caught:
                wait.pause(PATIENCE, self.wakeup)
            errors.append(caught.exception)
        self.assertIsNot(*errors)
        self.assertFalse(self.wakeup.has_left())

    def test_only_the_first_set_of_a_wakeup_counts_and_none_after_close(self) -> None:
        self.assertEqual([True, False], [self.wakeup.set(), self.wakeup.set(ProxyStopping)])
        self.assertEqual((True, None), (self.wakeup.has_left(), self.wakeup.close_reason))
        closed = Wakeup()
        closed.close()
        self.assertEqual((False, False), (closed.set(), closed.has_left()))
