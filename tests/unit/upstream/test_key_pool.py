"""Which key of an upstream a call takes, and what becomes of a key that is refused."""

import unittest

from deepseek_cursor_proxy.config.access_keys import AccessKey
from deepseek_cursor_proxy.upstream.key_pool import KeyLease, KeyPool

KEYS = ("sk-one-aaaaaaaaaaaa", "sk-two-bbbbbbbbbbbb", "sk-three-cccccccccc")


class TestKeyPool(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 1000.0
        self.pool = KeyPool(KEYS, lambda: self.now)

    def take(self, digest: str | None = None) -> KeyLease:
        lease = self.pool.take(digest)
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

    def test_a_key_that_is_set_aside_is_not_taken_until_its_time_is_over(self) -> None:
        lease = self.take()
        self.assertTrue(self.pool.set_aside(lease.key, 60))
        self.assertFalse(self.pool.set_aside(lease.key, 60))
        self.assertNotIn(lease.key, [self.take(lease.key.digest).key for _ in range(12)])
        self.now += 60
        self.assertEqual(lease.key, self.take(lease.key.digest).key)

    def test_a_shorter_time_does_not_bring_a_key_back(self) -> None:
        key = self.take().key
        self.pool.set_aside(key)
        self.pool.set_aside(key, 1)
        self.now += 10**9
        self.assertNotIn(key, [self.take().key for _ in range(12)])

    def test_without_a_ready_key_the_first_to_come_back_is_taken(self) -> None:
        for seconds, key in zip((50, 40, 60), [self.take().key for _ in KEYS], strict=True):
            self.pool.set_aside(key, seconds)
        self.assertFalse(self.pool.is_ready)
        self.assertEqual(KEYS[1], self.take().key.credential)
        self.now += 40
        self.assertTrue(self.pool.is_ready)

    def test_keys_refused_for_good_are_never_taken(self) -> None:
        for key in [self.take().key for _ in KEYS]:
            self.pool.set_aside(key)
        self.now += 10**9
        self.assertIsNone(self.pool.take())
        self.assertFalse(self.pool.is_ready)

    def test_a_pool_without_keys_has_none(self) -> None:
        pool = KeyPool(())
        self.assertIsNone(pool.take())
        self.assertFalse(pool.is_ready)

    def test_keys_are_named_by_their_digest(self) -> None:
        key = self.take().key
        self.assertEqual(str(AccessKey.of(KEYS[0])), key.digest)
        self.assertNotIn(KEYS[0], repr(key) + repr(self.pool) + str(vars(self.pool)))

    def test_the_same_key_twice_is_one(self) -> None:
        pool = KeyPool((KEYS[0], KEYS[0]))
        self.assertEqual(1, len({lease.key for lease in (pool.take(), pool.take()) if lease is not None}))
