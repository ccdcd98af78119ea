"""The order of tools as a pure function."""

import random
import unittest
from collections.abc import Sequence

from deepseek_cursor_proxy.reasoning.chats.divergence import tool_name
from deepseek_cursor_proxy.reasoning.chats.tracker import Tools, order_tools


def tools(*given: str) -> Tools:
    return tuple({"type": "function", "function": {"name": name, "description": f"does {name}"}} for name in given)


def ordered_names(given: Tools, last_sent: Sequence[str] | None, mode: str = "sticky") -> tuple[str, ...]:
    return tuple(map(tool_name, order_tools(given, last_sent, mode)))


class TestOrder(unittest.TestCase):
    def assert_order(self, expected: str, given: str, last_sent: Sequence[str] | None, mode: str = "sticky") -> None:
        self.assertEqual(tuple(expected), ordered_names(tools(*given), last_sent, mode))

    def test_the_table(self) -> None:
        for expected, given, last_sent, mode, why in (
            ("abc", "cab", None, "sticky", "first sight: by name"),
            ("abc", "cab", "", "sticky", "nothing was sent yet"),
            ("cab", "abc", "cab", "sticky", "the order last sent"),
            ("cabde", "edcba", "cab", "sticky", "new ones behind it, by name"),
            ("cb", "bc", "cab", "sticky", "a removed one leaves no gap"),
            ("cad", "adc", "cab", "sticky", "removed and added at once"),
            ("de", "ed", "abc", "sticky", "nothing in common"),
            ("BaZ", "aZB", "BaZ", "sticky", "capitals are letters of their own"),
            ("abc", "cab", "cab", "sorted", "never what was sent"),
            ("cab", "cab", "abc", "client", "as they came"),
            ("z", "z", "ab", "sticky", "one tool"),
            ("", "", "ab", "sticky", "no tool"),
            ("bab", "bab", "ab", "sticky", "one name twice: as they came"),
            ("bab", "bab", "ab", "sorted", "one name twice: as they came"),
        ):
            with self.subTest(why):
                self.assert_order(expected, given, last_sent, mode)

    def test_a_tool_is_moved_and_never_changed(self) -> None:
        given = tools("b", "a")
        self.assertEqual((given[1], given[0]), order_tools(given, None, "sticky"))

    def test_the_same_tools_in_any_order_are_the_same_bytes(self) -> None:
        """The law, over generated chats whose sets of tools change now and then."""
        for seed in range(200):
            rng = random.Random(seed)
            known = [f"tool_{number}" for number in range(12)]
            here = set(rng.sample(known, rng.randrange(2, 8)))
            sent: tuple[str, ...] | None = None
            for _ in range(10):
                shuffled = [tools(*rng.sample(sorted(here), len(here))) for _ in range(3)]
                orders = {ordered_names(each, sent) for each in shuffled}
                with self.subTest(seed=seed, here=here, sent=sent):
                    self.assertEqual(1, len(orders))
                    (now,) = orders
                    self.assertEqual(here, set(now))
                    kept = [name for name in sent or () if name in here]
                    self.assertEqual(kept, list(now[: len(kept)]))
                    self.assertEqual(sorted(now[len(kept) :]), list(now[len(kept) :]))
                sent = now
                if rng.random() < 0.4:
                    here = (here | {rng.choice(known)}) - {rng.choice(known)} or here
