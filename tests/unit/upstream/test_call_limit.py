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
from deepseek_cursor_proxy.upstream.call_limit import Admission, Gates, Place
from tests.support.raw_upstream import wait_until
from tests.unit.net.test_wait import Client, systems

PATIENCE = 20.0


class AdmissionTestCase(unittest.TestCase):
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

    def until_waiting(self, gate: Admission, count: int) -> None:
        """Somebody who queues cannot say so himself."""
        wait_until(lambda: len(gate._waiting) == count)


class TestPlaces(AdmissionTestCase):
    def test_as_many_run_as_there_are_places(self) -> None:
        gate = Admission(2, 0.01)
        first, second = (*gate.enter(None), *gate.enter(None))
        with self.assertRaises(QueueFull) as caught:
            gate.enter(None)
        self.assertEqual((429, 2), (caught.exception.status, caught.exception.retry_after))
        self.assertIn("--max-upstream-calls", caught.exception.message)
        first.leave()
        gate.enter(None)
        second.leave()
        self.assertEqual(1, gate.running)

    def test_a_place_given_back_twice_is_one_place(self) -> None:
        gate = Admission(2, 0.01)
        (first,), (second,) = gate.enter(None), gate.enter(None)
        for _ in range(3):
            first.leave()
        self.assertEqual(1, gate.running)
        second.leave()
        self.assertEqual(0, gate.running)

    def test_several_places_come_together_or_not_at_all(self) -> None:
        gate = Admission(4, 0.01)
        places = gate.enter(None, 3)
        with self.assertRaises(QueueFull):
            gate.enter(None, 2)
        self.assertEqual(3, gate.running)
        for place in places:
            place.leave()
        self.assertEqual(4, len(gate.enter(None, 4)))

    def test_more_than_there_are_come_when_nobody_else_runs(self) -> None:
        gate = Admission(1, 0.01)
        places = gate.enter(None, 8)
        with self.assertRaises(QueueFull):
            gate.enter(None)
        for place in places:
            place.leave()
        self.assertEqual(0, gate.running)

    def test_the_queue_is_bounded_too(self) -> None:
        gate = Admission(1, PATIENCE)
        (place,) = gate.enter(None)
        waiting = self.in_background(lambda: gate.enter(None)[0].leave())
        self.until_waiting(gate, 1)
        with mock.patch.object(call_limit, "_MOST_WAITING", 1), self.assertRaises(QueueFull):
            gate.enter(None)
        place.leave()
        waiting.join()
        self.assertEqual(0, gate.running)

    def test_no_descriptor_left_to_wait_with_is_an_overload(self) -> None:
        gate = Admission(1, PATIENCE)
        gate.enter(None)
        with mock.patch("socket.socketpair", side_effect=OSError(24, "Too many open files")):
            with self.assertRaises(QueueFull):
                gate.enter(None)


class TestQueue(AdmissionTestCase):
    def test_who_came_first_is_served_first(self) -> None:
        gate = Admission(1, PATIENCE)
        (place,) = gate.enter(None)
        order: list[int] = []
        threads = []

        def call(number: int) -> None:
            (mine,) = gate.enter(None)
            order.append(number)
            mine.leave()

        for number in range(20):
            threads.append(self.in_background(lambda number=number: call(number)))  # type: ignore[misc]
            self.until_waiting(gate, number + 1)
        place.leave()
        for thread in threads:
            thread.join()
        self.assertEqual(list(range(20)), order)
        self.assertEqual((0, 0), (gate.running, len(gate._waiting)))

    def test_nobody_passes_one_who_waits_for_several(self) -> None:
        gate = Admission(2, PATIENCE)
        (place,) = gate.enter(None)
        order: list[str] = []

        def call(name: str, calls: int) -> None:
            places = gate.enter(None, calls)
            order.append(name)
            for each in places:
                each.leave()

        threads = [self.in_background(lambda: call("two", 2))]
        self.until_waiting(gate, 1)
        threads.append(self.in_background(lambda: call("one", 1)))
        self.until_waiting(gate, 2)
        place.leave()
        for thread in threads:
            thread.join()
        self.assertEqual(["two", "one"], order)

    def test_a_client_that_leaves_the_queue_is_noticed_and_lets_the_next_in(self) -> None:
        for name, system in systems().items():
            with self.subTest(name), mock.patch.multiple(waiting, **system):
                gate = Admission(1, PATIENCE)
                (place,) = gate.enter(None)
                peer, theirs = self.peer()
                gone, served = threading.Event(), threading.Event()

                def leave(gate: Admission = gate, peer: Peer = peer, gone: threading.Event = gone) -> None:
                    try:
                        gate.enter(peer)
                    except ClientGone:
                        gone.set()

                def stay(gate: Admission = gate, served: threading.Event = served) -> None:
                    (mine,) = gate.enter(None)
                    served.set()
                    mine.leave()

                self.in_background(leave)
                self.until_waiting(gate, 1)
                self.in_background(stay)
                self.until_waiting(gate, 2)
                theirs.close()
                self.assertTrue(gone.wait(PATIENCE))
                self.until_waiting(gate, 1)
                place.leave()
                self.assertTrue(served.wait(PATIENCE))
                self.until_waiting(gate, 0)

    def test_a_place_won_while_leaving_is_not_lost(self) -> None:
        gate = Admission(1, PATIENCE)
        (place,) = gate.enter(None)

        def admitted_then_gone(*_: object) -> bool:
            place.leave()
            raise ClientGone

        with mock.patch.object(call_limit, "wait_readable", admitted_then_gone), self.assertRaises(ClientGone):
            gate.enter(None)
        self.assertEqual(0, gate.running)

    def test_under_load_the_bound_holds_and_every_place_comes_back(self) -> None:
        limit, callers = 5, 60
        gate = Admission(limit, PATIENCE)
        lock = threading.Lock()
        running: list[Place] = []
        most, served = [0], [0]
        work = threading.Event()

        def call(number: int) -> None:
            peer, theirs = socket.socketpair()
            with peer, theirs:
                for _ in range(5):
                    try:
                        (mine,) = gate.enter(Client(peer))
                    except ClientGone:
                        return
                    with lock:
                        running.append(mine)
                        most[0] = max(most[0], len(running))
                        served[0] += 1
                    work.wait(0.001)
                    with lock:
                        running.remove(mine)
                    mine.leave()
                    if number % 4 == 0:
                        theirs.close()

        threads = [self.in_background(lambda number=number: call(number)) for number in range(callers)]  # type: ignore[misc]
        for thread in threads:
            thread.join()
        self.assertEqual(limit, most[0])
        self.assertGreaterEqual(served[0], 45 * 5)
        self.assertEqual((0, 0), (gate.running, len(gate._waiting)))


class TestGates(AdmissionTestCase):
    def test_every_model_has_places_of_its_own(self) -> None:
        gates = Gates(ProxyConfig(max_upstream_calls=1, max_flash_calls=2).most_calls, 0.01)
        pro, flash = gates.to("deepseek-v4-pro"), gates.to("deepseek-flash")
        self.assertIs(pro, gates.to("deepseek-v4-pro"))
        # DeepSeek counts its older names as Flash.
        self.assertIs(flash, gates.to("deepseek-v4-flash"))
        pro.enter(None)
        for _ in range(2):
            flash.enter(None)
        for gate in (pro, flash):
            with self.assertRaises(QueueFull):
                gate.enter(None)
