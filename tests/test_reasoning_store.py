import logging
import sqlite3
import tempfile
import threading
import unittest
from pathlib import Path

from deepseek_cursor_proxy import reasoning_store
from deepseek_cursor_proxy.reasoning_store import ReasoningStore

DAY = 24 * 3600


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


class StoreTestCase(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "store.sqlite3"
        self.now = 1_000_000_000.0

    def store(self, path: str | Path = ":memory:", **details: float) -> ReasoningStore:
        opened = ReasoningStore(path, clock=lambda: self.now, **details)  # type: ignore[arg-type]
        self.addCleanup(opened.close)
        return opened


class TestRemembering(StoreTestCase):
    def test_what_is_recorded_is_found_under_each_of_its_keys(self) -> None:
        store = self.store()
        self.assertTrue(store.record([((key(1), key(2)), "why")]))
        self.assertEqual({key(1): ["why"], key(2): ["why"]}, store.find([key(1), key(2), key(3)]))

    def test_one_reasoning_is_one_row_however_many_keys(self) -> None:
        store = self.store()
        store.record([((key(1), key(2), key(3)), "why")])
        stats = store.stats()
        self.assertEqual((1, 3, 3), (stats.reasonings, stats.keys, stats.bytes))

    def test_the_newest_comes_first_and_equal_ones_once(self) -> None:
        store = self.store()
        for text in ("old", "new", "new", "old"):
            store.record([((key(1),), text)])
        self.assertEqual({key(1): ["old", "new"]}, store.find([key(1)]))

    def test_recording_the_same_again_adds_nothing(self) -> None:
        store = self.store()
        for _ in range(3):
            store.record([((key(1),), "why")])
        self.assertEqual(1, store.stats().reasonings)

    def test_a_link_makes_a_reasoning_known_under_another_key_without_a_copy(self) -> None:
        store = self.store()
        store.record([((key(1),), "why")])
        store.record([((key(2),), "other")], [(key(1), key(3), "why"), (key(8), key(9), "why")])
        store.record([], [(key(1), key(3), "why")])
        self.assertEqual({key(3): ["why"]}, store.find([key(3), key(9)]))
        self.assertEqual(2, store.stats().reasonings)

    def test_a_link_takes_what_was_meant_and_not_what_came_meanwhile(self) -> None:
        store = self.store()
        store.record([((key(1),), "mine")])
        store.record([((key(1),), "of another chat")])
        store.record([], [(key(1), key(2), "mine")])
        self.assertEqual({key(2): ["mine"]}, store.find([key(2)]))

    def test_a_turn_that_goes_on_thinking_stays_one_row(self) -> None:
        store = self.store()
        store.record([((key(1),), "first")])
        store.record([((key(1),), "first, and second")])
        self.assertEqual({key(1): ["first, and second"]}, store.find([key(1)]))

    def test_any_text_survives(self) -> None:
        store = self.store()
        for number, text in enumerate(("", " ", "\0", "\ud800", "思考\u2028", "x" * 1_000_000)):
            store.record([((key(number),), text)])
            self.assertEqual({key(number): [text]}, store.find([key(number)]))

    def test_thousands_of_keys_are_one_call(self) -> None:
        store = self.store()
        store.record([((key(number),), str(number)) for number in range(2500)])
        self.assertEqual(2500, len(store.find([key(number) for number in range(5000)])))

    def test_a_file_remembers_after_it_was_closed(self) -> None:
        store = self.store(self.path)
        store.record([((key(1),), "why")])
        store.close()
        self.assertEqual({key(1): ["why"]}, self.store(self.path).find([key(1)]))

    def test_a_recorded_turn_is_in_the_file_before_record_returns(self) -> None:
        """Another connection sees it, without a close: what is committed outlives this process."""
        self.store(self.path).record([((key(1),), "why")])
        self.assertEqual({key(1): ["why"]}, self.store(self.path).find([key(1)]))

    def test_clear_forgets_everything(self) -> None:
        store = self.store(self.path)
        store.record([((key(1),), "x" * 100_000)])
        self.assertEqual(1, store.clear())
        self.assertEqual({}, store.find([key(1)]))
        self.assertNotIn(b"x" * 100, self.path.read_bytes())


class TestForgetting(StoreTestCase):
    def fill(self, store: ReasoningStore, numbers: range) -> None:
        for number in numbers:
            store.record([((key(number),), str(number))])
            self.now += 1

    def test_the_longest_unused_go_when_there_are_too_many(self) -> None:
        store = self.store(max_rows=10)
        self.fill(store, range(15))
        self.assertEqual(5, store.prune())
        self.assertEqual({key(n) for n in range(5, 15)}, set(store.find([key(n) for n in range(15)])))

    def test_keys_go_with_their_reasoning(self) -> None:
        store = self.store(max_rows=1)
        self.fill(store, range(3))
        store.prune()
        self.assertEqual(1, store.stats().keys)

    def test_what_is_too_old_goes_a_tenth_at_a_time(self) -> None:
        store = self.store(max_age_seconds=30 * DAY)
        self.fill(store, range(50))
        self.now += 31 * DAY
        self.assertEqual(5, store.prune())

    def test_what_is_still_in_use_does_not_expire(self) -> None:
        store = self.store(max_age_seconds=30 * DAY)
        self.fill(store, range(2))
        for _ in range(3):
            self.now += 20 * DAY
            store.find([key(0)])
            store.record([((key(99),), "another turn carries the use along")])
        store.prune()
        store.prune()
        self.assertEqual({key(0), key(99)}, set(store.find([key(0), key(1), key(99)])))

    def test_uses_are_written_on_closing_too(self) -> None:
        store = self.store(self.path)
        self.fill(store, range(1))
        self.now += 20 * DAY
        store.find([key(0)])
        store.close()
        self.assertEqual(self.now, self.store(self.path).stats().oldest_use)

    def test_a_clock_that_jumped_back_expires_nothing(self) -> None:
        store = self.store(max_age_seconds=DAY)
        self.fill(store, range(20))
        self.now -= 100 * DAY
        self.assertEqual(0, store.prune())

    def test_pruning_happens_by_itself_and_not_on_the_recording_thread(self) -> None:
        threads: list[str] = []
        done = threading.Event()
        store = self.store(max_rows=5)
        prune = store.prune

        def watched() -> int:
            threads.append(threading.current_thread().name)
            forgotten = prune()
            done.set()
            return forgotten

        store.prune = watched  # type: ignore[method-assign]
        self.fill(store, range(reasoning_store._TURNS_BETWEEN_PRUNINGS))
        self.assertTrue(done.wait(10))
        self.assertNotIn(threading.current_thread().name, threads)
        self.assertEqual(5, store.stats().reasonings)


class TestFaults(StoreTestCase):
    def test_a_closed_store_knows_nothing_and_hurts_nobody(self) -> None:
        store = self.store()
        store.close()
        store.close()
        self.assertFalse(store.record([((key(1),), "why")]))
        self.assertEqual({}, store.find([key(1)]))

    def test_a_file_locked_by_another_process_costs_half_a_second_and_one_warning(self) -> None:
        store = self.store(self.path)
        store.record([((key(1),), "why")])
        locker = sqlite3.connect(self.path, isolation_level=None)
        self.addCleanup(locker.close)
        locker.execute("BEGIN EXCLUSIVE")
        with self.assertLogs(reasoning_store.__name__, logging.WARNING) as logged:
            self.assertFalse(store.record([((key(2),), "lost")]))
            self.assertFalse(store.record([((key(2),), "lost")]))
        self.assertEqual(1, len(logged.records))
        self.assertEqual({key(1): ["why"]}, store.find([key(1)]))
        locker.execute("ROLLBACK")
        self.assertTrue(store.record([((key(2),), "kept")]))

    def test_many_threads_record_and_look_up_at_once(self) -> None:
        store = self.store(self.path)
        problems: list[str] = []

        def work(start: int) -> None:
            for number in range(start, start + 50):
                store.record([((key(number),), str(number))])
                if store.find([key(number)]) != {key(number): [str(number)]}:
                    problems.append(str(number))

        threads = [threading.Thread(target=work, args=(start,)) for start in range(0, 400, 50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([], problems)
        self.assertEqual(400, store.stats().reasonings)
