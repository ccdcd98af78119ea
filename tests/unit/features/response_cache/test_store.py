from deepseek_cursor_proxy.features.response_cache.store import CachedAnswer, CachedAnswers, CacheTotals
from deepseek_cursor_proxy.storage.faults import Unusable
from tests.support.databases import StoreTestCase
from tests.support.polling import wait_until

ANSWER = CachedAnswer(b"packed", 12, 0.5, "USD")


class TestCachedAnswers(StoreTestCase):
    store_type = CachedAnswers

    def keys(self) -> set[bytes]:
        return {key for (key,) in self.select("SELECT key FROM cached_answers")}

    def test_an_answer_is_found_after_a_restart_by_its_key_alone(self) -> None:
        self.assertIsNone(self.store.find(b"1"))
        self.store.record(b"1", ANSWER)
        self.restart()
        self.assertEqual(ANSWER, self.store.find(b"1"))
        self.assertIsNone(self.store.find(b"2"))

    def test_a_later_answer_replaces_an_older_one_and_its_age(self) -> None:
        store = self.store_on(self.database, max_age_seconds=10)
        store.record(b"1", ANSWER)
        self.now += 8
        store.record(b"1", CachedAnswer(b"other"))
        self.now += 8
        self.assertEqual(CachedAnswer(b"other"), store.find(b"1"))
        self.now += 3
        self.assertIsNone(store.find(b"1"))

    def test_what_is_too_old_and_the_oldest_of_too_much_is_pruned(self) -> None:
        store = self.store_on(self.database, max_age_seconds=100, max_bytes=2 * (200 + 1000))
        for key in (b"old", b"1", b"2", b"3"):
            store.record(key, CachedAnswer(bytes(1000)))
            self.now += 200 if key == b"old" else 1
        self.assertEqual(2, sum(store.prune()))
        self.assertEqual({b"2", b"3"}, self.keys())
        self.assertEqual((2, 2400), store.stats("USD")[:2])

    def test_hits_and_misses_are_summed_up_also_after_a_restart(self) -> None:
        self.store.count_miss()
        self.store.count_hit(ANSWER)
        self.assertEqual(CacheTotals("USD", 1, 1, 12, 0.5), self.store.stats("USD").totals)
        self.restart()
        for _ in range(2):
            self.store.count_hit(CachedAnswer(b"", 5, 2.0, "CNY"))
        self.store.count_hit(CachedAnswer(b"", 1))
        self.assertEqual(CacheTotals("USD", 4, 1, 23, 0.5), self.store.stats("USD").totals)
        self.assertEqual(CacheTotals("CNY", 4, 1, 23, 4.0), self.store.stats("CNY").totals)

    def test_hits_are_written_while_the_proxy_runs(self) -> None:
        self.store._totals.seconds_between_batches = 0.0
        self.store.count_hit(ANSWER)
        wait_until(lambda: self.select("SELECT hits FROM cache_totals") == [(1,)])

    def test_a_file_that_fails_costs_no_answer(self) -> None:
        self.database.close()
        self.store.record(b"1", ANSWER)
        self.assertEqual(ANSWER, self.store.find(b"1"))
        self.assertIsNone(self.store.find(b"2"))
        self.store.count_hit(ANSWER)
        self.assertEqual(0, sum(self.store.prune()))
        with self.assertRaises(Unusable):
            self.store.stats("USD")
