import threading
import unittest
from collections.abc import Sequence

from deepseek_cursor_proxy.storage.sqlite import group_commit
from deepseek_cursor_proxy.storage.sqlite.group_commit import GroupCommit


class TestGroupCommit(unittest.TestCase):
    def setUp(self) -> None:
        self.batches: list[list[int]] = []
        self.group_commit = GroupCommit(self.write)

    def write(self, some: Sequence[int]) -> bool:
        self.batches.append(list(some))
        return 7 not in some

    def at_once(self, count: int) -> dict[int, bool]:
        results: dict[int, bool] = {}
        threads = [
            threading.Thread(target=lambda number=number: results.update({number: self.group_commit.write([number])}))
            for number in range(count)
        ]
        with self.group_commit._lock:
            for thread in threads:
                thread.start()
            while len(self.group_commit._queue) < count:
                threading.Event().wait(0.001)
        for thread in threads:
            thread.join()
        return results

    def test_a_single_write_is_written_alone(self) -> None:
        self.assertTrue(self.group_commit.write([1, 2]))
        self.assertEqual([[1, 2]], self.batches)

    def test_waiting_writes_share_a_transaction_and_its_result(self) -> None:
        self.assertEqual(dict.fromkeys(range(20), False), self.at_once(20))
        self.assertEqual([list(range(20))], [sorted(batch) for batch in self.batches])

    def test_too_many_waiting_writes_are_split_and_each_written_once(self) -> None:
        most = group_commit._MOST_WRITES_AT_ONCE
        results = self.at_once(2 * most + 5)
        self.assertEqual([most, most, 5], [len(batch) for batch in self.batches])
        self.assertEqual(list(range(2 * most + 5)), sorted(number for batch in self.batches for number in batch))
        failed = next(batch for batch in self.batches if 7 in batch)
        self.assertEqual(set(failed), {number for number, is_written in results.items() if not is_written})
