import random
import re
import unittest

from deepseek_cursor_proxy.protocols.request.tool_namespaces import (
    QualifiedName,
    describe,
    upstream_name,
    upstream_names,
)

LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# What names are made of by somebody who means it badly: separators, other scripts, halves of characters, length.
PIECES = ("a", "b", "_", "__", "-", ".", " ", "/", "é", "工具", "😀", "\ud800", "\x00", "\n", '"', "x" * 30, "y" * 200)


def generated(seed: int, size: int) -> list[QualifiedName]:
    rng = random.Random(seed)
    found: dict[QualifiedName, None] = {}
    while len(found) < size:
        namespace, name = ("".join(rng.choices(PIECES, k=rng.randint(1, 6))) for _ in range(2))
        found[namespace, name] = None
    return list(found)


class TestOneName(unittest.TestCase):
    def test_what_fits_is_both_names(self) -> None:
        for namespace, name in (
            ("multi_agent_v1", "spawn_agent"),
            ("mcp__files", "read"),
            ("a-b_", "_c"),
            ("n" * 30, "t" * 32),
        ):
            self.assertEqual(f"{namespace}__{name}", upstream_name((namespace, name)))

    def test_what_does_not_fit_is_shortened_and_the_same_in_every_release(self) -> None:
        """It stands in chats that go on: another hash would cost them their reasoning and their cache."""
        for inner, name in (
            (("clock.v1", "now"), "clock_v1__now_d18367a464"),
            (("n" * 30, "t" * 33), "n" * 20 + "__" + "t" * 31 + "_3310cfcdd8"),
            (("a", "b\n"), "a__b__37ede0c996"),
            (("工具", "读"), "______7e707bfb9f"),
            (("\ud800", "x" * 200), "___" + "x" * 31 + "_ac8c67bc3e"),
        ):
            with self.subTest(inner):
                self.assertEqual(name, upstream_name(inner))

    def test_every_name_is_one_deepseek_takes(self) -> None:
        for inner in generated(1, 1000):
            self.assertRegex(upstream_name(inner), rf"\A{LEGAL.pattern}\Z")


class TestManyNames(unittest.TestCase):
    def test_every_name_leads_back_to_its_tool_and_to_no_other(self) -> None:
        inner = generated(2, 1000)
        names = upstream_names(inner, ())
        self.assertEqual(set(inner), set(names))
        self.assertEqual(1000, len(set(names.values())))
        for name in names.values():
            self.assertRegex(name, rf"\A{LEGAL.pattern}\Z")

    def test_the_order_of_the_tools_changes_nothing(self) -> None:
        inner = [*generated(3, 300), ("a__b", "c"), ("a", "b__c")]
        taken = [upstream_name(each) for each in inner[:50]]
        names = upstream_names(inner, taken)
        random.Random(3).shuffle(inner)
        self.assertEqual(names, upstream_names(inner, taken[::-1]))

    def test_alone_or_among_others_a_tool_has_the_same_name(self) -> None:
        inner = generated(4, 300)
        names = upstream_names(inner, ("a", "b", "other"))
        wishes = [upstream_name(each) for each in inner]
        alone = [each for each in inner if wishes.count(upstream_name(each)) == 1]
        self.assertGreater(len(alone), 200)
        for each in alone:
            self.assertEqual(upstream_name(each), names[each])

    def test_two_that_want_one_name_both_get_another(self) -> None:
        names = upstream_names([("a__b", "c"), ("a", "b__c"), ("a", "x")], ())
        self.assertEqual("a__x", names["a", "x"])
        self.assertRegex(names["a__b", "c"], r"\Aa__b__c_[0-9a-f]{10}\Z")
        self.assertRegex(names["a", "b__c"], r"\Aa__b__c_[0-9a-f]{10}\Z")
        self.assertNotEqual(names["a__b", "c"], names["a", "b__c"])

    def test_a_function_keeps_its_name_however_well_it_was_chosen(self) -> None:
        inner = ("a", "b")
        taken = ["a__b"]
        for _ in range(20):
            name = upstream_names([inner], taken)[inner]
            self.assertNotIn(name, taken)
            self.assertRegex(name, r"\Aa__b_[0-9a-f]{10}\Z")
            taken.append(name)

    def test_nothing_is_nothing(self) -> None:
        self.assertEqual({}, upstream_names([], ["a"]))


class TestDescriptions(unittest.TestCase):
    def test_what_a_namespace_is_for_stands_before_what_its_function_does(self) -> None:
        for description, words, expected in (
            ("Spawns.", "Tools for agents.", "Part of agents: Tools for agents.\n\nSpawns."),
            ("Spawns.", "Tools\n  for\tagents.\n", "Part of agents: Tools for agents.\n\nSpawns."),
            (None, "Tools.", "Part of agents: Tools."),
            ("", "Tools.", "Part of agents: Tools."),
            ("Spawns.", None, "Spawns."),
            ("Spawns.", " \n", "Spawns."),
            (None, None, None),
        ):
            with self.subTest(description=description, words=words):
                self.assertEqual(expected, describe(description, "agents", words))

    def test_many_words_are_cut(self) -> None:
        found = describe("d", "n" * 500, "w" * 5000) or ""
        self.assertLess(len(found), 450)
        self.assertTrue(found.endswith("w…\n\nd"))
