import logging
import sqlite3
from collections.abc import Collection, Sequence
from unittest import mock

from deepseek_cursor_proxy.storage.faults import FaultGuard, Unusable
from deepseek_cursor_proxy.storage.sqlite.reasoning_rows import PendingReasoning, PendingReasonings
from deepseek_cursor_proxy.storage.write_behind import WriteBehind
from tests.support.databases import DatabaseTestCase
from tests.support.threads import in_background, run_at_once

_log = logging.getLogger(__name__)


class Words(WriteBehind[str]):
    """Words under their first letter, each as large as it is long."""

    def size(self, entry: str) -> int:
        return len(entry)

    def keys(self, entry: str) -> Collection[str]:
        return [entry[0]]

    def merge(self, new: str, old: str) -> str | None:
        return new if new.startswith(old) else None


class TestWriteBehind(DatabaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.written: list[list[str]] = []
        self.refused: set[str] = set()
        self.words = self.on_database(Words)

    def on_database(self, kind: type[Words]) -> Words:
        return kind(self.database, self.write, FaultGuard(_log, "words"), bound=20, batch=10)

    def write(self, connection: sqlite3.Connection, words: Sequence[str]) -> None:
        if self.refused & {*words}:
            raise ValueError("no such word")
        self.written.append(list(words))

    def test_entries_are_found_newest_first_until_they_are_written(self) -> None:
        self.words.add(["ant", "bee", "ape"])
        self.assertEqual({"a": ["ape", "ant"]}, self.words.find(["a", "x"]))
        self.words.flush()
        self.assertEqual(([["ant", "bee", "ape"]], 0, {}), (self.written, len(self.words), self.words.find(["a"])))

    def test_an_entry_that_is_merged_replaces_the_old_one(self) -> None:
        self.words.add(["a", "b"])
        self.words.add(["ab"])
        self.assertEqual(["b", "ab"], self.words.entries())

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
            self.words.flush(is_retry=False)
        self.words.add(["bee"])
        with self.assertRaises(Unusable):
            self.database.reopen()
        self.assertEqual(["ant", "bee"], self.words.entries())
        locker.execute("ROLLBACK")
        self.database.reopen()
        self.assertEqual(([["ant", "bee"]], []), (self.written, self.words.entries()))

    def test_an_entry_that_was_discarded_or_merged_while_it_was_written_is_not_lost(self) -> None:
        def meanwhile(connection: sqlite3.Connection, words: Sequence[str]) -> None:
            self.write(connection, words)
            self.words.discard("b")
            if len(self.written) == 1:
                self.words.add(["ant hill"])

        self.words.add(["ant", "bee"])
        with mock.patch.object(self.words, "_write", meanwhile):
            self.words.flush()
        self.assertEqual([["ant", "bee"], ["ant hill"]], self.written)

    def test_a_newer_value_is_not_replaced_by_an_entry_that_is_flushed_meanwhile(self) -> None:
        self.words.add(["ant"])
        with self.words.replaced("a"), self.database.transaction():
            thread = in_background(self, self.words.flush)
            thread.join(0.05)
            self.written.append(["newer"])
            self.assertEqual({"a": ["ant"]}, self.words.find(["a"]), "until the newer one is in the file")
        thread.join()
        self.assertEqual(([["newer"]], []), (self.written, self.words.entries()))

    def test_an_entry_stays_if_the_newer_value_cannot_be_written(self) -> None:
        self.words.add(["ant"])
        with self.assertRaises(Unusable), self.words.replaced("a"):
            raise Unusable("locked")
        self.assertEqual(["ant"], self.words.entries())

    def test_flushes_at_once_write_every_entry_once(self) -> None:
        words = self.on_database(Words)
        words.bound = 10_000
        letters = [chr(0x4E00 + number) for number in range(200)]
        run_at_once(lambda letter: (words.add([letter]), words.flush()), letters)
        self.assertEqual(sorted(letters), sorted(word for some in self.written for word in some))

    def test_no_entry_is_left_after_clear(self) -> None:
        self.words.add(["ant", "ape"])
        self.assertEqual(2, self.words.clear())
        self.assertEqual((0, 0, {}), (len(self.words), self.words._size, self.words._by_key))


def entry(text: str, *keys: bytes, previous: str | None = None) -> PendingReasoning:
    return PendingReasoning(keys, text.encode(), previous=None if previous is None else previous.encode())


def alias(known: bytes, new: bytes, text: str) -> PendingReasoning:
    return PendingReasoning((new,), text.encode(), known)


class TestPendingReasonings(DatabaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.pending = PendingReasonings(
            self.database, mock.Mock(), FaultGuard(_log, "reasonings"), bound=100_000, batch=5_000
        )

    def find(self, *keys: bytes) -> dict[bytes, list[bytes]]:
        return {key: [each.text for each in entries] for key, entries in self.pending.find(keys).items()}

    def test_pending_reasonings_are_found_under_each_key_newest_first(self) -> None:
        self.pending.add([entry("one", b"a", b"b"), entry("two", b"b")])
        self.assertEqual({b"a": [b"one"], b"b": [b"two", b"one"]}, self.find(b"a", b"b", b"c"))

    def test_a_pending_turn_that_goes_on_thinking_stays_one_entry(self) -> None:
        self.pending.add([entry("first", b"a", b"b")])
        self.pending.add([entry("first, and second", b"a", b"b", previous="first")])
        self.pending.add([entry("first, and second", b"a", b"b")])
        self.assertEqual(1, len(self.pending))
        self.assertEqual({b"b": [b"first, and second"]}, self.find(b"b"))

    def test_two_pending_answers_that_begin_alike_stay_two_entries_even_if_one_is_empty(self) -> None:
        self.pending.add([entry("thought 1", b"a"), entry("thought 12", b"a"), entry("", b"b")])
        self.pending.add([entry("thought", b"b")])
        found = {b"a": [b"thought 12", b"thought 1"], b"b": [b"thought", b""]}
        self.assertEqual(found, self.find(b"a", b"b"))

    def test_a_pending_alias_is_kept_once_and_finds_its_reasoning(self) -> None:
        for _ in range(3):
            self.pending.add([alias(b"known", b"new", "why")])
        self.assertEqual(1, len(self.pending))
        self.assertEqual({b"new": [b"why"]}, self.find(b"known", b"new"))

    def test_a_pending_answer_with_further_calls_is_one_entry_under_all_keys(self) -> None:
        self.pending.add([entry("why", b"a", b"b")])
        self.pending.add([entry("why", b"c")._replace(extends=b"a")])
        self.assertEqual(1, len(self.pending))
        self.assertEqual({b"a": [b"why"], b"b": [b"why"], b"c": [b"why"]}, self.find(b"a", b"b", b"c"))
        self.pending.add([entry("another", b"d")._replace(extends=b"a")])
        self.assertEqual(2, len(self.pending))
