import unittest
from unittest import mock

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import ClientGone, QueueFull, UpstreamFailed
from deepseek_cursor_proxy.upstream import call_limit
from deepseek_cursor_proxy.upstream.call_limit import CallLimit, CallLimits, Slot
from deepseek_cursor_proxy.upstream.client import Call, UpstreamClient
from deepseek_cursor_proxy.upstream.connections import Destination
from tests.support.polling import wait_until
from tests.support.threads import in_background

PATIENCE = 20.0


def await_queue(limit: CallLimit, count: int) -> None:
    """A thread that queues cannot signal it itself."""
    wait_until(lambda: len(limit._queue) == count)


class TestCallLimit(unittest.TestCase):
    def test_as_many_calls_run_as_there_are_slots(self) -> None:
        limit = CallLimit(2, 0.01)
        first, second = limit.acquire(), limit.acquire()
        with self.assertRaises(QueueFull) as caught:
            limit.acquire()
        self.assertEqual((429, 2), (caught.exception.status, caught.exception.retry_after))
        self.assertIn("Too many calls to this model are running already: 2 slots", caught.exception.message)
        first.release()
        limit.acquire()
        second.release()
        self.assertEqual(1, limit.running_calls)

    def test_only_a_call_that_waits_has_something_to_do_before(self) -> None:
        limit, done = CallLimit(1, 0.01), []
        limit.acquire(before_wait=lambda: done.append("first"))
        with self.assertRaises(QueueFull):
            limit.acquire(before_wait=lambda: done.append("second"))
        self.assertEqual(["second"], done)

    def test_a_slot_released_twice_frees_one_slot(self) -> None:
        limit = CallLimit(2, 0.01)
        first, second = limit.acquire(), limit.acquire()
        for _ in range(3):
            first.release()
        self.assertEqual(1, limit.running_calls)
        second.release()
        self.assertEqual(0, limit.running_calls)

    def test_the_queue_for_slots_is_bounded(self) -> None:
        limit = CallLimit(1, PATIENCE)
        slot = limit.acquire()
        queued_calls = in_background(self, lambda: limit.acquire().release())
        await_queue(limit, 1)
        with mock.patch.object(call_limit, "_MOST_WAITING", 1), self.assertRaises(QueueFull):
            limit.acquire()
        slot.release()
        queued_calls.join()
        self.assertEqual(0, limit.running_calls)

    def test_without_a_descriptor_to_wait_with_the_queue_is_full(self) -> None:
        limit = CallLimit(1, PATIENCE)
        limit.acquire()
        with mock.patch("socket.socketpair", side_effect=OSError(24, "Too many open files")):
            with self.assertRaises(QueueFull):
                limit.acquire()

    def test_slots_go_to_callers_in_the_order_they_came(self) -> None:
        limit = CallLimit(1, PATIENCE)
        slot = limit.acquire()
        order: list[int] = []

        def call(number: int) -> None:
            mine = limit.acquire()
            order.append(number)
            mine.release()

        threads = []
        for number in range(20):
            threads.append(in_background(self, call, number))
            await_queue(limit, number + 1)
        slot.release()
        for thread in threads:
            thread.join()
        self.assertEqual(list(range(20)), order)
        self.assertEqual((0, 0), (limit.running_calls, len(limit._queue)))

    def test_one_caller_leaves_a_slot_free_for_every_eight_that_it_has(self) -> None:
        for slots, most in ((1, 1), (8, 8), (9, 8), (18, 16), (480, 427)):
            with self.subTest(slots):
                limit = CallLimit(slots, 0.0)
                for _ in range(most):
                    limit.acquire(caller=b"ann")
                self.assertFalse(limit.has_room(b"ann"))
                with self.assertRaises(QueueFull):
                    limit.acquire(caller=b"ann")

    def test_callers_that_come_later_share_what_is_left(self) -> None:
        limit = CallLimit(480, 0.0)
        held = []
        for caller in (b"ann", b"ben", b"cy"):
            held.append(0)
            while limit.has_room(caller):
                limit.acquire(caller=caller)
                held[-1] += 1
        self.assertEqual([427, 48, 5], held)

    def test_a_free_slot_goes_to_the_caller_that_has_the_fewest(self) -> None:
        limit = CallLimit(3, PATIENCE)
        slots = [limit.acquire(caller=caller) for caller in (b"ann", b"ann", b"ben")]
        order: list[bytes] = []

        def call(caller: bytes) -> None:
            limit.acquire(caller=caller)
            order.append(caller)

        for number, caller in enumerate((b"ann", b"ben", b"cy", b"ann")):
            in_background(self, call, caller)
            await_queue(limit, number + 1)
        for count, slot in enumerate(slots):
            slot.release()
            wait_until(lambda count=count: len(order) == count + 1)  # type: ignore[misc]
        # By the third turn Ann has one, and Ben none.
        self.assertEqual([b"cy", b"ann", b"ben"], order)
        for caller in order:
            Slot(limit, caller).release()

    def test_one_caller_does_not_fill_the_queue(self) -> None:
        limit = CallLimit(1, PATIENCE)
        slot = limit.acquire(caller=b"cy")
        with mock.patch.object(call_limit, "_MOST_WAITING", 9):
            for number in range(8):
                in_background(self, lambda: limit.acquire(caller=b"ann").release())
                await_queue(limit, number + 1)
            with self.assertRaises(QueueFull):
                limit.acquire(caller=b"ann")
            in_background(self, lambda: limit.acquire(caller=b"ben").release())
            await_queue(limit, 9)
        slot.release()

    def test_a_slot_granted_while_the_client_leaves_is_not_lost(self) -> None:
        limit = CallLimit(1, PATIENCE)
        slot = limit.acquire()

        def leave_when_granted(*_: object) -> bool:
            slot.release()
            raise ClientGone

        with mock.patch.object(call_limit, "wait_readable", leave_when_granted), self.assertRaises(ClientGone):
            limit.acquire()
        self.assertEqual(0, limit.running_calls)

    def test_a_call_that_cannot_be_encoded_gives_its_slot_back(self) -> None:
        client, limit = UpstreamClient(ProxyConfig()), CallLimit(1, 0.0)
        for credential in ("two\r\nlines", "\u4e2d"):
            with self.assertRaises(UpstreamFailed):
                client.send(Call(Destination("http://localhost/chat"), credential, b"{}"), limit.acquire())
        self.assertEqual(0, limit.running_calls)

    def test_every_model_has_a_limit_of_its_own(self) -> None:
        call_limits = CallLimits(ProxyConfig(max_upstream_calls=1).most_calls, 0.01)
        pro, flash = call_limits.of("deepseek-v4-pro"), call_limits.of("deepseek-flash")
        self.assertIs(pro, call_limits.of("deepseek-v4-pro"))
        # DeepSeek counts its older names as Flash.
        self.assertIs(flash, call_limits.of("deepseek-v4-flash"))
        pro.acquire()
        for _ in range(5):
            flash.acquire()
        for limit in (pro, flash):
            with self.assertRaises(QueueFull):
                limit.acquire()

    def test_names_that_clients_make_up_do_not_add_up(self) -> None:
        call_limits = CallLimits(ProxyConfig(max_upstream_calls=1).most_calls, 0.01)
        used = call_limits.of("used")
        used.acquire()
        for number in range(1000):
            call_limits.of(f"model-{number}")
        self.assertLessEqual(len(call_limits.snapshot()), call_limit._MOST_LIMITS)
        self.assertIs(used, call_limits.of("used"))
