"""The buffer of one feed: bounded, never waiting, and readable again after any wait."""

import select
import unittest
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.admin import feed
from deepseek_cursor_proxy.http1.lull import Lull


class FeedTest(unittest.TestCase):
    def setUp(self) -> None:
        feeds: Any = mock.Mock()
        self.feed = feed.Feed(feeds, b"first")
        self.addCleanup(self.feed.close)
        self.pieces = iter(self.feed)

    def is_readable(self) -> bool:
        return bool(select.select([self.feed.source], [], [], 0)[0])

    def test_what_is_pushed_is_read_in_order_and_a_wait_ends(self) -> None:
        self.assertEqual(b"first", next(self.pieces))
        self.assertIsInstance(next(self.pieces), Lull)
        self.assertFalse(self.is_readable())
        for data in (b"one", b"two"):
            self.feed.push(data)
        self.assertTrue(self.is_readable())
        self.assertEqual(b"onetwo", next(self.pieces))
        self.assertIsInstance(next(self.pieces), Lull)
        self.assertFalse(self.is_readable())

    def test_a_slow_reader_gets_the_newest(self) -> None:
        with mock.patch.object(feed, "_MOST_BYTES", 10):
            for number in range(100_000):
                self.feed.push(b"%05d" % number)
        self.assertEqual(b"9999899999", next(self.pieces))

    def test_a_single_event_larger_than_the_buffer_still_arrives(self) -> None:
        self.feed.push(b"x" * (feed._MOST_BYTES + 1))
        self.assertEqual(feed._MOST_BYTES + 1, len(next(self.pieces)))

    def test_an_end_ends_the_wait_and_the_stream(self) -> None:
        next(self.pieces)
        next(self.pieces)
        self.feed.end()
        self.assertTrue(self.is_readable())
        self.assertEqual([], list(self.pieces))

    def test_what_comes_after_the_close_is_dropped(self) -> None:
        self.feed.close()
        self.feed.push(b"late")
        self.feed.end()
