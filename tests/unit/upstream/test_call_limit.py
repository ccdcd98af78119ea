"""The limit of calls at once: slots, and the queue for them."""

import socket
import threading
import unittest
from collections.abc import Callable
from unittest import mock

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import ClientGone, QueueFull
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.net import wait as waiting
from deepseek_cursor_proxy.upstream import call_limit
from deepseek_cursor_proxy.upstream.call_limit import CallLimit, CallLimits, Slot
from tests.support.polling import wait_until
from tests.unit.net.test_wait import Client, systems

PATIENCE = 20.0


class CallLimitTestCase(unittest.TestCase):
    def peer(self) -> tuple[Peer, socket.socket]:
        """A client, and the end of its connection that it may close."""
        ours, theirs = socket.socketpair()
        self.addCleanup(ours.close)
        self.addCleanup(theirs.close)
        return Client(ours), theirs

    def in_background(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work)
        thread.start()
        self.addCleanup(thread.join)
        return thread

    def await_queue(self, limit: CallLimit, count: int) -> None:
        """A thread that queues cannot signal it itself."""
        wait_until(lambda: len(limit._waiting) == count)


class TestSlots(CallLimitTestCase):
    def test_as_many_calls_run_as_there_are_slots(self) -> None:
        limit = CallLimit(2, 0.01)
        first, second = (*limit.acquire(None), *limit.acquire(None))
        with self.assertRaises(QueueFull) as caught:
            limit.acquire(None)
        self.assertEqual((429, 2), (caught.exception.status, caught.exception.retry_after))
        self.assertIn("--max-upstream-calls", caught.exception.message)
        first.release()
        limit.acquire(None)
        second.release()
        self.assertEqual(1, limit.running)

    def test_a_slot_released_twice_frees_one_slot(self) -> None:
        limit = CallLimit(2, 0.01)
        (first,), (second,) = limit.acquire(None), limit.acquire(None)
        for _ in range(3):
            first.release()
        self.assertEqual(1, limit.running)
        second.release()
        self.assertEqual(0, limit.running)

    def test_several_slots_come_together_or_not_at_all(self) -> None:
        limit = CallLimit(4, 0.01)
        slots = limit.acquire(None, 3)
        with self.assertRaises(QueueFull):
            limit.acquire(None, 2)
        self.assertEqual(3, limit.running)
        for slot in slots:
            slot.release()
        self.assertEqual(4, len(limit.acquire(None, 4)))

    def test_more_slots_than_the_limit_come_when_no_other_call_runs(self) -> None:
        limit = CallLimit(1, 0.01)
        slots = limit.acquire(None, 8)
        with self.assertRaises(QueueFull):
            limit.acquire(None)
        for slot in slots:
            slot.release()
        self.assertEqual(0, limit.running)

    def test_the_queue_for_slots_is_bounded(self) -> None:
        limit = CallLimit(1, PATIENCE)
        (slot,) = limit.acquire(None)
        waiting = self.in_background(lambda: limit.acquire(None)[0].release())
        self.await_queue(limit, 1)
        with mock.patch.object(call_limit, "_MOST_WAITING", 1), self.assertRaises(QueueFull):
            limit.acquire(None)
        slot.release()
        waiting.join()
        self.assertEqual(0, limit.running)

    def test_without_a_descriptor_to_wait_with_the_queue_is_full(self) -> None:
        limit = CallLimit(1, PATIENCE)
        limit.acquire(None)
        with mock.patch("socket.socketpair", side_effect=OSError(24, "Too many open files")):
            with self.assertRaises(QueueFull):
                limit.acquire(None)


class TestQueue(CallLimitTestCase):
    def test_slots_go_to_callers_in_the_order_they_came(self) -> None:
        limit = CallLimit(1, PATIENCE)
        (slot,) = limit.acquire(None)
        order: list[int] = []
        threads = []

        def call(number: int) -> None:
            (mine,) = limit.acquire(None)
            order.append(number)
            mine.release()

        for number in range(20):
            threads.append(self.in_background(lambda number=number: call(number)))  # type: ignore[misc]
            self.await_queue(limit, number + 1)
        slot.release()
        for thread in threads:
            thread.join()
        self.assertEqual(list(range(20)), order)
        self.assertEqual((0, 0), (limit.running, len(limit._waiting)))

    def test_no_caller_overtakes_one_that_waits_for_several_slots(self) -> None:
        limit = CallLimit(2, PATIENCE)
        (slot,) = limit.acquire(None)
        order: list[str] = []

        def call(name: str, calls: int) -> None:
            slots = limit.acquire(None, calls)
            order.append(name)
            for each in slots:
                each.release()

        threads = [self.in_background(lambda: call("two", 2))]
        self.await_queue(limit, 1)
        threads.append(self.in_background(lambda: call("one", 1)))
        self.await_queue(limit, 2)
        slot.release()
        for thread in threads:
            thread.join()
        self.assertEqual(["two", "one"], order)

    def test_a_client_that_leaves_frees_its_place_in_the_queue(self) -> None:
        for name, system in systems().items():
            with self.subTest(name), mock.patch.multiple(waiting, **system):
                limit = CallLimit(1, PATIENCE)
                (slot,) = limit.acquire(None)
                peer, theirs = self.peer()
                gone, served = threading.Event(), threading.Event()

                def leave(limit: CallLimit = limit, peer: Peer = peer, gone: threading.Event = gone) -> None:
                    try:
                        limit.acquire(peer)
                    except ClientGone:
                        gone.set()

                def stay(limit: CallLimit = limit, served: threading.Event = served) -> None:
                    (mine,) = limit.acquire(None)
                    served.set()
                    mine.release()

                self.in_background(leave)
                self.await_queue(limit, 1)
                self.in_background(stay)
                self.await_queue(limit, 2)
                theirs.close()
                self.assertTrue(gone.wait(PATIENCE))
                self.await_queue(limit, 1)
                slot.release()
                self.assertTrue(served.wait(PATIENCE))
                self.await_queue(limit, 0)

    def test_a_slot_granted_while_the_client_leaves_is_not_lost(self) -> None:
        limit = CallLimit(1, PATIENCE)
        (slot,) = limit.acquire(None)

        def admitted_then_gone(*_: object) -> bool:
            slot.release()
            raise ClientGone

        with mock.patch.object(call_limit, "wait_readable", admitted_then_gone), self.assertRaises(ClientGone):
            limit.acquire(None)
        self.assertEqual(0, limit.running)

    def test_under_load_the_limit_holds_and_every_slot_comes_back(self) -> None:
        most_calls, callers = 5, 60
        limit = CallLimit(most_calls, PATIENCE)
        lock = threading.Lock()
        running: list[Slot] = []
        most, served = [0], [0]
        work = threading.Event()

        def call(number: int) -> None:
            peer, theirs = socket.socketpair()
            with peer, theirs:
                for _ in range(5):
                    try:
                        (mine,) = limit.acquire(Client(peer))
                    except ClientGone:
                        return
                    with lock:
                        running.append(mine)
                        most[0] = max(most[0], len(running))
                        served[0] += 1
                    work.wait(0.001)
                    with lock:
                        running.remove(mine)
                    mine.release()
                    if number % 4 == 0:
                        theirs.close()

        threads = [self.in_background(lambda number=number: call(number)) for number in range(callers)]  # type: ignore[misc]
        for thread in threads:
            thread.join()
        self.assertEqual(most_calls, most[0])
        self.assertGreaterEqual(served[0], 45 * 5)
        self.assertEqual((0, 0), (limit.running, len(limit._waiting)))


class TestCallLimits(CallLimitTestCase):
    def test_every_model_has_a_limit_of_its_own(self) -> None:
        call_limits = CallLimits(ProxyConfig(max_upstream_calls=1, max_flash_calls=2).most_calls, 0.01)
        pro, flash = call_limits.of("deepseek-v4-pro"), call_limits.of("deepseek-flash")
        self.assertIs(pro, call_limits.of("deepseek-v4-pro"))
        # DeepSeek counts its older names as Flash.
        self.assertIs(flash, call_limits.of("deepseek-v4-flash"))
        pro.acquire(None)
        for _ in range(2):
            flash.acquire(None)
        for limit in (pro, flash):
            with self.assertRaises(QueueFull):
                limit.acquire(None)
