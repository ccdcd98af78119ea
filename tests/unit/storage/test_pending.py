import unittest

from deepseek_cursor_proxy.storage.pending import PendingReasoning, PendingReasonings


def entry(text: str, *keys: bytes, previous: str | None = None) -> PendingReasoning:
    return PendingReasoning(keys, text.encode(), previous=None if previous is None else previous.encode())


def link(known: bytes, new: bytes, text: str) -> PendingReasoning:
    return PendingReasoning((new,), text.encode(), known)


class TestBacklog(unittest.TestCase):
    def setUp(self) -> None:
        self.backlog = PendingReasonings(100_000)

    def test_what_waits_is_found_under_each_of_its_keys_newest_first(self) -> None:
        self.backlog.add([entry("one", b"a", b"b"), entry("two", b"b")])
        self.assertEqual({b"a": [b"one"], b"b": [b"two", b"one"]}, self.backlog.find([b"a", b"b", b"c"]))

    def test_a_turn_that_goes_on_thinking_stays_one(self) -> None:
        self.backlog.add([entry("first", b"a", b"b")])
        self.backlog.add([entry("first, and second", b"a", b"b", previous="first")])
        self.backlog.add([entry("first, and second", b"a", b"b")])
        self.assertEqual(1, len(self.backlog))
        self.assertEqual({b"b": [b"first, and second"]}, self.backlog.find([b"b"]))

    def test_two_answers_that_begin_alike_stay_two(self) -> None:
        self.backlog.add([entry("thought 1", b"a"), entry("thought 12", b"a")])
        self.assertEqual({b"a": [b"thought 12", b"thought 1"]}, self.backlog.find([b"a"]))

    def test_a_turn_that_said_nothing_is_not_the_beginning_of_every_other(self) -> None:
        self.backlog.add([entry("", b"a")])
        self.backlog.add([entry("thought", b"a")])
        self.assertEqual({b"a": [b"thought", b""]}, self.backlog.find([b"a"]))

    def test_a_link_waits_once_and_names_what_it_leads_to(self) -> None:
        for _ in range(3):
            self.backlog.add([link(b"known", b"new", "why")])
        self.assertEqual(1, len(self.backlog))
        self.assertEqual({b"new": [b"why"]}, self.backlog.find([b"known", b"new"]))

    def test_the_oldest_go_when_there_is_too_much(self) -> None:
        for number in range(50):
            self.backlog.add([entry("x" * 9_000 + str(number), b"%d" % number)])
        found = self.backlog.find([b"%d" % number for number in range(50)])
        self.assertEqual([b"%d" % number for number in range(40, 50)], list(found))
        self.assertLessEqual(self.backlog._bytes, 100_000)
        self.assertEqual(len(self.backlog), len(self.backlog._by_key))

    def test_one_that_is_larger_than_everything_is_not_kept(self) -> None:
        self.backlog.add([entry("x" * 200_000, b"a")])
        self.assertEqual((0, {}, 0), (len(self.backlog), self.backlog.find([b"a"]), self.backlog._bytes))

    def test_some_of_the_oldest_are_taken_until_they_are_many_bytes(self) -> None:
        self.backlog.add([entry("x" * 1000 + str(number), b"%d" % number) for number in range(10)])
        batch = self.backlog.oldest(5_000)
        self.assertEqual([b"0", b"1", b"2"], [each.keys[0] for each in batch.values()])
        self.assertEqual(1, len(self.backlog.oldest(1)))
        self.backlog.remove(batch)
        self.assertEqual(7, len(self.backlog))
        self.assertEqual({}, self.backlog.find([b"0", b"1", b"2"]))

    def test_one_that_grew_while_it_was_written_stays(self) -> None:
        self.backlog.add([entry("first", b"a")])
        batch = self.backlog.oldest(5_000)
        self.backlog.add([entry("first, and second", b"a", previous="first")])
        self.backlog.remove(batch)
        self.assertEqual({b"a": [b"first, and second"]}, self.backlog.find([b"a"]))

    def test_one_that_goes_on_with_further_calls_is_kept_once_under_all_keys(self) -> None:
        self.backlog.add([entry("why", b"a", b"b")])
        self.backlog.add([entry("why", b"c")._replace(extends=b"a")])
        self.assertEqual(1, len(self.backlog))
        self.assertEqual({b"a": [b"why"], b"b": [b"why"], b"c": [b"why"]}, self.backlog.find([b"a", b"b", b"c"]))
        self.backlog.add([entry("another", b"d")._replace(extends=b"a")])
        self.assertEqual(2, len(self.backlog))

    def test_nothing_is_left_after_clearing(self) -> None:
        self.backlog.add([entry("one", b"a", b"b"), link(b"a", b"c", "one")])
        self.backlog.clear()
        self.assertEqual((0, 0, {}), (len(self.backlog), self.backlog._bytes, self.backlog._by_key))
        self.assertEqual({}, self.backlog.oldest(5_000))
