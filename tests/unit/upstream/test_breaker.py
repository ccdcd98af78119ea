import unittest

from deepseek_cursor_proxy.upstream.breaker import Breaker


class TestBreaker(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 1000.0
        self.breaker = Breaker(lambda: self.now)

        self.chats = 0

    def fail_chat(self, *, is_sure: bool = False) -> bool:
        self.chats += 1
        return self.breaker.record_failure(b"%d" % self.chats, is_sure=is_sure)

    def open(self) -> None:
        self.assertTrue(self.fail_chat(is_sure=True))

    def fail_probe(self) -> None:
        self.now += self.breaker.seconds_left
        self.assertTrue(self.breaker.is_ready)
        self.breaker.begin_call()
        self.assertFalse(self.fail_chat())

    def test_the_third_chat_that_fails_opens_it(self) -> None:
        self.assertEqual([False, False, True], [self.fail_chat() for _ in range(3)])
        self.assertFalse(self.breaker.is_ready)

    def test_one_chat_never_opens_it_however_often_it_fails(self) -> None:
        for _ in range(20):
            self.assertFalse(self.breaker.record_failure(b"chat"))
        self.assertTrue(self.breaker.is_ready)

    def test_a_complete_answer_in_between_starts_the_count_again(self) -> None:
        for _ in range(5):
            self.fail_chat()
            self.fail_chat()
            self.breaker.record_success()
        self.assertTrue(self.breaker.is_ready)

    def test_a_call_that_is_accepted_and_then_breaks_counts_as_a_failure(self) -> None:
        for is_opened in (False, False, True):
            self.breaker.begin_call()
            self.assertFalse(self.breaker.record_acceptance())
            self.assertIs(is_opened, self.fail_chat())

    def test_a_sure_failure_opens_it_at_once_and_only_once(self) -> None:
        self.open()
        self.assertFalse(self.fail_chat(is_sure=True))
        self.assertEqual(10, self.breaker.seconds_left)

    def test_after_a_time_one_call_is_the_probe(self) -> None:
        self.assertEqual("closed", self.breaker.state)
        self.open()
        self.now += 9.9
        self.assertEqual((False, "open"), (self.breaker.is_ready, self.breaker.state))
        self.now += 0.1
        self.assertEqual((True, "half_open"), (self.breaker.is_ready, self.breaker.state))
        self.breaker.begin_call()
        self.assertEqual((False, "half_open"), (self.breaker.is_ready, self.breaker.state))

    def test_an_accepted_probe_closes_it_and_the_next_failure_opens_it_again(self) -> None:
        self.open()
        self.now += 10
        self.breaker.begin_call()
        self.assertTrue(self.breaker.record_acceptance())
        self.assertTrue(self.breaker.is_ready)
        self.assertFalse(self.breaker.record_acceptance())
        self.assertTrue(self.fail_chat())

    def test_every_failed_probe_doubles_the_time_up_to_five_minutes(self) -> None:
        self.open()
        waits = []
        for _ in range(7):
            self.fail_probe()
            waits.append(self.breaker.seconds_left)
        self.assertEqual([20, 40, 80, 160, 300, 300, 300], waits)
        self.now += 300
        self.breaker.begin_call()
        self.breaker.record_acceptance()
        self.breaker.record_success()
        self.open()
        self.assertEqual(10, self.breaker.seconds_left)

    def test_calls_that_were_under_way_when_it_opened_do_not_double_the_time(self) -> None:
        self.open()
        for _ in range(20):
            self.fail_chat()
        self.assertEqual(10, self.breaker.seconds_left)

    def test_an_answer_that_was_under_way_when_it_opened_does_not_shorten_the_time(self) -> None:
        self.open()
        self.fail_probe()
        self.breaker.record_success()
        self.fail_probe()
        self.assertEqual(40, self.breaker.seconds_left)

    def test_a_probe_whose_client_left_is_followed_by_another(self) -> None:
        self.open()
        self.now += 10
        self.breaker.begin_call()
        self.now += 10
        self.assertTrue(self.breaker.is_ready)

    def test_a_call_made_while_open_closes_it_too(self) -> None:
        """It had nowhere else to go."""
        self.open()
        self.breaker.begin_call()
        self.assertFalse(self.breaker.is_ready)
        self.assertTrue(self.breaker.record_acceptance())
