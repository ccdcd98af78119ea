"""The demo tells the truth: what it prints happened, and its exit code follows from what DeepSeek received."""

import io
import re
import threading
import unittest
from contextlib import redirect_stdout
from functools import partial
from unittest.mock import patch

from deepseek_cursor_proxy.cli import demo
from deepseek_cursor_proxy.cli.demo import MISSING_REASONING, ReceivedRequest, SmallDeepSeek
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.support.polling import PATIENCE


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class SilentDeepSeek(SmallDeepSeek):
    """Accepts no request."""

    def reply_to(self, payload: object) -> None:
        self.seen.append(ReceivedRequest({}, 400))


class DemoCase(unittest.TestCase):
    def setUp(self) -> None:
        self.addCleanup(self.assert_no_thread_was_left, set(threading.enumerate()))

    def play(self, out: io.StringIO | None = None) -> int:
        out = out or io.StringIO()
        with redirect_stdout(out):
            code = demo.run({})
        self.text = out.getvalue()
        return code

    def assert_no_thread_was_left(self, before: set[threading.Thread]) -> None:
        for thread in set(threading.enumerate()) - before:
            # Whoever serves a closed connection may need a moment to notice.
            thread.join(PATIENCE)
            self.assertFalse(thread.is_alive(), thread)


class TestDemo(DemoCase):
    def test_without_the_proxy_the_chat_ends_in_deepseeks_own_words(self) -> None:
        self.play()
        self.assertEqual(self.text.count(f"HTTP 400  {MISSING_REASONING}"), 1)
        self.assertIn("request 2", self.text.partition("HTTP 400")[0])

    def test_through_the_proxy_every_turn_is_accepted_with_its_reasoning(self) -> None:
        self.assertEqual(self.play(), 0)
        put_back = re.findall(r'turn (\d): "After (\d) messages .*  exact', self.text)
        first, second, third = ("1", "2"), ("2", "4"), ("3", "6")
        self.assertEqual(put_back, [first, first, second, first, second, third])
        self.assertEqual(self.text.count("accepted it"), 4)
        self.assertIn("4 of 4 requests accepted, 6 of 6 reasonings restored exactly.", self.text)

    def test_the_demo_shows_what_cursor_got_and_what_it_dropped(self) -> None:
        self.play()
        self.assertEqual(len(re.findall(r"Cursor shows +\[Thinking\] After \d messages", self.text)), 4)
        for words in ("-> runs get_location({})", "It is cloudy in Hangzhou", "Yes, take an umbrella."):
            self.assertIn(words, self.text)
        self.assertEqual(re.findall(r"Cursor stripped +(.*)", self.text)[::3], ["nothing yet", _STRIPPED_LAST])

    def test_only_a_terminal_gets_colours(self) -> None:
        self.play()
        self.assertNotIn("\x1b", self.text)
        plain = self.text
        self.assertEqual(self.play(Terminal()), 0)
        self.assertEqual(re.sub(r"\x1b\[\d+m", "", self.text), plain)
        self.assertNotEqual(self.text, plain)


class TestFailures(DemoCase):
    def test_a_store_that_mixes_up_turns_fails_the_demo(self) -> None:
        with patch.object(ReasoningStore, "find", lambda self, keys: {key: ["Something else."] for key in keys}):
            self.assertEqual(self.play(), 1)
        self.assertIn('turn 1: "Something else.…"  NOT what DeepSeek had thought', self.text)
        self.assertIn("4 of 4 requests accepted, 0 of 6", self.text)

    def test_a_store_that_forgets_fails_the_demo(self) -> None:
        """Without the blocks in the text, or they would tell the proxy what it forgot."""
        without_display = partial(ProxyConfig, display_reasoning=False)
        with patch.object(ReasoningStore, "find", return_value={}), patch.object(demo, "ProxyConfig", without_display):
            self.assertEqual(self.play(), 1)
        self.assertIn("turn 1: nothing  NOT what DeepSeek had thought", self.text)

    def test_a_missing_answer_fails_the_demo(self) -> None:
        with patch.object(demo, "SmallDeepSeek", SilentDeepSeek):
            self.assertEqual(self.play(), 1)
        self.assertIn("Cursor got 502 DeepSeek keeps refusing this history", self.text)
        self.assertIn("0 of 1 requests accepted", self.text)


_STRIPPED_LAST = "reasoning_content of turn 1, 2, 3"
