import random
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.features.redis.scripts import FIND_REASONINGS
from deepseek_cursor_proxy.features.redis.state import prefix
from deepseek_cursor_proxy.storage.reasonings import ReasoningEntry
from tests.support.polling import wait_until
from tests.support.shared_engine import EngineTestCase, key
from tests.support.width import width

DAY = 24 * 3600


def generated_entry(rng: random.Random, keys: int, texts: int) -> ReasoningEntry:
    own = tuple(key(rng.randrange(keys)) for _ in range(rng.randint(1, 3)))
    return ReasoningEntry(own, b"%d" % rng.randrange(texts))


class TestSharedReasonings(EngineTestCase):
    def test_engine_and_file_return_the_same_after_any_sequence_of_entries(self) -> None:
        one = self.instance()
        for seed in range(width(3, 100)):
            rng, caller = random.Random(seed), key(seed)[::-1]
            keys, texts = rng.choice((3, 8, 20)), rng.choice((2, 4, 30))
            every = [key(number) for number in range(keys)]
            one.reasonings.clear()
            for _ in range(40):
                entries = [generated_entry(rng, keys, texts) for _ in range(rng.randint(1, 3))]
                one.reasonings._waiting.write(entries)
                self.assertTrue(one.shared.record(caller, entries))
                in_file, on_engine = one.reasonings._read(every), one.shared.find(caller, every)
                self.assertEqual(*(_by_key(rows) for rows in (in_file, on_engine)), seed)

    def test_what_one_instance_records_another_finds_oldest_first(self) -> None:
        one, two = self.instance("one"), self.instance("two")
        self.assertTrue(one.record("first", 1, 2))
        two.record("second", 1)
        self.wait_until_shared()
        for each in (one, self.instance("three")):
            self.assertEqual({1: ["first", "second"], 2: ["first"]}, each.find(1, 2, 3))
        # What is in the file of this proxy comes before what the engine has.
        self.assertEqual({1: ["second", "first"], 2: ["first"]}, two.find(1, 2, 3))

    def test_the_file_gets_a_moment_later_what_the_engine_has(self) -> None:
        one = self.instance()
        with mock.patch.object(one.reasonings._waiting, "write", side_effect=AssertionError("waited for the file")):
            self.assertTrue(one.record("thought", 1))
        self.engine.stop()
        self.assertEqual({1: ["thought"]}, one.find(1))
        wait_until(lambda: one.reasonings._read([key(1)]))
        # What the engine has not got is in the file at once.
        one.record("alone", 2)
        self.assertEqual(1, len(one.reasonings._read([key(2)])))

    def test_a_long_chat_is_looked_up_in_parts_that_the_engine_answers_in_time(self) -> None:
        one, two = self.instance("one"), self.instance("two")
        numbers = range(1, 450)
        one.reasonings.record([([key(number)], f"text {number}") for number in numbers], caller=b"c" * 32)
        self.assertEqual({number: [f"text {number}"] for number in numbers}, two.find(*numbers))
        longest = max(len(words) for words in self.engine.commands if words[1:2] == (FIND_REASONINGS.sha,))
        self.assertLess(longest, 220)

    def test_no_text_is_on_the_engine_in_clear(self) -> None:
        one = self.instance()
        one.record("a most secret thought", 1)
        sent = b"".join(word for command in self.engine.commands for word in command)
        self.assertNotIn(b"secret thought", sent)
        self.assertGreater(len(sent), 100)

    def test_a_reasoning_expires_after_its_last_use(self) -> None:
        one = self.instance()
        one.record("any", 3)
        self.assert_every_row_expires()
        for number, text in ((1, "used"), (2, "unused")):
            one.record(text, number)
        for _ in range(3):
            self.engine.advance(20 * DAY)
            one.shared.find(b"c" * 32, [key(1)])
        self.assertEqual([(key(1), b"used")], one.shared.find(b"c" * 32, [key(1), key(2)]))
        self.engine.advance(31 * DAY)
        self.assertEqual([], one.shared.find(b"c" * 32, [key(1)]))

    def rows(self, pattern: bytes) -> list[bytes]:
        return list(self.engine.run(b"SCAN", b"0", b"MATCH", b"dcp:*}:" + pattern, b"COUNT", b"1000")[1])

    def test_a_damaged_text_is_not_found(self) -> None:
        one, two = self.instance("one"), self.instance("two")
        one.record("why", 1)
        [row] = self.rows(b"r*")
        for damaged in (b"x" * 40, b"x", b""):
            self.engine.run(b"SET", row, damaged)
            self.assertEqual({}, two.find(1))

    def test_texts_that_changed_places_are_not_found(self) -> None:
        one, two = self.instance("one"), self.instance("two")
        one.record("first", 1)
        one.record("second", 2)
        rows = self.rows(b"r*")
        texts = [self.engine.run(b"GET", row) for row in rows]
        for row, text in zip(rows, reversed(texts), strict=True):
            self.engine.run(b"SET", row, text)
        self.assertEqual({}, two.find(1, 2))
        # The proxy that has them in its file uses and repairs them.
        self.assertEqual({1: ["first"], 2: ["second"]}, one.find(1, 2))
        self.assertEqual({1: ["first"], 2: ["second"]}, two.find(1, 2))

    def test_keys_that_changed_places_are_not_found(self) -> None:
        one, two = self.instance("one"), self.instance("two")
        one.record("first", 1)
        one.record("second", 2)
        rows = self.rows(b"k*")
        links = [self.engine.run(b"ZRANGE", row, b"0", b"-1") for row in rows]
        for row, [link] in zip(rows, reversed(links), strict=True):
            self.engine.run(b"DEL", row)
            # A link that was cut, or joined from two, is none either.
            for number, forged in enumerate((link, link[:16], link[:31], link + b"x")):
                self.engine.run(b"ZADD", row, b"%d" % number, forged)
        self.assertEqual({}, two.find(1, 2))
        self.assertEqual({1: ["first"], 2: ["second"]}, one.find(1, 2))

    def test_rows_copied_to_another_caller_are_not_found(self) -> None:
        one, two = self.instance("one"), self.instance("two")
        one.record("mine", 1, caller=b"a" * 32)
        [text], [links] = self.rows(b"r*"), self.rows(b"k*")
        other = prefix(b"b" * 32)
        self.engine.run(b"SET", other + text.partition(b"}:")[2], self.engine.run(b"GET", text))
        [link] = self.engine.run(b"ZRANGE", links, b"0", b"-1")
        self.engine.run(b"ZADD", other + links.partition(b"}:")[2], b"0", link)
        self.assertEqual({}, two.find(1, caller=b"b" * 32))

    def test_a_reply_of_another_shape_finds_nothing(self) -> None:
        one = self.instance()
        one.record("known", 1)
        [[at, link, text]] = [one.state.read(FIND_REASONINGS, prefix(b"c" * 32), [b"1000", key(1)])]  # type: ignore[misc]
        replies: list[object] = [
            *(None, 1, b"text", [], [at], [at, link], [1, link, text], [-1, link, text], [b"0", link, text]),
            *([at, None, text], [at, link, b""], [at, link, None], [at, b"", text], [[at, link, text]], ["OK"] * 3),
        ]
        for reply in replies:
            with self.subTest(reply), mock.patch.object(one.state, "read", return_value=reply):
                self.assertEqual([], one.shared.find(b"c" * 32, [key(1)]) or [])
                self.assertEqual({1: ["known"]}, one.find(1))

    def test_an_engine_that_lost_everything_gets_the_texts_of_each_key_in_their_order(self) -> None:
        one, two = self.instance("one"), self.instance("two")
        for text, numbers in (("a", (1, 2)), ("b", (1, 3, 4)), ("c", (2, 3, 1)), ("d", (4, 3))):
            one.record(text, *numbers)
        before = one.find(1, 2, 3, 4)
        self.engine.run(b"FLUSHALL")
        one.find(1, 2, 3, 4)
        self.assertEqual(before, two.find(1, 2, 3, 4))
        self.assertEqual({1: ["a", "b", "c"], 2: ["a", "c"], 3: ["b", "c", "d"], 4: ["b", "d"]}, before)

    def test_what_was_found_once_is_found_without_the_engine(self) -> None:
        one, two = self.instance("one"), self.instance("two")
        one.record("made by one", 1)
        # A turn with calls and without reasoning, which is a fact like any other.
        one.record("", 2)
        two.find(1, 2)
        self.engine.stop()
        self.assertEqual({1: ["made by one"], 2: [""]}, two.find(1, 2))


def _by_key(rows: list[tuple[Any, ...]]) -> dict[bytes, list[bytes]]:
    return {key: [text for other, text, *_ in rows if other == key] for key, *_ in rows}
