import threading
import unittest

from deepseek_cursor_proxy.memo import Beginnings, Memo


def memo(most_bytes: int = 100) -> "Memo[str, str]":
    return Memo(most_bytes, lambda key, value: len(key) + len(value))


class TestMemo(unittest.TestCase):
    def test_what_was_kept_is_found_by_an_equal_key(self) -> None:
        kept = memo()
        kept.keep("key", "value")
        self.assertEqual("value", kept.get("".join(["k", "ey"])))
        self.assertIsNone(kept.get("other"))

    def test_it_never_holds_more_than_it_may(self) -> None:
        kept = memo(100)
        for number in range(1000):
            kept.keep(f"{number:05}", "12345")
        held = [number for number in range(1000) if f"{number:05}" in {**kept._old, **kept._young}]
        self.assertLessEqual(len(held) * 10, 100)
        self.assertEqual(list(range(1000 - len(held), 1000)), held)

    def test_what_is_asked_for_stays_when_the_rest_is_forgotten(self) -> None:
        kept = memo(100)
        kept.keep("often", "asked")
        for number in range(1000):
            kept.keep(f"{number:05}", "12345")
            self.assertEqual("asked", kept.get("often"))

    def test_one_that_is_too_large_pushes_nothing_out(self) -> None:
        kept = memo(100)
        kept.keep("small", "x")
        kept.keep("large", "x" * 100)
        self.assertIsNone(kept.get("large"))
        self.assertEqual("x", kept.get("small"))

    def test_threads_that_fill_it_at_once_find_nothing_wrong(self) -> None:
        kept = memo(200)
        wrong: list[str] = []

        def fill(start: int) -> None:
            for number in range(start, start + 3000):
                key = f"{number % 50:05}"
                if kept.get(key) not in (None, key * 2):
                    wrong.append(key)
                kept.keep(key, key * 2)

        threads = [threading.Thread(target=fill, args=(start,)) for start in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        self.assertEqual([], wrong)
        self.assertLessEqual(len(kept._young) + len(kept._old), 2 * 200 // 15)


class TestBeginnings(unittest.TestCase):
    def setUp(self) -> None:
        self.kept: Beginnings[object, str] = Beginnings(100, lambda item: 1)
        self.items = [object() for _ in range(20)]

    def test_a_list_goes_on_from_the_longest_that_is_known(self) -> None:
        for count in (9, 12, 10):
            self.kept.keep(self.items[:count], f"first {count}")
        self.assertEqual((12, "first 12"), self.kept.longest(self.items))
        self.assertEqual((10, "first 10"), self.kept.longest(self.items[:11]))
        self.assertEqual((0, None), self.kept.longest(self.items[1:]))

    def test_equal_items_are_not_the_same(self) -> None:
        known = [[number] for number in range(9)]
        kept: Beginnings[list[int], str] = Beginnings(100, len)
        kept.keep(known, "known")
        self.assertEqual((9, "known"), kept.longest(known))
        self.assertEqual((0, None), kept.longest([each.copy() for each in known]))

    def test_conditions_count(self) -> None:
        self.kept.keep(self.items, "one's", under="one")
        self.assertEqual((0, None), self.kept.longest(self.items, under="other"))
        self.assertEqual((20, "one's"), self.kept.longest(self.items, under="one"))

    def test_it_never_holds_more_than_it_may(self) -> None:
        lists = [[object() for _ in range(15)] for _ in range(30)]
        for each in lists:
            self.kept.keep(each, "some")
            self.kept.keep([*each, object()], "more")
            self.kept.keep([object() for _ in range(101)], "too many")
        self.assertEqual([16] * 6, [self.kept.longest(each.items)[0] for each in self.kept._recent])
