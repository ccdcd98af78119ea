import unittest

from deepseek_cursor_proxy.config.access_keys import AccessKey
from deepseek_cursor_proxy.upstream.key_pool import KeyLease, KeyPool, RequestKind

KEYS = ("sk-one-aaaaaaaaaaaa", "sk-two-bbbbbbbbbbbb", "sk-three-cccccccccc")


KIND = RequestKind(b"caller", "model", 1000)


class TestKeyPool(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 1000.0
        self.pool = KeyPool(KEYS, lambda: self.now)

    def take(self, digest: str | None = None, kind: RequestKind = KIND) -> KeyLease:
        lease = self.pool.take(kind, digest)
        assert lease is not None
        return lease

    def test_calls_at_once_are_spread_evenly(self) -> None:
        leases = [self.take() for _ in range(9)]
        self.assertEqual([3, 3, 3], [sum(lease.key.credential == key for lease in leases) for key in KEYS])
        for lease in leases:
            lease.release()
            lease.release()
        self.assertEqual({0}, {lease.key.calls for lease in leases})

    def test_the_key_with_the_fewest_calls_is_next(self) -> None:
        leases = [self.take() for _ in range(6)]
        leases[1].release()
        self.assertEqual(leases[1].key, self.take().key)

    def test_calls_one_after_the_other_take_turns(self) -> None:
        taken = []
        for _ in range(6):
            lease = self.take()
            taken.append(lease.key.credential)
            lease.release()
        self.assertEqual([*KEYS, *KEYS], taken)

    def test_a_chat_keeps_its_key_however_busy_it_is(self) -> None:
        digest = self.take().key.digest
        self.assertEqual({digest}, {self.take(digest).key.digest for _ in range(5)})

    def test_a_busy_key_is_not_taken_until_its_time_is_over(self) -> None:
        key = self.take().key
        self.pool.record_busy(key, 60)
        self.pool.record_busy(key, 1)
        self.pool.record_acceptance(key, KIND)
        self.assertNotIn(key, [self.take(key.digest).key for _ in range(12)])
        self.now += 60
        self.assertEqual(key, self.take(key.digest).key)

    def test_a_refused_key_is_left_alone_by_requests_of_the_same_kind(self) -> None:
        key = self.take().key
        self.assertTrue(self.pool.record_refusal(key, KIND, 60))
        self.assertFalse(self.pool.record_refusal(key, KIND, 60))
        self.assertNotIn(key, [self.take(key.digest).key for _ in range(12)])
        for other in (KIND._replace(caller=b"other"), KIND._replace(model="other"), KIND._replace(max_tokens=5)):
            self.assertEqual(key, self.take(key.digest, other).key)
        self.now += 60
        self.assertEqual(key, self.take(key.digest).key)

    def test_two_callers_in_a_row_set_a_key_aside_for_all(self) -> None:
        other, third = KIND._replace(caller=b"other"), KIND._replace(caller=b"third")
        key = self.take().key
        for is_accepted_between in (True, False):
            self.pool.record_refusal(key, KIND, 60)
            self.pool.record_refusal(key, KIND._replace(model="another of the same caller"), 60)
            if is_accepted_between:
                self.pool.record_acceptance(key, third)
            self.pool.record_refusal(key, other, 60)
            self.assertIs(is_accepted_between, key == self.take(key.digest, third).key)
            self.now += 60
        self.assertEqual(key, self.take(key.digest, third).key)

    def test_an_accepted_call_brings_a_key_back(self) -> None:
        other, third = KIND._replace(caller=b"other"), KIND._replace(caller=b"third")
        key = self.take().key
        for kind in (KIND, other):
            self.pool.record_refusal(key, kind, 60)
        self.pool.record_acceptance(key, KIND)
        self.assertEqual([key, key], [self.take(key.digest, kind).key for kind in (KIND, third)])
        self.assertNotEqual(key, self.take(key.digest, other).key)

    def test_the_kinds_of_requests_that_a_key_remembers_are_bounded(self) -> None:
        key = self.take().key
        for tokens in range(1000):
            self.pool.record_refusal(key, KIND._replace(max_tokens=tokens), 60)
        self.assertEqual(64, len(key.refused_until))
        self.assertTrue(self.pool.is_ready)

    def test_without_a_ready_key_the_first_to_come_back_is_taken(self) -> None:
        for seconds, key in zip((50, 40, 60), [self.take().key for _ in KEYS], strict=True):
            self.pool.record_refusal(key, KIND, seconds)
        self.assertEqual((True, False), (self.pool.is_ready, self.pool.is_ready_for(KIND)))
        self.assertEqual(KEYS[1], self.take().key.credential)
        self.now += 40
        self.assertTrue(self.pool.is_ready_for(KIND))

    def test_keys_are_named_by_their_digest(self) -> None:
        key = self.take().key
        self.assertEqual(str(AccessKey.of(KEYS[0])), key.digest)
        self.assertNotIn(KEYS[0], repr(key) + repr(self.pool) + str(vars(self.pool)))

    def test_the_same_key_twice_is_one(self) -> None:
        pool = KeyPool((KEYS[0], KEYS[0]))
        self.assertEqual(1, len({lease.key for lease in (pool.take(KIND), pool.take(KIND)) if lease is not None}))
