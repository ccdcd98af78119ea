import logging
import sqlite3
import threading
from collections.abc import Collection, Sequence
from unittest import mock

from deepseek_cursor_proxy.storage import write_behind
from deepseek_cursor_proxy.storage.faults import FaultGuard, Refused, Unusable
from deepseek_cursor_proxy.storage.write_behind import WriteBehind
from tests.support.databases import DatabaseTestCase
from tests.support.polling import PATIENCE, wait_until
from tests.support.threads import in_background

_log = logging.getLogger(__name__)


class Words(WriteBehind[str]):
    """Words under their first letter, each as large as it is long."""

    bound = 20
    batch = 10

    def size(self, entry: str) -> int:
        return len(entry)

    def keys(self, entry: str) -> Collection[str]:
        return [entry[0]]

    def merge(self, new: str, old: str) -> str:
        return f"{old}-{new}"


class TestWriteBehind(DatabaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.written: list[list[str]] = []
        self.refused: set[str] = set()
        self.words = self.on_database(Words)

    def on_database(self, kind: type[Words]) -> Words:
        return kind(self.database, self.write, FaultGuard(_log, "words"))

    def write(self, connection: sqlite3.Connection, words: Sequence[str]) -> None:
        if self.refused & {*words}:
            raise ValueError("no such word")
        self.written.append(list(words))

    def test_entries_are_found_oldest_first_until_they_are_written(self) -> None:
        self.words.replaces = False
        self.words.add(["ant", "bee", "ape"])
        self.assertEqual({"a": ["ant", "ape"]}, self.words.find(["a", "x"]))
        self.words.flush()
        self.assertEqual(([["ant", "bee", "ape"]], 0, {}), (self.written, len(self.words), self.words.find(["a"])))

    def test_an_entry_that_is_merged_replaces_the_old_one(self) -> None:
        self.words.add(["a", "b"])
        self.words.add(["ab"])
        self.assertEqual(["b", "a-ab"], self.words.entries())

    def test_entries_are_written_oldest_first_in_small_transactions(self) -> None:
        self.words.add(["aaaa", "bbbb", "cccc", "dddd"])
        self.words.flush()
        self.assertEqual([["aaaa", "bbbb"], ["cccc", "dddd"]], self.written)

    def test_the_oldest_are_lost_beyond_the_bound_and_counted(self) -> None:
        self.words.add(["a" * 9, "b" * 9, "c" * 9])
        self.assertEqual([9 * "b", 9 * "c"], self.words.entries())
        self.words.add(["d" * 100])
        self.assertEqual(([], 4, 0), (self.words.entries(), self.words.take_lost(), self.words.take_lost()))

    def test_an_entry_that_is_refused_stops_no_other(self) -> None:
        self.refused = {"bee"}
        for keeps, left, lost in ((True, ["bee"], 0), (False, [], 1)):
            with self.subTest(keeps=keeps), mock.patch.object(Words, "keeps_refused", keeps):
                self.written, words = [], self.on_database(Words)
                words.add(["ant", "bee", "cat"])
                with self.assertLogs(_log, logging.WARNING):
                    words.flush()
                self.assertEqual([["ant"], ["cat"]], self.written)
                self.assertEqual((left, lost), (words.entries(), words.take_lost()))

    def test_a_fault_of_the_file_loses_nothing_and_all_is_written_when_it_reopens(self) -> None:
        self.words.add(["ant"])
        locker = self.lock()
        with self.assertRaises(Unusable):
            self.words.flush(despite_fault=False)
        self.words.add(["bee"])
        with self.assertRaises(Unusable):
            self.database.reopen()
        self.assertEqual(["ant", "bee"], self.words.entries())
        locker.execute("ROLLBACK")
        self.database.reopen()
        self.assertEqual(([["ant", "bee"]], []), (self.written, self.words.entries()))

    def test_what_waits_is_not_looked_through_while_the_file_has_a_fault(self) -> None:
        """It is when the file reopens: a long outage would make every turn slower than the one before."""
        self.lock()
        self.assertFalse(self.words.write(["ant"]))
        with mock.patch.object(Words, "batches") as batches, self.assertRaises(Unusable):
            self.words.flush(despite_fault=False)
        batches.assert_not_called()

    def test_an_entry_that_comes_while_others_are_written_waits_for_the_next_flush(self) -> None:
        """Else a busy proxy would write all the time, each entry in a transaction of its own."""

        def meanwhile(connection: sqlite3.Connection, words: Sequence[str]) -> None:
            self.write(connection, words)
            self.words.discard("b")
            self.words.add(["ape", "cat"])

        self.words.add(["ant", "bee"])
        with mock.patch.object(self.words, "_write", meanwhile):
            self.assertEqual(0, self.words.flush())
        self.assertEqual(([["ant", "bee"]], ["ant-ape", "cat"]), (self.written, self.words.entries()))
        self.words.flush()
        self.assertEqual(["ant-ape", "cat"], self.written[-1])

    def test_a_newer_value_is_not_replaced_by_an_entry_that_is_flushed_meanwhile(self) -> None:
        self.words.add(["ant"])
        with self.database.transaction():
            threads = [in_background(self, self.words.write, ["ape"]), in_background(self, self.words.flush)]
            threads[1].join(0.05)
            self.assertEqual({"a": ["ant"]}, self.words.find(["a"]), "until the newer one is in the file")
        for thread in threads:
            thread.join()
        self.assertEqual(("ape", []), ([word for some in self.written for word in some][-1], self.words.entries()))

    def test_an_entry_stays_if_the_newer_value_cannot_be_written(self) -> None:
        self.words.add(["ant"])
        self.lock()
        self.assertFalse(self.words.write(["ape"]))
        self.assertEqual(["ant-ape"], self.words.entries())

    def write_at_once(self, words: Sequence[str]) -> dict[str, bool]:
        """All of them wait before the first one may write."""
        results: dict[str, bool] = {}
        with self.words._writing:
            threads = [
                in_background(self, lambda word: results.update({word: self.words.write([word])}), word)
                for word in words
            ]
            wait_until(lambda: len(self.words._writes) == len(words))
        for thread in threads:
            thread.join()
        return results

    def test_writes_that_wait_share_a_transaction_and_too_many_are_split(self) -> None:
        most = write_behind._MOST_WRITES_AT_ONCE
        words = [chr(0x4E00 + number) for number in range(2 * most + 5)]
        self.assertEqual(dict.fromkeys(words, True), self.write_at_once(words))
        self.assertEqual([most, most, 5], [len(some) for some in self.written])
        self.assertEqual(sorted(words), sorted(word for some in self.written for word in some))

    def test_what_is_written_later_shares_a_thread_and_a_transaction_with_other_tables(self) -> None:
        others, go_on, thread = self.on_database(Words), threading.Event(), self.database.background
        thread.run(lambda: go_on.wait(PATIENCE) and None)
        with (
            mock.patch.object(Words, "seconds_between_batches", 0.0),
            mock.patch.object(self.database, "transaction", wraps=self.database.transaction) as transaction,
        ):
            before = threading.active_count()
            self.words.write_later(["ant"])
            others.write_later(["cat"])
            self.words.write_later(["bee"])
            self.assertEqual(before, threading.active_count())
            go_on.set()
            self.assertTrue(thread.wait(PATIENCE))
        self.assertEqual([["ant", "bee"], ["cat"]], self.written)
        self.assertEqual(1, transaction.call_count)

    def test_what_is_urgent_takes_along_what_is_not(self) -> None:
        others = self.on_database(Words)
        others.seconds_between_batches, self.words.seconds_between_batches = 3600.0, 0.0
        others.write_later(["cat"])
        self.words.write_later(["ant"])
        wait_until(lambda: not others.entries() and not self.words.entries())

    def insert(self, connection: sqlite3.Connection, words: Sequence[str]) -> Sequence[str]:
        connection.executemany("INSERT INTO words VALUES (?)", [(word,) for word in words])
        return self.write(connection, words)

    def tables(self, *words: Sequence[str]) -> list[Words]:
        """Tables in one file, with entries that wait."""
        self.execute("CREATE TABLE IF NOT EXISTS words (word)")
        tables = [Words(self.database, self.insert, FaultGuard(_log, "words")) for _ in words]
        for table, some in zip(tables, words, strict=True):
            table.add(some)
        return tables

    def in_file(self) -> list[str]:
        return sorted(word for (word,) in self.select("SELECT word FROM words"))

    def test_a_table_that_refuses_an_entry_neither_loses_nor_doubles_those_of_others(self) -> None:
        self.refused = {"bee"}
        tables = self.tables(["cat"], ["ant", "bee"], ["dog"])
        with self.assertLogs(_log, logging.WARNING):
            self.assertEqual(1, self.database.flusher.flush(tables, despite_fault=False))
        self.assertEqual(["ant", "cat", "dog"], self.in_file())
        self.assertEqual([[], ["bee"], []], [table.entries() for table in tables])

    def test_a_transaction_that_cannot_begin_loses_nothing(self) -> None:
        for tables in (self.tables(["cat"]), self.tables(["cat", "dog"], ["ant"])):
            waiting = [table.entries() for table in tables]
            refusing = mock.patch.object(self.database, "transaction", side_effect=Refused("no"))
            with refusing, self.assertLogs(_log, logging.WARNING):
                self.assertEqual(sum(map(len, waiting)), self.database.flusher.flush(tables, despite_fault=False))
            self.assertEqual(waiting, [table.entries() for table in tables])

    def test_a_fault_in_a_common_transaction_loses_nothing_of_any_table(self) -> None:
        tables = self.tables(["cat"], ["ant"])
        with mock.patch.object(tables[1], "_write", side_effect=Unusable("the disk is full")):
            self.database.flusher.flush_all()
        self.assertEqual(([], [["cat"], ["ant"]]), (self.in_file(), [table.entries() for table in tables]))
        self.assertIsNotNone(self.database.fault)
        self.assertTrue(self.database.reopen())
        self.assertEqual((["ant", "cat"], 2), (self.in_file(), self.database.written_late))
        self.assertEqual([[], []], [table.entries() for table in tables])

    def test_what_is_added_during_a_fault_has_the_file_opened_again(self) -> None:
        """Even if a try to open it has just ended that did not write this entry."""
        self.lock()
        self.assertFalse(self.words.write(["ant"]))
        self.words.seconds_between_batches = 0.0
        with mock.patch.object(self.database, "request_reopen") as request_reopen:
            self.words.write_later(["bee"])
            self.assertTrue(self.database.background.wait(PATIENCE))
        request_reopen.assert_called_once_with()

    def test_what_is_closed_while_it_is_flushed_is_written_once(self) -> None:
        begun, go_on = threading.Event(), threading.Event()
        [table] = self.tables(["ant"])

        def forget_late(batch: dict[int, str], lost: int = 0) -> None:
            begun.set()
            go_on.wait(PATIENCE)
            forget(batch, lost)

        forget = table._forget
        with mock.patch.object(table, "_forget", forget_late):
            self.database.background.run(self.database.flusher.flush_all)
            begun.wait(PATIENCE)
            closing = in_background(self, table.close)
            closing.join(0.05)
            self.assertTrue(closing.is_alive(), "until the flush has ended")
            go_on.set()
            closing.join()
        self.assertEqual(["ant"], self.in_file())

    def test_two_processes_on_one_file_lose_nothing(self) -> None:
        tables = self.tables([])
        self.database = self.open()
        tables += self.tables([])
        with mock.patch.object(Words, "seconds_between_batches", 0.001), mock.patch.object(Words, "bound", 10_000):
            for number in range(200):
                tables[number % 2].write_later([f"{chr(0x4E00 + number)}"])
            wait_until(lambda: not any(table.entries() for table in tables))
        self.assertEqual(200, len(set(self.in_file())))

    def test_no_entry_is_left_after_clear(self) -> None:
        self.words.add(["ant", "bee"])
        self.assertEqual(2, self.words.clear())
        self.assertEqual((0, 0, {}), (len(self.words), self.words._size, self.words._by_key))
