import contextlib
import errno
import threading
import unittest
from unittest import mock

from deepseek_cursor_proxy.errors import ClientGone
from deepseek_cursor_proxy.exchange import response_cache
from deepseek_cursor_proxy.exchange.response_cache import Flights, Seat
from deepseek_cursor_proxy.net.wakeup import Wakeup
from deepseek_cursor_proxy.storage.answers import CachedAnswer

ANSWER = CachedAnswer(b"packed")


class TestFlights(unittest.TestCase):
    def setUp(self) -> None:
        self.flights = Flights()

    def join(self, key: bytes = b"1") -> Seat:
        seat = self.flights.join(key)
        assert seat is not None
        return seat

    def test_the_first_one_leads_and_the_others_get_its_answer(self) -> None:
        leader, *others = (self.join() for _ in range(4))
        self.assertEqual([True, False, False, False], [seat.is_leader for seat in (leader, *others)])
        self.assertEqual([False] * 3, [seat.wait(0, None) for seat in others])
        self.flights.leave(leader, ANSWER)
        for seat in others:
            self.assertTrue(seat.wait(0, None))
            self.assertEqual(ANSWER, seat.flight.answer)
            self.flights.leave(seat)
        leader = self.join()
        self.assertTrue(leader.is_leader)
        self.flights.leave(leader)

    def test_other_keys_have_their_own_leaders(self) -> None:
        for key in (b"1", b"2"):
            self.assertTrue(self.join(key).is_leader)

    def test_the_first_to_ask_again_leads_when_the_leader_has_no_answer(self) -> None:
        leader, first, second = (self.join() for _ in range(3))
        self.flights.leave(leader, has_failed=True)
        for seat in (first, second):
            self.assertTrue(seat.wait(0, None))
            self.assertEqual((None, True), (seat.flight.answer, seat.flight.has_failed))
            self.flights.leave(seat)
        again = [self.join(), self.join()]
        self.assertEqual([True, False], [seat.is_leader for seat in again])
        for seat in reversed(again):
            self.flights.leave(seat)

    def test_a_client_that_leaves_ends_its_wait(self) -> None:
        leader, waiter = self.join(), self.join()
        with contextlib.closing(Wakeup()) as client:
            client.set()
            with self.assertRaises(ClientGone):
                waiter.wait(5, client)
        self.flights.leave(waiter)
        self.flights.leave(leader)

    def test_without_descriptors_nobody_waits(self) -> None:
        self.flights.leave(self.join())
        leader = self.join()
        with mock.patch.object(response_cache, "Wakeup", side_effect=OSError(errno.EMFILE, "")):
            self.assertIsNone(self.flights.join(b"1"))
        self.flights.leave(leader)

    def test_of_many_threads_each_has_one_answer_and_one_leads_at_a_time(self) -> None:
        leading, most, answers = 0, 0, []
        lock = threading.Lock()

        def ask(number: int) -> None:
            nonlocal leading, most
            while True:
                seat = self.join()
                if not seat.is_leader:
                    seat.wait(10, None)
                    self.flights.leave(seat)
                    if seat.flight.answer is None:
                        continue
                    answers.append(number)
                    return
                with lock:
                    leading += 1
                    most = max(most, leading)
                with lock:
                    leading -= 1
                # Every other leader fails.
                self.flights.leave(seat, ANSWER if number % 2 else None)
                answers.append(number)
                return

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((1, [*range(40)]), (most, sorted(answers)))
