import threading
import unittest

from deepseek_cursor_proxy.memo import MOST_ITEMS, Beginnings, Mapped, Memo, guessed_size, size_of


def memo(most_bytes: int = 100) -> "Memo[str, str]":
    return Memo(most_bytes, lambda key, value: len(key) + len(value))


class SizeTest(unittest.TestCase):
    def test_a_size_is_guessed_where_python_does_not_tell_it(self) -> None:
        """PyPy raises in sys.getsizeof(); a guess is no smaller than what CPython counts for text."""
        for character in "xü你😀":
            with self.subTest(character):
                text = character * 1000
                self.assertGreaterEqual(guessed_size(text), size_of(text))
        self.assertGreater(guessed_size(None), 0)


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

    def test_what_is_too_large_is_not_counted_to_its_end(self) -> None:
        counted: list[int] = []
        kept: Beginnings[int, str] = Beginnings(100, lambda item: counted.append(item) or 60)  # type: ignore[func-returns-value]
        kept.keep(range(1000), "large")
        self.assertEqual([0, 1], counted)

    def test_lists_longer_than_any_chat_are_left_alone(self) -> None:
        kept: Beginnings[int, str] = Beginnings(1_000_000, lambda item: 1)
        for count, known in ((MOST_ITEMS, MOST_ITEMS), (MOST_ITEMS + 1, 0)):
            items = tuple(range(count))
            kept.keep(items, "chat")
            self.assertEqual(known, kept.longest(items)[0])


class TestMapped(unittest.TestCase):
    def test_what_is_known_is_not_made_again(self) -> None:
        made: list[int] = []
        mapped: Mapped[int, str] = Mapped(10_000, lambda item: 1, len)

        def make(item: int) -> str:
            made.append(item)
            return str(item)

        items = [1000 + number for number in range(12)]
        first, second = mapped.of(items[:10], make), mapped.of(items, make)
        self.assertEqual(list(map(str, items)), second)
        self.assertEqual(items, made)
        self.assertEqual([True] * 10, [old is new for old, new in zip(first, second[:10], strict=True)])
        # Nobody who changes his list changes that of others.
        second.clear()
        self.assertEqual(12, len(mapped.of(items, make)))

    def test_what_is_made_counts(self) -> None:
        """A sealed reasoning is small, and what is in it may be large."""
        for made, expected in (("x", 20), ("x" * 100, 40)):
            calls: list[object] = []
            mapped: Mapped[object, str] = Mapped(1000, lambda item: 1, len)

            def make(item: object, made: str = made, calls: list[object] = calls) -> str:
                calls.append(item)
                return made

            items = [object() for _ in range(20)]
            mapped.of(items, make)
            mapped.of(items, make)
            self.assertEqual(expected, len(calls))

    def test_what_stays_as_it_is_does_not_count_twice(self) -> None:
        mapped: Mapped[str, str] = Mapped(1000, len, len)
        items = ["x" * 90] * 9
        mapped.of(items, lambda item: item)
        made: list[str] = []
        mapped.of(items, lambda item: made.append(item) or item)  # type: ignore[func-returns-value]
        self.assertEqual([], made)
