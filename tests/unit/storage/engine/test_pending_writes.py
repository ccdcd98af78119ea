import unittest

from deepseek_cursor_proxy.storage.engine.pending_writes import PendingReasoning, PendingReasonings


def entry(text: str, *keys: bytes, previous: str | None = None) -> PendingReasoning:
    return PendingReasoning(keys, text.encode(), previous=None if previous is None else previous.encode())


def alias(known: bytes, new: bytes, text: str) -> PendingReasoning:
    return PendingReasoning((new,), text.encode(), known)


class TestPendingReasonings(unittest.TestCase):
    def setUp(self) -> None:
        self.pending = PendingReasonings(100_000)

    def test_pending_reasonings_are_found_under_each_key_newest_first(self) -> None:
        self.pending.add([entry("one", b"a", b"b"), entry("two", b"b")])
        self.assertEqual({b"a": [b"one"], b"b": [b"two", b"one"]}, self.pending.find([b"a", b"b", b"c"]))

    def test_a_pending_turn_that_goes_on_thinking_stays_one_entry(self) -> None:
        self.pending.add([entry("first", b"a", b"b")])
        self.pending.add([entry("first, and second", b"a", b"b", previous="first")])
        self.pending.add([entry("first, and second", b"a", b"b")])
        self.assertEqual(1, len(self.pending))
        self.assertEqual({b"b": [b"first, and second"]}, self.pending.find([b"b"]))

    def test_two_pending_answers_that_begin_alike_stay_two_entries_even_if_one_is_empty(self) -> None:
        self.pending.add([entry("thought 1", b"a"), entry("thought 12", b"a"), entry("", b"b")])
        self.pending.add([entry("thought", b"b")])
        found = {b"a": [b"thought 12", b"thought 1"], b"b": [b"thought", b""]}
        self.assertEqual(found, self.pending.find([b"a", b"b"]))

    def test_a_pending_alias_is_kept_once_and_finds_its_reasoning(self) -> None:
        for _ in range(3):
            self.pending.add([alias(b"known", b"new", "why")])
        self.assertEqual(1, len(self.pending))
        self.assertEqual({b"new": [b"why"]}, self.pending.find([b"known", b"new"]))

    def test_the_oldest_pending_reasonings_go_when_there_are_too_many_bytes(self) -> None:
        for number in range(50):
            self.pending.add([entry("x" * 9_000 + str(number), b"%d" % number)])
        found = self.pending.find([b"%d" % number for number in range(50)])
        self.assertEqual([b"%d" % number for number in range(40, 50)], list(found))
        self.assertLessEqual(self.pending._bytes, 100_000)
        self.assertEqual(len(self.pending), len(self.pending._by_key))

    def test_a_reasoning_larger_than_the_limit_is_not_pending(self) -> None:
        self.pending.add([entry("x" * 200_000, b"a")])
        self.assertEqual((0, {}, 0), (len(self.pending), self.pending.find([b"a"]), self.pending._bytes))

    def test_a_batch_holds_the_oldest_pending_reasonings_up_to_its_bytes(self) -> None:
        self.pending.add([entry("x" * 1000 + str(number), b"%d" % number) for number in range(10)])
        batch = self.pending.oldest(5_000)
        self.assertEqual([b"0", b"1", b"2"], [each.keys[0] for each in batch.values()])
        self.assertEqual(1, len(self.pending.oldest(1)))
        self.pending.remove(batch)
        self.assertEqual(7, len(self.pending))
        self.assertEqual({}, self.pending.find([b"0", b"1", b"2"]))

    def test_a_pending_reasoning_that_grew_while_it_was_written_stays(self) -> None:
        self.pending.add([entry("first", b"a")])
        batch = self.pending.oldest(5_000)
        self.pending.add([entry("first, and second", b"a", previous="first")])
        self.pending.remove(batch)
        self.assertEqual({b"a": [b"first, and second"]}, self.pending.find([b"a"]))

    def test_a_pending_answer_with_further_calls_is_one_entry_under_all_keys(self) -> None:
        self.pending.add([entry("why", b"a", b"b")])
        self.pending.add([entry("why", b"c")._replace(extends=b"a")])
        self.assertEqual(1, len(self.pending))
        self.assertEqual({b"a": [b"why"], b"b": [b"why"], b"c": [b"why"]}, self.pending.find([b"a", b"b", b"c"]))
        self.pending.add([entry("another", b"d")._replace(extends=b"a")])
        self.assertEqual(2, len(self.pending))

    def test_no_pending_reasoning_is_left_after_clear(self) -> None:
        self.pending.add([entry("one", b"a", b"b"), alias(b"a", b"c", "one")])
        self.pending.clear()
        self.assertEqual((0, 0, {}), (len(self.pending), self.pending._bytes, self.pending._by_key))
        self.assertEqual({}, self.pending.oldest(5_000))
