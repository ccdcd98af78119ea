import threading
import unittest
from contextlib import closing
from unittest import mock

from deepseek_cursor_proxy.errors import ClientGone, UpstreamTimeout
from deepseek_cursor_proxy.exchange import shared_calls
from deepseek_cursor_proxy.exchange.shared_calls import SharedCall, SharedCalls
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.net import wait
from deepseek_cursor_proxy.net.wakeup import Wakeup
from tests.support.polling import wait_until
from tests.support.resources import descriptors

KEY = (b"caller", b"picture")
PATIENCE = 20.0


class TestSharedCalls(unittest.TestCase):
    def setUp(self) -> None:
        before = descriptors()
        self.addCleanup(lambda: wait_until(lambda: descriptors() <= before))
        self.calls = SharedCalls()
        self.may_end = threading.Event()
        self.addCleanup(self.may_end.set)
        self.runs: list[str] = []

    def work(self, peer: Peer) -> str:
        """Wait for the test, and for the peer meanwhile."""
        self.runs.append("begun")
        try:
            while not self.may_end.is_set():
                wait.pause(0.01, peer)
        except (ClientGone, UpstreamTimeout) as error:
            self.runs.append(type(error).__name__)
            raise
        return "the result"

    def waiter(self) -> Wakeup:
        return self.enterContext(closing(Wakeup()))

    def join(self, waiter: Wakeup, key: tuple[bytes, bytes] = KEY) -> SharedCall:
        call = self.calls.join(key, self.work, waiter)
        assert call is not None
        return call

    def test_all_who_join_are_notified_of_one_result(self) -> None:
        waiters = [self.waiter() for _ in range(3)]
        calls = [self.join(waiter) for waiter in waiters]
        self.assertFalse(calls[0].is_over)
        self.may_end.set()
        for waiter in waiters:
            self.assertTrue(wait.wait_readable(waiter, PATIENCE, None))
        self.assertEqual([("the result", True)] * 3, [(call.result, call.is_over) for call in calls])
        self.assertEqual(["begun"], self.runs)

    def test_another_key_and_a_call_after_the_end_are_calls_of_their_own(self) -> None:
        self.may_end.set()
        for key in (KEY, (b"other", b"picture"), KEY):
            waiter = self.waiter()
            self.join(waiter, key)
            self.assertTrue(wait.wait_readable(waiter, PATIENCE, None))
        self.assertEqual(3, len(self.runs))

    def test_the_last_one_who_leaves_ends_the_call(self) -> None:
        one, two = self.waiter(), self.waiter()
        call = self.join(one)
        self.join(two)
        with self.assertLogs(shared_calls.__name__, "ERROR"):
            self.calls.leave(call, one)
            self.assertIs(call, self.join(one))
            self.calls.leave(call, one)
            self.calls.leave(call, two, lambda: UpstreamTimeout("late"))
            # The next one does not join a call that is being ended.
            self.assertIsNot(call, other := self.join(one))
            wait_until(lambda: call.is_over)
            self.assertIn("UpstreamTimeout", self.runs)
            self.calls.leave(other, one)
            wait_until(lambda: other.is_over)
        self.assertEqual((None, "ClientGone"), (other.result, self.runs[-1]))

    def test_work_that_fails_has_no_result_and_is_logged_without_its_words(self) -> None:
        def fail(peer: Peer) -> str:
            raise ValueError("sk-secret")

        waiter = self.waiter()
        with self.assertLogs(shared_calls.__name__, "ERROR") as logged:
            call = self.calls.join(KEY, fail, waiter)
            self.assertTrue(wait.wait_readable(waiter, PATIENCE, None))
        self.assertIsNone(call and call.result)
        self.assertNotIn("sk-secret", str(logged.output))

    def test_without_threads_or_descriptors_there_is_no_call(self) -> None:
        waiter = self.waiter()
        with mock.patch.object(shared_calls, "start_thread", return_value=None):
            self.assertIsNone(self.calls.join(KEY, self.work, waiter))
        with mock.patch.object(shared_calls, "Wakeup", side_effect=OSError):
            self.assertIsNone(self.calls.join(KEY, self.work, waiter))
        self.assertEqual([], self.runs)
