"""Channel: messages between two processes, here two ends in one."""

import queue
import socket
import threading
import unittest
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.net.channel import Channel

PATIENCE = 10.0


class ChannelTest(unittest.TestCase):
    def setUp(self) -> None:
        self.received: queue.Queue[Any] = queue.Queue()
        self.ended = threading.Event()
        self.ours, self.theirs = socket.socketpair()

    def open(self, **handlers: Callable[..., Any]) -> tuple[Channel, Channel]:
        ours = Channel(self.ours, {}, lambda: None)
        theirs = Channel(self.theirs, {"note": self.received.put, **handlers}, self.ended.set)
        self.addCleanup(theirs.close)
        self.addCleanup(ours.close)
        return ours, theirs

    def test_posts_arrive_in_order_with_any_value_of_the_proxy(self) -> None:
        ours, _ = self.open()
        values = ["first", MappingProxyType({"a": 1}), ProxyConfig(models={"gpt-4o*": "deepseek-flash"})]
        for value in values:
            ours.post("note", value)
        self.assertEqual(values, [self.received.get(timeout=PATIENCE) for _ in values])

    def test_a_question_is_answered_and_one_that_fails_is_not(self) -> None:
        ours, _ = self.open(add=lambda one, two: one + two)
        self.assertEqual(5, ours.ask("add", 2, 3)(PATIENCE))
        with self.assertLogs("deepseek_cursor_proxy.net.channel", "ERROR"):
            self.assertIsNone(ours.ask("add", 2, "3")(PATIENCE))

    def test_an_answer_that_does_not_come_in_time_is_none(self) -> None:
        over = threading.Event()
        self.addCleanup(over.set)
        ours, _ = self.open(wait=lambda: over.wait(PATIENCE))
        self.assertIsNone(ours.ask("wait")(0.01))

    def test_the_end_of_one_process_ends_what_the_other_waits_for(self) -> None:
        over = threading.Event()
        self.addCleanup(over.set)
        ours, _ = self.open(wait=lambda: over.wait(PATIENCE))
        answer = ours.ask("wait")
        self.theirs.shutdown(socket.SHUT_RDWR)
        self.assertIsNone(answer(PATIENCE))
        ours.close()
        self.assertTrue(self.ended.wait(PATIENCE))

    def test_what_was_posted_is_sent_before_the_channel_closes(self) -> None:
        ours, _ = self.open()
        for number in range(100):
            ours.post("note", number)
        ours.close()
        self.assertEqual(list(range(100)), [self.received.get(timeout=PATIENCE) for _ in range(100)])

    def test_a_process_that_reads_nothing_holds_up_no_post(self) -> None:
        """As one that is stopped, or hangs."""
        channel = Channel(self.ours, {}, lambda: None)
        self.addCleanup(channel.close)
        self.addCleanup(self.theirs.close)
        for _ in range(20_000):
            channel.post("note", "x" * 100)
