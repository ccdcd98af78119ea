import contextlib
import errno
import threading
import unittest
from unittest import mock

from deepseek_cursor_proxy.errors import ClientGone
from deepseek_cursor_proxy.exchange import response_cache
from deepseek_cursor_proxy.exchange.response_cache import PendingQuestions, Role
from deepseek_cursor_proxy.net.wakeup import Wakeup
from deepseek_cursor_proxy.storage.answers import CachedAnswer

ANSWER = CachedAnswer(b"packed")


class TestPendingQuestions(unittest.TestCase):
    def setUp(self) -> None:
        self.pending = PendingQuestions()

    def join(self, key: bytes = b"1") -> Role:
        role = self.pending.join(key)
        assert role is not None
        return role

    def test_the_first_one_leads_and_the_others_get_its_answer(self) -> None:
        leader, *others = (self.join() for _ in range(4))
        self.assertEqual([True, False, False, False], [role.is_leader for role in (leader, *others)])
        self.assertEqual([False] * 3, [role.wait(0, None) for role in others])
        self.pending.leave(leader, ANSWER)
        for role in others:
            self.assertTrue(role.wait(0, None))
            self.assertEqual(ANSWER, role.question.answer)
            self.pending.leave(role)
        leader = self.join()
        self.assertTrue(leader.is_leader)
        self.pending.leave(leader)

    def test_other_keys_have_their_own_leaders(self) -> None:
        for key in (b"1", b"2"):
            self.assertTrue(self.join(key).is_leader)

    def test_the_first_to_ask_again_leads_when_the_leader_has_no_answer(self) -> None:
        leader, first, second = (self.join() for _ in range(3))
        self.pending.leave(leader, has_failed=True)
        for role in (first, second):
            self.assertTrue(role.wait(0, None))
            self.assertEqual((None, True), (role.question.answer, role.question.has_failed))
            self.pending.leave(role)
        again = [self.join(), self.join()]
        self.assertEqual([True, False], [role.is_leader for role in again])
        for role in reversed(again):
            self.pending.leave(role)

    def test_a_client_that_leaves_ends_its_wait(self) -> None:
        leader, waiter = self.join(), self.join()
        with contextlib.closing(Wakeup()) as client:
            client.set()
            with self.assertRaises(ClientGone):
                waiter.wait(5, client)
        self.pending.leave(waiter)
        self.pending.leave(leader)

    def test_without_descriptors_nobody_waits(self) -> None:
        self.pending.leave(self.join())
        leader = self.join()
        with mock.patch.object(response_cache, "Wakeup", side_effect=OSError(errno.EMFILE, "")):
            self.assertIsNone(self.pending.join(b"1"))
        self.pending.leave(leader)

    def test_of_many_threads_each_has_one_answer_and_one_leads_at_a_time(self) -> None:
        leading, most, answers = 0, 0, []
        lock = threading.Lock()

        def ask(number: int) -> None:
            nonlocal leading, most
            while True:
                role = self.join()
                if not role.is_leader:
                    role.wait(10, None)
                    self.pending.leave(role)
                    if role.question.answer is None:
                        continue
                    answers.append(number)
                    return
                with lock:
                    leading += 1
                    most = max(most, leading)
                with lock:
                    leading -= 1
                # Every other leader fails.
                self.pending.leave(role, ANSWER if number % 2 else None)
                answers.append(number)
                return

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((1, [*range(40)]), (most, sorted(answers)))
